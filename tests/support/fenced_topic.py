"""A topic with takeovers on it, a fenced consumer, and what the two leave behind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import (
    TopicPartition,
)

from epochfence import (
    Leadership,
    Ledger,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.epochs.settings import FenceSettings
from support.brokers import KafkaBroker
from support.stamped import (
    Writer,
    consumer_config,
    made_up,
    read_to,
    stamp,
)

SCOPE = "w"
QUARANTINE = FenceSettings([SCOPE], unstamped="quarantine")


class Rebuilds:
    """The rebuilds that the log tells of."""

    LOGGER = "epochfence.consumers.rebuild"

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[tuple[int, int, int]]:
        """Partition, start and end of each that was begun since the last call."""
        begun: list[tuple[int, int, int]] = []
        for record in self._caplog.records:
            if record.name == self.LOGGER and "is read from" in record.msg:
                assert isinstance(record.args, tuple)
                _, *numbers = record.args
                partition, start, end = [int(str(number)) for number in numbers]
                begun.append((partition, start, end))
        self._caplog.clear()
        return sorted(begun)


def fenced(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    group: str = "group",
    reset: str = "earliest",
    *,
    client: dict[str, Any] | None = None,
    settings: FenceSettings = QUARANTINE,
    **options: Any,
) -> FencedConsumer:
    config = consumer_config(kafka, f"{group}-{topic}", reset, client)
    return FencedConsumer(config, ledger, require={topic: settings}, **options)


def committed(consumer: FencedConsumer, topic: str) -> TopicPartition:
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    return found


def metadata_of(tp: TopicPartition) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(tp.metadata or "")
    return metadata


def topic_id(ledger: Ledger, topic: str) -> str:
    """The topic's id, as rows have it."""
    ledger.table.refresh()
    (found,) = {start.topic_id for start in ledger.table.starts(topic, 0)}
    assert found is not None
    return found


def starts(ledger: Ledger, topic: str) -> list[tuple[int, int]]:
    """Epoch and offset of each row of a topic's partition 0."""
    ledger.table.refresh()
    rows = ledger.table.starts(topic, 0)
    return sorted((row.epoch, row.position.offset) for row in rows)


def write_takeover(
    writer: Writer, a: Leadership, b: Leadership, partition: int = 0
) -> None:
    """Nine records: a, a, b's barrier, b, a zombie, b, made up, a zombie, b.

    What is admitted has the offsets 0, 1, 3, 5, 8.
    """
    writer.write(stamp(a), b"a", b"a", partition=partition)
    writer.barrier(b, partition=partition)
    for headers in (stamp(b), stamp(a), stamp(b), made_up(SCOPE, 77), stamp(a)):
        writer.write(headers, b"v", partition=partition)
    writer.write(stamp(b), b"b", partition=partition)


TAKEOVER_END = 9
TAKEOVER_ADMITTED = [0, 1, 3, 5, 8]
TAKEOVER_COUNTS = {"ok": 5, "barrier": 1, "stale-epoch": 2, "ungranted": 1}

WAYS: dict[str, dict[str, str]] = {
    "assigned": {},
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip-848": {"group.protocol": "consumer"},
}


def commit_takeover(kafka: KafkaBroker, ledger: Ledger, topic: str, *, at: int) -> None:
    """Have a group read the nine records of a takeover and commit at an offset."""
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    write_takeover(Writer(kafka, topic), a, b)
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_to(consumer, {(topic, 0): TAKEOVER_END})
        consumer.commit(offsets=[TopicPartition(topic, 0, at)], asynchronous=False)
