"""What the delivery reports said, until somebody asks.

Reports come in whichever thread polls, even in a signal handler that interrupts
another report: what they touch without a lock are single operations that cannot be
interrupted, on queues that are short.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from confluent_kafka import KafkaError, Message

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.receipts import Undelivered

#: A message's place: topic and partition.
Place = tuple[str, int]
Report = Callable[[KafkaError | None, Message], None]

#: So many reports wait before they are folded.
_QUEUED = 1024

#: Its last element is looked up where an exception may be pending: -1 is what the
#: conversion of an index returns on failure, so that the interpreter looks whether
#: there was one. Costs some 20 ns.
_ANYTHING = [None]


class Answerable(NamedTuple):
    """What was reported since the last answer.

    Attributes:
        acknowledged: The acknowledged messages of each partition.
        undelivered: The failures, by topic, partition and the error's name.
    """

    acknowledged: dict[Place, Acknowledged]
    undelivered: dict[tuple[str, int, str], Undelivered]


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
        self._undelivered: dict[tuple[str, int, str], Undelivered] = {}
        self._folding = threading.Lock()

    def expect(self, place: Place) -> None:
        """Say that a partition is known: a report of it is nothing new."""
        self._queues.setdefault(place, deque())

    # In whichever thread polls.

    def report(self, error: KafkaError | None, message: Message) -> None:
        """Take in the report of one message."""
        try:
            _ANYTHING[-1]
        except BaseException:
            # After a failure of a callback, or of the client for good, it may call on
            # with that exception pending. It would surface anywhere below.
            self.report(error, message)
            raise
        if error is not None:
            self._report_failure(error, message)
            return
        try:
            queue = self._queues[message.topic(), message.partition()]  # type: ignore[index]
        except KeyError:
            queue = self._meet(message)
        queue.append(message.offset())
        if len(queue) > _QUEUED:
            self._fold_if_free()

    def _meet(self, message: Message) -> deque[int | None]:
        self._on_new_place()
        return self._queues.setdefault(_place_of(message), deque())

    def _report_failure(self, error: KafkaError, message: Message) -> None:
        self._failures.append((*_place_of(message), error))
        if len(self._failures) > _QUEUED:
            self._fold_if_free()

    def _fold_if_free(self) -> None:
        # Whoever holds the lock folds what is there; waiting for it could be for ever,
        # if this thread was interrupted while it held it.
        if self._folding.acquire(blocking=False):
            try:
                self._fold()
            finally:
                self._folding.release()

    def _fold(self) -> None:
        for place, queue in list(self._queues.items()):
            # No more than are there now: others go on adding.
            offsets = [queue.popleft() for _ in range(len(queue))]
            if offsets:
                self._folded.setdefault(place, Acknowledged()).add(offsets)
        for _ in range(len(self._failures)):
            topic, number, error = self._failures.popleft()
            cause = (topic, number, error.name())
            failed = self._undelivered.get(cause)
            count = 0 if failed is None else failed.messages
            reason = error.str() if failed is None else failed.reason
            self._undelivered[cause] = Undelivered(*cause, reason, count + 1)

    # Asking.

    def take(self) -> Answerable:
        """Hand over all that was reported; it is forgotten here."""
        with self._folding:
            self._fold()
            acknowledged = {
                place: folded for place, folded in self._folded.items() if folded
            }
            for place, taken in acknowledged.items():
                self._folded[place] = Acknowledged(taken.standing)
            undelivered, self._undelivered = self._undelivered, {}
        return Answerable(acknowledged, undelivered)

    def give_back(self, unanswered: Answerable) -> None:
        """Take back what `take` gave: there was no answer."""
        with self._folding:
            acknowledged, undelivered = unanswered
            for place, earlier in acknowledged.items():
                earlier.extend(self._folded[place])
                self._folded[place] = earlier
            for cause, failed in self._undelivered.items():
                count = undelivered[cause].messages if cause in undelivered else 0
                undelivered[cause] = failed._replace(messages=failed.messages + count)
            self._undelivered = undelivered


def _place_of(message: Message) -> Place:
    """A report names both, but for failures before a partition was chosen."""
    partition = message.partition()
    return message.topic() or "", -1 if partition is None else partition


class Handover:
    """Tells when every message that was handed over before a moment is reported on.

    The client keeps the callback of a message until it has called it. All messages
    share one; at the moment in question another takes its place, and when the old one
    is gone, so is every message that was handed over with it. That costs nothing per
    message, and other users of the client, or threads that go on producing, do not
    matter.

    Args:
        acknowledgements: Takes in the reports.
        told: Called with each report too, None for nobody.
    """

    def __init__(self, acknowledgements: Acknowledgements, told: Report | None) -> None:
        self._acknowledgements = acknowledgements
        self._told = told
        self._begun: list[weakref.ref[Report]] = []

    def begin(self) -> tuple[Report, Report]:
        """The callbacks of the messages from now on; nobody may keep the earlier ones.

        Returns:
            The one to combine with a message's own callback (see `both`), and the one
            for messages that have none.
        """
        bare: Report = self._acknowledgements.report  # a new object each time
        self._begun.append(weakref.ref(bare))
        return bare, bare if self._told is None else partial(both, bare, self._told)

    @property
    def is_reported(self) -> bool:
        """Whether every message handed over before the last `begin` is reported on."""
        *earlier, latest = self._begun
        self._begun = [*(one for one in earlier if one() is not None), latest]
        return len(self._begun) == 1


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
