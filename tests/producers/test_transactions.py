"""The messages of transactions, by how each ended: kept until somebody asks."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any, Literal

import pytest
from confluent_kafka import KafkaError, Message

from epochfence.epochs.acknowledged import Acknowledged, Asked
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.receipts import Fate, Outcome, Receipt
from epochfence.epochs.values import Place
from epochfence.producers.acknowledgements import Acknowledgements, Answerable, Missed
from epochfence.producers.reported import Reported
from epochfence.producers.transactions import End, Transactions

PLACE: Place = ("t", 0)
SOON = 0.0


class Reports(Reported):
    """What a client would report, without one."""

    def __init__(self) -> None:
        self._reports = Acknowledgements(lambda: None)
        self.missed = Missed(0, [])

    def acknowledge(self, *offsets: int, asked: Asked | None = None) -> None:
        for offset in offsets:
            message = Message(topic="t", partition=0, offset=offset)
            self._reports.take_in(message, asked)

    def fail(self, code: int, asked: Asked | None = None) -> None:
        message = Message(topic="t", partition=0)
        self._reports.take_in_failure(KafkaError(code), message, asked)

    def begin(self) -> None:
        """Nothing is handed over."""

    def topics(self) -> str:
        return "t"

    def await_all(self, deadline: float) -> None:
        """All is reported."""

    def take_in(self) -> Answerable:
        missed, self.missed = self.missed, Missed(0, [])
        return self._reports.take(lambda: missed)

    def answered(self) -> None:
        self._reports.answered()


class World:
    """Transactions whose end is known when it is said to be."""

    def __init__(self) -> None:
        self.reports = Reports()
        self.is_open = False
        self.ends: list[End | Exception] = []
        self.turn = threading.RLock()
        self.transactions = Transactions(
            self.reports, lambda: self.is_open, self.turn, self._decide
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
            told[part.outcome] = [*told.get(part.outcome, []), *part.offsets]
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


def test_an_offset_that_comes_again_after_an_answer_that_failed(world: World) -> None:
    world.end("committed", 1, 2, 3)
    assert world.answer() == {"committed": [1, 2, 3]}
    world.end("aborted", 3, 4)
    expected = {"committed": [1, 2], "lost": [3], "aborted": [3, 4]}
    assert world.answer() == expected


@pytest.mark.parametrize("again", [5, 4])
@pytest.mark.parametrize("end", ["aborted", "committed"])
def test_a_truncation_that_only_an_aborted_one_tells_of(
    world: World, end: Any, again: int
) -> None:
    """What was committed below may be gone too, and is not taken for granted."""
    world.end("committed", 3)
    world.end("aborted", 5)
    world.end(end, again)
    ((_, messages),) = world.transactions.take(SOON).acknowledged.items()
    assert list(messages.standing) == ([3] if end == "aborted" else [3, again])
    assert messages.is_truncated


@pytest.mark.parametrize("end", ["aborted", "committed"])
def test_an_offset_that_falls_back(world: World, end: Any) -> None:
    """Each is reported on before the next begins: their offsets rise, else."""
    world.end("committed", 1, 7)
    world.end(end, 4)
    told = world.answer()
    assert told["lost"] == [7]
    assert told["committed"] == ([1, 4] if end == "committed" else [1])


def test_after_a_truncation_all_goes_on(world: World) -> None:
    world.end("committed", 1, 7)
    world.answer()
    world.end("aborted", 4)
    world.answer()
    world.transactions.answered()
    world.end("committed", 6)
    ((_, messages),) = world.transactions.take(SOON).acknowledged.items()
    assert not messages.is_truncated


@pytest.mark.parametrize("decided", ["aborted", "committed"])
def test_an_undecided_one_came_before_those_that_were_decided(
    world: World, decided: Any
) -> None:
    """What came again at its offset is the later one's."""
    world.end("undecided", 5)
    world.end("committed", 5, 6)
    world.ends = [decided]
    expected = {"committed": [5, 6], "aborted": [5]}
    if decided == "committed":
        expected = {"committed": [5, 6], "lost": [5]}
    assert world.answer() == expected


def test_two_aborted_messages_at_one_offset_are_two(world: World) -> None:
    world.end("aborted", 3, 4)
    world.end("aborted", 3)
    assert sorted(world.answer()["aborted"]) == [3, 3, 4]


def test_one_that_another_thread_is_ending_is_not_waited_for(world: World) -> None:
    held, let_go = threading.Event(), threading.Event()

    def end() -> None:
        with world.turn:
            held.set()
            assert let_go.wait(60)

    thread = threading.Thread(target=end)
    thread.start()
    try:
        assert held.wait(60)
        with pytest.raises(TopicUnavailable, match="still ending"):
            world.answer()
    finally:
        let_go.set()
        thread.join(60)


# Whoever asked about a single message.


class Asking:
    """Somebody who asks about messages."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.asked = Asked(print)

    def answer(self) -> tuple[list[Receipt], list[int]]:
        """What is known already; and the offsets on which `confirm` has to decide."""
        taken = self._world.transactions.take(SOON)
        known = [receipt for asked, receipt in taken.untold if asked is self.asked]
        waiting = [
            offset
            for messages in taken.acknowledged.values()
            for offset, asked in messages.asked.items()
            if asked is self.asked
        ]
        return known, waiting


@pytest.fixture
def asking(world: World) -> Asking:
    return Asking(world)


def test_who_asks_is_told_how_it_ended(world: World, asking: Asking) -> None:
    world.reports.acknowledge(2, asked=asking.asked)
    world.end("aborted", 1)
    world.reports.acknowledge(5, asked=asking.asked)
    world.end("committed", 4)
    world.reports.acknowledge(8, asked=asking.asked)
    world.end("unknowable", 7)
    known = [Receipt("t", 0, 2, "aborted"), Receipt("t", 0, 8, "indeterminate")]
    assert asking.answer() == (known, [5])
    assert asking.answer() == (known, [5])
    world.transactions.answered()
    assert asking.answer() == ([], [])


@pytest.mark.parametrize("end", ["committed", "aborted"])
def test_who_asks_waits_for_the_end(
    world: World, asking: Asking, end: Literal["committed", "aborted"]
) -> None:
    world.is_open = True
    world.reports.acknowledge(1, asked=asking.asked)
    assert asking.answer() == ([], [])
    world.is_open = False
    world.transactions.end("undecided")
    world.ends = [TopicUnavailable("t", "open"), end]
    with pytest.raises(TopicUnavailable):
        asking.answer()
    aborted = [Receipt("t", 0, 1, "aborted")]
    assert asking.answer() == (([], [1]) if end == "committed" else (aborted, []))


def test_what_an_abort_kept_from_being_sent_is_aborted(
    world: World, asking: Asking
) -> None:
    world.reports.fail(KafkaError._PURGE_QUEUE, asking.asked)
    world.end("aborted")
    assert asking.answer() == ([Receipt("t", 0, None, "aborted", "_PURGE_QUEUE")], [])


@pytest.mark.parametrize("end", ["committed", "aborted"])
def test_whose_report_was_lost_hears_of_it_at_the_end(
    world: World, asking: Asking, end: Literal["committed", "aborted"]
) -> None:
    world.reports.missed = Missed(1, [asking.asked])
    world.end("undecided", 1)
    world.ends = [TopicUnavailable("t", "open"), end]
    with pytest.raises(TopicUnavailable):
        asking.answer()
    fate: Fate = "undelivered" if end == "committed" else "aborted"
    assert asking.answer() == ([Receipt("", -1, None, fate, "REPORT_LOST")], [])


@pytest.mark.parametrize("end", ["committed", "aborted"])
@pytest.mark.parametrize("is_answered_between", [False, True])
def test_whose_message_was_lost_since(
    world: World,
    asking: Asking,
    end: Literal["committed", "aborted"],
    is_answered_between: bool,
) -> None:
    """By an unclean election: the next transaction has its offset."""
    world.reports.acknowledge(2, asked=asking.asked)
    world.end("committed", 1)
    if is_answered_between:  # and the answer failed
        assert asking.answer() == ([], [2])
    world.end(end, 2)
    lost = world.transactions.take(SOON).acknowledged[PLACE].asked_lost
    assert lost == [(2, asking.asked)]
    assert asking.answer() == ([], [])
