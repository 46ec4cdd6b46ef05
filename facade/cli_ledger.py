"""`epochfence ledger`: look at leaderships, claim one by hand, save them."""

from __future__ import annotations

import json
import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from epochfence.cli_options import (
    BootstrapServer,
    CommandConfig,
    CoordinationTopic,
    Properties,
    TableTopic,
    Timeout,
    kafka_config,
    whoami,
)
from epochfence.epochs.claims import claim_to_json
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.epochs.values import Claim
from epochfence.replay.audit import LedgerSource
from epochfence.replay.told_topics import read_told_ledger
from epochfence.terminal import (
    EXIT_FAILED,
    as_utc,
    print_note,
    print_table,
    reported_errors,
    told_if_slow,
    written_whole,
)

app = typer.Typer(
    help="Look at leaderships, claim one by hand, save them.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class ShowFormat(str, Enum):
    """How `ledger show` prints."""

    table = "table"
    json = "json"


@app.command()
def show(
    scopes: Annotated[
        list[str] | None,
        typer.Argument(metavar="SCOPE...", help="Only these scopes."),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    format: Annotated[ShowFormat, typer.Option(help="How to print.")] = (
        ShowFormat.table
    ),
    timeout_s: Timeout = 10.0,
) -> None:
    """Show who leads what: the latest grant of each scope. Writes nothing.

    Exit codes: 0 shown, 1 a scope that was named has no leader, 2 bad usage or a
    cluster that does not answer.
    """
    with reported_errors():
        config = kafka_config(bootstrap_server, properties, command_config)
        with told_if_slow(config, timeout_s):
            told = read_told_ledger(config, coordination_topic, timeout_s)
        state = told.state
        wanted = scopes or state.scopes()
        latest = [grant for scope in wanted if (grant := state.latest(scope))]
        unknown = [scope for scope in wanted if state.latest(scope) is None]
        if format is ShowFormat.json:
            for grant in latest:
                print(json.dumps(claim_to_json(grant)))
        elif latest or not unknown:
            _print_grants(told, latest)
        for scope in unknown:
            print_note(f"no epoch of scope {scope} is granted yet")
        if unknown:
            raise typer.Exit(EXIT_FAILED)


def _print_grants(told: LedgerSource, grants: list[Claim]) -> None:
    print(told)
    if not grants:
        print("No epoch of any scope is granted yet.")
        return
    print()
    head = ("scope", "epoch", "holder", "claimed at (UTC)", "grant id", "attributes")
    rows = [
        (
            grant.scope,
            str(grant.epoch),
            grant.holder,
            as_utc(grant.claimed_at),
            grant.grant_id,
            ", ".join(f"{name}={text}" for name, text in grant.attributes.items()),
        )
        for grant in grants
    ]
    print_table(head, rows, right={"epoch"})


@app.command()
def claim(
    scope: Annotated[str, typer.Argument(help="What to lead.")],
    bootstrap_server: BootstrapServer = None,
    holder: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Names the claimant. Default: user@host."),
    ] = None,
    seen: Annotated[
        int | None,
        typer.Option(
            metavar="EPOCH",
            help="The latest epoch seen before the election: claim the next one.",
        ),
    ] = None,
    at_least: Annotated[
        int | None,
        typer.Option(metavar="EPOCH", help="Jump to this epoch if it is above."),
    ] = None,
    exactly: Annotated[
        int | None, typer.Option(metavar="EPOCH", help="Claim this very epoch.")
    ] = None,
    allow_jump: Annotated[
        bool,
        typer.Option("--allow-jump", help="Allow a jump over more than 2^32 epochs."),
    ] = False,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="Said of the leader to whoever asks. May be repeated.",
        ),
    ] = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    table_topic: TableTopic = TABLE_TOPIC,
    create: Annotated[
        bool, typer.Option(help="Create the topics where they are missing.")
    ] = True,
    timeout_s: Timeout = 10.0,
) -> None:
    """Claim an epoch of a scope: this deposes whoever leads it now.

    Prints the grant as a line of a ledger file. Exit codes: 0 granted, 1 lost or
    unknown, 2 bad usage or a cluster that does not answer.
    """
    unknown = (
        f"The claim may have been made: see `epochfence ledger show {scope}`; whoever "
        f"led may be deposed."
    )
    with reported_errors(if_interrupted=unknown):
        config = kafka_config(bootstrap_server, properties, command_config)
        said = dict(_attribute(text) for text in attributes or ())
        with (
            told_if_slow(config, timeout_s),
            Ledger(
                config,
                coordination_topic=coordination_topic,
                table_topic=table_topic,
                create=create,
                timeout_s=timeout_s,
            ) as ledger,
        ):
            leadership = ledger.claim(
                scope,
                holder=holder or whoami(),
                seen=seen,
                at_least=at_least,
                exactly=exactly,
                allow_jump=allow_jump,
                attributes=said,
            )
            line = json.dumps(claim_to_json(leadership.claim))
            try:
                print(line, flush=True)
            except OSError:
                print_note(f"granted, but it cannot be printed: {line}")
                raise


def _attribute(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise MisconfiguredError(
            "--attribute", text, "not of the form NAME=VALUE",
            "Use, for instance, --attribute url=http://pod-7:8080.",
        )  # fmt: skip
    return name, value


@app.command()
def export(
    bootstrap_server: BootstrapServer = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Default, and -: the standard output.",
        ),
    ] = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    timeout_s: Timeout = 10.0,
) -> None:
    """Write every claim, in log order, as a ledger file. Writes nothing to Kafka."""
    with reported_errors():
        config = kafka_config(bootstrap_server, properties, command_config)
        with told_if_slow(config, timeout_s):
            told = read_told_ledger(config, coordination_topic, timeout_s)
        text = "".join(
            json.dumps(claim_to_json(claim)) + "\n" for claim, _ in told.state.claims()
        )
        if output is None or str(output) == "-":
            sys.stdout.write(text)
        else:
            with written_whole(output, "--output") as file:
                file.write(text.encode("ascii"))
