"""Receipts behind the writer's back, on real Kafka: as the consumers have it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from epochfence import (
    Deposed,
    FencedConsumer,
    FencedProducer,
    Ledger,
    Receipt,
    WriteBehind,
)
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.receipts import Fate, Receipts
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.producing import doing
from support.waiting import wait_until

MESSAGES = 2000
AT_ONCE = 300


@pytest.fixture
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as opened:
        yield opened


def admitted_values(
    kafka: KafkaBroker, ledger: Ledger, topic: str, expected: int
) -> list[bytes]:
    """What a consumer of the topic is given, once it has so many."""
    values: list[bytes] = []
    config = {
        **kafka.config,
        "group.id": f"{topic}-readers",
        "auto.offset.reset": "earliest",
    }
    with FencedConsumer(config, ledger, require={topic: ["s"]}) as consumer:
        consumer.subscribe([topic])

        def read() -> bool:
            messages = consumer.consume(1000, 0.2)
            values.extend(message.value() or b"" for message in messages)
            return len(values) >= expected and not messages

        wait_until(read, 60, "not everything that was admitted is there")
    return values


def test_a_zombie_is_told_of_each_message(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bulk, message by message, and by what consumers get: all the same."""
    # It is not told of grants, and so goes on writing.
    monkeypatch.setattr(FencedProducer, "_on_grant", doing(None))
    topic = kafka.create_topic("t", partitions=3)
    leadership = ledger.claim("s", holder="a")
    bulk: Counter[str] = Counter()
    fates: dict[bytes, Fate] = {}
    is_half_written = threading.Event()
    is_succeeded = threading.Event()

    def count(receipts: Receipts) -> None:
        bulk.update({outcome: n for outcome, n in receipts.counts.items() if n})

    def write(producer: FencedProducer) -> None:
        for number in range(MESSAGES):
            value = b"%d" % number

            def note(receipt: Receipt, value: bytes = value) -> None:
                assert value not in fates
                fates[value] = receipt.outcome

            try:
                producer.produce(topic, value, value, on_receipt=note)
            except Deposed:
                return  # behind its back, it was found out
            if number == MESSAGES // 2:
                # So that what follows is in the log before anybody finds out.
                wait_until(lambda: producer.unconfirmed < AT_ONCE, 60, "not confirmed")
                is_half_written.set()
                assert is_succeeded.wait(60)

    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        with WriteBehind(producer, count, every_messages=AT_ONCE, every_s=60):
            writer = threading.Thread(target=write, args=(producer,))
            writer.start()
            assert is_half_written.wait(60)
            successor = ledger.claim("s", holder="b")
            with FencedProducer(kafka.config, ledger, successor) as other:
                other.take_over([topic])
                is_succeeded.set()
                writer.join()
        assert producer.unconfirmed == 0
    assert Counter(fates.values()) == bulk
    assert set(bulk) == {"admitted", "fenced"}
    expected = sorted(value for value, fate in fates.items() if fate == "admitted")
    got = admitted_values(kafka, ledger, topic, len(expected))
    assert sorted(got) == expected


def test_nothing_is_read_while_nobody_else_leads(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = kafka.create_topic("t")
    receipts: list[Receipt] = []
    leadership = ledger.claim("s", holder="a")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        monkeypatch.setattr(PartitionReader, "read", doing(AssertionError("read")))
        with WriteBehind(producer, every_s=0.05):
            for _ in range(MESSAGES):
                producer.produce(topic, b"v", on_receipt=receipts.append)
    assert [r.offset for r in receipts] == list(range(1, MESSAGES + 1))
    assert {receipt.outcome for receipt in receipts} == {"admitted"}
