"""Ledgers on a real broker, each test with topics of its own."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Producer

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE


@dataclass(frozen=True)
class LedgerTopics:
    """A coordination topic and its table topic, named but perhaps not there yet."""

    kafka: KafkaBroker
    coordination_topic: str
    table_topic: str

    @property
    def names(self) -> dict[str, Any]:
        """The topics as `Ledger` takes them."""
        return {
            "coordination_topic": self.coordination_topic,
            "table_topic": self.table_topic,
        }

    def open(self, **options: Any) -> Ledger:
        """A ledger on these topics."""
        return Ledger(self.kafka.config, **self.names, **options)

    def write(self, key: bytes | None, value: bytes | None) -> int:
        """Write a record to the coordination topic as anybody could; its offset."""
        return write_record(self.kafka, self.coordination_topic, key, value)


def unnamed_topics(kafka: KafkaBroker) -> LedgerTopics:
    """Names that are not taken: the ledger has to create its topics."""
    suffix = secrets.token_hex(6)
    return LedgerTopics(kafka, f"coordination-{suffix}", f"starts-{suffix}")


def compactable_topics(kafka: KafkaBroker) -> LedgerTopics:
    """Topics that exist and can be compacted at once."""
    return LedgerTopics(
        kafka,
        kafka.create_topic("coordination", config=dict(COMPACTABLE)),
        kafka.create_topic("starts", config=dict(COMPACTABLE)),
    )


def write_record(
    kafka: KafkaBroker,
    topic: str,
    key: bytes | None,
    value: bytes | None,
    headers: Sequence[tuple[str, bytes | None]] = (),
    partition: int = 0,
) -> int:
    """Write one record, acknowledged; give its offset."""
    offsets: list[int] = []
    producer = Producer({**kafka.config, "acks": "all", "log_level": 2})

    def delivered(error: object, message: Any) -> None:
        assert error is None, error
        offsets.append(message.offset())

    producer.produce(
        topic,
        key=key,
        value=value,
        partition=partition,
        headers=list(headers),
        on_delivery=delivered,
    )
    producer.flush(30)
    (offset,) = offsets
    return offset
