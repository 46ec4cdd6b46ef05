"""The messages of transactions, by how each ended: kept until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.receipts import Outcome
from epochfence.epochs.values import Place
from epochfence.producers.acknowledgements import Acknowledgements, Answerable
from epochfence.producers.reported import Reported
from epochfence.producers.transactions import End, Transactions

PLACE: Place = ("t", 0)
SOON = 0.0


class Reports(Reported):
    """What a client would report, without one."""

    def __init__(self) -> None:
        self._reports = Acknowledgements(lambda: None)

    def acknowledge(self, *offsets: int) -> None:
        for offset in offsets:
            self._reports.take_in(Message(topic="t", partition=0, offset=offset))

    def fail(self, code: int) -> None:
        message = Message(topic="t", partition=0)
        self._reports.take_in_failure(KafkaError(code), message)

    def await_all(self, deadline: float) -> None:
        """All is reported."""

    def take_in(self) -> Answerable:
        return self._reports.take(lambda: 0)

    def answered(self) -> None:
        self._reports.answered()


class World:
    """Transactions whose end is known when it is said to be."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.is_open = False
        self.ends: list[End | Exception] = []
        self.transactions = Transactions(
            self.reports, lambda: self.is_open, threading.RLock(), self._decide
        )

    def _decide(self, _: Mapping[Place, Acknowledged], deadline: float) -> End:
        end = self.ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    def end(self, end: End, *offsets: int) -> None:
        """A transaction with these messages, and its end."""
        self.reports.acknowledge(*offsets)
        self.transactions.end(end)
        self.transactions.collect(SOON)

    def answer(self) -> dict[Outcome | str, list[int]]:
        """What `confirm` would have to answer for, and what is answered."""
        taken = self.transactions.take(SOON)
        told: dict[Outcome | str, list[int]] = {}
        for messages in taken.acknowledged.values():
            told["committed"] = list(messages.standing)
            told["lost"] = [offset for some in messages.lost for offset in some]
        for part in taken.answered:
            told[part.outcome] = list(part.offsets)
        return {kind: offsets for kind, offsets in told.items() if offsets}


@pytest.fixture
def world() -> World:
    return World()


def test_by_how_they_ended(world: World) -> None:
    world.end("committed", 1, 2)
    world.end("aborted", 4)
    world.end("committed", 6)
    world.end("aborted", 8)
    expected = {"committed": [1, 2, 6], "aborted": [4, 8]}
    assert world.answer() == expected
    # Until it is said that they are answered, and then no more.
    world.end("committed", 10)
    assert world.answer() == {**expected, "committed": [1, 2, 6, 10]}
    world.transactions.answered()
    assert world.answer() == {}


def test_one_whose_end_nobody_tells_is_aborted(world: World) -> None:
    """Only a commit could make it something else."""
    world.end("committed", 1)
    world.reports.acknowledge(3)
    assert world.answer() == {"committed": [1], "aborted": [3]}


def test_one_that_is_open_waits(world: World) -> None:
    world.end("committed", 1)
    world.is_open = True
    world.reports.acknowledge(3)
    assert world.answer() == {"committed": [1]}
    world.transactions.answered()
    world.is_open = False
    world.transactions.end("committed")
    assert world.answer() == {"committed": [3]}


def test_undecided_ones_are_decided_when_asked(world: World) -> None:
    world.end("undecided", 1)
    world.end("undecided", 3)
    world.end("committed", 5)
    world.end("undecided", 7)
    world.ends = ["aborted", TopicUnavailable("t", "open"), "committed", "unknowable"]
    with pytest.raises(TopicUnavailable):
        world.answer()
    assert world.answer() == {
        "committed": [3, 5],
        "aborted": [1],
        "indeterminate": [7],
    }


def test_a_transaction_with_a_failed_message_is_not_committed(world: World) -> None:
    world.reports.fail(KafkaError._MSG_TIMED_OUT)
    world.end("undecided", 1)
    assert world.transactions.has_gaps
    assert world.answer() == {"aborted": [1]}
    ((cause, failed),) = world.transactions.take(SOON).undelivered.items()
    assert (cause, failed.messages) == (("t", 0, "_MSG_TIMED_OUT"), 1)


def test_one_that_left_nothing_cannot_be_decided(world: World) -> None:
    world.transactions.end("undecided")
    assert world.transactions.collect(SOON) == ("unknowable", {})
    assert world.answer() == {}


@pytest.mark.parametrize("end", ["committed", "aborted"])
def test_an_offset_that_comes_again(world: World, end: Any) -> None:
    """The log was truncated in between: an unclean election."""
    world.end("committed", 1, 2, 3)
    world.end("committed", 5, 6)
    world.end(end, 3, 4)
    told = world.answer()
    assert told["lost"] == [3, 5, 6]
    assert told["committed"] == ([1, 2, 3, 4] if end == "committed" else [1, 2])
