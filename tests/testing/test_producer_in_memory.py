"""The testing kit's producer: what it refuses, and what can befall it."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, TopicPartition

from epochfence import (
    Deposed,
    FencedProducer,
    FenceSettings,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer, zombie
from epochfence.testing.plugin import Depose


@pytest.fixture
def producer(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    memory_log.create_topic("orders", partitions=2)
    return MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="a"))


def outcomes(producer: FencedProducer) -> list[str]:
    return [receipt.outcome for receipt in producer.confirm()]


def test_it_writes_stamped_messages_behind_barriers(
    producer: MemoryProducer, memory_log: MemoryLog
) -> None:
    reported: list[tuple[object, int | None]] = []

    def told(error: KafkaError | None, message: Message) -> None:
        reported.append((error, message.offset()))

    assert producer.take_over(["orders"]) == {("orders", 0): 0, ("orders", 1): 0}
    producer.produce("orders", "v", "k", 1, told, headers={"mine": "1"})
    assert (len(producer), reported) == (1, [])
    assert producer.poll(0) == 1
    assert (len(producer), reported) == (0, [(None, 1)])
    (held,) = producer.leaderships
    barrier, record = memory_log.records("orders", 1)
    assert barrier.headers() == [("epochfence-barrier", held.stamp_value)]
    assert (barrier.key(), barrier.value()) == (None, None)
    assert record.headers() == [("epochfence", held.stamp_value), ("mine", b"1")]
    assert outcomes(producer) == ["admitted"]
    assert outcomes(producer) == []
    assert set(producer.list_topics().topics["orders"].partitions) == {0, 1}


def test_it_refuses_what_the_real_one_refuses(
    producer: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    with pytest.raises(MisconfiguredError, match="it was not taken over"):
        producer.produce("orders", "v")
    with pytest.raises(MisconfiguredError, match="there is no such topic"):
        producer.take_over(["elsewhere"])
    producer.take_over([TopicPartition("orders", 1)])
    with pytest.raises(MisconfiguredError, match=r"only partitions \[1\]"):
        producer.produce("orders", "v", partition=0)
    with pytest.raises(MisconfiguredError, match="are ours"):
        producer.produce("orders", "v", partition=1, headers={"epochfence": "x"})
    with pytest.raises(MisconfiguredError, match="requires stamps of scope 'other'"):
        MemoryProducer(
            memory_ledger, producer.leaderships, settings=FenceSettings(["other"])
        ).take_over(["orders"])
    producer.close()
    with pytest.raises(RuntimeError, match="was closed"):
        producer.produce("orders", "v", partition=1)


def test_a_deposed_one_is_stopped_in_the_middle(
    producer: MemoryProducer, depose: Depose
) -> None:
    producer.take_over(["orders"])
    done: list[int] = []

    def work() -> None:
        for number in range(5):
            if number == 3:
                depose(*producer.leaderships, holder="b")
            producer.produce("orders", b"%d" % number)
            done.append(number)

    with pytest.raises(Deposed) as deposed:
        work()
    assert (done, deposed.value.holder) == ([0, 1, 2], "b")
    # Its successor has no barrier yet: what was written came first.
    assert outcomes(producer) == ["admitted"] * 3
    with pytest.raises(Deposed):
        producer.take_over(["orders"])


def test_what_is_held_back_arrives_later(
    producer: MemoryProducer, memory_log: MemoryLog
) -> None:
    producer.take_over(["orders"])
    producer.hold()
    producer.produce("orders", "v", partition=0)
    assert (producer.held, producer.held_topics) == (1, ["orders"])
    assert producer.flush(0) == 1
    with pytest.raises(TopicUnavailable, match="1 messages are not acknowledged"):
        producer.confirm()
    assert len(memory_log.records("orders", 0)) == 1
    assert [record.value() for record in producer.release()] == [b"v"]
    assert outcomes(producer) == ["admitted"]
    producer.produce("orders", "at once")
    assert producer.held == 0
    producer.hold()
    producer.produce("orders", "given up")
    producer.purge()
    (undelivered,) = producer.confirm().undelivered
    assert (undelivered.error, undelivered.messages) == ("_PURGE_QUEUE", 1)


def test_a_zombie_is_fenced_by_a_successor(
    producer: MemoryProducer, memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    producer.take_over(["orders"])
    producer.produce("orders", "in time", partition=0)
    producer.hold()
    producer.produce("orders", "too late", partition=0)
    producer.close()
    (record,) = zombie(producer)
    assert (record.offset(), record.value()) == (3, b"too late")
    assert memory_ledger.state.epoch_of("w") == 2
    with pytest.raises(MisconfiguredError, match="it holds no message back"):
        zombie(producer)


def test_a_zombie_that_would_come_first_is_none(
    producer: MemoryProducer, memory_ledger: MemoryLedger, depose: Depose
) -> None:
    producer.take_over(["orders"])
    producer.hold()
    producer.produce("orders", "too late", partition=0)
    successor = MemoryProducer(memory_ledger, depose(*producer.leaderships))
    with pytest.raises(MisconfiguredError, match=r"no barrier on orders\[0\]"):
        zombie(producer)
    successor.take_over(["orders"])
    assert len(zombie(producer)) == 1
    assert outcomes(producer) == ["fenced"]


@pytest.mark.parametrize("arrives", [False, True])
def test_deliveries_fail(
    producer: MemoryProducer, memory_log: MemoryLog, arrives: bool
) -> None:
    producer.take_over(["orders"])
    producer.fail_deliveries(2, arrives=arrives)
    for _ in range(3):
        producer.produce("orders", "v", partition=0)
    receipts = producer.confirm()
    (failed,) = receipts.undelivered
    assert (failed.error, failed.messages) == ("_MSG_TIMED_OUT", 2)
    assert [receipt.outcome for receipt in receipts] == ["admitted"]
    assert len(memory_log.records("orders", 0)) == (4 if arrives else 2)


def test_an_unclean_election_takes_what_was_acknowledged(
    producer: MemoryProducer, memory_log: MemoryLog, depose: Depose
) -> None:
    producer.take_over(["orders"])
    for _ in range(2):
        producer.produce("orders", "v", partition=0)
    memory_log.truncate("orders", 0, 2)
    depose(*producer.leaderships)
    assert outcomes(producer) == ["admitted", "lost"]


def test_a_topic_that_is_not_available(
    producer: MemoryProducer, memory_log: MemoryLog
) -> None:
    memory_log.fail(TopicUnavailable("orders", "no broker answers"))
    with pytest.raises(TopicUnavailable, match="no broker answers"):
        producer.take_over(["orders"])
    producer.take_over(["orders"])


def test_a_plain_one_writes_there_too(
    memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    """For an application that makes its producer itself, from config and ledger."""
    memory_log.create_topic("orders")
    leadership = memory_ledger.claim("w", holder="a")
    with FencedProducer({"linger.ms": 5}, memory_ledger, leadership) as producer:
        producer.take_over(["orders"])
        producer.produce("orders", "v")
        assert outcomes(producer) == ["admitted"]


def test_only_a_ledger_in_memory_will_do() -> None:
    anything: Any = object()
    with pytest.raises(MisconfiguredError, match="it is no MemoryLedger"):
        MemoryProducer(anything, anything)
