"""The command `epochfence`: its commands come from the modules named here."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from epochfence import (
    cli_audit,
    cli_deadletters,
    cli_demo,
    cli_gate,
    cli_leader,
    cli_ledger,
    cli_watch,
)

app = typer.Typer(
    name="epochfence",
    help="Keeps deposed leaders from corrupting what Kafka consumers build.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Boxes cut names in narrow terminals.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("demo")(cli_demo.demo)
app.command("audit")(cli_audit.audit)
app.command("watch")(cli_watch.watch)
app.command("gate")(cli_gate.gate)
app.add_typer(cli_deadletters.app, name="deadletters")
app.add_typer(cli_leader.app, name="leader")
app.add_typer(cli_ledger.app, name="ledger")


def _print_version(is_asked: bool) -> None:
    if is_asked:
        typer.echo(f"epochfence {version('epochfence')}")
        raise typer.Exit


@app.callback()
def _common(  # pyright: ignore[reportUnusedFunction]
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            "-V",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    del show_version
