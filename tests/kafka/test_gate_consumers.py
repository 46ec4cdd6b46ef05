"""Consumers that know nothing of fencing read a gate's copy, takeover by takeover."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.serialization import MessageField, SerializationContext

from epochfence import Leadership, Ledger
from support.formats import Format, avro, json
from support.gates import Gates
from support.ledgers import LedgerTopics
from support.stamped import Writer, stamp
from support.waiting import wait_until

TAKEOVERS = 100
ZOMBIE = 1_000_000


def plain(_: object) -> Format:
    """Bytes, as they are."""

    def encode(n: int, _: SerializationContext) -> bytes | None:
        return b"%d" % n

    def decode(data: bytes | None, _: SerializationContext) -> int | None:
        return None if data is None else int(data)

    return Format(encode, decode)


def test_a_hundred_takeovers(
    topics: LedgerTopics, ledger: Ledger, tmp_path: Path
) -> None:
    """Each leader writes in time, and once more when another has taken over."""
    gates = Gates(topics, tmp_path)
    try:
        # They copy while it happens.
        copies = [Copied(topics, gates, make) for make in (avro, json, plain)]
        leaders: list[Leadership] = []
        for number in range(1, TAKEOVERS + 1):
            leaders.append(ledger.claim("w", holder="pod"))
            for copied in copies:
                copied.take_over(leaders[-1], number)
                if number > 1:
                    copied.write(leaders[-2], ZOMBIE)
        for copied in copies:
            assert copied.read() == [*range(1, TAKEOVERS + 1)]
            copied.gate.end()
            assert copied.gate.copied == TAKEOVERS
            assert f"rejected: {TAKEOVERS - 1} stale-epoch" in copied.gate.said
    finally:
        gates.close()


class Copied:
    """A topic of orders in some format, and a gate that copies it.

    Args:
        topics: The ledger's topics, which tell the cluster too.
        gates: Starts the gate.
        make: Makes the format, of a registry.
    """

    def __init__(
        self, topics: LedgerTopics, gates: Gates, make: Callable[[Any], Format]
    ) -> None:
        registry = SchemaRegistryClient.new_client({"url": "mock://orders"})
        self._orders = make(registry)
        self._kafka = topics.kafka
        source = self._kafka.create_topic("orders")
        self._value = SerializationContext(source, MessageField.VALUE)
        self._writer = Writer(self._kafka, source)
        self._copy = self._kafka.create_topic("copy")
        self.gate = gates.start(source, self._copy)

    def take_over(self, leader: Leadership, number: int) -> None:
        """Write a leader's barrier, and its order."""
        self._writer.barrier(leader)
        self.write(leader, number)

    def write(self, leader: Leadership, number: int) -> None:
        """Write an order under a leadership."""
        self._writer.write(stamp(leader), self._orders.encode(number, self._value))

    def read(self) -> list[int | None]:
        """What a consumer reads that nobody has told of fencing."""
        consumer = Consumer(
            {
                **self._kafka.config,
                "group.id": f"plain-{self._copy}",
                "auto.offset.reset": "earliest",
            }
        )
        consumer.subscribe([self._copy])
        found: list[int | None] = []

        def is_read() -> bool:
            for message in consumer.consume(1000, 0.1):
                assert message.error() is None, message.error()
                found.append(self._orders.decode(message.value(), self._value))
            return len(found) >= TAKEOVERS

        try:
            wait_until(is_read, 60, f"{TAKEOVERS} records are read", interval_s=0)
        finally:
            consumer.close()
        return found
