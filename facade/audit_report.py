"""The report as tables on stdout."""

from __future__ import annotations

from epochfence.replay.report import (
    Finding,
    PartitionReport,
    RejectedReport,
    Report,
    WhatIfReport,
)
from epochfence.terminal import print_table, printable

_NUMBERS = {
    "partition", "records", "epoch", "began at", "admitted", "rejected",
    "last rejected", "offset", "current",
}  # fmt: skip


def print_report(report: Report) -> None:
    """Print what an audit found."""
    for line in report.judged_by():
        print(printable(line))
    print()
    if not report.partitions:
        print("No records.")
    else:
        _print_partitions(report)
        _print_epochs(report.partitions)
        _print_rejected(report.rejected_shown, report.rejected_total)
    _print_findings(report.findings)
    _print_what_if(report.what_if)
    print(report.summary())


def _print_partitions(report: Report) -> None:
    names = [one.name for one in report.verdicts]
    rows: list[list[str]] = []
    for one in report.partitions:
        there = {count.name: count.records for count in one.verdicts}
        counts = [str(there.get(name, 0)) for name in names]
        rows.append([one.topic, str(one.partition), str(one.records), *counts])
    head = ["topic", "partition", "records", *names]
    print_table(head, rows, right={*_NUMBERS, *names})
    print()


def _print_epochs(partitions: list[PartitionReport]) -> None:
    rows = [
        [
            partition.topic,
            str(partition.partition),
            one.scope,
            str(one.epoch),
            _text(one.holder),
            _text(one.start_offset),
            str(one.admitted),
            str(one.rejected),
            _text(one.last_rejected_offset),
        ]
        for partition in partitions
        for one in partition.epochs
    ]
    if not rows:
        return
    head = [
        "topic", "partition", "scope", "epoch", "holder", "began at", "admitted",
        "rejected", "last rejected",
    ]  # fmt: skip
    print_table(head, rows, right=_NUMBERS)
    print()


def _print_rejected(shown: list[RejectedReport], total: int) -> None:
    if not shown:
        return
    rows = [
        [
            one.topic,
            str(one.partition),
            str(one.offset),
            one.verdict,
            one.reason,
            _text(one.scope),
            _text(one.epoch),
            _text(one.current_epoch),
            _text(one.holder),
        ]
        for one in shown
    ]
    if total > len(rows):
        print(
            f"The first {len(rows)} of {total:,} rejected records "
            f"(--verdicts FILE writes all):"
        )
    else:
        print("Rejected records:")
    head = [
        "topic", "partition", "offset", "verdict", "reason", "scope", "epoch",
        "current", "holder",
    ]  # fmt: skip
    print_table(head, rows, right=_NUMBERS)
    print()


def _print_findings(findings: list[Finding]) -> None:
    if not findings:
        return
    print("Findings:")
    for one in findings:
        print(printable(f"- {one.severity}: {one.text}"))
        if one.remedy:
            print(printable(f"  {one.remedy}"))
    print()


def _print_what_if(others: list[WhatIfReport]) -> None:
    for one in others:
        print(printable(f"With {one.settings}:"))
        for change in one.changes:
            print(printable(f"- {change}"))
        if not one.changes:
            print("- the same verdicts")
        print()


def _text(value: str | int | None) -> str:
    return "-" if value is None else str(value)
