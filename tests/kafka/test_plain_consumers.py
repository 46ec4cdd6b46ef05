"""Plain consumers that use a schema share a topic with takeovers, and survive.

They know nothing of fencing, so they read everything: the barriers, and what deposed
leaders wrote. None of it may be a record that their deserialiser stumbles over.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext

from epochfence import FencedConsumer, FencedProducer
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.formats import Format, avro, json, protobuf
from support.ledgers import unnamed_topics
from support.reading import read_all
from support.stream import read_to, values_of


@pytest.mark.parametrize("is_compacted", [False, True], ids=["plain", "compacted"])
@pytest.mark.parametrize("make", [avro, json, protobuf])
def test_plain_consumers_survive_takeovers(
    kafka: KafkaBroker, make: Callable[[Any], Format], is_compacted: bool
) -> None:
    registry = SchemaRegistryClient.new_client({"url": "mock://orders"})
    orders = make(registry)
    topic = kafka.create_topic(
        "orders", config=dict(COMPACTABLE) if is_compacted else None
    )
    value = SerializationContext(topic, MessageField.VALUE)
    key = SerializationContext(topic, MessageField.KEY)

    def encoded(number: int, context: SerializationContext) -> bytes:
        data = orders.encode(number, context)
        assert data is not None
        return data

    # Where the topic is compacted, barriers need keys and values: such as its schema
    # allows. Elsewhere they are null.
    def barrier_key(scope: str, epoch: int, grant_id: str, n: int) -> bytes:
        return encoded(-n, key)

    fitting: dict[str, Any] = {
        "barrier_key": barrier_key,
        "barrier_value": encoded(-1, value),
    }
    config = {**kafka.config, "linger.ms": 5_000}
    with unnamed_topics(kafka).open() as ledger:
        producers: list[FencedProducer] = []
        written = 0
        for leader in range(3):
            if producers:
                # On its way when its time is over.
                producers[-1].produce(topic, encoded(99, value), encoded(99, key))
            leadership = ledger.claim("orders-writer", holder=f"pod-{leader}")
            options = fitting if is_compacted else {}
            producers.append(FencedProducer(config, ledger, leadership, **options))
            producers[-1].take_over([topic])
            for _ in range(5):
                written += 1
                producers[-1].produce(
                    topic, encoded(written, value), encoded(written, key)
                )
            producers[-1].flush()
        for producer in producers:
            producer.close()
        if is_compacted:
            force_compaction(kafka, topic, key=encoded(0, key))

        records = read_all(kafka, topic)
        numbers = [orders.decode(record.value(), value) for record in records]
        for record in records:
            if record.key() is not None:
                orders.decode(record.key(), key)
        assert [n for n in numbers if n is not None and 0 < n < 99] == [*range(1, 16)]
        # Null where it may be; those that filled the log for the cleaner are null too.
        assert (numbers.count(-1) if is_compacted else numbers.count(None)) == 3

        with FencedConsumer(
            {**kafka.config, "group.id": topic, "auto.offset.reset": "earliest"},
            ledger,
            require={topic: ["orders-writer"]},
            unstamped="quarantine",
        ) as consumer:
            consumer.subscribe([topic])
            last = max(record.offset() or 0 for record in records)
            messages = read_to(consumer, {(topic, 0): last + 1})
            fenced = [orders.decode(data, value) for data in values_of(messages)]
            assert fenced == [*range(1, 16)]
            assert consumer.counts["barrier"] == 3
