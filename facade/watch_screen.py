"""The live picture of topics, on the whole terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from epochfence.replay.watch_picture import PartitionPicture, Picture
from epochfence.terminal import as_utc, printable
from epochfence.watch_tables import (
    LAST,
    NUMBERS,
    REJECTED,
    SCOPES,
    Row,
    judged_by,
    last_row,
    partition_row,
    rejected_row,
    scope_row,
)

#: What the screen leaves out of a partition's line, and what it has besides.
_PARTITIONS = [
    "topic", "partition", "last offset", "current epochs", "records/s", "records",
    "rejected",
]  # fmt: skip

#: Lines of each part but the partitions, which get what is left of the screen.
_MOST_SCOPES = 8
_MOST_ATTENTION = 3
_MOST_REJECTED = 6
_MOST_LAST = 5
_FEWEST_PARTITIONS = 3


class WatchScreen:
    """A picture, as large as the terminal.

    Args:
        picture: The picture.
        warnings: What was logged of late.
        is_over: Whether the watch has ended, and the picture stays.
    """

    def __init__(
        self, picture: Picture, warnings: Iterable[str] = (), *, is_over: bool = False
    ) -> None:
        self._picture = picture
        self._notes = [*picture.notes, *warnings]
        self._is_over = is_over

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        height = options.max_height if not self._is_over else 10_000
        yield Group(*self._parts(height))

    def _parts(self, height: int) -> list[RenderableType]:
        picture = self._picture
        above: list[RenderableType] = [self._title()]
        if picture.problem is not None:
            above.append(_line(picture.problem, "bold red"))
        above += [
            _line(f"! {text}", "bold red")
            for text in picture.attention[:_MOST_ATTENTION]
        ]
        scopes = [scope_row(one) for one in picture.scopes]
        above += _section("Who leads", SCOPES, scopes, _MOST_SCOPES)
        if not scopes:
            above.append(_line("  no epoch is known here yet", "dim"))
        rejected = [rejected_row(one) for one in picture.rejected]
        last = [last_row(one) for one in reversed(picture.last_rejected[-_MOST_LAST:])]
        below = _section("Rejected", REJECTED, rejected, _MOST_REJECTED)
        below += _section("Last rejected", LAST, last, _MOST_LAST)
        below += [Text(), *(_line(note, "yellow") for note in self._notes)]
        below += [_line(text, "dim") for text in judged_by(picture)]
        if not self._is_over:
            below.append(_line("Ctrl-C ends it", "dim"))
        taken = sum(map(_height, [*above, *below])) + 4
        room = max(_FEWEST_PARTITIONS, height - taken)
        return [*above, *self._partitions(room), *below]

    def _title(self) -> Text:
        picture = self._picture
        return Text.assemble(
            ("epochfence watch", "bold"),
            f"  {', '.join(picture.topics)}  {as_utc(picture.at)} UTC  ",
            picture.summary(),
            no_wrap=True,
            overflow="ellipsis",
        )

    def _partitions(self, room: int) -> list[RenderableType]:
        there = self._picture.partitions
        if len(there) > room:
            # What is rejected is what is looked for.
            busiest = sorted(there, key=lambda one: -one.rejected)[:room]
            there = [one for one in there if one in busiest]
        rows = [_partition_row(one) for one in there]
        left_out = len(self._picture.partitions) - len(there)
        return _section("Partitions", _PARTITIONS, rows, room, left_out=left_out)


def _partition_row(one: PartitionPicture) -> Row:
    topic, number, _, last, epochs, records, rejected = partition_row(one)
    rate = "catching up" if one.is_catching_up else f"{one.records_per_s:,.1f}"
    return [topic, number, last, epochs, rate, records, rejected]


def _section(
    title: str,
    head: Sequence[str],
    rows: Sequence[Row],
    most: int,
    left_out: int = 0,
) -> list[RenderableType]:
    if not rows:
        return []
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in head:
        table.add_column(
            name,
            justify="right" if name in NUMBERS else "left",
            no_wrap=True,
            header_style="dim",
        )
    for row in rows[:most]:
        table.add_row(*(Text(printable(cell)) for cell in row))
    parts: list[RenderableType] = [Text(), _line(title, "bold"), table]
    left_out += max(0, len(rows) - most)
    if left_out:
        parts.append(_line(f"… and {left_out:,} more", "dim"))
    return parts


def _line(text: str, style: str) -> Text:
    return Text(printable(text), style=style, no_wrap=True, overflow="ellipsis")


def _height(part: RenderableType) -> int:
    return part.row_count + 1 if isinstance(part, Table) else 1
