"""Who asks about messages of transactions, and who confirms beside them: real Kafka."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from functools import partial

import pytest
from confluent_kafka import KafkaError, KafkaException

from epochfence import (
    AsyncFencedProducer,
    Deposed,
    FencedProducer,
    FencedTransactionalProducer,
    Ledger,
    Receipt,
    Receipts,
    TransactionAborted,
    WriteBehind,
)
from epochfence.epochs import transactions
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.producing import doing
from support.transactions import (
    SCOPE,
    committed_values,
    open_producer,
    open_zombie,
    outcomes,
    take_id,
)
from support.waiting import wait_until

TRANSACTIONS = 40
MESSAGES = 5


@pytest.fixture(scope="module")
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as opened:
        yield opened


@pytest.fixture
def producer(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> Iterator[FencedTransactionalProducer]:
    leadership = ledger.claim(SCOPE, holder="a")
    with open_producer(kafka, ledger, leadership) as opened:
        opened.take_over([topic])
        yield opened


class Told:
    """What each message's sender was told."""

    def __init__(self) -> None:
        self.receipts: dict[bytes, Receipt] = {}

    def of(self, value: bytes, receipt: Receipt) -> None:
        assert value not in self.receipts
        self.receipts[value] = receipt

    def produce(
        self, producer: FencedTransactionalProducer, topic: str, value: bytes
    ) -> None:
        producer.produce(topic, value, partition=0, on_receipt=partial(self.of, value))

    def values(self, outcome: str) -> list[bytes]:
        """Those of an outcome, in order."""
        return [value for value, one in self.receipts.items() if one.outcome == outcome]


def test_each_is_told_of_once_and_when_its_transaction_has_ended(
    topic: str, producer: FencedTransactionalProducer
) -> None:
    told = Told()
    producer.begin_transaction()
    told.produce(producer, topic, b"1")
    producer.flush(30)
    assert len(producer.confirm()) == 0
    assert told.receipts == {}
    assert (producer.unconfirmed, producer.confirmable) == (1, 0)
    producer.commit_transaction()
    assert (producer.unconfirmed, producer.confirmable) == (1, 1)
    producer.begin_transaction()
    told.produce(producer, topic, b"2")
    producer.flush(30)
    told.produce(producer, topic, b"3")
    assert (producer.unconfirmed, producer.confirmable) == (3, 1)
    assert outcomes(producer.confirm()) == ["admitted"]
    assert told.values("admitted") == list(told.receipts) == [b"1"]
    producer.abort_transaction()
    assert (producer.unconfirmed, producer.confirmable) == (2, 2)
    receipts = producer.confirm()
    assert told.values("aborted") == [b"2", b"3"]
    assert told.receipts[b"2"].offset is not None
    assert len(receipts) + sum(one.messages for one in receipts.undelivered) == 2
    assert (producer.unconfirmed, producer.confirmable) == (0, 0)
    assert len(producer.confirm()) == 0


def test_what_was_written_with_a_client_that_was_given_up(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker did not answer its abort; then another takes the id, before asking."""
    told = Told()
    producer.begin_transaction()
    told.produce(producer, topic, b"1")
    producer.flush(30)
    for number in range(100):
        told.produce(producer, topic, b"more %d" % number)
    no_answer = KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))
    with monkeypatch.context() as patched:
        patched.setattr(transactions, "to_its_end", doing(no_answer))
        producer.abort_transaction()
    producer.take_over([topic])
    producer.confirm(5)
    assert len(told.values("aborted")) == 101
    assert committed_values(kafka, topic) == []


def test_a_zombie_is_told(kafka: KafkaBroker, ledger: Ledger, topic: str) -> None:
    """What it committed behind another's barrier, and what it could not commit."""
    told = Told()
    with open_zombie(kafka, ledger, ledger.claim(SCOPE, holder="a")) as zombie:
        zombie.take_over([topic])
        with zombie.transaction():
            told.produce(zombie, topic, b"in time")
            zombie.flush(30)
            claimed = ledger.claim(SCOPE, holder="b")
            with FencedProducer(kafka.config, ledger, claimed) as leader:
                leader.take_over([topic])
            told.produce(zombie, topic, b"behind")
        zombie.begin_transaction()
        told.produce(zombie, topic, b"too late")
        take_id(kafka, zombie.transactional_id)
        with pytest.raises((Deposed, KafkaException)):
            zombie.commit_transaction()
        zombie.confirm(30)
        assert zombie.unconfirmed == 0
    assert {value: one.outcome for value, one in told.receipts.items()} == {
        b"in time": "admitted",
        b"behind": "fenced",
        b"too late": "aborted",
    }


def await_report(producer: FencedTransactionalProducer, topic: str) -> None:
    """Write a message, and have another thread serve its report."""
    reported = threading.Event()

    def note(*_: object) -> None:
        reported.set()

    producer.produce(topic, b"reported", partition=0, on_delivery=note)
    assert reported.wait(60)


def write_some(
    producer: FencedTransactionalProducer, topic: str, told: Told, number: int
) -> None:
    """One transaction; every third is aborted."""
    values = [b"%d-%d" % (number, one) for one in range(MESSAGES)]
    producer.begin_transaction()
    for value in values:
        told.produce(producer, topic, value)
    if number % 3 == 0:
        producer.abort_transaction()
    else:
        producer.commit_transaction()


def test_behind_the_writers_back(
    kafka: KafkaBroker, topic: str, producer: FencedTransactionalProducer
) -> None:
    told, answers, errors = Told(), list[Receipts](), list[Exception]()
    with WriteBehind(
        producer, answers.append, every_messages=3, every_s=0.02, on_error=errors.append
    ):
        for number in range(TRANSACTIONS):
            write_some(producer, topic, told, number)
    assert errors == []
    assert producer.unconfirmed == 0
    assert len(told.receipts) == TRANSACTIONS * MESSAGES
    assert len(answers) > 1
    assert told.values("admitted") == committed_values(kafka, topic)
    assert {one.outcome for one in told.receipts.values()} == {"admitted", "aborted"}
    joined = Receipts.joined(answers)
    by_offset = {r.offset: r.outcome for r in told.receipts.values() if not r.error}
    assert {r.offset: r.outcome for r in joined} == by_offset
    unsent = Counter(r.error for r in told.receipts.values() if r.error)
    assert Counter({u.error: u.messages for u in joined.undelivered}) == unsent


def test_an_open_transaction_is_left_alone_behind_the_writers_back(
    topic: str, producer: FencedTransactionalProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However much is in it: what is in there cannot be confirmed yet."""
    answers: list[Receipts] = []
    asked: list[None] = []
    refresh = Ledger.refresh

    def count(ledger: Ledger, timeout_s: float) -> object:
        asked.append(None)
        return refresh(ledger, timeout_s)

    monkeypatch.setattr(Ledger, "refresh", count)
    with WriteBehind(producer, answers.append, every_messages=5, every_s=3600):
        producer.begin_transaction()
        for _ in range(50):
            producer.produce(topic, b"v", partition=0)
        producer.flush(30)
        # Its thread has been round since, more than once.
        for _ in range(3):
            await_report(producer, topic)
        assert asked == []
        producer.commit_transaction()
        wait_until(lambda: producer.unconfirmed == 0, 60, "so many are confirmed")
    assert Receipts.joined(answers).counts["admitted"] == 53


@pytest.mark.parametrize("is_noticed", [False, True])
def test_an_id_that_is_taken_behind_the_writers_back(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    caplog: pytest.LogCaptureFixture,
    is_noticed: bool,
) -> None:
    """Whichever thread the client tells of it: the writer hears of it all the same."""
    told = Told()
    with WriteBehind(producer, every_messages=1, every_s=0.02):
        for number in range(3):
            producer.begin_transaction()
            told.produce(producer, topic, b"lost %d" % number)
            producer.flush(30)
            take_id(kafka, producer.transactional_id)
            if is_noticed:
                await_report(producer, topic)
            with pytest.raises(TransactionAborted, match="woke up"):
                producer.commit_transaction()
            with producer.transaction():
                told.produce(producer, topic, b"%d" % number)
    assert told.values("admitted") == committed_values(kafka, topic)
    assert told.values("admitted") == [b"0", b"1", b"2"]
    assert told.values("aborted") == [b"lost 0", b"lost 1", b"lost 2"]
    assert "callback failed" not in caplog.text


def test_from_an_event_loop(
    kafka: KafkaBroker, topic: str, producer: FencedTransactionalProducer
) -> None:
    async def write() -> list[str]:
        async with AsyncFencedProducer(producer, confirm_every_s=0.02) as around:
            told: list[asyncio.Future[Receipt]] = []
            for end in (producer.commit_transaction, producer.abort_transaction):
                await asyncio.to_thread(producer.begin_transaction)
                told.append(await around.produce_for_receipt(topic, b"v"))
                assert await around.flush() == 0
                assert not told[-1].done()
                await asyncio.to_thread(end)
            found = [await one for one in told]
            assert outcomes(await around.confirm()) == ["admitted", "aborted"]
            return [receipt.outcome for receipt in found]

    assert asyncio.run(write()) == ["admitted", "aborted"]
    assert committed_values(kafka, topic) == [b"v"]
