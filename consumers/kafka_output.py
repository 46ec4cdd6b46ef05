"""What a function that applies messages to Kafka produces with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence.epochs.full_queue import when_there_is_room

Headers = dict[str, str | bytes | None] | list[tuple[str, str | bytes | None]]


class Output:
    """What a function that applies messages produces with, in the sink's transaction.

    Args:
        producer: The client underneath.
        timeout_s: How long to wait for room in its queue.
    """

    def __init__(self, producer: Producer, timeout_s: float) -> None:
        self._producer = producer
        self._produce: Callable[..., None] = producer.produce
        self._timeout_s = timeout_s
        self.failure: KafkaException | None = None

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        timestamp: int = 0,
        headers: Headers | None = None,
    ) -> None:
        """Hand a message over, as to confluent's `Producer.produce`.

        It waits where the client's queue is full. There is no `on_delivery`: all that
        is produced in the transaction arrives, or nothing does.

        Args:
            topic: Where to.
            value: The message's value.
            key: Its key.
            partition: Its partition's number; -1 leaves the choice to the client.
            timestamp: Milliseconds since 1970; 0: now.
            headers: Its headers.

        Raises:
            KafkaException: The client refuses the message.
        """
        # Positional arguments cost half of what keywords do.
        try:
            self._produce(topic, value, key, partition, None, None, timestamp, headers)
        except BufferError:
            self._produce_later(
                topic, value, key, partition, None, None, timestamp, headers
            )
        except KafkaException as error:
            self.failure = error
            raise

    def _produce_later(self, *arguments: Any) -> None:
        try:
            when_there_is_room(
                partial(self._produce, *arguments), self._producer.poll, self._timeout_s
            )
        except BufferError as error:
            full = KafkaError(KafkaError._QUEUE_FULL, "the client's queue is full")
            self.failure = KafkaException(full)
            raise self.failure from error
        except KafkaException as error:
            self.failure = error
            raise
