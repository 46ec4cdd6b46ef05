"""Taking over on real Kafka: barriers, and what is checked after them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from epochfence import (
    Deposed,
    Leadership,
    Ledger,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs import clients as clients_module
from epochfence.epochs.connection import Config, LastError, appending_producer
from epochfence.epochs.topics import TopicKeeper
from epochfence.producers import partition_watch
from epochfence.producers.barriers import BarrierOffsets
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.territory import Territory
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.ledgers import LedgerTopics, unnamed_topics
from support.producing import (
    add_partitions,
    barrier_of,
    barriers,
    doing,
    make_anew,
    records,
    set_config,
)
from support.waiting import wait_until

#: A port on which nobody listens.
NOBODY_THERE = "127.0.0.1:1"


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture(scope="module")
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def leadership(ledger: Ledger) -> Leadership:
    return ledger.claim("s", holder="a")


@pytest.fixture
def producer(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> Iterator[FencedProducer]:
    with FencedProducer(kafka.config, ledger, leadership) as opened:
        yield opened


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers are not told of grants: what is left is what guards."""
    monkeypatch.setattr(FencedProducer, "_on_grant", doing(None))


def key_of(leadership: Leadership) -> re.Pattern[bytes]:
    name = f"epochfence-barrier/s/{leadership.epoch}/{leadership.grant_id}/"
    return re.compile(name.encode() + rb"[1-9][0-9]*\Z")


# Barriers.


def test_a_barrier_has_one_header_and_nothing_else(
    kafka: KafkaBroker, producer: FencedProducer, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t", partitions=3)
    for turn in range(2):
        taken = producer.take_over([topic])
        assert taken == {(topic, number): turn for number in range(3)}
    found = records(kafka, topic)
    assert [(record.partition, record.offset) for record in found] == [
        (number, turn) for number in range(3) for turn in range(2)
    ]
    for record in found:
        assert (record.key, record.value) == (None, None)
        assert record.headers == [barrier_of(leadership)]


def test_the_cleaner_leaves_barriers_alone(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    """Two producers of one leadership, each taking over twice."""
    topic = kafka.create_topic("t", config=dict(COMPACTABLE))
    for _ in range(2):
        with FencedProducer(kafka.config, ledger, leadership) as producer:
            for _ in range(2):
                producer.take_over([topic])
    force_compaction(kafka, topic)
    found = barriers(kafka, topic)
    assert [record.offset for record in found] == [0, 1, 2, 3]
    assert len({record.key for record in found}) == 4
    for record in found:
        assert key_of(leadership).match(record.key or b"")
        assert record.value == b""
        assert record.headers == [barrier_of(leadership)]


def test_a_policy_that_changed(
    kafka: KafkaBroker,
    producer: FencedProducer,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t", partitions=2)
    producer.take_over([topic])
    set_config(kafka, topic, {"cleanup.policy": "compact,delete"})
    producer.take_over([topic])
    # The change comes between the look and the barrier.
    monkeypatch.setattr(TopicKeeper, "is_compacted", doing(False))
    producer.take_over([topic])
    first, second, third = (barriers(kafka, topic)[turn::3] for turn in range(3))
    assert [record.key for record in first] == [None, None]
    for record in [*second, *third]:
        assert key_of(leadership).match(record.key or b"")
        assert record.value == b""


def test_a_policy_that_cannot_be_read(
    kafka: KafkaBroker,
    producer: FencedProducer,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t")
    monkeypatch.setattr(TopicKeeper, "settings", doing(None))
    producer.take_over([topic])
    (record,) = barriers(kafka, topic)
    assert key_of(leadership).match(record.key or b"")


def test_keys_and_values_of_the_users(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    compacted = kafka.create_topic("t", 2, config={"cleanup.policy": "compact"})
    ordinary = kafka.create_topic("u")
    asked: list[tuple[str, int, str, int]] = []

    def key(scope: str, epoch: int, grant_id: str, attempt: int) -> bytes:
        asked.append((scope, epoch, grant_id, attempt))
        return b"key-%d" % attempt

    with FencedProducer(
        kafka.config, ledger, leadership, barrier_key=key, barrier_value=b"schema"
    ) as producer:
        producer.take_over([compacted, ordinary])
        producer.take_over([compacted])
    found = barriers(kafka, compacted)
    assert len({record.key for record in found}) == len(asked) == 4
    assert {record.key for record in found} == {b"key-%d" % n for *_, n in asked}
    assert {record.value for record in found} == {b"schema"}
    own = (leadership.scope, leadership.epoch, leadership.grant_id)
    assert {facts[:3] for facts in asked} == {own}
    (record,) = barriers(kafka, ordinary)  # every schema lets null pass
    assert (record.key, record.value) == (None, None)
    with FencedProducer(
        kafka.config,
        ledger,
        leadership,
        barrier_value=lambda scope, epoch, grant_id, attempt: scope.encode(),
    ) as producer:
        producer.take_over([TopicPartition(compacted, 0)])
    values = [r.value for r in barriers(kafka, compacted) if r.partition == 0]
    assert values == [b"schema", b"schema", b"s"]


@pytest.mark.parametrize(
    ("barrier_key", "barrier_value", "words"),
    [
        (doing(b"always the same"), None, "barrier_key"),
        (doing(None), None, "barrier_key"),
        (doing("text"), None, "barrier_key"),
        (None, doing(None), "barrier_value"),
    ],
)
def test_keys_and_values_that_the_cleaner_would_take(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    barrier_key: Any,
    barrier_value: Any,
    words: str,
) -> None:
    topic = kafka.create_topic("t", 2, config={"cleanup.policy": "compact"})
    with (
        FencedProducer(
            kafka.config,
            ledger,
            leadership,
            barrier_key=barrier_key,
            barrier_value=barrier_value,
        ) as producer,
        pytest.raises(MisconfiguredError, match=words),
    ):
        producer.take_over([topic])


def test_a_barrier_that_is_not_acknowledged(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows whether it is there: a key is not sent again."""
    topic = kafka.create_topic("t", 2, config={"cleanup.policy": "compact"})
    asked: list[int] = []

    def key(scope: str, epoch: int, grant_id: str, attempt: int) -> bytes:
        asked.append(attempt)
        return b"key-%d" % attempt

    def nowhere(config: Config, last_error: LastError) -> Producer:
        return appending_producer(
            {**config, "bootstrap.servers": NOBODY_THERE}, last_error
        )

    with FencedProducer(kafka.config, ledger, leadership, barrier_key=key) as producer:
        with monkeypatch.context() as patch:
            patch.setattr(clients_module, "appending_producer", nowhere)
            with pytest.raises(TopicUnavailable) as unavailable:
                producer.take_over([topic], timeout_s=0.5)
        assert (unavailable.value.topic, unavailable.value.partition) == (topic, 0)
        with pytest.raises(MisconfiguredError, match="not taken over"):
            producer.produce(topic, b"v")
        producer.take_over([topic])
        producer.produce(topic, b"v", b"k")
        assert producer.confirm().are_all_admitted
    assert len(set(asked)) == len(asked) == 4
    assert {record.key for record in barriers(kafka, topic)} == {
        b"key-%d" % attempt for attempt in asked[2:]
    }


# What is checked after them.


@pytest.mark.usefixtures("unwatched")
def test_taking_over_when_somebody_else_has(
    kafka: KafkaBroker, topics: LedgerTopics, producer: FencedProducer
) -> None:
    topic, other = kafka.create_topic("t"), kafka.create_topic("u")
    producer.take_over([topic])
    with topics.open() as elsewhere:
        later = elsewhere.claim("s", holder="b")
    with pytest.raises(Deposed) as deposed:
        producer.take_over([other])
    assert deposed.value.seen_epoch == later.epoch
    for name in (topic, other):
        with pytest.raises(Deposed):
            producer.produce(name, b"v")
    assert len(barriers(kafka, other)) == 1  # stale: it does no harm


# Partitions that come later.


def look_every(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", seconds)


def proofs(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """The partitions whose barriers are proved to have come before any successor."""
    proved: set[tuple[str, int]] = set()
    add_proof = Territory.add_proof

    def noted(
        self: Territory, written: BarrierOffsets, lives: dict[str, str | None]
    ) -> None:
        proved.update(written)
        add_proof(self, written, lives)

    monkeypatch.setattr(Territory, "add_proof", noted)
    return proved


def has_barrier(
    kafka: KafkaBroker, topic: str, partition: int, leadership: Leadership
) -> Callable[[], bool]:
    def found() -> bool:
        return any(
            record.partition == partition and record.headers == [barrier_of(leadership)]
            for record in barriers(kafka, topic)
        )

    return found


def test_a_partition_that_is_added_gets_a_barrier(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_every(monkeypatch, 0.2)
    proved = proofs(monkeypatch)
    topic, single = kafka.create_topic("t"), kafka.create_topic("u")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic, TopicPartition(single, 0)])
        add_partitions(kafka, topic, 3)
        add_partitions(kafka, single, 2)
        for partition in (1, 2):
            there = has_barrier(kafka, topic, partition, leadership)
            wait_until(there, 30, "a barrier on the new partition")
        # After each, the ledger was read: what lies before it needs no reading.
        wait_until(lambda: {(topic, 1), (topic, 2)} <= proved, 30, "both are proved")
    assert len(barriers(kafka, topic)) == 3
    assert len(barriers(kafka, single)) == 1


def test_a_message_on_a_new_partition_is_noticed(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_every(monkeypatch, 600)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        add_partitions(kafka, topic, 2)
        producer.list_topics(topic, 10)  # the client need not wait for a refresh
        producer.produce(topic, b"v", partition=1)
        assert producer.confirm().are_all_admitted
        wait_until(
            has_barrier(kafka, topic, 1, leadership), 30, "a barrier comes after it"
        )


def test_a_topic_made_anew_gets_barriers(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_every(monkeypatch, 0.2)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        make_anew(kafka, topic)
        there = has_barrier(kafka, topic, 0, leadership)
        wait_until(there, 30, "a barrier in the new life")


def test_trouble_with_new_partitions_is_told_once(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    look_every(monkeypatch, 0.05)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        asked: list[str] = []

        def fail(self: TopicKeeper, topic: str, *_: object) -> None:
            asked.append(topic)
            raise TopicUnavailable(topic, "no answer in time")

        with monkeypatch.context() as patch:
            patch.setattr(TopicKeeper, "facts", fail)
            wait_until(lambda: len(asked) > 5, 30, "it is tried again and again")
        add_partitions(kafka, topic, 2)
        there = has_barrier(kafka, topic, 1, leadership)
        wait_until(there, 30, "it goes on")
    told = [r for r in caplog.records if "no answer in time" in r.getMessage()]
    assert len(told) == 1


@pytest.mark.usefixtures("unwatched")
def test_a_barrier_that_came_after_the_successor_proves_nothing(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_every(monkeypatch, 0.2)
    proved = proofs(monkeypatch)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        ledger.claim("s", holder="b")
        add_partitions(kafka, topic, 2)
        there = has_barrier(kafka, topic, 1, leadership)
        wait_until(there, 30, "a barrier")

        def is_deposed() -> bool:
            try:
                producer.produce(topic, b"v")
            except Deposed:
                return True
            return False

        wait_until(is_deposed, 30, "the watch finds out")
        assert proved == {(topic, 0)}
