"""Groups of fenced consumers in three protocols: rebalances under load, with rebuilds.

What a member was handed, it is handed again only by a restart from a commit; between
a revocation and the next owner nothing is skipped and nothing comes unjudged.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from epochfence import FencedConsumer, Leadership, Ledger
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.stream import Stream, stamp
from support.waiting import wait_until

PROTOCOLS: dict[str, dict[str, Any]] = {
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "KIP-848": {"group.protocol": "consumer"},
}
PARTITIONS = 4


@pytest.fixture(scope="module")
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as ledger:
        yield ledger


class Member:
    """A member of a group that commits what it was handed when it gives it up."""

    def __init__(
        self, config: dict[str, Any], ledger: Ledger, topic: str, scope: str
    ) -> None:
        self._config = config
        self._ledger = ledger
        self._topic = topic
        self._scope = scope
        self._is_over = threading.Event()
        self.handed: list[tuple[int, int, bytes]] = []
        self.failure: BaseException | None = None
        self.assigned: set[int] = set()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with FencedConsumer(
                self._config, self._ledger, require={self._topic: [self._scope]}
            ) as consumer:
                consumer.subscribe(
                    [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke
                )
                while not self._is_over.is_set():
                    for message in consumer.consume(7, 0.1):
                        assert message.error() is None, message.error()
                        self.handed.append(
                            (
                                message.partition() or 0,
                                message.offset() or 0,
                                message.value() or b"",
                            )
                        )
        except BaseException as error:
            self.failure = error

    def _on_assign(self, _: FencedConsumer, partitions: list[TopicPartition]) -> None:
        self.assigned |= {tp.partition for tp in partitions}

    def _on_revoke(
        self, consumer: FencedConsumer, partitions: list[TopicPartition]
    ) -> None:
        self.assigned -= {tp.partition for tp in partitions}

    def leave(self) -> None:
        self._is_over.set()
        self._thread.join(60)
        assert not self._thread.is_alive()


class Writer:
    """Writes to every partition in the background, with takeovers and zombies."""

    def __init__(self, kafka: KafkaBroker, ledger: Ledger, topic: str, scope: str):
        self._stream = Stream(kafka, topic)
        self._ledger = ledger
        self._scope = scope
        self._is_over = threading.Event()
        self.good: set[bytes] = set()
        self._leader = self._claim()
        self._deposed: Leadership | None = None
        self._thread = threading.Thread(target=self._run)

    def _claim(self) -> Leadership:
        return self._ledger.claim(self._scope, holder="writer", timeout_s=30)

    def write(self, count: int) -> None:
        for partition in range(PARTITIONS):
            self.good |= set(
                self._stream.write(stamp(self._leader), count, partition=partition)
            )
            if self._deposed is not None:
                self._stream.write(stamp(self._deposed), 1, partition=partition)

    def take_over(self) -> None:
        self._deposed, self._leader = self._leader, self._claim()
        for partition in range(PARTITIONS):
            self._stream.barrier(self._leader, partition=partition)

    def _run(self) -> None:
        rounds = 0
        while not self._is_over.is_set():
            self.write(3)
            rounds += 1
            if rounds % 5 == 0:
                self.take_over()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join(60)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_members_come_and_go_under_load(
    kafka: KafkaBroker, ledger: Ledger, protocol: str
) -> None:
    topic = kafka.create_topic("orders", PARTITIONS)
    scope, group = f"w-{secrets.token_hex(4)}", f"g-{secrets.token_hex(4)}"
    config = {
        **kafka.config,
        "group.id": group,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 50,
        "auto.commit.interval.ms": 100,
        **PROTOCOLS[protocol],
    }
    if protocol != "KIP-848":
        config |= {"session.timeout.ms": 10_000, "heartbeat.interval.ms": 200}
    writer = Writer(kafka, ledger, topic, scope)
    writer.write(200)
    writer.take_over()
    # A commit of another tool in the midst: the first owner has to rebuild.
    plain = Consumer({**kafka.config, "group.id": group})
    plain.commit(
        offsets=[TopicPartition(topic, number, 100) for number in range(PARTITIONS)],
        asynchronous=False,
    )
    plain.close()
    members = [Member(config, ledger, topic, scope)]
    writer.start()
    try:
        wait_until(lambda: len(members[0].handed) > 50, 60, "the first is handed some")
        members.append(Member(config, ledger, topic, scope))
        wait_until(lambda: len(members[1].handed) > 50, 60, "the second too")
        members.append(Member(config, ledger, topic, scope))
        wait_until(lambda: len(members[2].handed) > 20, 60, "and the third")
        members[0].leave()
        before = len(members[1].handed)
        wait_until(lambda: len(members[1].handed) > before + 50, 60, "it goes on")
    finally:
        writer.stop()
    rest = members[1:]
    skipped = {
        b"%d" % (number * 200 + value)
        for number in range(PARTITIONS)
        for value in range(1, 101)
    }
    wanted = writer.good - skipped

    def handed() -> Counter[bytes]:
        return Counter(value for member in members for _, _, value in member.handed)

    deadline = time.monotonic() + 60
    try:
        while set(handed()) != wanted and time.monotonic() < deadline:
            assert all(member.failure is None for member in members)
            time.sleep(0.05)
    finally:
        for member in rest:
            member.leave()
    assert [member.failure for member in members] == [None] * 3
    assert set(handed()) == wanted
    # Whoever gave up a partition had committed what it was handed of it.
    assert {value: count for value, count in handed().items() if count > 1} == {}
    for member in members:
        for partition in range(PARTITIONS):
            offsets = [
                offset for number, offset, _ in member.handed if number == partition
            ]
            assert offsets == sorted(offsets)
