"""Calls with keys on real Kafka: killed, stopped, taken over."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from epochfence import (
    AtLeastOnceSink,
    FencedProducer,
    Leadership,
    Ledger,
    SinkRunner,
    message_key,
)
from support import call_instance
from support.brokers import KafkaBroker
from support.call_instance import STEPS
from support.fenced_topic import (
    TAKEOVER_ADMITTED,
    TAKEOVER_END,
    Rebuilds,
    committed,
    fenced,
    metadata_of,
    topic_id,
    write_takeover,
)
from support.ledgers import LedgerTopics
from support.model import parse_ours
from support.reading import read_all
from support.running import running
from support.sink_instance import SINK_FENCED
from support.stamped import Writer
from support.stream import Stream, stamp
from support.waiting import wait_until

PARTITIONS = 2


class Call(NamedTuple):
    """A line of the file that stands for the API."""

    instance: str
    key: str
    value: str


class World:
    """A topic with leaders and zombies, an API, and the instances that call it."""

    def __init__(
        self, kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, path: Path
    ) -> None:
        self._kafka = kafka
        self._ledger = ledger
        self.topic = kafka.create_topic("orders", PARTITIONS)
        self.group = f"g-{secrets.token_hex(4)}"
        self._stream = Stream(kafka, self.topic)
        self._path = path
        path.touch()
        self._leaderships: list[Leadership] = []
        self._instances: list[subprocess.Popen[str]] = []
        self._told = {
            "servers": kafka.bootstrap_servers,
            "names": topics.names,
            "topic": self.topic,
            "path": str(path),
        }
        self._watcher = Consumer({**kafka.config, "group.id": self.group})
        self.depose()

    def depose(self) -> None:
        """Another leadership takes the topic over."""
        leadership = self._ledger.claim("w", holder=str(len(self._leaderships)))
        with FencedProducer(self._kafka.config, self._ledger, leadership) as producer:
            producer.take_over([self.topic])
        self._leaderships.append(leadership)

    def write(self, count: int, partition: int, leader: int = -1) -> None:
        """The leader of now writes, or one of before does."""
        headers = stamp(self._leaderships[leader])
        self._stream.write(headers, count, partition=partition)

    def start(self, name: str, **options: Any) -> subprocess.Popen[str]:
        """Start an instance: see `call_instance.py`."""
        told = {**self._told, "group": self.group, "name": name, **options}
        tests = Path(__file__).parents[1]
        instance = subprocess.Popen(
            [sys.executable, str(call_instance.__file__), json.dumps(told)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tests,
            env={"PYTHONPATH": str(tests)},
        )
        self._instances.append(instance)
        return instance

    def end(self, instance: subprocess.Popen[str]) -> None:
        """End an instance in order."""
        instance.send_signal(signal.SIGTERM)
        assert instance.wait(60) == 0

    def close(self) -> None:
        """End whatever is still there."""
        self._watcher.close()
        for instance in self._instances:
            if instance.poll() is None:
                instance.kill()
            instance.wait(60)
            if instance.stdout is not None:
                instance.stdout.close()

    def calls(self, instance: str | None = None) -> list[Call]:
        """The calls that were made, in order."""
        lines = self._path.read_text().splitlines()
        calls = [Call(*line.split()) for line in lines]
        return [one for one in calls if instance in (None, one.instance)]

    def keys(self, instance: str | None = None) -> list[str]:
        """Their keys."""
        return [call.key for call in self.calls(instance)]

    def admitted(self) -> dict[str, str]:
        """The values of the admitted messages, by key: by a fence of the tests' own."""
        life = topic_id(self._ledger, self.topic)
        current = dict.fromkeys(range(PARTITIONS), 0)
        found: dict[str, str] = {}
        for record in read_all(self._kafka, self.topic):
            number, offset = record.partition() or 0, record.offset() or 0
            headers: Any = record.headers()
            ((name, value),) = headers
            read = parse_ours(value)
            assert read is not None
            if read.epoch < current[number]:
                continue
            current[number] = read.epoch
            if name == "epochfence":
                found[f"{life}-{number}-{offset}"] = (record.value() or b"").decode()
        return found

    def wait_for_end(self) -> None:
        """Wait until the group stands behind everything that is in the topic now."""
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for record in read_all(self._kafka, self.topic):
            ends[record.partition() or 0] = (record.offset() or 0) + 1
        places = [TopicPartition(self.topic, number) for number in ends]

        def is_there() -> bool:
            found = self._watcher.committed(places, timeout=30)
            return {tp.partition: tp.offset for tp in found} == ends

        wait_until(is_there, 90, f"the group is at {ends}")

    def check(self) -> None:
        """See that each admitted message, and no other, was called for, by its key."""
        assert {(call.key, call.value) for call in self.calls()} == set(
            self.admitted().items()
        )


@pytest.fixture
def world(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, tmp_path: Path
) -> Iterator[World]:
    made = World(kafka, topics, ledger, tmp_path / "calls")
    try:
        yield made
    finally:
        made.close()


def test_killed_at_each_step(world: World) -> None:
    """What was called and not committed is called again, with the same keys."""
    for number, step in enumerate(STEPS):
        for partition in range(PARTITIONS):
            world.write(7, partition)
        if number:
            world.write(3, 0, leader=-2)  # a zombie
        killed = world.start(f"k{number}", step=step, times=2, session_timeout_ms=1500)
        assert killed.wait(90) == -signal.SIGKILL, step
        world.depose()
    last = world.start("last", session_timeout_ms=1500)
    world.wait_for_end()
    world.end(last)
    world.check()
    assert any(count > 1 for count in Counter(world.keys()).values())


def test_killed_between_the_calls_and_the_commit(world: World) -> None:
    for partition in range(PARTITIONS):
        world.write(3, partition)
    killed = world.start("killed", step="before committing", session_timeout_ms=1500)
    assert killed.wait(90) == -signal.SIGKILL
    called = world.calls("killed")
    assert called
    next_one = world.start("next")
    world.wait_for_end()
    world.end(next_one)
    again = {(call.key, call.value) for call in world.calls("next")}
    assert again == set(world.admitted().items())
    assert {(call.key, call.value) for call in called} <= again
    world.check()


SLEEPY = {"signal": "SIGSTOP", "session_timeout_ms": 1500}


def test_one_that_slept_amid_its_calls(world: World) -> None:
    """It makes the rest when it wakes up: with keys that its successor has used."""
    for partition in range(PARTITIONS):
        world.write(20, partition)
    sleeper = world.start("sleeper", step="before a call", times=7, **SLEEPY)
    wait_until(lambda: is_stopped(sleeper.pid), 60, "it is stopped")
    before = len(world.keys("sleeper"))
    other = world.start("other")
    world.wait_for_end()
    used = set(world.keys())
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(60) == SINK_FENCED
    late = world.keys("sleeper")[before:]
    assert 1 <= len(late) <= 5  # of the batch that it has in hand
    assert set(late) <= used
    world.write(5, 0)
    world.wait_for_end()
    world.end(other)
    world.check()


def test_one_that_slept_before_its_calls_makes_none(world: World) -> None:
    """Although its successor has not committed yet: the group is asked."""
    for partition in range(PARTITIONS):
        world.write(20, partition)
    sleeper = world.start("sleeper", step="before going on", **SLEEPY)
    wait_until(lambda: is_stopped(sleeper.pid), 60, "it is stopped")
    before = world.keys()
    other = world.start(
        "other", step="before writing", signal="SIGSTOP", session_timeout_ms=30_000
    )
    wait_until(lambda: is_stopped(other.pid), 60, "it has messages in its hands")
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(60) == SINK_FENCED
    assert sleeper.communicate()[0].startswith("the group counts this instance no more")
    assert world.keys() == before
    other.send_signal(signal.SIGCONT)
    world.wait_for_end()
    world.end(other)
    world.check()


def is_stopped(process_id: int) -> bool:
    state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


def test_the_commits_tell_what_has_to_be_known(
    kafka: KafkaBroker, ledger: Ledger, topic: str, rebuilds: Rebuilds
) -> None:
    """Also one that is made where a call failed, in the middle of a batch."""
    writer = Writer(kafka, topic)
    write_takeover(writer, ledger.claim("w", holder="a"), ledger.claim("w", holder="b"))
    offsets: list[int] = []
    fails_at = [5]

    def call(key: str, message: Message) -> None:
        offset = message.offset() or 0
        assert key == message_key(topic_id(ledger, topic), 0, offset)
        if offset in fails_at:
            raise ValueError("no such account")
        offsets.append(offset)

    def new_runner() -> SinkRunner:
        config = {**kafka.config, "group.id": f"group-{topic}"}
        return SinkRunner(config, ledger, AtLeastOnceSink(call), require={topic: ["w"]})

    with pytest.raises(ValueError, match="no such account"):
        new_runner().run([topic])
    with fenced(kafka, ledger, topic) as consumer:
        found = committed(consumer, topic)
        assert (found.offset, found.leader_epoch) == (4, 0)
        assert (metadata_of(found)["n"], metadata_of(found)["e"]) == (2, {"w": 2})
        rebuilds.take()
        consumer.subscribe([topic])
        consumer.consume(1, 5)
        assert rebuilds.take() == []
    fails_at.clear()
    runner = new_runner()
    with running(runner, topic):
        wait_until(lambda: stands_at(runner, topic, TAKEOVER_END), 60, "all is read")
    assert rebuilds.take() == []
    assert offsets == TAKEOVER_ADMITTED
    with fenced(kafka, ledger, topic) as consumer:
        assert committed(consumer, topic).offset == TAKEOVER_END


def stands_at(runner: SinkRunner, topic: str, offset: int) -> bool:
    position = runner.progress.positions.get((topic, 0))
    return position is not None and position.next_offset == offset


def test_who_is_no_member_commits_nothing(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    """The group, which has no other, would take it."""
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KafkaException, match="no member"):
            consumer.commit_as_given([TopicPartition(topic, 0, 7)])
        assert committed(consumer, topic).offset < 0
