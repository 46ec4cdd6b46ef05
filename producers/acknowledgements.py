"""What the delivery reports said, until somebody asks.

Reports come in whichever thread polls, even in a signal handler that interrupts
another report: what they touch without a lock are single operations that cannot be
interrupted, on queues that are short.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.receipts import Part, Undelivered
from epochfence.epochs.values import Place

Report = Callable[[KafkaError | None, Message], None]
REPORT_REMEDY = "Give a function of an error (or None) and a message."

#: Failures by topic, partition and the error's name.
Failures = dict[tuple[str, int, str], Undelivered]

#: So many reports wait before they are folded, which may take a thread.
_QUEUED = 4096

#: Its last element is looked up where an exception may be pending: -1 is what the
#: conversion of an index returns on failure, so that the interpreter looks whether
#: there was one. Costs some 20 ns.
_ANYTHING = [None]

#: The name of the failure that is none of the client's.
REPORT_LOST = "REPORT_LOST"
_LOST = (
    "an exception, perhaps a signal handler's, came in the way of the client's report: "
    "the message may have been delivered or not"
)


class Answerable(NamedTuple):
    """What was reported since the last answer.

    Attributes:
        acknowledged: The acknowledged messages of each partition.
        undelivered: The failures, by topic, partition and the error's name.
        answered: What became of further messages, known already.
    """

    acknowledged: dict[Place, Acknowledged]
    undelivered: Failures
    answered: Sequence[Part] = ()


class Acknowledgements:
    """Takes in delivery reports.

    Args:
        on_new_place: Called, from a report, when a partition is met for the first time.
    """

    def __init__(self, on_new_place: Callable[[], None]) -> None:
        self._on_new_place = on_new_place
        # The offsets of each partition as they come; the earlier ones are folded.
        self._queues: dict[Place, deque[int | None]] = {}
        self._folded: dict[Place, Acknowledged] = {}
        self._failures: deque[tuple[str, int, KafkaError]] = deque()
        self._undelivered: Failures = {}
        self._folding = threading.Lock()
        self._is_fold_due = False
        self._taken: Answerable | None = None

    def expect(self, place: Place) -> None:
        """Say that a partition is known: a report of it is nothing new."""
        self._queues.setdefault(place, deque())

    # In whichever thread polls.

    def take_in(self, message: Message) -> None:
        """Take in the report of an acknowledged message."""
        try:
            queue = self._queues[message.topic(), message.partition()]  # type: ignore[index]
        except KeyError:
            queue = self._meet(message)
        queue.append(message.offset())
        if len(queue) > _QUEUED:
            self._fold_soon()

    def _meet(self, message: Message) -> deque[int | None]:
        self._on_new_place()
        return self._queues.setdefault(_place_of(message), deque())

    def take_in_failure(self, error: KafkaError, message: Message) -> None:
        """Take in the report of a message that was not delivered."""
        self._failures.append((*_place_of(message), error))
        if len(self._failures) > _QUEUED:
            self._fold_soon()

    # Folding: never where a signal's handler can come in the way of it.

    def _fold_soon(self) -> None:
        if self._is_fold_due:
            return
        self._is_fold_due = True
        try:
            uninterrupted(self._fold_now, is_awaited=False)
        except RuntimeError:
            self._is_fold_due = False  # the interpreter ends: no thread starts any more

    def _fold_now(self) -> None:
        # Waiting for the lock could be for ever, if this thread was interrupted by a
        # report while it held it.
        if self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()
        self._is_fold_due = False

    def _fold(self) -> None:
        for place, queue in list(self._queues.items()):
            # No more than are there now: others go on adding.
            offsets = [queue.popleft() for _ in range(len(queue))]
            if offsets:
                self._folded.setdefault(place, Acknowledged()).add(offsets)
        for _ in range(len(self._failures)):
            topic, number, error = self._failures.popleft()
            failed = Undelivered(topic, number, error.name(), error.str(), 1)
            add_failure(self._undelivered, failed)

    # Asking.

    def take(self, take_missed: Callable[[], int]) -> Answerable:
        """Give all that was reported and not answered for.

        Args:
            take_missed: Tells how many messages more were reported on to nobody.
        """
        uninterrupted(lambda: self._take(take_missed), is_awaited=True)
        assert self._taken is not None
        return self._taken

    def _take(self, take_missed: Callable[[], int]) -> None:
        with self._folding:
            if self._taken is not None:
                self._give_back(self._taken)
            self._fold()
            missed = take_missed()
            if missed:
                failed = Undelivered("", -1, REPORT_LOST, _LOST, missed)
                add_failure(self._undelivered, failed)
            acknowledged = {
                place: folded for place, folded in self._folded.items() if folded
            }
            for place, taken in acknowledged.items():
                self._folded[place] = Acknowledged(taken.standing)
            undelivered, self._undelivered = self._undelivered, {}
            self._taken = Answerable(acknowledged, undelivered)

    def answered(self) -> None:
        """Forget what `take` gave last: else it is given again."""
        self._taken = None

    def _give_back(self, unanswered: Answerable) -> None:
        acknowledged, undelivered, _ = unanswered
        for place, earlier in acknowledged.items():
            earlier.extend(self._folded[place])
            self._folded[place] = earlier
        for failed in undelivered.values():
            add_failure(self._undelivered, failed)


def add_failure(failures: Failures, failed: Undelivered) -> None:
    """Count a failure together with those that have the same cause."""
    cause = failed[:3]
    first = failures.get(cause, failed._replace(messages=0))
    failures[cause] = first._replace(messages=first.messages + failed.messages)


def uninterrupted(function: Callable[[], None], *, is_awaited: bool) -> None:
    """Run it on a thread where no signal's handler runs: the main one has them all."""
    if threading.current_thread() is not threading.main_thread():
        function()
        return
    thread = threading.Thread(target=function, name="epochfence-fold", daemon=True)
    thread.start()
    if is_awaited:
        thread.join()


def _place_of(message: Message) -> Place:
    """A report names both, but for failures before a partition was chosen."""
    partition = message.partition()
    return message.topic() or "", -1 if partition is None else partition


class Generation:
    """Messages that were handed over between two renewals: they share one callback.

    The two counts are changed by single operations that cannot be interrupted.
    """

    __slots__ = ("_acknowledgements", "handed", "reported")

    def __init__(self, acknowledgements: Acknowledgements) -> None:
        self._acknowledgements = acknowledgements
        self.handed = 0
        self.reported = 0

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of one message."""
        try:
            _ANYTHING[-1]
        except BaseException:
            # After a failure of a callback, or of the client for good, it may call on
            # with that exception pending. It would surface anywhere below.
            self.report(error, message)
            raise
        if error is None:
            self._acknowledgements.take_in(message)
        else:
            self._acknowledgements.take_in_failure(error, message)
        self.reported += 1


class Handover:
    """Tells when every message that was handed over before a moment is reported on.

    The client keeps the callback of a message until it has called it. All messages
    share one; at the moment in question another takes its place, and when the old one
    is gone, so is every message that was handed over with it. That costs nothing per
    message, and other users of the client, or threads that go on producing, do not
    matter.

    A callback that is gone was called, or an exception came in its way (a signal
    handler's): so the messages are counted, too.

    Args:
        acknowledgements: Takes in the reports.
        told: Called with each report too, None for nobody.
    """

    def __init__(self, acknowledgements: Acknowledgements, told: Report | None) -> None:
        self._acknowledgements = acknowledgements
        self._told = told
        self._begun: list[tuple[weakref.ref[Report], Generation]] = []
        self._ended: list[Generation] = []

    def begin(self) -> tuple[Generation, Report, Report]:
        """The callbacks of the messages from now on; nobody may keep the earlier ones.

        Returns:
            Where to count those that are handed over; the callback to combine with a
            message's own (see `both`), and the one for messages that have none.
        """
        messages = Generation(self._acknowledgements)
        bare: Report = messages.report
        self._begun.append((weakref.ref(bare), messages))
        every = bare if self._told is None else partial(both, bare, self._told)
        return messages, bare, every

    @property
    def is_reported(self) -> bool:
        """Whether every message handed over before the last `begin` is reported on."""
        *earlier, latest = self._begun
        self._ended += [messages for token, messages in earlier if token() is None]
        self._begun = [*(one for one in earlier if one[0]() is not None), latest]
        return len(self._begun) == 1

    def take_missed(self) -> int:
        """How many messages were reported on to nobody, since last asked."""
        # A thread that produces counts a moment later, and maybe with the next ones:
        # what is uneven here evens out.
        self._ended = [one for one in self._ended if one.handed != one.reported]
        missed = sum(one.handed - one.reported for one in self._ended)
        if missed > 0:
            self._ended.clear()
        return max(0, missed)


def both(
    report: Report, told: Report, error: KafkaError | None, message: Message
) -> None:
    """Take in the report of one message, and pass it on."""
    try:
        report(error, message)
    finally:
        # Whoever keeps an exception that `told` raised and caught keeps this frame.
        del report
        told(error, message)
