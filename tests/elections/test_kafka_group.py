"""What is the group's own of an election by a consumer group."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer

from epochfence import ElectionUnavailable, MisconfiguredError
from epochfence.elections import KafkaElection
from support.brokers import KafkaBroker
from support.elections import HASTY, group_of
from support.unreached import NOBODY_THERE
from support.waiting import wait_until

_WAIT_S = 60


class Office:
    """An office, and its candidates."""

    def __init__(self, kafka: KafkaBroker, topic: str) -> None:
        self.kafka = kafka
        self.topic = topic
        self.scope = f"office-{secrets.token_hex(6)}"
        self.opened: list[KafkaElection] = []

    def open(self, topic: str | None = None, **config: Any) -> KafkaElection:
        settings = {**self.kafka.config, **HASTY}
        settings |= {name.replace("_", "."): value for name, value in config.items()}
        self.opened.append(
            KafkaElection(settings, self.scope, topic=topic or self.topic)
        )
        return self.opened[-1]


@pytest.fixture
def office(kafka: KafkaBroker, meeting_topic: str) -> Iterator[Office]:
    office = Office(kafka, meeting_topic)
    yield office
    for candidate in office.opened:
        candidate.close()


def test_candidates_that_come_and_go_depose_nobody(office: Office) -> None:
    elected = office.open()
    assert elected.campaign(_WAIT_S)
    others = [office.open() for _ in range(3)]
    for other in others:
        assert not other.campaign(0.3)
        assert not elected.lost.is_set()
    for other in others:
        other.close()
        assert not elected.lost.is_set()
    assert elected.campaign(0)


def test_who_stops_waiting_holds_nobody_up(office: Office) -> None:
    """Its group is told, and need not wait until its session is over."""
    first, second, third = (office.open(session_timeout_ms=60_000) for _ in range(3))
    assert first.campaign(_WAIT_S)
    assert not second.campaign(1)
    second.close()
    first.resign()
    assert third.campaign(30)


def test_a_topic_of_several_partitions_is_refused(office: Office) -> None:
    topic = office.kafka.create_topic("wide", partitions=3)
    with pytest.raises(MisconfiguredError, match=r"3 partitions.*depose") as refused:
        office.open(topic).campaign(_WAIT_S)
    assert (refused.value.setting, refused.value.value) == ("topic", topic)


def test_a_topic_that_is_missing_is_refused(office: Office) -> None:
    topic = office.kafka.create_topic("gone")
    office.kafka.delete_topic(topic)
    candidate = office.open(topic)
    for timeout_s in (0, 0.1):
        with pytest.raises(MisconfiguredError, match=r"not exist.*Open a Ledger"):
            candidate.campaign(timeout_s)


@pytest.mark.parametrize("spelling", ["bootstrap.servers", "metadata.broker.list"])
def test_a_cluster_that_does_not_answer_is_no_refusal(spelling: str) -> None:
    config = {spelling: NOBODY_THERE["bootstrap.servers"], "log_level": 0}
    with KafkaElection(config, "office") as candidate:
        with pytest.raises(ElectionUnavailable):
            candidate.campaign(0)
        with pytest.raises(ElectionUnavailable) as unavailable:
            candidate.campaign(0)
        assert candidate.lost.is_set()
    said = str(unavailable.value)
    assert "by group 'epochfence-election-office' on Kafka (127.0.0.1:1)" in said
    assert "Connection refused" in said


def test_a_session_time_that_the_broker_does_not_allow(office: Office) -> None:
    candidate = office.open(session_timeout_ms=500, heartbeat_interval_ms=100)
    with pytest.raises(MisconfiguredError, match=r"group\.min\.session"):
        candidate.campaign(_WAIT_S)


def test_a_group_that_others_use_is_refused(office: Office) -> None:
    stranger = Consumer(
        {
            **office.kafka.config,
            "group.id": group_of(office.scope),
            "partition.assignment.strategy": "range",
        }
    )
    stranger.subscribe([office.topic])
    try:
        wait_until(
            lambda: stranger.poll(0.1) or stranger.assignment(), 60, "it has joined"
        )
        with pytest.raises(MisconfiguredError, match="others than candidates"):
            office.open().campaign(_WAIT_S)
    finally:
        stranger.close()


@pytest.mark.parametrize(
    ("config", "setting", "said"),
    [
        ({"group.id": "mine"}, "group.id", "connection settings only"),
        ({"group.instance.id": "pod-7"}, "group.instance.id", "does not leave"),
        ({"group.protocol": "consumer"}, "group.protocol", "'classic'"),
        (
            {"partition.assignment.strategy": "range"},
            "partition.assignment.strategy",
            "'cooperative-sticky'",
        ),
        ({"enable.auto.commit": True}, "enable.auto.commit", "False"),
        ({"session.timeout": 6000}, "session.timeout", "No such configuration"),
        ({"session.timeout.ms": "soon"}, "session.timeout.ms", "Invalid value"),
        ({"bootstrap.servers": ""}, "bootstrap.servers", "no broker is named"),
    ],
)
def test_a_setting_that_would_break_it_is_refused(
    config: dict[str, Any], setting: str, said: str
) -> None:
    with pytest.raises(MisconfiguredError) as refused:
        KafkaElection({**NOBODY_THERE, **config}, "office")
    assert refused.value.setting == setting
    assert said in str(refused.value)


def test_times_follow_the_session() -> None:
    """The client refuses a session that is longer than it may go without a poll."""
    for session_ms in (400, 400_000, "400000"):
        config = {**NOBODY_THERE, "session.timeout.ms": session_ms}
        KafkaElection(config, "office").close()


def test_arguments_are_checked(kafka: KafkaBroker) -> None:
    not_settings: Any = "localhost:9092"
    with pytest.raises(MisconfiguredError, match="mapping"):
        KafkaElection(not_settings, "office")
    with pytest.raises(MisconfiguredError, match="timeout_s"):
        KafkaElection(NOBODY_THERE, "office", timeout_s=0)
    with KafkaElection(NOBODY_THERE, "office") as candidate:
        never: Any
        for never in (-1, float("nan"), True, None, "1"):
            with pytest.raises(MisconfiguredError, match="only look"):
                candidate.campaign(never)
    with pytest.raises(RuntimeError, match="closed"):
        candidate.campaign(0)
