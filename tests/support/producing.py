"""What producers left in a topic, in a form that tests can compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    ResourceType,
)
from confluent_kafka.cimpl import NewTopic

from epochfence import Leadership
from support.brokers import KafkaBroker
from support.reading import read_all
from support.waiting import wait_until

STAMP = "epochfence"
BARRIER = "epochfence-barrier"


class Record(NamedTuple):
    """A record as it lies in the log."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]

    @property
    def is_barrier(self) -> bool:
        """Whether it has exactly one header, a barrier's."""
        return [name for name, _ in self.headers] == [BARRIER]


def doing(answer: object) -> Callable[..., Any]:
    """A function that takes anything: it raises an exception, or gives the answer."""

    def do(*_: object, **__: object) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return do


def records(kafka: KafkaBroker, topic: str) -> list[Record]:
    """Everything in a topic, partition by partition."""
    found: list[Record] = []
    for message in read_all(kafka, topic):
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        headers: Any = message.headers() or []
        found.append(
            Record(partition, offset, message.key(), message.value(), list(headers))
        )
    return found


def barriers(kafka: KafkaBroker, topic: str) -> list[Record]:
    """The barriers in a topic."""
    return [record for record in records(kafka, topic) if record.is_barrier]


def stamp_of(leadership: Leadership) -> tuple[str, bytes]:
    """The header of a message under a leadership, spelt out."""
    text = f"{leadership.epoch}:{leadership.grant_id}:{leadership.scope}"
    return STAMP, text.encode()


def barrier_of(leadership: Leadership) -> tuple[str, bytes]:
    """The header of a barrier of a leadership."""
    return BARRIER, stamp_of(leadership)[1]


def set_config(kafka: KafkaBroker, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin: Any = kafka.admin
    admin.incremental_alter_configs([resource])[resource].result(30)


def add_partitions(kafka: KafkaBroker, topic: str, total: int) -> None:
    """Give a topic more partitions."""
    admin: Any = kafka.admin
    admin.create_partitions([NewPartitions(topic, total)])[topic].result(30)

    def are_led() -> bool:
        seen = kafka.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(seen) == total and all(p.leader >= 0 for p in seen.values())

    wait_until(are_led, 30, f"{topic} has {total} partitions")


def make_anew(kafka: KafkaBroker, topic: str, partitions: int = 1) -> None:
    """Delete a topic and create it again."""
    kafka.delete_topic(topic)
    admin: Any = kafka.admin
    admin.create_topics([NewTopic(topic, partitions, -1)])[topic].result(30)

    def is_led() -> bool:
        seen = kafka.admin.list_topics(topic, timeout=10).topics[topic].partitions
        return len(seen) == partitions and all(p.leader >= 0 for p in seen.values())

    wait_until(is_led, 30, f"{topic} is there again")


def mock_cluster() -> tuple[Producer, str]:
    """An embedded broker, which lives as long as the producer, and its address."""
    owner = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": ""})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    return owner, f"{broker.host}:{broker.port}"
