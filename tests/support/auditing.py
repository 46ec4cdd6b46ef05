"""Runs the command `epochfence audit` over records, as its user would."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from epochfence.cli import app

Line = dict[str, Any]


def write_lines(path: Path, lines: Iterable[Line]) -> Path:
    """Write JSON lines."""
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def run(*arguments: object) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def settings_options(settings: Line) -> list[str]:
    """The options that stand for a case's settings."""
    options: list[str] = []
    for name in ("stamp", "authority", "unstamped", "max_jump"):
        if settings.get(name) is not None:
            options += [f"--{name.replace('_', '-')}", str(settings[name])]
    for scope in settings.get("scopes") or ():
        options += ["--scope", scope]
    return options


def audit_verdicts(
    folder: Path,
    records: list[Line],
    ledger: list[Line] | None,
    table: list[Line] | None,
    settings: Line,
) -> list[Line]:
    """The verdict lines of an audit, without what a case need not say."""
    arguments: list[object] = [
        "audit",
        write_lines(folder / "records.jsonl", records),
        "--verdicts",
        folder / "verdicts.jsonl",
        *settings_options(settings),
    ]
    if ledger is not None:
        arguments += ["--ledger", write_lines(folder / "ledger.jsonl", ledger)]
    if table:
        arguments += ["--table", write_lines(folder / "table.jsonl", table)]
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    wanted = ("topic", "partition", "offset", "verdict", "reason")
    return [{name: json.loads(line)[name] for name in wanted} for line in lines]
