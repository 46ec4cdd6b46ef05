"""Making Kafka compact a topic now, and knowing that it has.

Kafka's cleaner leaves the active segment alone, so the records of interest must
first be pushed out of it: a segment ends when a record arrives that is `segment.ms`
younger than the segment's first. (`segment.bytes` cannot be made small.)
"""

import secrets
import time
from collections import Counter
from collections.abc import Mapping

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from support.brokers import KafkaBroker
from support.cluster_view import partitions_of
from support.reading import read_all
from support.waiting import wait_until

_SEGMENT_MS = 100

COMPACTABLE: Mapping[str, str] = {
    "cleanup.policy": "compact",
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.0",
    "delete.retention.ms": "0",
    "max.compaction.lag.ms": str(_SEGMENT_MS),
}
"""Settings of a topic on which `force_compaction` works."""

_ROLLS = 3


def force_compaction(
    kafka: KafkaBroker,
    topic: str,
    timeout_s: float = 30,
    *,
    key: bytes | None = None,
) -> None:
    """Have Kafka remove every superseded record that is in the topic now.

    When this returns, the records that the topic held at the call are down to one
    for each key and partition: its newest. Writes a few records of a null value
    under `key` to every partition, by default under one that readers of the
    coordination topics pass over. Nobody else may write to the topic meanwhile.
    """
    if key is None:
        key = f"sync/{secrets.token_hex(8)}".encode()
    deadline = time.monotonic() + timeout_s
    first = _write_rolls(kafka, topic, partitions_of(kafka.admin, topic), key)

    # Of the records written under the key, the first is superseded by the second and
    # both are out of the active segment. The cleaner goes from old to new: once it
    # has removed the first, it has seen to everything before it as well.
    def is_compacted() -> bool:
        records = read_all(kafka, topic, timeout_s=max(1, deadline - time.monotonic()))
        if any(_place(record) in first for record in records):
            return False
        before = [r for r in records if _place(r) < _start(first, r.partition())]
        counted = Counter((record.partition(), record.key()) for record in before)
        return all(count == 1 for count in counted.values())

    wait_until(
        is_compacted,
        max(0, deadline - time.monotonic()),
        f"the cleaner removed superseded records of {topic}",
        interval_s=0.2,
    )


Place = tuple[int, int]


def _place(record: Message) -> Place:
    """Return where a record is: partition and offset."""
    partition, offset = record.partition(), record.offset()
    if partition is None or offset is None:
        raise TypeError("a record from a log has a partition and an offset")
    return partition, offset


def _start(first: set[Place], partition: int | None) -> Place:
    """Return the place of the first of our own records in a partition."""
    return next(place for place in first if place[0] == partition)


def _write_rolls(
    kafka: KafkaBroker, topic: str, partitions: list[int], key: bytes
) -> set[Place]:
    """Write the key often enough to end segments; return the first record's places."""
    written: list[set[Place]] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, record: Message) -> None:
        if error is None:
            written[-1].add(_place(record))
        else:
            failures.append(error)

    producer = Producer({**kafka.config, "acks": "all", "enable.idempotence": True})
    for roll in range(_ROLLS):
        if roll:
            # Not a wait for anything: the records must differ in age by this much.
            time.sleep(1.5 * _SEGMENT_MS / 1000)
        written.append(set())
        for partition in partitions:
            producer.produce(
                topic,
                key=key,
                value=None,
                partition=partition,
                on_delivery=delivered,
            )
        producer.flush(10)
        if failures:
            raise KafkaException(failures[0])
        if len(written[-1]) != len(partitions):
            raise TimeoutError(f"{topic} did not take a record within 10 s")
    return written[0]
