"""What the delivery reports said, until somebody asks.

Reports come in whichever thread polls, even in a signal handler that interrupts
another report: what they touch without a lock are single operations that cannot be
interrupted, on queues that are short.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from confluent_kafka import KafkaError, Message

from epochfence.epochs.acknowledged import Acknowledged, Acknowledgement, Asked
from epochfence.epochs.receipts import (
    Failures,
    Part,
    Receipt,
    Undelivered,
    add_failure,
)
from epochfence.epochs.values import Place

Report = Callable[[KafkaError | None, Message], None]
#: What a report has to be.
REPORT_REMEDY = "Give a function of an error (or None) and a message."


class BareReport(Protocol):
    """The report of a message, and who asked about it."""

    def __call__(
        self, error: KafkaError | None, message: Message, asked: Asked | None = None
    ) -> None: ...


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
        untold: Who asked about messages of which it is known already what became of
            them, such as those failures; and the receipt.
        answered: What became of further messages, known already.
    """

    acknowledged: dict[Place, Acknowledged]
    undelivered: Failures
    untold: Sequence[tuple[Asked, Receipt]] = ()
    answered: Iterable[Part] = ()


class Missed(NamedTuple):
    """Messages that were reported on to nobody.

    Attributes:
        messages: How many.
        asked: Who asked about some of them.
    """

    messages: int
    asked: list[Asked]


class Acknowledgements:
    """Takes in delivery reports.

    Args:
        on_new_place: Called, from a report, when a partition is met for the first time.
    """

    def __init__(self, on_new_place: Callable[[], None]) -> None:
        self._on_new_place = on_new_place
        # The offsets of each partition as they come; the earlier ones are folded.
        self._queues: dict[Place, deque[Acknowledgement]] = {}
        self._folded: dict[Place, Acknowledged] = {}
        self._failures: deque[tuple[str, int, KafkaError, Asked | None]] = deque()
        self._undelivered: Failures = {}
        self._untold: list[tuple[Asked, Receipt]] = []
        self._folding = threading.Lock()
        self._is_fold_due = False
        self._taken: Answerable | None = None

    def expect(self, place: Place) -> None:
        """Say that a partition is known: a report of it is nothing new."""
        self._queues.setdefault(place, deque())

    # In whichever thread polls.

    def take_in(self, message: Message, asked: Asked | None) -> None:
        """Take in the report of an acknowledged message, and who asked about it."""
        try:
            queue = self._queues[message.topic(), message.partition()]  # type: ignore[index]
        except KeyError:
            queue = self._meet(message)
        offset = message.offset()
        queue.append(offset if asked is None else (offset, asked))
        if len(queue) > _QUEUED:
            self._fold_soon()

    def _meet(self, message: Message) -> deque[Acknowledgement]:
        self._on_new_place()
        return self._queues.setdefault(_place_of(message), deque())

    def take_in_failure(
        self, error: KafkaError, message: Message, asked: Asked | None
    ) -> None:
        """Take in the report of a message that was not delivered."""
        self._failures.append((*_place_of(message), error, asked))
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
            topic, number, error, asked = self._failures.popleft()
            failed = Undelivered(topic, number, error.name(), error.str(), 1)
            add_failure(self._undelivered, failed)
            if asked is not None:
                self._note_undelivered(asked, failed)

    def _note_undelivered(self, asked: Asked, failed: Undelivered) -> None:
        topic, number, name, *_ = failed
        receipt = Receipt(topic, number, None, "undelivered", name)
        self._untold.append((asked, receipt))

    # Asking.

    def take(self, take_missed: Callable[[], Missed]) -> Answerable:
        """Give all that was reported and not answered for.

        Args:
            take_missed: Tells which messages more were reported on to nobody.
        """
        uninterrupted(lambda: self._take(take_missed), is_awaited=True)
        assert self._taken is not None
        return self._taken

    def _take(self, take_missed: Callable[[], Missed]) -> None:
        with self._folding:
            if self._taken is not None:
                self._give_back(self._taken)
            self._fold()
            missed = take_missed()
            lost = Undelivered("", -1, REPORT_LOST, _LOST, missed.messages)
            if missed.messages:
                add_failure(self._undelivered, lost)
            for asked in missed.asked:
                self._note_undelivered(asked, lost)
            acknowledged = {
                place: folded for place, folded in self._folded.items() if folded
            }
            for place, taken in acknowledged.items():
                self._folded[place] = Acknowledged(taken.standing)
            undelivered, self._undelivered = self._undelivered, {}
            untold, self._untold = self._untold, []
            self._taken = Answerable(acknowledged, undelivered, untold)

    def answered(self) -> None:
        """Forget what `take` gave last: else it is given again."""
        self._taken = None

    def _give_back(self, unanswered: Answerable) -> None:
        acknowledged, undelivered, untold, _ = unanswered
        for place, earlier in acknowledged.items():
            earlier.extend(self._folded[place])
            self._folded[place] = earlier
        for failed in undelivered.values():
            add_failure(self._undelivered, failed)
        self._untold[:0] = untold


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

    Attributes:
        handed: How many there are.
        asked: Who asked about some of them.
        reported: How many were reported on.
    """

    __slots__ = ("_acknowledgements", "asked", "handed", "reported")

    def __init__(self, acknowledgements: Acknowledgements) -> None:
        self._acknowledgements = acknowledgements
        self.handed = 0
        self.asked: list[Asked] = []
        self.reported = 0

    def report(
        self, error: KafkaError | None, message: Message, asked: Asked | None = None
    ) -> None:
        """Take in the report of one message."""
        try:
            _ANYTHING[-1]
        except BaseException:
            # After a failure of a callback, or of the client for good, it may call on
            # with that exception pending. It would surface anywhere below.
            self.report(error, message, asked)
            raise
        if error is None:
            self._acknowledgements.take_in(message, asked)
        else:
            self._acknowledgements.take_in_failure(error, message, asked)
        if asked is not None:
            asked.is_reported = True
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
        self._begun: list[tuple[weakref.ref[BareReport], Generation]] = []
        self._ended: list[Generation] = []
        # Replaced as one, for whoever looks from another thread: how many messages
        # the generations had that are forgotten, and the others.
        self._counted: tuple[int, list[Generation]] = (0, [])

    @property
    def handed(self) -> int:
        """How many messages were handed over so far."""
        forgotten, counted = self._counted
        return forgotten + sum(messages.handed for messages in counted)

    @property
    def handed_before(self) -> int:
        """How many of them before the last `begin`."""
        return self.handed - self._begun[-1][1].handed

    def begin(self) -> tuple[Generation, BareReport, Report]:
        """The callbacks of the messages from now on; nobody may keep the earlier ones.

        Returns:
            Where to count those that are handed over; the callback to combine with a
            message's own (see `both`), and the one for messages that have none.
        """
        messages = Generation(self._acknowledgements)
        bare = messages.report
        self._begun.append((weakref.ref(bare), messages))
        forgotten, counted = self._counted
        self._counted = forgotten, [*counted, messages]
        every: Report = bare if self._told is None else partial(both, bare, self._told)
        return messages, bare, every

    @property
    def is_reported(self) -> bool:
        """Whether every message handed over before the last `begin` is reported on."""
        *earlier, latest = self._begun
        going_on = [one for one in earlier if one[0]() is not None]
        self._ended += [one[1] for one in earlier if one not in going_on]
        self._begun = [*going_on, latest]
        return not going_on

    def take_missed(self) -> Missed:
        """Which messages were reported on to nobody, since last asked."""
        asked = [
            asked
            for messages in self._ended
            for asked in messages.asked
            if not asked.is_reported
        ]
        for messages in self._ended:
            messages.asked.clear()
        # A thread that produces counts a moment later, and maybe with the next ones:
        # what is uneven here evens out.
        self._ended = [one for one in self._ended if one.handed != one.reported]
        missed = sum(one.handed - one.reported for one in self._ended)
        if missed > 0:
            self._ended.clear()
        self._forget_ended()
        return Missed(max(0, missed), asked)

    def _forget_ended(self) -> None:
        forgotten, counted = self._counted
        kept = {id(messages) for messages in self._ended}
        kept |= {id(messages) for _, messages in self._begun}
        gone = [messages for messages in counted if id(messages) not in kept]
        counted = [messages for messages in counted if id(messages) in kept]
        self._counted = forgotten + sum(one.handed for one in gone), counted


def asking(report: BareReport, asked: Asked) -> Report:
    """The report of a message whose sender asked about it."""
    return partial(report, asked=asked)


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
