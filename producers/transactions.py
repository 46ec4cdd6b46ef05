"""The messages of transactions, by how each of them ended, until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Literal

from epochfence.epochs.acknowledged import Acknowledged, Asked
from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import (
    Failures,
    Outcome,
    Part,
    Parts,
    Receipt,
    add_failure,
)
from epochfence.epochs.values import Place
from epochfence.producers.acknowledgements import (
    REPORT_LOST,
    Answerable,
    uninterrupted,
)
from epochfence.producers.reported import Reported

#: How a transaction ended. `undecided`: that is not known yet. `unknowable`: it never
#: will be, since what would tell is gone, or there is nothing that could.
End = Literal["committed", "aborted", "undecided", "unknowable"]

Messages = dict[Place, Acknowledged]


class _Ended:
    """The messages of transactions whose end is known."""

    def __init__(self) -> None:
        self.committed: Messages = {}
        self.answered = Parts()
        self.failures: Failures = {}
        self.untold: list[tuple[Asked, Receipt]] = []

    def add(self, end: End, taken: Answerable) -> None:
        """Take in a transaction that came after those here."""
        for failed in taken.undelivered.values():
            add_failure(self.failures, failed)
        if end == "committed":
            for place, later in taken.acknowledged.items():
                self.committed.setdefault(place, Acknowledged()).extend(later)
            self.untold += taken.untold
            return
        outcome: Outcome = "aborted" if end == "aborted" else "indeterminate"
        for place, later in taken.acknowledged.items():
            if later.is_truncated:  # of what was committed before, some may be gone
                before = self.committed.setdefault(place, Acknowledged())
                before.cut_from(later.truncated_to)
            self._answer(
                Part(*place, outcome, offsets)
                for offsets in (*later.lost, later.standing)
            )
            nowhere = Part(*place, outcome, OffsetRanges(), later.without_offset)
            self._answer([nowhere])
            self.untold += [
                (asked, Receipt(*place, offset, outcome))
                for offset, asked in later.everyone()
            ]
        for asked, receipt in taken.untold:
            if end == "aborted":
                # It was not delivered, and certainly will not be.
                receipt = receipt._replace(outcome="aborted")
            self.untold.append((asked, receipt))

    def extend(self, later: _Ended) -> None:
        """Take in transactions that came after those here."""
        self._answer(later.answered)
        of_later = Answerable(later.committed, later.failures, later.untold)
        self.add("committed", of_later)

    def _answer(self, parts: Iterable[Part]) -> None:
        for part in parts:
            place = part.topic, part.partition
            if place in self.committed:
                self.committed[place].cut_by(part.offsets)
            self.answered.add([part])

    def answerable(self) -> Answerable:
        """The same, as `confirm` takes it."""
        return Answerable(self.committed, self.failures, self.untold, self.answered)


class Transactions:
    """What was reported in each transaction, for `confirm` and for a failed commit.

    A transaction is taken for aborted until `end` says something else: only a commit
    could make it so. Where an exception comes in the way, it is never in between.

    Attributes:
        has_gaps: Whether messages have failed, with the present client. Its next
            transaction would, too: it has counted them, and the broker has not.

    Args:
        reported: Gives what was reported of the last one.
        is_open: Tells whether a transaction is open now.
        turn: Is held by whoever begins or ends one.
        decide: Called with the messages of an undecided one, and a deadline: gives how
            it ended, or raises what keeps it from telling.
    """

    def __init__(
        self,
        reported: Reported,
        is_open: Callable[[], bool],
        turn: threading.RLock,
        decide: Callable[[Mapping[Place, Acknowledged], float], End],
    ) -> None:
        self._reported = reported
        self._is_open = is_open
        self._turn = turn
        self._decide = decide
        # Messages of an open transaction are handed over, and not answered for.
        self.settled: int | None = None
        self.has_gaps = False
        self._end: End = "aborted"
        # From the first undecided one on, all of them: what comes again tells of a
        # truncation only in their order.
        self._undecided: list[tuple[End, Answerable]] = []
        # Behind the last message of the last transaction of each partition.
        self._ends_at: dict[Place, int] = {}
        self._ended = _Ended()
        self._taken: _Ended | None = None

    def end(self, end: End) -> None:
        """Say how the last transaction ended, as far as is known."""
        self._end = end

    def collect(self, deadline: float) -> tuple[End, Failures]:
        """Put away what was reported of the last transaction, which is not open.

        Returns:
            How it ended, as far as is known, and which of its messages failed.

        Raises:
            TopicUnavailable: Not all of it is reported on.
        """
        found: list[tuple[End, Failures]] = []
        self._reported.begin()
        self._reported.await_all(deadline)
        uninterrupted(lambda: found.append(self._put_away()), is_awaited=True)
        return found[0]

    def _put_away(self) -> tuple[End, Failures]:
        taken = self._reported.take_in()
        failures = taken.undelivered
        self.has_gaps = self.has_gaps or bool(failures)
        end = self._end
        if end == "undecided":
            if any(failed.error != REPORT_LOST for failed in failures.values()):
                # The client commits nothing of which a message has failed.
                end = "aborted"
            elif not taken.acknowledged:
                end = "unknowable"
        for place, messages in taken.acknowledged.items():
            messages.came_after(self._ends_at.get(place, 0))
            if messages.standing:
                self._ends_at[place] = messages.standing.end
        if end == "undecided" or self._undecided:
            self._undecided.append((end, taken))
        else:
            self._ended.add(end, taken)
        self._reported.answered()
        self._end = "aborted"
        return end, failures

    def settle(self, deadline: float) -> End:
        """Find out how the undecided ones ended; give how the last of them did.

        Raises:
            EpochfenceError: What keeps it from telling.
        """
        end: End = "aborted"
        while self._undecided:
            end, taken = self._undecided[0]
            if end == "undecided":
                end = self._decide(taken.acknowledged, deadline)
            uninterrupted(partial(self._settled, end, taken), is_awaited=True)
        return end

    def _settled(self, end: End, taken: Answerable) -> None:
        self._ended.add(end, taken)
        del self._undecided[0]

    # As `confirm` takes it.

    def begin(self) -> None:
        """Nothing: what has ended by the time of `take` is due, and is waited for."""

    def await_delivery(self, deadline: float) -> None:
        """Wait until what was handed over so far is reported on."""
        self._reported.begin()
        self._reported.await_delivery(deadline)

    def take(self, deadline: float) -> Answerable:
        """Give the messages of all transactions that have ended.

        Raises:
            EpochfenceError: What keeps it from telling how one ended.
        """
        with self._in_turn(deadline):
            if not self._is_open():
                self.collect(deadline)
            self.settle(deadline)
            uninterrupted(self._take, is_awaited=True)
        assert self._taken is not None
        return self._taken.answerable()

    @contextmanager
    def _in_turn(self, deadline: float) -> Generator[None]:
        if not self._turn.acquire(timeout=time_left(deadline)):
            raise TopicUnavailable(
                self._reported.topics(), "another thread is still ending a transaction"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _take(self) -> None:
        later, self._ended = self._ended, _Ended()
        if self._taken is None:
            self._taken = later
        else:
            self._taken.extend(later)

    def answered(self) -> None:
        """Forget what `take` gave last: else it is given again."""
        self._taken = None
