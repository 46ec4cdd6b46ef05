"""FencedProducer on three nodes, some of which are killed or frozen meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException

from epochfence import Ledger, TopicUnavailable
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.producers.fenced_producer import FencedProducer
from support.brokers import IMPATIENT
from support.kafka_local import KafkaCluster
from support.ledgers import unnamed_topics
from support.producing import barriers
from support.truncation import TRUNCATABLE, truncate

MESSAGES = 2_000

EIGHT_WRITTEN_FIVE_LOST = {
    "admitted": 3,
    "fenced": 0,
    "lost": 5,
    "aborted": 0,
    "indeterminate": 0,
}


@pytest.fixture
def config(healing_cluster: KafkaCluster) -> dict[str, Any]:
    return {**healing_cluster.config, **IMPATIENT}


@pytest.fixture
def ledger(healing_cluster: KafkaCluster, config: dict[str, Any]) -> Iterator[Ledger]:
    with Ledger(config, **unnamed_topics(healing_cluster).names) as opened:
        yield opened


def kill_leader(cluster: KafkaCluster, topic: str) -> None:
    """Kill whoever leads partition 0."""
    cluster.nodes[cluster.leader_of(topic, 0)].kill()


def test_a_broker_is_killed_while_it_is_taken_over(
    healing_cluster: KafkaCluster, config: dict[str, Any], ledger: Ledger
) -> None:
    topic = healing_cluster.create_topic("t", partitions=6)
    leadership = ledger.claim("s", holder="a")
    with FencedProducer(config, ledger, leadership) as producer:
        killing = threading.Thread(target=kill_leader, args=(healing_cluster, topic))
        killing.start()
        taken = producer.take_over([topic], timeout_s=60)
        killing.join()
        assert sorted(taken) == [(topic, number) for number in range(6)]
        producer.produce(topic, b"v")
        assert producer.confirm(60).are_all_admitted
        healing_cluster.heal()
        assert {record.partition for record in barriers(healing_cluster, topic)} == set(
            range(6)
        )


def test_a_broker_is_killed_while_it_confirms(
    healing_cluster: KafkaCluster,
    config: dict[str, Any],
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = healing_cluster.create_topic("t", partitions=2)
    leadership = ledger.claim("s", holder="a")
    with FencedProducer(config, ledger, leadership) as producer:
        producer.take_over([topic], timeout_s=60)
        for number in range(MESSAGES):
            producer.produce(topic, b"v", partition=number % 2)
        kill_leader(healing_cluster, topic)
        receipts = producer.confirm(60)
        assert receipts.are_all_admitted
        assert len(receipts) == MESSAGES
        healing_cluster.heal()
        # And once more, deposed, while the partitions are read.
        for number in range(MESSAGES):
            producer.produce(topic, b"v", partition=number % 2)
        assert producer.flush(60) == 0
        later = ledger.claim("s", holder="b", timeout_s=60)
        with FencedProducer(config, ledger, later) as successor:
            successor.take_over([topic], timeout_s=60)
        read = PartitionReader.read
        killed: list[int] = []

        def kill_and_read(self: PartitionReader, *place: int, **more: Any) -> Any:
            if not killed:
                killed.append(healing_cluster.leader_of(topic, 0))
                kill_leader(healing_cluster, topic)
            yield from read(self, *place, **more)

        monkeypatch.setattr(PartitionReader, "read", kill_and_read)
        receipts = producer.confirm(60)
        assert receipts.are_all_admitted
        assert len(receipts) == MESSAGES
        assert killed


def test_too_few_replicas_and_later_enough(
    healing_cluster: KafkaCluster, config: dict[str, Any], ledger: Ledger
) -> None:
    topic = healing_cluster.create_topic("t")
    leadership = ledger.claim("s", holder="a")
    with FencedProducer(config, ledger, leadership) as producer:
        producer.take_over([topic], timeout_s=60)
        leader = healing_cluster.leader_of(topic, 0)
        # One stays in sync, fewer than min.insync.replicas; the leader stays.
        for number, node in healing_cluster.nodes.items():
            if number != leader:
                node.pause()
        for _ in range(5):
            producer.produce(topic, b"v")
        for _ in range(2):
            with pytest.raises(TopicUnavailable, match="5 messages") as unavailable:
                producer.confirm(timeout_s=2)
            assert unavailable.value.topic == topic
        with pytest.raises(TopicUnavailable):
            producer.take_over([topic], timeout_s=2)
        healing_cluster.heal()
        assert len(producer.confirm(60)) == 5
        producer.take_over([topic], timeout_s=60)
        producer.produce(topic, b"v")
        assert producer.confirm(60).are_all_admitted


def test_acknowledged_messages_that_an_unclean_election_took(
    healing_cluster: KafkaCluster, config: dict[str, Any], ledger: Ledger
) -> None:
    topic = healing_cluster.create_topic("t", 1, 2, dict(TRUNCATABLE))
    staying, deposed = (ledger.claim(scope, holder="a") for scope in ("r", "s"))
    with (
        FencedProducer(config, ledger, staying) as one,
        FencedProducer(config, ledger, deposed) as other,
    ):

        def write(*producers: FencedProducer, count: int) -> None:
            for producer in producers:
                for _ in range(count):
                    producer.produce(topic, b"v")
                assert producer.flush(60) == 0

        for producer in (one, other):
            producer.take_over([topic], timeout_s=60)
        write(one, other, count=3)
        truncate(
            healing_cluster,
            topic,
            [b"lost"],
            [b"new"],
            before_loss=lambda: write(one, other, count=5),
        )
        # The broker misses what came before: the client has failed for good.
        with pytest.raises(KafkaException, match="OUT_OF_ORDER_SEQUENCE"):
            write(one, count=2)
        receipts = one.confirm(60)
        assert receipts.counts == EIGHT_WRITTEN_FIVE_LOST
        ((*_, failed),) = receipts.undelivered
        assert failed == 2
        # The other one hears of a successor only.
        ledger.claim("s", holder="b", timeout_s=60)
        receipts = other.confirm(60)
        assert receipts.counts == EIGHT_WRITTEN_FIVE_LOST
        assert receipts.undelivered == ()
