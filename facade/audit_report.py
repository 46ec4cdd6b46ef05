"""The audit's report as tables on stdout."""

from __future__ import annotations

from epochfence.audit import Audit, sorted_epochs, sorted_partitions
from epochfence.terminal import print_table, printable

_NUMBERS = {
    "partition", "records", "epoch", "began at", "admitted", "rejected",
    "last rejected", "offset", "current",
}  # fmt: skip


def print_report(audit: Audit) -> None:
    """Print what an audit found."""
    print(printable(audit.sources()))
    print()
    if not audit.partitions:
        print("No records.")
        return
    _print_partitions(audit)
    _print_epochs(audit)
    _print_rejected(audit)
    print(_last_line(audit))


def _print_partitions(audit: Audit) -> None:
    outcomes = sorted(audit.counts())
    names = [
        kind if reason == "ok" else f"{kind}: {reason}" for kind, reason in outcomes
    ]
    rows = [
        [
            one.topic,
            str(one.partition),
            str(sum(one.counts.values())),
            *(str(one.counts.get(outcome, 0)) for outcome in outcomes),
        ]
        for one in sorted_partitions(audit)
    ]
    head = ["topic", "partition", "records", *names]
    print_table(head, rows, right={*_NUMBERS, *names})
    print()


def _print_epochs(audit: Audit) -> None:
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
        for partition in sorted_partitions(audit)
        for one in sorted_epochs(partition.epochs)
    ]
    if not rows:
        return
    head = [
        "topic", "partition", "scope", "epoch", "holder", "began at", "admitted",
        "rejected", "last rejected",
    ]  # fmt: skip
    print_table(head, rows, right=_NUMBERS)
    print()


def _print_rejected(audit: Audit) -> None:
    if not audit.rejected:
        return
    rows = [
        [
            one.topic,
            str(one.partition),
            str(one.offset),
            one.verdict.kind,
            one.verdict.reason,
            _text(None if one.verdict.cause is None else one.verdict.cause.scope),
            _text(None if one.verdict.cause is None else one.verdict.cause.epoch),
            _text(one.verdict.current_epoch),
            _text(one.holder),
        ]
        for one in audit.rejected
    ]
    total = audit.rejected_total()
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


def _text(value: str | int | None) -> str:
    return "-" if value is None else str(value)


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
