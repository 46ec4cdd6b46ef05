"""Which messages of one partition the broker acknowledged, and nobody asked about yet.

An offset that is acknowledged a second time tells that the log was truncated in
between (an unclean election): what was acknowledged before at that offset or above
it is lost. An offset that merely falls back tells nothing: reports reach whoever
polls, and two threads that poll may take them in out of order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import Receipt

_NEVER = 2**63 - 1


class Asked:
    """A message whose sender wants to be told what became of it.

    Attributes:
        on_receipt: To be called with the receipt.
        is_reported: Whether its delivery report came.
        is_told: Whether it was called.
    """

    __slots__ = ("is_reported", "is_told", "on_receipt")

    def __init__(self, on_receipt: Callable[[Receipt], object]) -> None:
        self.on_receipt = on_receipt
        self.is_reported = False
        self.is_told = False


#: An acknowledgement: the offset, None where none was told; with who asked, if any did.
Acknowledgement = int | None | tuple[int | None, Asked]


class Acknowledged:
    """The acknowledged messages of one partition.

    Args:
        before: The offsets of messages that were taken out before: they may come again.

    Attributes:
        standing: Their offsets, as far as is known.
        asked: Who asked about which of these.
        asked_lost: Who asked about those that a truncation took, and where they were.
        asked_nowhere: Who asked about those without an offset.
        lost: The offsets of those that a truncation took, for each truncation.
        without_offset: How many were acknowledged without saying where they are.
        truncated_to: The lowest offset that came again; a huge one where none did.
    """

    __slots__ = (
        "_before",
        "asked",
        "asked_lost",
        "asked_nowhere",
        "lost",
        "standing",
        "truncated_to",
        "without_offset",
    )

    def __init__(self, before: OffsetRanges | None = None) -> None:
        self._before = OffsetRanges() if before is None else before
        self.standing = OffsetRanges()
        self.asked: dict[int, Asked] = {}
        self.asked_lost: list[tuple[int, Asked]] = []
        self.asked_nowhere: list[Asked] = []
        self.lost: list[OffsetRanges] = []
        self.without_offset = 0
        self.truncated_to = _NEVER

    def add(self, acknowledgements: Iterable[Acknowledgement]) -> None:
        """Take in acknowledgements in their order."""
        start = end = 0
        asked: dict[int, Asked] = {}
        for offset in acknowledgements:
            if offset == end:  # nearly always
                end += 1
                continue
            asking = None
            if isinstance(offset, tuple):
                offset, asking = offset
            if offset is None:
                self.without_offset += 1
                if asking is not None:
                    self.asked_nowhere.append(asking)
                continue
            if offset == end:
                end += 1
            else:
                self._add_run(start, end, asked)
                start, end = offset, offset + 1
            if asking is not None:
                asked[offset] = asking
        self._add_run(start, end, asked)

    def _add_run(self, start: int, end: int, asked: dict[int, Asked]) -> None:
        """Take in consecutive offsets, and who asked about them; `asked` is emptied."""
        standing = self.standing
        if start >= standing.end and start >= self._before.end:
            standing.add_range(start, end)
        else:
            for offset in range(start, end):
                if offset in standing or offset in self._before:
                    self._before = self._before.between(0, offset)
                    self.cut_from(offset)
                standing.add(offset)
        # Not before: what was asked about at these offsets earlier is lost.
        self.asked.update(asked)
        asked.clear()

    def cut_from(self, offset: int) -> None:
        """Take in that the log was truncated to an offset after all of this."""
        self.lost.append(self.standing.split_off(offset))
        self.truncated_to = min(self.truncated_to, offset)
        gone = [asked for asked in self.asked if asked >= offset]
        self.asked_lost += [(asked, self.asked.pop(asked)) for asked in gone]

    def extend(self, later: Acknowledged) -> None:
        """Take in acknowledgements that came after those here."""
        if later.is_truncated:
            self.cut_from(later.truncated_to)
        self.cut_by(later.standing)
        self.lost += later.lost
        self.standing.update(later.standing)
        self.without_offset += later.without_offset
        self.asked.update(later.asked)
        self.asked_lost += later.asked_lost
        self.asked_nowhere += later.asked_nowhere

    def came_after(self, end: int) -> None:
        """Take in that all below `end` had been acknowledged before any of this.

        So an offset that falls back does tell of a truncation.
        """
        starts = [one.start for one in (self.standing, *self.lost) if one]
        if starts and min(starts) < end:
            self.truncated_to = min(self.truncated_to, *starts)

    def cut_by(self, offsets: OffsetRanges) -> None:
        """Take in what of these is lost, by offsets that came after them."""
        for start, end in offsets.ranges():
            again = self.standing.between(start, end)
            if again:
                self.cut_from(again.start)

    def everyone(self) -> Iterator[tuple[int | None, Asked]]:
        """Whoever asked, with the offset; None where none was told."""
        yield from self.asked.items()
        yield from self.asked_lost
        for asked in self.asked_nowhere:
            yield None, asked

    @property
    def is_truncated(self) -> bool:
        """Whether an offset came again: what lies below it may be gone as well."""
        return self.truncated_to < _NEVER

    def __bool__(self) -> bool:
        return bool(self.standing or any(self.lost) or self.without_offset)
