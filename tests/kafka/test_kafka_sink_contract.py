"""The suite that all sinks pass, over Kafka.

What a group's members are is tried in test_kafka_sink.py; here each instance reads as
somebody outside of the group, which has no members, and commits are taken from it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message
from confluent_kafka.cimpl import NewTopic

from epochfence import (
    EpochStart,
    KafkaSink,
    Ledger,
    Position,
    Sink,
    SinkBatch,
    SinkPosition,
    SinkState,
)
from epochfence.consumers.kafka_output import Output
from epochfence.testing.sink_contract import SinkContract
from support.brokers import KafkaBroker
from support.failing import failing
from support.reading import read_all

Apply = Callable[[Output, Sequence[Message]], object]


class _WithTable:
    """A Kafka sink, and the table in which the starts stand before it is called."""

    def __init__(self, sink: KafkaSink, ledger: Ledger) -> None:
        self._sink = sink
        self._ledger = ledger

    def load(self, topic: str, partition: int) -> SinkState | None:
        state = self._sink.load(topic, partition)
        return None if state is None else self._with_starts(state, topic, partition)

    def _with_starts(self, state: SinkState, topic: str, partition: int) -> SinkState:
        starts = self._starts_below(state.position, topic, partition)
        assert state.said is not None
        assert state.said.starts == len(starts)
        return SinkState(state.position, starts)

    def _starts_below(
        self, position: SinkPosition, topic: str, partition: int
    ) -> tuple[EpochStart, ...]:
        self._ledger.table.refresh()
        last = Position(position.leader_epoch, position.next_offset - 1)
        return tuple(
            start
            for start in self._ledger.table.starts(topic, partition)
            if start.position.is_at_or_before(last)
        )

    def write(self, batches: Sequence[SinkBatch]) -> None:
        complete: list[SinkBatch] = []
        for batch in batches:
            self._ledger.table.write(batch.new_starts, "digest")
            starts = self._starts_below(batch.position, *batch.place)
            complete.append(replace(batch, starts=starts))
        self._sink.write(complete)


class TestKafkaSink(SinkContract):
    @pytest.fixture(autouse=True)
    def store(self, kafka: KafkaBroker, ledger: Ledger, topic: str) -> Iterator[None]:
        self.kafka, self.ledger, self.topic = kafka, ledger, topic
        self.dead = kafka.create_topic("dead")
        self.group = f"g-{secrets.token_hex(4)}"
        self.opened: list[tuple[KafkaSink, Consumer]] = []
        for name in ("orders", "payments"):
            _create(kafka, name)
        yield
        for sink, consumer in self.opened:
            sink.close()
            consumer.close()

    def open(self) -> Sink:
        return self._open(self._apply)

    def open_failing(self) -> Sink:
        return self._open(failing(self._apply))

    def _apply(self, output: Output, messages: Sequence[Message]) -> None:
        for message in messages:
            output.produce(self.topic, value=message.value())

    def _open(self, apply: Apply) -> Sink:
        member = Consumer(
            {
                **self.kafka.config,
                "group.id": self.group,
                "isolation.level": "read_committed",
            }
        )
        sink = KafkaSink(self.kafka.config, apply, dead_letters=self.dead)
        sink.join(member)
        self.opened.append((sink, member))
        return _WithTable(sink, self.ledger)

    def applied(self) -> list[bytes]:
        return self._values(self.topic)

    def rejected(self) -> list[bytes]:
        return self._values(self.dead)

    def _values(self, topic: str) -> list[bytes]:
        records = read_all(self.kafka, topic, isolation_level="read_committed")
        return [value for record in records if (value := record.value()) is not None]

    # It is the group that lets one of two in: see test_kafka_sink.py.
    test_of_two_instances_at_once_one_wins = None  # type: ignore[assignment]


def _create(kafka: KafkaBroker, name: str) -> None:
    """The suite's topics have names of their own, which stay."""
    admin: Any = kafka.admin
    try:
        admin.create_topics([NewTopic(name, 2, -1)])[name].result(30)
    except KafkaException as error:
        assert error.args[0].name() == "TOPIC_ALREADY_EXISTS"  # noqa: PT017
