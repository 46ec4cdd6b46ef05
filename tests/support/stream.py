"""A stamped topic, written to by hand: what consumers are tested on."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import Message, Producer

from epochfence import FencedConsumer, Leadership
from support.brokers import KafkaBroker

Headers = list[tuple[str, str | bytes | None]]
MADE_UP = "77:0123456789abcdef:w"


def stamp(*leaderships: Leadership) -> Headers:
    """The headers of a message under these leaderships."""
    return [("epochfence", leadership.stamp_value) for leadership in leaderships]


class Stream:
    """Writes to one topic, acknowledged, in order.

    Keeps the values written under a good stamp in `good`, by partition.
    """

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self.topic = topic
        settings = {**kafka.config, "enable.idempotence": True, "log_level": 2}
        self._producer = Producer(settings)
        self._count = 0

    def write(
        self,
        headers: Headers,
        count: int = 1,
        *,
        partition: int = 0,
        key: bytes | None = b"k",
    ) -> list[bytes]:
        """Write records with these headers; give their values, each another."""
        values: list[bytes] = []
        for _ in range(count):
            self._count += 1
            values.append(b"%d" % self._count)
            self._send(values[-1], headers, partition, key)
        assert self._producer.flush(30) == 0
        return values

    def barrier(self, leadership: Leadership, *, partition: int = 0) -> None:
        """Write a leadership's barrier."""
        headers: Headers = [("epochfence-barrier", leadership.stamp_value)]
        self._send(None, headers, partition, None)
        assert self._producer.flush(30) == 0

    def _send(
        self, value: bytes | None, headers: Headers, partition: int, key: bytes | None
    ) -> None:
        while True:
            try:
                self._producer.produce(
                    self.topic, value, key, partition, headers=list(headers)
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                return


def values_of(messages: Iterable[Message]) -> list[bytes | None]:
    """The values of messages, none of which is an event."""
    values: list[bytes | None] = []
    for message in messages:
        assert message.error() is None, message.error()
        values.append(message.value())
    return values


def read_until(
    consumer: FencedConsumer,
    is_enough: Callable[[Sequence[Message]], bool],
    timeout_s: float = 30,
) -> list[Message]:
    """Consume until what came is enough."""
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while not is_enough(messages):
        assert time.monotonic() < deadline, f"only {len(messages)} messages came"
        messages += consumer.consume(1000, 0.1)
    return messages


def read_count(
    consumer: FencedConsumer, count: int, timeout_s: float = 30
) -> list[Message]:
    """Consume so many messages."""
    return read_until(consumer, lambda messages: len(messages) >= count, timeout_s)


def read_to(
    consumer: FencedConsumer, ends: dict[tuple[str, int], int], timeout_s: float = 30
) -> list[Message]:
    """Consume until these partitions stand at these offsets, rejected ones included."""

    def is_there(_: Sequence[Message]) -> bool:
        places = {
            (tp.topic, tp.partition): tp.offset
            for tp in consumer.position(consumer.assignment())
        }
        return all(places.get(place, -1) >= end for place, end in ends.items())

    return read_until(consumer, is_there, timeout_s)
