"""The audit's report as tables for the terminal."""

from __future__ import annotations

from rich.console import Console

from epochfence.audit import Audit, sorted_epochs, sorted_partitions
from epochfence.terminal import plain_table, printable


def print_report(console: Console, audit: Audit, ledger_note: str) -> None:
    """Print what an audit found.

    Args:
        console: Where to.
        audit: What was found.
        ledger_note: Where the ledger came from and how far it was read.
    """
    console.print(printable(ledger_note), soft_wrap=True)
    console.print()
    _print_partitions(console, audit)
    _print_epochs(console, audit)
    _print_rejected(console, audit)
    console.print(_last_line(audit), soft_wrap=True)


def _print_partitions(console: Console, audit: Audit) -> None:
    outcomes = sorted(audit.counts())
    names = [
        kind if reason == "ok" else f"{kind}: {reason}" for kind, reason in outcomes
    ]
    table = plain_table("topic", "partition", "records", *names, right=tuple(names))
    for partition in sorted_partitions(audit):
        table.add_row(
            printable(partition.topic),
            str(partition.partition),
            str(sum(partition.counts.values())),
            *(str(partition.counts.get(outcome, 0)) for outcome in outcomes),
        )
    console.print(table)
    console.print()


def _print_epochs(console: Console, audit: Audit) -> None:
    numbers = ("epoch", "began at", "admitted", "rejected", "last rejected")
    table = plain_table(
        "topic", "partition", "scope", "epoch", "holder", *numbers[1:], right=numbers
    )
    for partition in sorted_partitions(audit):
        for one in sorted_epochs(partition.epochs):
            table.add_row(
                printable(partition.topic),
                str(partition.partition),
                printable(one.scope),
                str(one.epoch),
                printable(one.holder, "-"),
                _number(one.start_offset),
                str(one.admitted),
                str(one.rejected),
                _number(one.last_rejected_offset),
            )
    if table.row_count:
        console.print(table)
        console.print()


def _print_rejected(console: Console, audit: Audit) -> None:
    if not audit.rejected:
        return
    numbers = ("offset", "epoch", "current")
    table = plain_table(
        "topic", "partition", "offset", "verdict", "reason", "scope", "epoch",
        "current", "holder", right=numbers,
    )  # fmt: skip
    for one in audit.rejected:
        verdict = one.verdict
        cause = verdict.cause
        table.add_row(
            printable(one.topic),
            str(one.partition),
            str(one.offset),
            verdict.kind,
            verdict.reason,
            printable(None if cause is None else cause.scope, "-"),
            _number(None if cause is None else cause.epoch),
            _number(verdict.current_epoch),
            printable(one.holder, "-"),
        )
    total = _rejected(audit)
    head = "Rejected records:"
    if total > len(audit.rejected):
        head = (
            f"The first {len(audit.rejected)} of {total:,} rejected records "
            f"(--verdicts FILE writes all):"
        )
    console.print(head)
    console.print(table)
    console.print()


def _number(number: int | None) -> str:
    return "-" if number is None else str(number)


def _rejected(audit: Audit) -> int:
    return sum(
        count
        for (kind, _), count in audit.counts().items()
        if kind in ("stale", "quarantined")
    )


def _last_line(audit: Audit) -> str:
    counts = audit.counts()
    kinds = dict.fromkeys(("admitted", "barrier", "stale", "quarantined"), 0)
    for (kind, _), count in counts.items():
        kinds[kind] += count
    total = sum(counts.values())
    return (
        f"{total:,} {'record' if total == 1 else 'records'}: "
        f"{kinds['admitted']:,} admitted, "
        f"{kinds['barrier']:,} {'barrier' if kinds['barrier'] == 1 else 'barriers'}, "
        f"{kinds['stale']:,} stale, {kinds['quarantined']:,} quarantined."
    )
