"""The messages of transactions, by how each of them ended, until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial
from typing import Literal

from confluent_kafka import KafkaException

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import Outcome, Part
from epochfence.epochs.values import Place
from epochfence.producers.acknowledgements import (
    REPORT_LOST,
    Answerable,
    Failures,
    add_failure,
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
        self.answered: dict[tuple[Place, Outcome], tuple[OffsetRanges, int]] = {}
        self.failures: Failures = {}

    def add(self, end: End, messages: Messages, failures: Failures) -> None:
        """Take in a transaction that came after those here."""
        for place, later in messages.items():
            if end == "committed":
                self.committed.setdefault(place, Acknowledged()).extend(later)
                continue
            if place in self.committed:
                self.committed[place].cut_by(later)
            offsets = OffsetRanges()
            for some in (later.standing, *later.lost):
                offsets.update(some)
            outcome: Outcome = "aborted" if end == "aborted" else "indeterminate"
            self._answer((place, outcome), offsets, later.without_offset)
        for failed in failures.values():
            add_failure(self.failures, failed)

    def extend(self, later: _Ended) -> None:
        """Take in transactions that came after those here."""
        self.add("committed", later.committed, later.failures)
        for kind, answer in later.answered.items():
            self._answer(kind, *answer)

    def _answer(
        self, kind: tuple[Place, Outcome], offsets: OffsetRanges, without_offset: int
    ) -> None:
        known, more = self.answered.get(kind, (OffsetRanges(), 0))
        known.update(offsets)
        self.answered[kind] = known, more + without_offset

    def answerable(self) -> Answerable:
        """The same, as `confirm` takes it."""
        parts = [
            Part(*place, outcome, *answer)
            for (place, outcome), answer in self.answered.items()
        ]
        return Answerable(self.committed, self.failures, parts)


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
        self.has_gaps = False
        self._end: End = "aborted"
        self._undecided: list[Messages] = []
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
        while True:
            try:
                self._reported.await_all(deadline)
                break
            except KafkaException as error:
                # A client that has failed for good says so once, whatever is called.
                if not error.args[0].fatal():
                    raise
        uninterrupted(lambda: found.append(self._put_away()), is_awaited=True)
        return found[0]

    def _put_away(self) -> tuple[End, Failures]:
        messages, failures, _ = self._reported.take_in()
        self.has_gaps = self.has_gaps or bool(failures)
        end = self._end
        if end == "undecided":
            if any(failed.error != REPORT_LOST for failed in failures.values()):
                # The client commits nothing of which a message has failed.
                end = "aborted"
            elif not messages:
                end = "unknowable"
        if end == "undecided":
            self._undecided.append(messages)
            self._ended.add("committed", {}, failures)
        else:
            self._ended.add(end, messages, failures)
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
            messages = self._undecided[0]
            end = self._decide(messages, deadline)
            uninterrupted(partial(self._settled, end, messages), is_awaited=True)
        return end

    def _settled(self, end: End, messages: Messages) -> None:
        self._ended.add(end, messages, {})
        del self._undecided[0]

    # As `confirm` takes it.

    def take(self, deadline: float) -> Answerable:
        """Give the messages of all transactions that have ended.

        Raises:
            EpochfenceError: What keeps it from telling how one ended.
        """
        with self._turn:
            if not self._is_open():
                self.collect(deadline)
            self.settle(deadline)
            uninterrupted(self._take, is_awaited=True)
        assert self._taken is not None
        return self._taken.answerable()

    def _take(self) -> None:
        later, self._ended = self._ended, _Ended()
        if self._taken is None:
            self._taken = later
        else:
            self._taken.extend(later)

    def answered(self) -> None:
        """Forget what `take` gave last: else it is given again."""
        self._taken = None
