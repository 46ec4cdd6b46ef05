"""One look at topics, as tables on stdout: good for eyes and for `awk` alike."""

from __future__ import annotations

from collections.abc import Sequence

from epochfence.replay.report import RejectedReport
from epochfence.replay.watch_picture import (
    PartitionPicture,
    Picture,
    RejectedPicture,
    ScopePicture,
)
from epochfence.terminal import as_utc, print_note, print_table, printable

Row = list[str]

SCOPES = ["topic", "scope", "epoch", "holder", "since", "begun on", "barriers seen"]
PARTITIONS = [
    "topic", "partition", "read from", "last offset", "current epochs", "records",
    "rejected",
]  # fmt: skip
REJECTED = [
    "reason", "written by", "scope", "epoch", "records", "last minute", "trend",
    "last at",
]  # fmt: skip
LAST = ["where", "reason", "written by", "scope", "epoch", "current"]
NUMBERS = {
    "epoch", "partition", "read from", "last offset", "records", "rejected",
    "records/s", "last minute", "current", "barriers seen",
}  # fmt: skip


def print_picture(picture: Picture) -> None:
    """Print a picture, and on stderr what else to know."""
    for line in judged_by(picture):
        print(printable(line))
    _print(SCOPES, [scope_row(one) for one in picture.scopes])
    _print(PARTITIONS, [partition_row(one) for one in picture.partitions])
    _print(REJECTED, [rejected_row(one) for one in picture.rejected])
    if picture.last_rejected:
        print("\nThe last rejected records:")
        print_table(LAST, [last_row(one) for one in picture.last_rejected], NUMBERS)
    print(f"\n{picture.summary()}")
    for note in picture.notes:
        print_note(f"note: {note}")


def judged_by(picture: Picture) -> list[str]:
    """What the verdicts rest on."""
    ledger = [] if picture.ledger is None else [picture.ledger.text]
    return [*ledger, f"Judged by: {picture.settings}."]


def _print(head: Sequence[str], rows: list[Row]) -> None:
    if rows:
        print()
        print_table(head, rows, NUMBERS)


def scope_row(one: ScopePicture) -> Row:
    """A scope's cells."""
    return [
        one.topic,
        one.scope,
        _text(one.epoch),
        _text(one.holder),
        "-" if one.since is None else as_utc(one.since),
        f"{one.begun_on} of {one.partitions}",
        str(one.barriers),
    ]


def partition_row(one: PartitionPicture) -> Row:
    """A partition's cells."""
    epochs = ", ".join(f"{each.scope}: {each.epoch}" for each in one.epochs)
    return [
        one.topic,
        str(one.partition),
        str(one.read_from),
        _text(one.last_offset),
        epochs or "-",
        str(one.records),
        str(one.rejected),
    ]


def rejected_row(one: RejectedPicture) -> Row:
    """The cells of what was rejected for one cause."""
    return [
        one.reason,
        _text(one.holder),
        _text(one.scope),
        _text(one.epoch),
        str(one.records),
        str(one.last_minute),
        one.trend if one.last_minute else "-",
        f"{one.topic}[{one.partition}] {one.offset}",
    ]


def last_row(one: RejectedReport) -> Row:
    """A rejected record's cells."""
    return [
        f"{one.topic}[{one.partition}] {one.offset}",
        one.reason,
        _text(one.holder),
        _text(one.scope),
        _text(one.epoch),
        _text(one.current_epoch),
    ]


def _text(value: str | int | None) -> str:
    return "-" if value is None else str(value)
