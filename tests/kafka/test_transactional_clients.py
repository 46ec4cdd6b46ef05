"""Clients that were fenced are given back: a leader may be fenced hundreds of times."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from confluent_kafka import Producer

from epochfence import Deposed, FencedTransactionalProducer, Ledger, TransactionAborted
from epochfence.epochs import connection
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.producing import doing
from support.transactions import SCOPE, open_producer, open_zombie, take_id
from support.waiting import wait_until

_TIMES = 3


class Counted(Producer):
    """A client that weak references can tell the end of."""


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> weakref.WeakSet[Producer]:
    """Those that were made and are there."""
    found: weakref.WeakSet[Producer] = weakref.WeakSet()

    def make(settings: dict[str, object]) -> Producer:
        client = Counted(settings)
        found.add(client)
        return client

    monkeypatch.setattr(connection, "Producer", make)
    return found


@pytest.fixture
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as opened:
        yield opened


def are_given_back(clients: weakref.WeakSet[Producer], but: int) -> bool:
    gc.collect()
    return len(clients) <= but


def write_and(
    producer: FencedTransactionalProducer, topic: str, then: Callable[[], object]
) -> None:
    """A transaction in which something happens."""
    with producer.transaction():
        producer.produce(topic, b"1", partition=0)
        assert producer.flush(30) == 0
        then()


def check_given_back(
    clients: weakref.WeakSet[Producer], be_fenced: Callable[[], object]
) -> None:
    """Be fenced once, and again: as many clients are there as were after the first."""
    be_fenced()
    gc.collect()
    before = len(clients)
    for _ in range(_TIMES):
        be_fenced()
    wait_until(lambda: are_given_back(clients, before), 10, "they are freed")


def notice(noticed: str, producer: FencedTransactionalProducer, topic: str) -> None:
    """Hear of the fence before the transaction is committed, or not yet."""

    def hand_over() -> None:
        producer.produce(topic, b"2", partition=0)

    if noticed == "by produce":
        wait_until(hand_over, 30, "it is refused")
    if noticed == "by flush":
        hand_over()
        producer.flush(30)


NOTICED = pytest.mark.parametrize(
    "noticed", ["at the commit", "by produce", "by flush"]
)


@NOTICED
def test_those_whose_id_was_taken(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    clients: weakref.WeakSet[Producer],
    noticed: str,
) -> None:
    leadership = ledger.claim(SCOPE, holder="a")
    with open_producer(kafka, ledger, leadership) as producer:
        producer.take_over([topic])

        def lose_id() -> None:
            take_id(kafka, producer.transactional_id)
            notice(noticed, producer, topic)

        def be_fenced() -> None:
            with pytest.raises(TransactionAborted):
                write_and(producer, topic, lose_id)
            write_and(producer, topic, doing(None))

        check_given_back(clients, be_fenced)


@NOTICED
def test_those_of_deposed_leaders(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    clients: weakref.WeakSet[Producer],
    noticed: str,
) -> None:
    def succeed(zombie: FencedTransactionalProducer) -> None:
        with open_producer(kafka, ledger, ledger.claim(SCOPE, holder="b")) as leader:
            leader.take_over([topic])
        notice(noticed, zombie, topic)

    def be_deposed() -> None:
        with open_zombie(kafka, ledger, ledger.claim(SCOPE, holder="a")) as zombie:
            zombie.take_over([topic])
            with pytest.raises(Deposed):
                write_and(zombie, topic, partial(succeed, zombie))

    check_given_back(clients, be_deposed)
