"""Leader epochs as epochs: read from real brokers, and taken back with a topic."""

from __future__ import annotations

import secrets
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import ClaimLost, EpochUnavailable, MisconfiguredError
from epochfence.elections import KafkaLeaderEpoch
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from support.brokers import IMPATIENT, KafkaBroker
from support.kafka_local import KafkaCluster
from support.ledgers import unnamed_topics
from support.waiting import wait_until

_WAIT_S = 90


def test_a_new_topic_has_the_first_epoch(kafka: KafkaBroker) -> None:
    epoch = KafkaLeaderEpoch(kafka.config, kafka.create_topic(partitions=2), 1)
    assert [epoch(), epoch()] == [1, 1]


@pytest.mark.parametrize(
    ("topic", "partition", "setting", "told"),
    [
        ("no-such-topic", 0, "topic", "'no-such-topic': there is no such topic"),
        ("", 7, "partition", "7: topic .* has 1, counted from 0"),
        ("no name!", 0, "topic", "no topic can have this name"),
    ],
)
def test_a_partition_that_is_not_there(
    kafka: KafkaBroker, topic: str, partition: int, setting: str, told: str
) -> None:
    epoch = KafkaLeaderEpoch(
        kafka.config, topic or kafka.create_topic(), partition, timeout_s=3
    )
    with pytest.raises(MisconfiguredError, match=told) as wrong:
        epoch()
    assert wrong.value.setting == setting


def test_a_topic_that_not_every_broker_knows_yet(
    kafka: KafkaBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = f"made-late-{secrets.token_hex(6)}"
    told_first = TopicKeeper.facts

    def facts(keeper: TopicKeeper, topic: str, wait_s: float) -> TopicFacts | None:
        found = told_first(keeper, topic, wait_s)
        if found is None:
            admin: Any = AdminClient(dict(kafka.config))
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_WAIT_S)
        return found

    monkeypatch.setattr(TopicKeeper, "facts", facts)
    epoch = KafkaLeaderEpoch(kafka.config, topic)
    assert wait_until(lambda: told(epoch), _WAIT_S, "its leader tells") == 1


def test_a_broker_that_is_not_there() -> None:
    config = {"bootstrap.servers": "127.0.0.1:1"}
    with pytest.raises(EpochUnavailable, match="refused"):
        KafkaLeaderEpoch(config, "orders", timeout_s=1)()


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        (("localhost:9092", "t"), "config"),
        (({}, "t"), "bootstrap.servers"),
        (({"bootstrap.servers": "a:1"}, ""), "topic"),
        (({"bootstrap.servers": "a:1"}, "t", -1), "partition"),
        (({"bootstrap.servers": "a:1"}, "t", True), "partition"),
        (
            ({"bootstrap.servers": "a:1", "socket.timeout.ms": "x"}, "t"),
            "socket.timeout.ms",
        ),
    ],
)
def test_arguments_that_make_no_sense(arguments: Any, setting: str) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        KafkaLeaderEpoch(*arguments)
    assert wrong.value.setting == setting


def test_a_topic_made_anew_takes_its_epochs_back(healing_cluster: KafkaCluster) -> None:
    topic = healing_cluster.create_topic("led", replication_factor=3)
    config = {**healing_cluster.config, **IMPATIENT, "log_level": 2}
    epoch = KafkaLeaderEpoch(config, topic, timeout_s=3)
    with unnamed_topics(healing_cluster).open() as ledger:
        # A cluster under load lets a question go by, as one without a leader does.
        number = wait_until(lambda: told(epoch), _WAIT_S, "its leader tells")
        first = ledger.claim("s", holder="first", exactly=number, timeout_s=60)
        assert first.epoch == 1
        number = wait_until(lambda: told(epoch), _WAIT_S, "its leader tells")
        with pytest.raises(ClaimLost, match="gave one twice"):
            ledger.claim("s", holder="again", exactly=number, timeout_s=60)

        healing_cluster.nodes[healing_cluster.leader_of(topic, 0)].pause()
        number = wait_until(lambda: told(epoch, 2), _WAIT_S, "another broker leads")
        healing_cluster.heal()
        second = ledger.claim("s", holder="second", exactly=number, timeout_s=60)
        assert second.epoch > first.epoch

        made_anew(healing_cluster, topic)
        number = wait_until(lambda: told(epoch), _WAIT_S, "its leader tells")
        assert number == 1
        with pytest.raises(ClaimLost) as lost:
            ledger.claim("s", holder="third", exactly=number, timeout_s=60)
        numbers = (lost.value.claimed_epoch, lost.value.latest_epoch)
        assert numbers == (1, second.epoch)
        assert [one.epoch for one, _ in ledger.claims()] == [1, second.epoch]
        ledger.verify(second)


def told(epoch: KafkaLeaderEpoch, at_least: int = 1) -> int:
    """What is told, 0 where it is lower, or nobody tells: a broker is gone, or new."""
    try:
        number = epoch()
    except EpochUnavailable:
        return 0
    return number if number >= at_least else 0


def made_anew(cluster: KafkaCluster, topic: str) -> None:
    cluster.delete_topic(topic)
    admin: Any = AdminClient(dict(cluster.config))
    admin.create_topics([NewTopic(topic, 1, 3)])[topic].result(30)
    wait_until(
        lambda: all(
            view is not None and view.leads_all(topic, 1) for view in cluster.views()
        ),
        _WAIT_S,
        "it is led again",
    )
