"""The fenced consumer on three nodes, some of which are killed or frozen meanwhile."""

from __future__ import annotations

import json
import logging
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from epochfence import (
    ClaimUnknown,
    EpochfenceError,
    Leadership,
    Ledger,
    LedgerUnavailable,
    Position,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.epochs.settings import FenceSettings
from support.brokers import IMPATIENT
from support.kafka_local import KafkaCluster
from support.ledgers import LedgerTopics, unnamed_topics
from support.stamped import (
    Place,
    Reading,
    Writer,
    consumer_config,
    create_named,
    judged_in_full,
    offsets_of,
    position_of,
    read_to,
    stamp,
)
from support.truncation import TRUNCATABLE, truncate
from support.waiting import wait_until

SCOPE = "w"
QUARANTINE = FenceSettings([SCOPE], unstamped="quarantine")


@pytest.fixture
def topics(healing_cluster: KafkaCluster) -> LedgerTopics:
    return unnamed_topics(healing_cluster)


@pytest.fixture
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with Ledger({**topics.kafka.config, **IMPATIENT}, **topics.names) as opened:
        yield opened


def fenced(
    cluster: KafkaCluster,
    ledger: Ledger,
    topic: str,
    group: str,
    *,
    client: dict[str, Any] | None = None,
    **options: Any,
) -> FencedConsumer:
    settings = {**IMPATIENT, **(client or {})}
    config = consumer_config(cluster, f"{group}-{topic}", "earliest", settings)
    return FencedConsumer(config, ledger, require={topic: QUARANTINE}, **options)


def rows(ledger: Ledger, topic: str, partition: int) -> set[tuple[int, Position]]:
    """Epoch and position of each row of a partition."""
    ledger.table.refresh(30)
    starts = ledger.table.starts(topic, partition)
    return {(start.epoch, start.position) for start in starts}


# A truncated log.


class Validations(logging.Handler):
    """Counts how often a client asks whether its log was truncated.

    Its statistics have no such number.
    """

    def __init__(self, topic: str) -> None:
        super().__init__()
        self.partitions: list[int] = []
        self._topic = topic

    def emit(self, record: logging.LogRecord) -> None:
        text = record.getMessage()
        if "querying broker for epoch validation" not in text:
            return
        for partition in (0, 1):
            if f"{self._topic} [{partition}]" in text:
                self.partitions.append(partition)

    @property
    def settings(self) -> dict[str, Any]:
        """What the client needs to be told."""
        logger = logging.getLogger(f"validations-{secrets.token_hex(6)}")
        logger.setLevel(logging.DEBUG)
        logger.propagate = False
        logger.addHandler(self)
        return {"debug": "fetch", "logger": logger}


def test_a_truncated_log_is_judged_from_where_it_was_cut(
    healing_cluster: KafkaCluster, ledger: Ledger
) -> None:
    """Partition 0 regrows beyond what was read before anybody looks, 1 does not."""
    topic = f"truncated-{secrets.token_hex(6)}"
    create_named(healing_cluster, topic, 2, replicas=[1, 2], config=TRUNCATABLE)
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    writer = Writer(healing_cluster, topic, **IMPATIENT)
    for partition in (0, 1):
        writer.write(stamp(a), b"a", b"a", partition=partition)
    asked, asked_later = Validations(topic), Validations(topic)
    with (
        fenced(
            healing_cluster, ledger, topic, "running", client=asked.settings
        ) as consumer,
        Reading(consumer) as reading,
    ):
        consumer.assign([TopicPartition(topic, n) for n in (0, 1)])

        def before_loss() -> None:
            """At offset 2 of partition 0 stands a record without a stamp."""
            writer.barrier(b, partition=0)  # 3
            writer.write(stamp(b), b"b", b"b", partition=0)
            writer.write(stamp(a), b"zombie", partition=0)
            writer.write(stamp(b), b"b", partition=0)  # 7
            writer.barrier(b, partition=1)  # 2
            writer.write(stamp(b), b"b", b"b", b"b", partition=1)  # 3 to 5
            ends = {(topic, 0): 8, (topic, 1): 6}
            reading.wait_for(ends)
            # What lies in partition 0 is not seen while it regrows.
            consumer.pause([TopicPartition(topic, 0)])
            with fenced(healing_cluster, ledger, topic, "stopped") as other:
                other.assign([TopicPartition(topic, n) for n in (0, 1)])
                seen = read_to(other, ends)
                assert offsets_of(seen, 0) == [0, 1, 4, 5, 7]
                assert offsets_of(seen, 1) == [0, 1, 3, 4, 5]
                other.commit(asynchronous=False)

        cut = truncate(
            healing_cluster, topic, [b"lost"], [b"after"], before_loss=before_loss
        )
        assert (cut.first_lost, cut.end) == (2, 3)
        writer = Writer(healing_cluster, topic, **IMPATIENT)
        writer.write(stamp(a), b"zombie", b"zombie", b"zombie", partition=0)  # 3 to 5
        writer.write(stamp(b), b"b", partition=0)  # 6
        writer.write(stamp(a), b"zombie", partition=0)
        writer.write(stamp(b), b"b", b"b", partition=0)  # 8, 9
        writer.write(stamp(a), b"zombie", partition=0)
        writer.write(stamp(b), b"b", partition=0)  # 11
        # In partition 1, the end is all there is.
        reading.wait_for({(topic, 1): 0})
        wait_until(
            lambda: position_of(consumer, (topic, 1)) == 2, 60, "the cut is noticed"
        )
        before = offsets_of(reading.messages, 0)
        assert before == [0, 1, 4, 5, 7]
        consumer.resume([TopicPartition(topic, 0)])
        wait_until(
            lambda: offsets_of(reading.messages, 0) == [*before, 6, 8, 9, 11],
            60,
            "partition 0 is read from where it was cut",
        )
        writer.write(stamp(a), b"zombie", partition=1)  # 2
        writer.write(stamp(b), b"b", partition=1)  # 3
        wait_until(
            lambda: offsets_of(reading.messages, 1) == [0, 1, 3, 4, 5, 3],
            60,
            "partition 1 goes on",
        )
        counts = dict(consumer.counts)
    assert reading.events == []
    assert counts == {
        "ok": 15, "barrier": 2, "unstamped": 2, "stale-epoch": 1 + 5 + 1
    }  # fmt: skip
    assert {0, 1} <= set(asked.partitions)

    # One that was not there meanwhile, from its commit.
    with fenced(
        healing_cluster,
        ledger,
        topic,
        "stopped",
        client=asked_later.settings,
        rebuild=False,
    ) as consumer:
        found = consumer.committed([TopicPartition(topic, n) for n in (0, 1)], 30)
        assert [tp.offset for tp in found] == [8, 6]
        consumer.assign([TopicPartition(topic, n) for n in (0, 1)])
        with Reading(consumer) as reading:
            wait_until(
                lambda: (
                    offsets_of(reading.messages, 0) == [6, 8, 9, 11]
                    and offsets_of(reading.messages, 1) == [3]
                ),
                60,
                "both are read from where they were cut",
            )
        assert (reading.errors, reading.events) == ([], [])
        assert consumer.counts == {"ok": 5, "unstamped": 1, "stale-epoch": 6}
        consumer.commit(asynchronous=False)
        later = consumer.committed([TopicPartition(topic, n) for n in (0, 1)], 30)
        check_a_new_life_below_the_known_leader_epoch(
            healing_cluster, ledger, topic, consumer, a
        )
    assert {0, 1} <= set(asked_later.partitions)
    for old, new, offset in zip(found, later, (12, 4), strict=True):
        assert new.offset == offset
        assert old.leader_epoch is not None
        assert new.leader_epoch is not None
        assert new.leader_epoch > old.leader_epoch
        told = json.loads(new.metadata or "")
        assert (told["n"], told["e"]) == (2, {SCOPE: 2})
    # b's epoch began in records that are lost, and counts all the same.
    (lost_epoch,) = {old.leader_epoch for old in found}
    for partition, began in ((0, 3), (1, 2)):
        assert rows(ledger, topic, partition) == {
            (1, Position(lost_epoch, 0)),
            (2, Position(lost_epoch, began)),
            (3, Position(0, 1)),
        }


def check_a_new_life_below_the_known_leader_epoch(
    cluster: KafkaCluster,
    ledger: Ledger,
    topic: str,
    consumer: FencedConsumer,
    a: Leadership,
) -> None:
    """A client ignores a leader whose epoch is below the one it knows, for good."""
    cluster.delete_topic(topic)
    create_named(cluster, topic, 2, replicas=[1, 2])
    c = ledger.claim(SCOPE, holder="c")
    writer = Writer(cluster, topic, **IMPATIENT)
    for partition in (0, 1):
        writer.write(stamp(a), b"zombie", partition=partition)
        writer.barrier(c, partition=partition)
        writer.write(stamp(c), b"c", partition=partition)
    with Reading(consumer) as reading:
        wait_until(
            lambda: all(offsets_of(reading.messages, n) == [2] for n in (0, 1)),
            60,
            "the new life is read",
        )
        assert {m.leader_epoch() for m in reading.messages} == {0}


# No quorum.


def test_without_a_quorum_a_record_that_opens_an_epoch_is_held_back(
    healing_cluster: KafkaCluster, topics: LedgerTopics, ledger: Ledger
) -> None:
    survivor = healing_cluster.leader_of(topics.table_topic, 0)
    topic = f"held-back-{secrets.token_hex(6)}"
    create_named(
        healing_cluster,
        topic,
        replicas=[survivor],
        config={"min.insync.replicas": "1"},
    )
    place: Place = (topic, 0)
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    writer = Writer(healing_cluster, topic, **IMPATIENT)
    with fenced(healing_cluster, ledger, topic, "group", timeout_s=4) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        writer.write(stamp(a), b"a", b"a")
        assert offsets_of(read_to(consumer, {place: 2})) == [0, 1]
        # One stays in sync, fewer than min.insync.replicas; the leader stays.
        for number, node in healing_cluster.nodes.items():
            if number != survivor:
                node.pause()
        writer.write(stamp(b), b"b")  # 2
        writer.write(stamp(a), b"zombie")
        writer.write(stamp(b), b"b")
        with Reading(consumer) as reading:
            wait_until(
                lambda: [
                    error
                    for error in reading.errors
                    if isinstance(error, TableUnavailable)
                ][1:],
                60,
                "the row is not acknowledged, and not the second time",
            )
            kinds = {type(error) for error in reading.errors}
            # Before the row is written, somebody has to say whose row it is.
            assert kinds <= {TableUnavailable, TopicUnavailable}
            assert reading.messages == []
            assert position_of(consumer, place) == 2
            assert consumer.counts == {"ok": 2}
            for node in healing_cluster.nodes.values():
                node.resume()
            healing_cluster.heal()
            reading.wait_for({place: 5})
        assert offsets_of(reading.messages) == [2, 4]
        assert consumer.counts == {"ok": 4, "stale-epoch": 1}
        consumer.commit(asynchronous=False)
        (now,) = consumer.committed([TopicPartition(topic, 0)], 30)
        assert now.offset == 5
        assert json.loads(now.metadata or "")["n"] == 2
    assert rows(ledger, topic, 0) == {(1, Position(0, 0)), (2, Position(0, 2))}


# Brokers that die under load.


class Load(threading.Thread):
    """Leaders of one scope that follow one another, none of which stops writing."""

    def __init__(self, cluster: KafkaCluster, topics: LedgerTopics, topic: str) -> None:
        super().__init__(name="load", daemon=True)
        self.written = 0
        self.failure: BaseException | None = None
        self._cluster = cluster
        self._topics = topics
        self._topic = topic
        self._stopping = threading.Event()

    def run(self) -> None:
        config = {**self._cluster.config, **IMPATIENT}
        try:
            with Ledger(config, **self._topics.names) as ledger:
                deposed: list[Leadership] = []
                while not self._stopping.is_set():
                    leader = self._lead(ledger)
                    if leader is not None:
                        self._write(leader, deposed[-2:])
                        deposed.append(leader)
        except BaseException as failure:
            self.failure = failure

    def _lead(self, ledger: Ledger) -> Leadership | None:
        try:
            return ledger.claim(SCOPE, holder="load", timeout_s=5)
        except (ClaimUnknown, LedgerUnavailable):
            return None

    def _write(self, leader: Leadership, deposed: list[Leadership]) -> None:
        writer = Writer(self._cluster, self._topic, **IMPATIENT)
        for partition in (0, 1):
            writer.barrier(leader, partition=partition)
        for _ in range(5):
            for one in [leader, *deposed]:
                for partition in (0, 1):
                    writer.write(stamp(one), *[b"v"] * 5, partition=partition)
                    self.written += 5

    def stop(self) -> None:
        self._stopping.set()
        self.join(120)
        assert self.failure is None, self.failure


def test_brokers_die_under_load_and_nothing_is_skipped(
    healing_cluster: KafkaCluster, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = healing_cluster.create_topic("load", 2, 3)
    assignments: list[int] = []

    def on_assign(_: FencedConsumer, tps: list[TopicPartition]) -> None:
        assignments.append(len(tps))

    with (
        fenced(
            healing_cluster,
            ledger,
            topic,
            "group",
            client={"enable.auto.commit": True, "auto.commit.interval.ms": 200},
        ) as consumer,
        Reading(consumer) as reading,
    ):
        consumer.subscribe([topic], on_assign=on_assign)
        load = Load(healing_cluster, topics, topic)
        load.start()
        try:

            def wait_for_more(message: str) -> None:
                before = len(reading.messages)
                wait_until(lambda: len(reading.messages) > before + 100, 90, message)

            wait_for_more("the load is read")
            first = healing_cluster.leader_of(topic, 0)
            healing_cluster.nodes[first].kill()
            wait_for_more("reading goes on without the partition's leader")
            healing_cluster.heal()
            second = coordinator_of(healing_cluster, f"group-{topic}")
            healing_cluster.nodes[second].kill()
            wait_for_more("reading goes on without the group's coordinator")
            healing_cluster.heal()
        finally:
            load.stop()
        admitted, starts = judged_in_full(
            healing_cluster, topic, QUARANTINE, ledger.refresh(30)
        )
        writer = Writer(healing_cluster, topic, **IMPATIENT)
        ends = {
            (topic, n): writer.write([], b"last", partition=n)[0] + 1 for n in (0, 1)
        }
        reading.wait_for(ends)
        counts = dict(consumer.counts)
    assert has_only_passing_errors(reading.errors)
    for partition in (0, 1):
        delivered = offsets_of(reading.messages, partition)
        if len(assignments) == 1:
            assert delivered == admitted[topic, partition]
        else:  # what was not committed when it joined anew comes again
            assert list(dict.fromkeys(delivered)) == admitted[topic, partition]
        expected = {
            (start.epoch, start.position)
            for start in starts
            if start.partition == partition
        }
        assert len(expected) > 3
        assert rows(ledger, topic, partition) == expected
    if len(assignments) == 1:
        assert counts["ok"] == len(reading.messages)
        assert counts["stale-epoch"] > 0
    # Whoever begins now, from the commit, needs to read nothing first.
    with fenced(healing_cluster, ledger, topic, "group", rebuild=False) as consumer:
        consumer.assign([TopicPartition(topic, n) for n in (0, 1)])
        assert read_to(consumer, ends) == []


def has_only_passing_errors(errors: list[EpochfenceError]) -> bool:
    passing = (TableUnavailable, LedgerUnavailable, TopicUnavailable)
    return all(isinstance(error, passing) for error in errors)


def coordinator_of(cluster: KafkaCluster, group: str) -> int:
    admin: Any = cluster.admin
    described = admin.describe_consumer_groups([group])[group].result(30)
    return int(described.coordinator.id)


def test_a_seek_over_a_change_of_leader_is_no_truncation(
    healing_cluster: KafkaCluster, ledger: Ledger
) -> None:
    """Nobody knows the leader epoch of what was not read."""
    topic = f"jump-{secrets.token_hex(4)}"
    create_named(healing_cluster, topic, replicas=[1, 2, 3])
    leader = ledger.claim(SCOPE, holder="a")
    writer = Writer(healing_cluster, topic, **IMPATIENT)
    for _ in range(30):
        writer.write(stamp(leader), b"v")
    first = healing_cluster.leader_of(topic, 0)
    healing_cluster.nodes[first].kill()
    wait_until(
        lambda: healing_cluster.leader_of(topic, 0) != first, 60, "another node leads"
    )
    for _ in range(30):
        writer.write(stamp(leader), b"v")  # 30 to 59, in a later leader epoch
    with fenced(healing_cluster, ledger, topic, "jump") as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        # Not by poll, which reads ahead.
        assert offsets_of(consumer.consume(10, 30), 0) == list(range(10))
        consumer.seek(TopicPartition(topic, 0, 50))
        seen = read_to(consumer, {(topic, 0): 60})
        assert offsets_of(seen, 0) == list(range(50, 60))
