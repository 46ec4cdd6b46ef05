"""What may be taken over, and where a producer may write afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import TopicPartition

from epochfence import FencedProducer, FenceSettings, Leadership, MisconfiguredError
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer


def test_a_topic_that_was_not_taken_over(
    memory_log: MemoryLog, producer: MemoryProducer, topic: str
) -> None:
    other = memory_log.create_topic("u")
    producer.take_over([topic])
    with pytest.raises(MisconfiguredError, match=rf"take_over\(\['{other}'\]\)"):
        producer.produce(other, b"v")
    producer.take_over([other])
    producer.produce(other, b"v")
    producer.produce(topic, b"v")
    assert producer.confirm().counts["admitted"] == 2


def test_single_partitions(producer: MemoryProducer, topic: str) -> None:
    taken = producer.take_over([TopicPartition(topic, 1)])
    assert taken == {(topic, 1): 0}
    producer.produce(topic, b"v", partition=1)
    for partition in (0, -1):
        with pytest.raises(MisconfiguredError, match=r"partitions \[1\]"):
            producer.produce(topic, b"v", partition=partition)
    with pytest.raises(MisconfiguredError):
        producer.produce(topic, b"v")
    producer.take_over([TopicPartition(topic, 2)])
    for partition in (1, 2):
        producer.produce(topic, b"v", partition=partition)
    producer.take_over([topic])
    producer.take_over([TopicPartition(topic, 0)])  # takes nothing back
    producer.produce(topic, b"v")
    assert producer.confirm().counts["admitted"] == 4


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("orders", r"\['orders'\]"),
        (None, "list"),
        ([5], "neither"),
        ([], "no topic is named"),
    ],
)
def test_what_names_no_topics(producer: MemoryProducer, wrong: Any, words: str) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        producer.take_over(wrong)


def test_partitions_and_topics_that_cannot_be_taken_over(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    producer: MemoryProducer,
    topic: str,
) -> None:
    for partition in (3, -1):
        with pytest.raises(MisconfiguredError, match="partitions 0 to 2"):
            producer.take_over([TopicPartition(topic, partition)])
    for name in (memory_ledger.coordination_topic, memory_ledger.table_topic):
        with pytest.raises(MisconfiguredError, match="belongs to the ledger"):
            producer.take_over([name])
    assert memory_log.records(topic) == []


# How its consumers judge.


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("s", "fence settings"),
        ({"t": None}, "fence settings"),
        (FenceSettings(["s"], authority="max-seen"), "max-seen"),
    ],
)
def test_how_consumers_cannot_judge(
    memory_ledger: MemoryLedger, leadership: Leadership, settings: Any, words: str
) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        FencedProducer({}, memory_ledger, leadership, settings=settings)


def test_topics_whose_consumers_would_admit_nothing(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, topic: str
) -> None:
    other = memory_log.create_topic("u")
    leadership = memory_ledger.claim("t/1", holder="a")
    settings = {topic: FenceSettings(["t/{partition}"], unstamped="quarantine")}
    producer = MemoryProducer(memory_ledger, leadership, settings=settings)
    with pytest.raises(MisconfiguredError, match="t/0"):
        producer.take_over([topic])
    with pytest.raises(MisconfiguredError, match="topic u is not among"):
        producer.take_over([other])
    assert memory_log.records(topic) == []
    producer.take_over([TopicPartition(topic, 1)])
    producer.produce(topic, b"v", partition=1)
    assert producer.confirm().are_all_admitted
    lenient = FenceSettings(["other"], unstamped="admit")
    MemoryProducer(memory_ledger, leadership, settings=lenient).take_over([other])
