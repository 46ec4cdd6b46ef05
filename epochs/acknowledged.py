"""Which messages of one partition the broker acknowledged, and nobody asked about yet.

An offset that is acknowledged a second time tells that the log was truncated in
between (an unclean election): what was acknowledged before at that offset or above
it is lost. An offset that merely falls back tells nothing: reports reach whoever
polls, and two threads that poll may take them in out of order.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochfence.epochs.offset_ranges import OffsetRanges

_NEVER = 2**63 - 1


class Acknowledged:
    """The acknowledged messages of one partition.

    Args:
        before: The offsets of messages that were taken out before: they may come again.

    Attributes:
        standing: Their offsets, as far as is known.
        lost: The offsets of those that a truncation took, for each truncation.
        without_offset: How many were acknowledged without saying where they are.
        truncated_to: The lowest offset that came again; a huge one where none did.
    """

    __slots__ = ("_before", "lost", "standing", "truncated_to", "without_offset")

    def __init__(self, before: OffsetRanges | None = None) -> None:
        self._before = OffsetRanges() if before is None else before
        self.standing = OffsetRanges()
        self.lost: list[OffsetRanges] = []
        self.without_offset = 0
        self.truncated_to = _NEVER

    def add(self, offsets: Iterable[int | None]) -> None:
        """Take in acknowledgements in their order; None where no offset was told."""
        start = end = 0
        for offset in offsets:
            if offset == end:  # nearly always
                end += 1
                continue
            self._add_run(start, end)
            if offset is None:
                self.without_offset += 1
                start = end
            else:
                start, end = offset, offset + 1
        self._add_run(start, end)

    def _add_run(self, start: int, end: int) -> None:
        standing = self.standing
        if start >= standing.end and start >= self._before.end:
            standing.add_range(start, end)
            return
        for offset in range(start, end):
            if offset in standing or offset in self._before:
                self.lost.append(standing.split_off(offset))
                self._before = self._before.between(0, offset)
                self.truncated_to = min(self.truncated_to, offset)
            standing.add(offset)

    def extend(self, later: Acknowledged) -> None:
        """Take in acknowledgements that came after those here."""
        self.cut_by(later)
        self.lost += later.lost
        self.standing.update(later.standing)
        self.without_offset += later.without_offset

    def cut_by(self, later: Acknowledged) -> None:
        """Take in what of these is lost, by acknowledgements that came after them."""
        self._truncate(later.truncated_to)
        for start, end in later.standing.ranges():
            again = self.standing.between(start, end)
            if again:
                self._truncate(again.start)

    def _truncate(self, offset: int) -> None:
        self.lost.append(self.standing.split_off(offset))
        self.truncated_to = min(self.truncated_to, offset)

    @property
    def is_truncated(self) -> bool:
        """Whether an offset came again: what lies below it may be gone as well."""
        return self.truncated_to < _NEVER

    def __bool__(self) -> bool:
        return bool(self.standing or any(self.lost) or self.without_offset)
