"""A set of offsets, kept as ranges: what is consecutive takes no more room."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator


class OffsetRanges:
    """A set of offsets of one partition.

    Two machine words for each run of consecutive offsets, however long it is.

    Args:
        offsets: What it holds at first, in any order.
    """

    __slots__ = ("_ends", "_starts")

    def __init__(self, offsets: Iterable[int] = ()) -> None:
        # Range i holds the offsets from _starts[i] up to, and without, _ends[i];
        # ranges are in order and never touch.
        self._starts = array("q")
        self._ends = array("q")
        for offset in offsets:
            self.add(offset)

    def add(self, offset: int) -> bool:
        """Take in an offset; give whether it was not there yet."""
        ends = self._ends
        if ends and offset == ends[-1]:
            ends[-1] = offset + 1
            return True
        if offset in self:
            return False
        self.add_range(offset, offset + 1)
        return True

    def add_range(self, start: int, end: int) -> None:
        """Take in the offsets from `start` up to, and without, `end`."""
        if start >= end:
            return
        # All ranges that overlap or touch the new one become one with it.
        first = bisect_left(self._ends, start)
        behind = bisect_right(self._starts, end)
        if first < behind:
            start = min(start, self._starts[first])
            end = max(end, self._ends[behind - 1])
        self._starts[first:behind] = array("q", [start])
        self._ends[first:behind] = array("q", [end])

    def update(self, other: OffsetRanges) -> None:
        """Take in every offset of another set."""
        for start, end in other.ranges():
            self.add_range(start, end)

    def split_off(self, offset: int) -> OffsetRanges:
        """Remove the offsets that are not below `offset`, and give them."""
        removed = self.between(offset, self.end)
        self._cut(offset)
        return removed

    def _cut(self, offset: int) -> None:
        behind = bisect_left(self._starts, offset)
        del self._starts[behind:]
        del self._ends[behind:]
        if self._ends and self._ends[-1] > offset:
            self._ends[-1] = offset

    def between(self, start: int, end: int) -> OffsetRanges:
        """Those offsets that are not below `start` and are below `end`."""
        found = OffsetRanges()
        for index in range(bisect_right(self._ends, start), len(self._starts)):
            if self._starts[index] >= end:
                break
            found.add_range(
                max(start, self._starts[index]), min(end, self._ends[index])
            )
        return found

    def without(self, other: OffsetRanges) -> OffsetRanges:
        """Those offsets that another set does not hold."""
        found = OffsetRanges()
        for start, end in self.ranges():
            for taken_start, taken_end in other.between(start, end).ranges():
                found.add_range(start, taken_start)
                start = taken_end
            found.add_range(start, end)
        return found

    @property
    def start(self) -> int:
        """The lowest offset; 0 where there is none."""
        return self._starts[0] if self._starts else 0

    @property
    def end(self) -> int:
        """The offset behind the highest; 0 where there is none."""
        return self._ends[-1] if self._ends else 0

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Each run of consecutive offsets: its first, and the one behind its last."""
        return zip(self._starts, self._ends, strict=True)

    def __iter__(self) -> Iterator[int]:
        for start, end in self.ranges():
            yield from range(start, end)

    def __len__(self) -> int:
        return sum(self._ends) - sum(self._starts)

    def __bool__(self) -> bool:
        return len(self._starts) > 0

    def __contains__(self, offset: object) -> bool:
        if not isinstance(offset, int):
            return False
        index = bisect_right(self._starts, offset) - 1
        return index >= 0 and offset < self._ends[index]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OffsetRanges):
            return NotImplemented
        return self._starts == other._starts and self._ends == other._ends

    __hash__ = None  # type: ignore[assignment] # it changes

    def __repr__(self) -> str:
        shown = ", ".join(f"{start}-{end - 1}" for start, end in self.ranges())
        return f"OffsetRanges({shown})"
