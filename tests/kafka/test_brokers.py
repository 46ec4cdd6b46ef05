"""The broker fixtures themselves: what the other tests against Kafka rely on."""

import secrets
from contextlib import ExitStack
from typing import NoReturn

import pytest
from confluent_kafka import KafkaException, Message, Producer

from support.brokers import (
    BROKER_VARIABLE,
    HOW_TO_GET_A_BROKER,
    IMPATIENT,
    KafkaBroker,
    open_first,
    open_forced,
)
from support.compaction import COMPACTABLE, force_compaction
from support.kafka_local import KafkaCluster
from support.reading import read_all
from support.unavailable import StartFailed, Unavailable
from support.waiting import wait_until


def write(kafka: KafkaBroker, topic: str, *records: tuple[str, str | None]) -> None:
    """Write the records in order and return when all in-sync replicas have them."""
    config = {
        **kafka.config,
        "acks": "all",
        "enable.idempotence": True,
        **IMPATIENT,
        "log_level": 2,
    }
    producer = Producer(config)
    for key, value in records:
        producer.produce(topic, key=key, value=value, partition=0)
    assert producer.flush(30) == 0


def pairs(records: list[Message]) -> list[tuple[bytes | None, bytes | None]]:
    return [(record.key(), record.value()) for record in records]


def in_sync(cluster: KafkaCluster, topic: str) -> set[int]:
    """Return the nodes that keep up with the topic's first partition."""
    return set(cluster.admin.list_topics(topic).topics[topic].partitions[0].isrs)


def closed(stack: ExitStack) -> NoReturn:
    """A way to a broker that this machine does not offer."""
    raise Unavailable("this way is closed")


def test_the_first_open_way_to_a_broker_is_taken(kafka: KafkaBroker) -> None:
    def untried(stack: ExitStack) -> NoReturn:
        raise AssertionError("a later way was tried although an earlier was open")

    with ExitStack() as stack:
        assert open_first((closed, lambda _: kafka, untried), stack) is kafka


def test_without_any_way_the_reason_says_what_to_do() -> None:
    with ExitStack() as stack, pytest.raises(Unavailable) as caught:
        open_first((closed, closed), stack)
    assert str(caught.value).count("this way is closed") == 2
    assert HOW_TO_GET_A_BROKER in str(caught.value)


@pytest.mark.parametrize(
    ("name", "reason"), [("docker", "this way is closed"), ("podman", "docker, maven")]
)
def test_a_broker_that_is_demanded_and_not_to_be_had_is_an_error(
    name: str, reason: str
) -> None:
    ways = {"docker": closed, "maven": closed}
    with ExitStack() as stack, pytest.raises(StartFailed, match=reason) as caught:
        open_forced(name, ways, stack)
    assert BROKER_VARIABLE in str(caught.value)


def test_a_missing_topic_is_not_an_empty_one(kafka: KafkaBroker) -> None:
    with pytest.raises(KafkaException):
        read_all(kafka, "missing")


def test_one_broker_keeps_what_is_written(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic("kept")
    write(kafka, topic, ("a", "1"), ("b", "2"), ("a", "3"))
    assert pairs(read_all(kafka, topic)) == [(b"a", b"1"), (b"b", b"2"), (b"a", b"3")]


def test_topics_come_and_go(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(partitions=3)
    assert len(kafka.admin.list_topics(topic).topics[topic].partitions) == 3
    assert read_all(kafka, topic) == []
    kafka.delete_topic(topic)
    assert topic not in kafka.admin.list_topics().topics
    with pytest.raises(KafkaException):
        kafka.delete_topic(topic)


def test_forced_compaction_removes_superseded_records(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(partitions=2, config=dict(COMPACTABLE))
    write(kafka, topic, ("a", "1"), ("b", "2"), ("a", "3"), ("b", "4"), ("a", "5"))
    force_compaction(kafka, topic)
    kept = [pair for pair in pairs(read_all(kafka, topic)) if pair[1] is not None]
    assert kept == [(b"b", b"4"), (b"a", b"5")]


def test_compaction_can_be_forced_again_with_a_given_key(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(config=dict(COMPACTABLE))
    for value in ("1", "2", "3"):
        write(kafka, topic, ("a", value))
        force_compaction(kafka, topic, key=b"pad")
        found = [pair for pair in pairs(read_all(kafka, topic)) if pair[0] != b"pad"]
        assert found == [(b"a", value.encode())]


def test_without_compaction_the_wait_ends_at_its_deadline(kafka: KafkaBroker) -> None:
    topic = kafka.create_topic(config={"cleanup.policy": "compact"})
    write(kafka, topic, ("a", "1"), ("a", "2"))
    with pytest.raises(TimeoutError, match="cleaner"):
        force_compaction(kafka, topic, timeout_s=2)


def test_cluster_survives_the_loss_of_a_leader(healing_cluster: KafkaCluster) -> None:
    cluster = healing_cluster
    topic = cluster.create_topic()
    write(cluster, topic, ("a", "1"))
    old_leader = cluster.leader_of(topic, 0)
    cluster.nodes[old_leader].kill()
    assert not cluster.nodes[old_leader].is_running

    write(cluster, topic, ("a", "2"))
    assert cluster.leader_of(topic, 0) != old_leader
    assert pairs(read_all(cluster, topic)) == [(b"a", b"1"), (b"a", b"2")]

    cluster.nodes[old_leader].start()
    assert cluster.nodes[old_leader].is_running
    cluster.heal()
    assert in_sync(cluster, topic) == {1, 2, 3}


def test_a_frozen_leader_is_replaced(healing_cluster: KafkaCluster) -> None:
    cluster = healing_cluster
    topic = cluster.create_topic()
    write(cluster, topic, ("a", "1"))
    old_leader = cluster.leader_of(topic, 0)
    cluster.nodes[old_leader].pause()
    assert not cluster.nodes[old_leader].is_running

    write(cluster, topic, ("a", "2"))
    others = {1, 2, 3} - {old_leader}
    wait_until(lambda: in_sync(cluster, topic) == others, 20, "it is out of sync")
    cluster.nodes[old_leader].resume()
    cluster.heal()
    assert in_sync(cluster, topic) == {1, 2, 3}
    assert pairs(read_all(cluster, topic)) == [(b"a", b"1"), (b"a", b"2")]


def test_one_node_alone_takes_no_writes(healing_cluster: KafkaCluster) -> None:
    cluster = healing_cluster
    topic = cluster.create_topic()
    survivor = cluster.leader_of(topic, 0)
    for node_id, node in cluster.nodes.items():
        if node_id != survivor:
            node.kill()
    producer = Producer(
        {**cluster.config, "acks": "all", "delivery.timeout.ms": 4000, "log_level": 2}
    )
    errors: list[object] = []
    producer.produce(
        topic,
        value=secrets.token_bytes(8),
        on_delivery=lambda error, _: errors.append(error),
    )
    producer.flush(20)
    # Never with "==": a comparison of the library's errors with None goes wrong.
    assert len(errors) == 1
    assert errors[0] is not None

    cluster.heal()
    write(cluster, topic, ("a", "2"))
