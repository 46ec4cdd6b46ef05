"""Partitions as their leaders write them, deposed ones too, and consumers of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from epochfence import EpochfenceError, EpochStart, Leadership
from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.messages import headers_of
from epochfence.epochs.settings import FenceSettings
from support.brokers import KafkaBroker
from support.reading import read_all
from support.waiting import wait_until

Header = tuple[str, bytes | None]
Place = tuple[str, int]

_TIMEOUT_S = 30


def stamp(*leaderships: Leadership) -> list[Header]:
    """The headers of a record that is written under these leaderships."""
    return [("epochfence", one.stamp_value) for one in leaderships]


def made_up(scope: str, epoch: int) -> list[Header]:
    """The headers of a record that cites a grant which nobody has."""
    return [("epochfence", f"{epoch}:0123456789abcdef:{scope}".encode())]


class Writer:
    """Writes records to the partitions of a topic.

    Args:
        kafka: The broker.
        topic: The topic.
        settings: Further settings of the producer.
    """

    def __init__(self, kafka: KafkaBroker, topic: str, **settings: Any) -> None:
        self.topic = topic
        self._producer = Producer(
            {**kafka.config, "acks": "all", "linger.ms": 0, "log_level": 2, **settings}
        )

    def write(
        self,
        headers: Sequence[Header],
        *values: bytes | None,
        partition: int = 0,
        key: bytes | None = b"k",
    ) -> list[int]:
        """Write records that all have these headers; give their offsets.

        Raises:
            KafkaException: One was not acknowledged.
        """
        offsets: list[int] = []
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, record: Message) -> None:
            offset = record.offset()
            if error is not None:
                failures.append(error)
            elif offset is not None:
                offsets.append(offset)

        for value in values:
            self._producer.produce(
                self.topic,
                value=value,
                key=key,
                partition=partition,
                headers=list(headers),
                on_delivery=delivered,
            )
        self._producer.flush(_TIMEOUT_S)
        if failures:
            raise KafkaException(failures[0])
        if len(offsets) != len(values):
            raise TimeoutError(f"{self.topic} did not take {len(values)} records")
        return offsets

    def barrier(self, leadership: Leadership, *, partition: int = 0) -> int:
        """Write the barrier of a leadership; give its offset."""
        headers: list[Header] = [("epochfence-barrier", leadership.stamp_value)]
        (offset,) = self.write(headers, None, partition=partition, key=None)
        return offset


def write_aborted(
    kafka: KafkaBroker, topic: str, headers: Sequence[Header], partitions: Sequence[int]
) -> None:
    """Write a record to each of these partitions, in a transaction that is aborted.

    When this returns, the markers of its end are in the partitions as well.
    """
    producer = Producer({**kafka.config, "transactional.id": f"abort-{topic}"})
    producer.init_transactions(_TIMEOUT_S)
    producer.begin_transaction()
    ends: dict[int, int] = {}

    def delivered(_: KafkaError | None, record: Message) -> None:
        partition, offset = record.partition(), record.offset()
        if partition is not None and offset is not None:
            ends[partition] = offset + 2

    for partition in partitions:
        producer.produce(
            topic,
            value=b"aborted",
            partition=partition,
            headers=list(headers),
            on_delivery=delivered,
        )
    producer.flush(_TIMEOUT_S)
    producer.abort_transaction(_TIMEOUT_S)

    # The answer comes before the markers are written.
    specs: Any = OffsetSpec  # without annotations

    def is_over() -> bool:
        places = {TopicPartition(topic, n): specs.latest() for n in partitions}
        found = kafka.admin.list_offsets(places)
        return all(
            found[place].result(_TIMEOUT_S).offset == ends[place.partition]
            for place in places
        )

    wait_until(is_over, _TIMEOUT_S, f"the transaction on {topic} is over")


# Topics.


def create_named(
    kafka: KafkaBroker,
    topic: str,
    partitions: int = 1,
    *,
    replicas: Sequence[int] | None = None,
    config: Mapping[str, str] | None = None,
) -> None:
    """Create a topic of this name, which may have been there before.

    Every partition has a leader when this returns. The caller sees to its deletion.

    Args:
        kafka: The broker.
        topic: The topic's name.
        partitions: How many partitions it gets.
        replicas: The nodes that keep each of them, its leader first.
        config: Settings of the topic.
    """
    if replicas is None:
        new = NewTopic(topic, partitions, -1, config=dict(config or {}))
    else:
        assignment = [list(replicas) for _ in range(partitions)]
        new = NewTopic(
            topic, partitions, replica_assignment=assignment, config=dict(config or {})
        )
    admin: Any = kafka.admin  # the library leaves it open what its futures hold

    def is_created() -> bool:
        try:
            admin.create_topics([new])[topic].result(_TIMEOUT_S)
        except KafkaException as error:
            # Deleting it may not have come to its end on the broker.
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    def is_led() -> bool:
        views = [view for view in kafka.views() if view is not None]
        return bool(views) and all(v.leads_all(topic, partitions) for v in views)

    wait_until(is_created, _TIMEOUT_S, f"topic {topic} is created")
    wait_until(is_led, _TIMEOUT_S, f"topic {topic} is led")


def delete_records(
    kafka: KafkaBroker, topic: str, below: int, *, partition: int = 0
) -> None:
    """Delete the records below an offset, as retention does."""
    place = TopicPartition(topic, partition, below)
    admin: Any = kafka.admin
    admin.delete_records([place])[place].result(_TIMEOUT_S)


# Consumers.


def consumer_config(
    kafka: KafkaBroker,
    group: str,
    reset: str = "earliest",
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The settings of a consumer that commits only when it is told to."""
    return {
        **kafka.config,
        "group.id": group,
        "auto.offset.reset": reset,
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        **(settings or {}),
    }


def place_of(message: Message) -> Place:
    """Topic and partition of a message."""
    topic, partition = message.topic(), message.partition()
    assert topic is not None
    assert partition is not None
    return topic, partition


def offset_of(message: Message) -> int:
    """The offset of a message."""
    offset = message.offset()
    assert offset is not None
    return offset


def offsets_of(
    messages: Iterable[Message], partition: int = 0, *, topic: str | None = None
) -> list[int]:
    """The offsets of those messages that are of a partition, in order."""
    return [
        offset_of(message)
        for message in messages
        if message.partition() == partition and topic in (None, message.topic())
    ]


def position_of(consumer: FencedConsumer, place: Place) -> int:
    """Where a consumer looks for the next message; below 0 while that is open."""
    (found,) = consumer.position([TopicPartition(*place)])
    return found.offset


def has_read_to(consumer: FencedConsumer, ends: Mapping[Place, int]) -> bool:
    """Whether everything below these offsets was handed over or passed over."""
    return all(position_of(consumer, place) >= end for place, end in ends.items())


def read_until(
    consumer: FencedConsumer,
    is_done: Callable[[list[Message]], bool],
    *,
    retried: tuple[type[EpochfenceError], ...] = (),
    timeout_s: float = _TIMEOUT_S,
) -> list[Message]:
    """What a consumer delivers until a condition holds.

    Args:
        consumer: The consumer.
        is_done: Is given the messages so far.
        retried: Errors after which the consumer is just asked again.
        timeout_s: How long that may take.

    Raises:
        KafkaException: The client had something to say besides.
        TimeoutError: It took too long.
    """
    messages: list[Message] = []
    deadline = time.monotonic() + timeout_s
    while not is_done(messages):
        if time.monotonic() > deadline:
            found = [(place_of(m), m.offset()) for m in messages]
            at = consumer.position(consumer.assignment())
            raise TimeoutError(f"not within {timeout_s:g} s: {found}, {at}")
        try:
            message = consumer.poll(0.1)
        except retried:
            continue
        if message is None:
            continue
        error = message.error()
        if error is not None:
            raise KafkaException(error)
        messages.append(message)
    return messages


def read_to(
    consumer: FencedConsumer,
    ends: Mapping[Place, int],
    *,
    retried: tuple[type[EpochfenceError], ...] = (),
    timeout_s: float = _TIMEOUT_S,
) -> list[Message]:
    """What a consumer delivers below these offsets, and nothing that it does beyond.

    Raises:
        KafkaException: The client had something to say besides.
        TimeoutError: It took too long.
    """
    return read_until(
        consumer,
        lambda _: has_read_to(consumer, ends),
        retried=retried,
        timeout_s=timeout_s,
    )


class Reading(threading.Thread):
    """Reads with a consumer on a thread of its own until it is stopped.

    Attributes:
        messages: What was delivered, in order.
        events: What the client had to say besides.
        errors: What the consumer raised; it was asked again each time.
        failure: What ended the thread, None if it was stopped.
    """

    def __init__(self, consumer: FencedConsumer) -> None:
        super().__init__(name="reading", daemon=True)
        self.messages: list[Message] = []
        self.events: list[KafkaError] = []
        self.errors: list[EpochfenceError] = []
        self.failure: BaseException | None = None
        self._consumer = consumer
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self._stopping.is_set():
                try:
                    message = self._consumer.poll(0.1)
                except EpochfenceError as error:
                    self.errors.append(error)
                    continue
                if message is not None:
                    self._take(message)
        except BaseException as failure:
            self.failure = failure

    def _take(self, message: Message) -> None:
        error = message.error()
        if error is None:
            self.messages.append(message)
        else:
            self.events.append(error)

    def wait_for(
        self, ends: Mapping[Place, int], timeout_s: float = 2 * _TIMEOUT_S
    ) -> None:
        """Wait until everything below these offsets was handed over or passed over."""

        def is_read() -> bool:
            assert self.failure is None, self.failure
            return has_read_to(self._consumer, ends)

        wait_until(is_read, timeout_s, f"read to {ends}")

    def __enter__(self) -> Reading:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self.join(2 * _TIMEOUT_S)
        assert self.failure is None, self.failure


# What should come out.


def judged_in_full(
    kafka: KafkaBroker, topic: str, settings: FenceSettings, ledger: LedgerState
) -> tuple[dict[Place, list[int]], list[EpochStart]]:
    """The offsets that a full reading admits, and the epochs that begin in it.

    The epoch starts have no topic id.
    """
    admitted: dict[Place, list[int]] = {}
    fences: dict[Place, PartitionFence] = {}
    for record in read_all(kafka, topic, isolation_level="read_committed"):
        place = place_of(record)
        fence = fences.get(place)
        if fence is None:
            fence = fences[place] = PartitionFence(*place, settings, ledger)
        verdict = fence.judge(
            record.leader_epoch(),
            offset_of(record),
            headers_of(record),
            ledger_complete=True,
        )
        assert verdict is not None
        if verdict.kind == "admitted":
            admitted.setdefault(place, []).append(offset_of(record))
    return admitted, [start for fence in fences.values() for start in fence.starts]
