"""Receipts for single messages, and confirming behind the writer's back."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from epochfence import (
    Leadership,
    LedgerUnavailable,
    MisconfiguredError,
    Receipt,
    Receipts,
    WriteBehind,
)
from epochfence.producers.acknowledgements import Acknowledgements
from epochfence.testing import MemoryLedger, MemoryProducer
from support.producing import doing
from support.waiting import wait_until

#: Never, as far as a test goes.
NEVER_S = 3600.0


@pytest.fixture
def taken(producer: MemoryProducer, topic: str) -> MemoryProducer:
    producer.take_over([topic])
    return producer


def told(answers: list[Receipts]) -> int:
    """How many messages were told of."""
    return sum(len(answer) for answer in answers)


# Of single messages.


def test_the_receipt_of_one_message(taken: MemoryProducer, topic: str) -> None:
    receipts: list[Receipt] = []
    reports: list[object] = []

    def report(*told: object) -> None:
        reports.append(told)

    taken.produce(topic, b"a", partition=1, on_receipt=receipts.append)
    taken.produce(topic, b"b", partition=1)
    taken.produce(topic, b"c", None, 2, report, on_receipt=receipts.append)
    taken.flush()
    assert len(reports) == 1
    assert receipts == []  # delivered is not admitted
    assert len(taken.confirm()) == 3
    assert receipts == [
        Receipt(topic, 1, 1, "admitted"),
        Receipt(topic, 2, 1, "admitted"),
    ]
    taken.confirm()
    assert len(receipts) == 2  # each is told of once


def test_the_receipts_of_a_deposed_leader(
    memory_ledger: MemoryLedger, taken: MemoryProducer, topic: str
) -> None:
    receipts: list[Receipt] = []
    taken.produce(topic, b"a", partition=0, on_receipt=receipts.append)
    taken.poll(0)
    taken.hold()
    taken.produce(topic, b"b", partition=0, on_receipt=receipts.append)
    successor = memory_ledger.claim("s", holder="b")
    with MemoryProducer(memory_ledger, successor) as other:
        other.take_over([topic])
    taken.release()
    counts = taken.confirm().counts
    assert (counts["admitted"], counts["fenced"]) == (1, 1)
    assert [(r.offset, r.outcome) for r in receipts] == [(1, "admitted"), (3, "fenced")]


def test_the_receipts_of_what_was_not_delivered(
    taken: MemoryProducer, topic: str
) -> None:
    receipts: list[Receipt] = []
    taken.fail_deliveries()
    taken.produce(topic, b"a", partition=0, on_receipt=receipts.append)
    taken.hold()
    taken.produce(topic, b"b", partition=1, on_receipt=receipts.append)
    taken.purge()
    assert not taken.confirm().are_all_admitted
    assert receipts == [
        Receipt(topic, 0, None, "undelivered", "_MSG_TIMED_OUT"),
        Receipt(topic, 1, None, "undelivered", "_PURGE_QUEUE"),
    ]


def test_a_receipt_after_an_error(
    taken: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipts: list[Receipt] = []
    taken.fail_deliveries()
    for _ in range(2):
        taken.produce(topic, b"a", partition=0, on_receipt=receipts.append)
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLedger, "refresh", doing(LedgerUnavailable("c", "down")))
        with pytest.raises(LedgerUnavailable):
            taken.confirm()
    assert receipts == []
    taken.produce(topic, b"a", partition=0, on_receipt=receipts.append)
    taken.confirm()
    assert [receipt.outcome for receipt in receipts] == [
        "admitted",
        "admitted",
        "undelivered",
    ]


def test_a_function_that_fails_when_told(
    taken: MemoryProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    receipts: list[Receipt] = []
    taken.produce(topic, b"a", on_receipt=doing(ValueError("mine")))
    taken.produce(topic, b"a", on_receipt=receipts.append)
    with caplog.at_level(logging.ERROR, "epochfence.producers.confirmation"):
        assert taken.confirm().are_all_admitted
    assert "mine" in caplog.text
    assert len(receipts) == 1


def test_a_function_that_is_interrupted(taken: MemoryProducer, topic: str) -> None:
    """Whoever comes after it is told all the same."""
    receipts: list[Receipt] = []
    taken.produce(topic, b"a", on_receipt=doing(KeyboardInterrupt()))
    taken.produce(topic, b"a", on_receipt=receipts.append)
    with pytest.raises(KeyboardInterrupt):
        taken.confirm()
    taken.produce(topic, b"b")
    assert len(taken.confirm()) == 3
    assert len(receipts) == 1


@pytest.mark.parametrize("spot", ["before", "behind"])
def test_a_report_that_is_interrupted(
    taken: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch, spot: str
) -> None:
    """By a signal's handler: told once, and what comes later is not forgotten."""
    receipts: list[Receipt] = []
    take_in = Acknowledgements.take_in
    interrupted: list[None] = []

    def interruptible(self: Any, *report: Any) -> None:
        if interrupted:
            return take_in(self, *report)
        interrupted.append(None)
        if spot == "behind":
            take_in(self, *report)
        raise KeyboardInterrupt

    monkeypatch.setattr(Acknowledgements, "take_in", interruptible)
    taken.produce(topic, b"a", partition=0, on_receipt=receipts.append)
    with pytest.raises(KeyboardInterrupt):
        taken.poll(0)
    taken.confirm()
    taken.confirm()
    fate = "undelivered" if spot == "before" else "admitted"
    assert [receipt.outcome for receipt in receipts] == [fate]
    assert taken.unconfirmed == 0
    taken.produce(topic, b"b", on_receipt=receipts.append)
    assert taken.unconfirmed == 1
    taken.confirm()
    assert len(receipts) == 2


def test_a_message_that_is_handed_over_and_not_counted(
    taken: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal's handler came between: it does not take another's place for good."""
    inside: Any = taken
    send = inside._send

    def interruptible(*message: Any) -> None:
        send(*message)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(taken, "_send", interruptible)
        with pytest.raises(KeyboardInterrupt):
            taken.produce(topic, b"a")
    assert len(taken.confirm()) == 1
    taken.produce(topic, b"b")
    assert taken.unconfirmed == 1


def test_what_cannot_be_told(taken: MemoryProducer, topic: str) -> None:
    wrong: Any = "f"
    with pytest.raises(MisconfiguredError, match="function of a receipt"):
        taken.produce(topic, b"a", on_receipt=wrong)
    assert taken.unconfirmed == 0


# How many are not confirmed.


def test_how_many_are_unconfirmed(
    taken: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert taken.unconfirmed == 0
    for _ in range(3):
        for _ in range(5):
            taken.produce(topic, b"v")
        taken.fail_deliveries()
        taken.produce(topic, b"v")
        assert taken.unconfirmed == 6
        with monkeypatch.context() as patched:
            down = doing(LedgerUnavailable("c", "down"))
            patched.setattr(MemoryLedger, "refresh", down)
            with pytest.raises(LedgerUnavailable):
                taken.confirm()
        assert taken.unconfirmed == 6
        taken.confirm()
        assert taken.unconfirmed == 0


# Behind the writer's back.


def test_after_so_many_messages(taken: MemoryProducer, topic: str) -> None:
    answers: list[Receipts] = []
    with WriteBehind(
        taken, answers.append, every_messages=10, every_s=NEVER_S
    ) as behind:
        for _ in range(9):
            taken.produce(topic, b"v")
        behind.flush()
        assert told(answers) == 9
        for _ in range(10):
            taken.produce(topic, b"v")
        wait_until(lambda: told(answers) == 19, 30, "10 messages are not confirmed")
        taken.produce(topic, b"v")
    assert told(answers) == 20  # the end confirms what is left
    assert all(answer.are_all_admitted for answer in answers)


def test_after_so_many_seconds(taken: MemoryProducer, topic: str) -> None:
    answers: list[Receipts] = []
    receipts: list[Receipt] = []
    with WriteBehind(taken, answers.append, every_s=0.01):
        taken.produce(topic, b"v", on_receipt=receipts.append)
        wait_until(lambda: told(answers) == 1, 30, "nothing is confirmed")
    assert len(receipts) == len(answers) == 1  # nobody is called for nothing


def test_what_a_callback_refuses_is_told_again(
    taken: MemoryProducer, topic: str
) -> None:
    """Nothing that was confirmed is forgotten: it may be what marks rows as sent."""
    seen: list[Receipts] = []
    errors: list[Exception] = []

    def mark(receipts: Receipts) -> None:
        seen.append(receipts)
        if len(seen) < 3:
            # Such as an event loop's that was closed.
            raise RuntimeError("the database is down")

    with WriteBehind(taken, mark, every_s=0.01, on_error=errors.append):
        taken.produce(topic, b"v")
        wait_until(lambda: len(seen) >= 3, 30, "it is not told again")
    assert len({id(receipts) for receipts in seen}) == 1
    assert [str(error) for error in errors] == ["the database is down"] * 2


def test_what_a_callback_refuses_to_the_end(taken: MemoryProducer, topic: str) -> None:
    failing = doing(ValueError("mine"))
    behind = WriteBehind(taken, failing, every_s=NEVER_S)
    taken.produce(topic, b"v")
    with pytest.raises(ValueError, match="mine"):
        behind.close()
    # An error of the context's own is not hidden.
    with (
        pytest.raises(ZeroDivisionError),
        WriteBehind(taken, failing, every_s=NEVER_S) as behind,
    ):
        taken.produce(topic, bytes(1 // 0 * taken.unconfirmed))


def test_the_ledger_is_away_for_a_while(
    taken: MemoryProducer,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[Receipts] = []
    is_tried = threading.Semaphore(0)

    def refuse(*_: object) -> None:
        is_tried.release()
        raise LedgerUnavailable("c", "down")

    with WriteBehind(taken, answers.append, every_s=0.01) as behind:
        with monkeypatch.context() as patched:
            patched.setattr(MemoryLedger, "refresh", refuse)
            taken.produce(topic, b"v")
            for _ in range(3):
                assert is_tried.acquire(timeout=30)
            with pytest.raises(LedgerUnavailable):
                behind.flush()
        behind.flush()
    assert told(answers) == 1
    assert caplog.text.count("not confirmed yet") == 1  # once, not with each attempt


def test_a_delivery_callback_that_fails(
    taken: MemoryProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[Receipts] = []
    with WriteBehind(taken, answers.append, every_s=0.01):
        taken.produce(topic, b"v", on_delivery=doing(ValueError("mine")))
        wait_until(lambda: told(answers) == 1, 30, "it is not confirmed")
    assert "mine" in caplog.text


def test_a_callback_that_flushes(taken: MemoryProducer, topic: str) -> None:
    answers: list[Receipts] = []

    def mark(receipts: Receipts) -> None:
        answers.append(receipts)
        if len(answers) == 1:
            taken.produce(topic, b"again")
            behind.flush()

    behind = WriteBehind(taken, mark, every_s=NEVER_S)
    taken.produce(topic, b"v")
    behind.close()
    assert told(answers) == 2


def test_it_does_not_try_all_the_time(
    taken: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many messages wait, after a failure."""
    errors: list[Exception] = []
    polls: list[float] = []
    poll = taken.poll

    def counted(timeout: float = -1) -> int:
        polls.append(timeout)
        return poll(timeout)

    monkeypatch.setattr(taken, "poll", counted)
    behind = WriteBehind(
        taken, every_messages=1, every_s=NEVER_S, on_error=errors.append
    )
    with monkeypatch.context() as patched:
        patched.setattr(MemoryLedger, "refresh", doing(LedgerUnavailable("c", "down")))
        for _ in range(5):
            taken.produce(topic, b"v")
            wait_until(lambda: errors, 30, "it is not tried")
        enough = len(polls) + 5
        wait_until(lambda: len(polls) > enough, 30, "it does not go on polling")
    behind.close()
    assert len(errors) == 1
    assert taken.unconfirmed == 0


def test_a_producer_that_was_closed(
    memory_ledger: MemoryLedger, leadership: Leadership, topic: str
) -> None:
    with MemoryProducer(memory_ledger, leadership) as producer:
        producer.take_over([topic])
        behind = WriteBehind(producer, every_s=0.01)
        producer.produce(topic, b"v")
        behind.flush()
    with pytest.raises(RuntimeError, match="was closed"):
        behind.close()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"on_receipts": 5}, "on_receipts"),
        ({"on_error": 5}, "on_error"),
        ({"every_messages": 0}, "every_messages"),
        ({"every_messages": 1.5}, "every_messages"),
        ({"every_s": 0}, "every_s"),
        ({"timeout_s": -1}, "timeout_s"),
    ],
)
def test_wrong_arguments(
    taken: MemoryProducer, wrong: dict[str, Any], words: str
) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        WriteBehind(taken, **wrong)


def test_no_fenced_producer(memory_ledger: MemoryLedger) -> None:
    wrong: Any = memory_ledger
    with pytest.raises(MisconfiguredError, match="no FencedProducer"):
        WriteBehind(wrong)
