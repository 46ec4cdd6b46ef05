"""`epochfence gate` at work: killed, stopped, shared out, on topics that change."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import (
    Consumer,
    IsolationLevel,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from epochfence import Ledger, SinkBatch, SinkFenced, SinkPosition, SinkRunner
from epochfence.consumers.gate import GateSink
from epochfence.epochs.topics import TopicKeeper
from support import auditing
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.gate_scene import Scene, play_kills
from support.gates import Gate, Gates, copies, gate_arguments
from support.ledgers import LedgerTopics
from support.producing import add_partitions, make_anew
from support.reading import read_all
from support.stamped import Header, stamp, write_aborted
from support.waiting import wait_until

NewScene = Callable[..., Scene]


@pytest.fixture
def new_scene(topics: LedgerTopics, ledger: Ledger) -> NewScene:
    def make(partitions: int = 1, config: dict[str, str] | None = None) -> Scene:
        return Scene(topics, ledger, partitions, config)

    return make


@pytest.fixture
def gates(topics: LedgerTopics, tmp_path: Path) -> Iterator[Gates]:
    made = Gates(topics, tmp_path)
    yield made
    made.close()


def test_what_is_admitted_is_copied_as_it_is(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene(2, {"retention.ms": "-1", "max.message.bytes": "5000000"})
    theirs: list[Header] = [
        ("trace", b"1"),
        ("empty", None),
        ("trace", b"\xff\x00"),
        ("trace", b"1"),
        ("", b"no name"),
        ("Epochfence", b"not ours"),
    ]
    ours: list[Header] = [("epochfence-cursor", b"7"), ("epochfence-what", None)]
    producer = Producer(dict(scene.kafka.config))
    for number, at in enumerate((1, 1_700_000_000_000, 1_600_000_000_000)):
        producer.produce(
            scene.source, b"%d" % number, key=None if number else b"k", partition=1,
            headers=[*theirs[number:], *stamp(scene.leaders[0]), *ours], timestamp=at,
        )  # fmt: skip
    assert producer.flush(30) == 0
    scene.write(b"v", None, b"", key=b"")
    scene.depose()
    scene.write(b"after")
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    scene.depose()
    scene.write(b"live", None, partition=1)
    scene.wait()
    gate.end()
    scene.check()
    assert gate.copied == len(copies(scene.kafka, scene.destination)) == 9
    assert "rejected: 4 stale-epoch" in gate.said
    settings = TopicKeeper(scene.kafka.config, 10).settings(scene.destination) or {}
    assert settings["retention.ms"] == "-1"
    assert settings["max.message.bytes"] == "5000128"


def test_instances_share_the_partitions(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene(4)
    both = [gates.start(scene.source, scene.destination) for _ in range(2)]
    wait_until(lambda: members(scene) == [2, 2], 60, "they share the partitions")
    for partition in range(4):
        scene.write(b"1", b"2", b"3", partition=partition)
    scene.depose()
    scene.wait()
    both[0].end(signal.SIGINT)
    for partition in range(4):
        scene.write(b"4", partition=partition)
    scene.wait()
    both[1].end()
    scene.check()
    assert both[0].copied == 6
    assert both[1].copied == 10


def members(scene: Scene) -> list[int]:
    """How many partitions each member of the gate's group has."""
    admin: Any = scene.kafka.admin
    described = admin.describe_consumer_groups([scene.group])[scene.group].result(30)
    return sorted(len(m.assignment.topic_partitions) for m in described.members)


@pytest.mark.parametrize("is_named", [True, False], ids=["named", "nameless"])
def test_killed_at_any_moment(
    new_scene: NewScene, gates: Gates, is_named: bool
) -> None:
    rounds = 3 if is_named else 1
    play_kills(new_scene(2), gates, random.Random(rounds), rounds, is_named=is_named)


def test_a_copy_with_nothing_but_aborted_transactions(
    new_scene: NewScene, gates: Gates
) -> None:
    scene = new_scene(2)
    scene.create_copy()
    write_aborted(scene.kafka, scene.destination, [], [0, 1])
    scene.write(b"v", partition=1)
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    gate.end()


def test_a_group_whose_commits_are_gone(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene(2)
    for partition in range(2):
        scene.write(b"1", b"2", partition=partition)
    scene.depose()
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    gate.end()
    write_aborted(scene.kafka, scene.destination, [], [0])  # behind the last record
    scene.write(b"3")
    admin: Any = scene.kafka.admin
    admin.delete_consumer_groups([scene.group])[scene.group].result(30)
    again = gates.start(scene.source, scene.destination)
    scene.wait()
    again.end()
    scene.check()
    assert again.copied == 1
    assert f"goes on behind the last record of {scene.destination}" in again.said


def test_a_group_that_has_come_further_than_the_copy(
    new_scene: NewScene, gates: Gates
) -> None:
    """It was another application's, too."""
    scene = new_scene()
    scene.write(b"1", b"2", b"3")
    plain = Consumer({**scene.kafka.config, "group.id": scene.group})
    plain.commit(offsets=[TopicPartition(scene.source, 0, 2)], asynchronous=False)
    plain.close()
    gate = gates.start(scene.source, scene.destination)
    gate.wait_for("at offset 2, was not made by this gate")
    wait_until(
        lambda: len(copies(scene.kafka, scene.destination)), 60, "it copies the rest"
    )
    gate.end()
    assert [one.value for one in copies(scene.kafka, scene.destination)] == [b"3"]


def test_a_copy_that_was_deleted_is_made_anew_from_the_start(
    new_scene: NewScene, gates: Gates
) -> None:
    scene = new_scene()
    scene.write(b"1", b"2", b"3")
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    scene.kafka.delete_topic(scene.destination)
    scene.write(b"4")
    assert gate.code() == 2
    assert "was written to" in gate.said
    again = gates.start(scene.source, scene.destination)
    scene.wait()
    again.end()
    scene.check()
    assert again.copied == 4


def test_a_copy_that_was_made_anew_behind_its_back(
    new_scene: NewScene, gates: Gates
) -> None:
    """What it holds then is no copy of all; with it gone, one is made."""
    scene = new_scene()
    scene.write(b"1", b"2")
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    gate.end()
    first = read_all(scene.kafka, scene.destination)[0]
    make_anew(scene.kafka, scene.destination)
    producer = Producer({**scene.kafka.config})
    producer.produce(scene.destination, first.value(), headers=first.headers())
    assert producer.flush(30) == 0
    again = gates.start(scene.source, scene.destination)
    assert again.code() == 2
    assert "written to before that was noticed" in again.said
    make_anew(scene.kafka, scene.destination)
    last = gates.start(scene.source, scene.destination)
    scene.wait()
    last.end()
    scene.check()


def test_a_source_that_is_made_anew(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene()
    scene.write(b"1", b"2", b"3")
    scene.depose()
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    scene.replay.end_life()
    make_anew(scene.kafka, scene.source)
    scene.write(b"too late", leader=0)
    scene.write(b"4")
    scene.wait()
    gate.end()
    scene.replay.end_life()
    make_anew(scene.kafka, scene.source)
    scene.write(*(b"%d" % number for number in range(5, 20)))
    again = gates.start(scene.source, scene.destination)
    scene.wait()
    again.end()
    scene.check()


QUICK = ("-X", "topic.metadata.refresh.interval.ms=500")


def test_a_source_that_grows_alone(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene()
    scene.write(b"1")
    gate = gates.start(scene.source, scene.destination, *QUICK)
    scene.wait()
    scene.grow(scene.source, 2)
    assert gate.code() == 2
    problem = f"it has 1 partitions, and {scene.source} has at least 2 now"
    assert problem in gate.said
    assert "kafka-topics.sh --alter --partitions" in gate.said
    scene.grow(scene.destination, 2)
    scene.write(b"2", partition=1)
    again = gates.start(scene.source, scene.destination)
    scene.wait()
    again.end()


def test_a_copy_that_grows_first(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene()
    scene.write(b"1")
    gate = gates.start(scene.source, scene.destination, *QUICK)
    scene.wait()
    scene.grow(scene.destination, 2)
    scene.grow(scene.source, 2)
    scene.write(b"2", partition=1)
    scene.wait()
    gate.end()


def test_a_compacted_source(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene(config=dict(COMPACTABLE))
    for number in range(5):
        scene.write(b"%d" % number, key=b"a")
        scene.write(b"%d" % number, key=b"b")
    scene.write(None, key=b"a")
    force_compaction(scene.kafka, scene.source)
    scene.write(b"last", key=b"a")
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    gate.end()
    assert copies(scene.kafka, scene.destination)[0].value == b"4"
    keeper = TopicKeeper(scene.kafka.config, 10)
    assert keeper.is_compacted(scene.destination)


LARGE = 300_000


def test_a_record_as_large_as_can_be(new_scene: NewScene, gates: Gates) -> None:
    scene = new_scene(config={"max.message.bytes": str(LARGE)})
    # What remains is for the batch, the key and the stamp.
    scene.write(bytes(LARGE - 70 - len(stamp(scene.leaders[0])[0][1] or b"") - 20))
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    gate.end()


def test_a_record_that_is_too_large_for_the_copy(
    new_scene: NewScene, gates: Gates
) -> None:
    scene = new_scene()
    scene.create_copy({"max.message.bytes": str(LARGE)})
    scene.write(b"small")
    gate = gates.start(scene.source, scene.destination)
    scene.wait()
    scene.write(bytes(LARGE))
    assert gate.code() == 2
    problem = f"a record of {scene.source}[0] from offset 1 on is too large for it"
    assert problem in gate.said
    assert "max.message.bytes" in gate.said


def test_one_that_slept_changes_nothing(new_scene: NewScene, gates: Gates) -> None:
    """It is stopped in a transaction, past its session, and wakes up."""
    scene = new_scene()
    sleeper = gates.start(scene.source, scene.destination, "--batch-size", "1")
    scene.write(b"0")
    scene.wait()
    stop_in_transaction(scene, sleeper)
    other = gates.start(scene.source, scene.destination)
    scene.wait()
    sleeper.send(signal.SIGCONT)
    scene.write(b"last")
    scene.wait()

    def has_heard() -> bool:
        return sleeper.process.poll() is not None or len(members(scene)) == 2

    # Which it hears first: that another has written, or that it is no member any more
    # (then it becomes one again).
    wait_until(has_heard, 60, "it has ended, or joined the group anew")
    if sleeper.process.poll() is None:
        sleeper.end()
    else:
        assert sleeper.code() == 1, sleeper.said
        assert "another instance has written" in sleeper.said
    other.end()
    scene.check()


def stop_in_transaction(scene: Scene, gate: Gate) -> None:
    """Stop a gate while a transaction of it is open."""
    admin: Any = scene.kafka.admin
    place = TopicPartition(scene.destination, 0)
    asked = {place: OffsetSpec.latest()}  # type: ignore[no-untyped-call]

    def end(level: IsolationLevel) -> int:
        answers = admin.list_offsets(asked, isolation_level=level)
        return int(answers[place].result(30).offset)

    def is_stopped() -> bool:
        scene.write(*(b"%d" % number for number in range(10)))
        gate.send(signal.SIGSTOP)
        if end(IsolationLevel.READ_COMMITTED) < end(IsolationLevel.READ_UNCOMMITTED):
            return True
        gate.send(signal.SIGCONT)
        return False

    wait_until(is_stopped, 60, "it is stopped in a transaction", interval_s=0.01)


def test_who_is_fenced_ends_with_1(
    new_scene: NewScene, topics: LedgerTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = new_scene()

    def run(runner: SinkRunner, *_: object, **__: object) -> None:
        runner.close()
        raise SinkFenced(scene.source, 0, ("id", 0, 7), ("id", 0, 9))

    monkeypatch.setattr(SinkRunner, "run", run)
    done = auditing.run(*gate_arguments(topics, scene.source, scene.destination))
    assert done.exit_code == 1
    assert "another instance has written" in done.output
    assert "ended in order" not in done.output


def test_a_partition_that_the_producer_does_not_know_yet(kafka: KafkaBroker) -> None:
    """It would learn of it within five minutes."""
    source, destination = kafka.create_topic("orders", 2), kafka.create_topic("copy")
    member = Consumer(
        {
            **kafka.config,
            "group.id": destination,
            "isolation.level": "read_committed",
        }
    )
    with GateSink(kafka.config, source, destination, largest_bytes=100_000) as sink:
        sink.join(member)
        for partition in range(2):
            if partition:
                add_partitions(kafka, destination, 2)
            sink.load(source, partition)
            message = Message(topic=source, partition=partition, offset=0, value=b"v")
            end = SinkPosition(None, None, 1)
            sink.write([SinkBatch(source, partition, [message], None, end, ())])
    member.close()
    assert [one.partition for one in copies(kafka, destination)] == [0, 1]
