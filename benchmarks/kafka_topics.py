"""Topics that the benchmark of sinks writes to, in transactions."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.databases import Apply, Database, Write
from benchmarks.measuring import Bench
from epochfence import KafkaSink
from epochfence.consumers.gate import GateSink
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.topics import TopicKeeper

_TIMEOUT_S = 30.0

#: As a `KafkaSink` has them.
_SETTINGS = {"transaction.timeout.ms": 10_000, "delivery.report.only.error": True}


class KafkaTopic(Database):
    """A topic that keys and values are produced to."""

    name = "Kafka"
    likewise = "the same transactions"

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._topic = ""

    def empty(self) -> None:
        self._topic = self._bench.new_topic()

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        for message in messages:
            cursor.produce(self._topic, message.value(), message.key())

    @contextmanager
    def by_hand(self, apply: Apply, consumer: Consumer) -> Generator[Write, None, None]:
        producer = Producer(
            {**self._bench.config, **_SETTINGS, "transactional.id": self._topic}
        )
        producer.init_transactions(_TIMEOUT_S)
        generation = consumer.consumer_group_metadata()

        def write(messages: Sequence[Message]) -> None:
            end = (messages[-1].offset() or 0) + 1
            producer.begin_transaction()
            apply(producer, messages)
            producer.send_offsets_to_transaction(
                [TopicPartition(self._bench.topic, 0, end)], generation, _TIMEOUT_S
            )
            producer.commit_transaction(_TIMEOUT_S)

        yield write

    def sink(self, apply: Apply) -> KafkaSink:
        return KafkaSink(self._bench.config, apply)

    def count(self) -> int:
        with PartitionReader(self._bench.config, self._topic, 0) as reader:
            low, high = reader.bounds(_TIMEOUT_S)
            return sum(map(len, reader.read(low, high)))


class GateCopy(KafkaTopic):
    """A topic that all is copied to."""

    name = "gate"
    likewise = "the same copy"

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        facts = TopicKeeper(bench.config, _TIMEOUT_S).facts(bench.topic)
        assert facts is not None
        self._source_id = facts.topic_id
        self.copy: Apply = self._copy_by_hand

    def empty(self) -> None:
        super().empty()
        self.copy = self._copy_by_hand

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        self.copy(cursor, messages)

    def _copy_by_hand(self, cursor: Any, messages: Sequence[Message]) -> None:
        for message in messages:
            headers = [
                header
                for header in message.headers() or ()
                if not header[0].startswith("epochfence")
            ]
            partition = message.partition()
            source = (
                f"{self._source_id}:{partition}:{message.leader_epoch()}:"
                f"{message.offset()}"
            )
            cursor.produce(
                self._topic,
                value=message.value(),
                key=message.key(),
                partition=partition,
                headers=[*headers, ("epochfence-source", source)],
                timestamp=message.timestamp()[1],
            )

    def sink(self, apply: Apply) -> KafkaSink:
        return _CountedGate(self, apply, self._bench, self._topic)


class _CountedGate(GateSink):
    """A gate whose copying is counted."""

    def __init__(
        self, copy: GateCopy, apply: Apply, bench: Bench, destination: str
    ) -> None:
        super().__init__(
            bench.config, bench.topic, destination, largest_bytes=1_048_588
        )
        # What counts has the gate's own function called.
        copy.copy, self._apply = self._apply, apply
