"""Sinks on real Kafka: killed, stopped, taken over."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from epochfence import Ledger, SinkRunner
from epochfence.testing import MemorySink
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics
from support.postgres import Postgres
from support.running import running
from support.sink_instance import SINK_FENCED
from support.sink_play import play
from support.sink_stores import STORES, new_store
from support.sink_world import PARTITIONS, SinkWorld, end_in_order
from support.stream import Stream, stamp
from support.waiting import wait_until

NewWorld = Callable[[], SinkWorld]


@pytest.fixture(params=STORES)
def new_world(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[NewWorld]:
    def postgres() -> Postgres:
        server: Postgres = request.getfixturevalue("postgres")
        return server

    with ExitStack() as stack:

        def make() -> SinkWorld:
            store = stack.enter_context(
                new_store(request.param, tmp_path, postgres, kafka)
            )
            world = SinkWorld(kafka, topics, ledger, store)
            stack.callback(world.close)
            return world

        yield make


@pytest.mark.parametrize("half", [0, 1], ids=["first", "second"])
def test_killed_at_each_step(new_world: NewWorld, half: int) -> None:
    world = new_world()
    steps = world.store.steps
    middle = len(steps) // 2
    for number, step in enumerate(steps[middle:] if half else steps[:middle]):
        for partition in range(PARTITIONS):
            world.write(7, partition)
        if number:
            world.write(3, 0, leader=-2)  # a zombie
        # A group of its own, where that may be: the dead member is not waited for.
        instance = world.start(
            step=step, group=f"{world.group}-{number}", session_timeout_ms=1500
        )
        assert instance.wait(60) == -signal.SIGKILL, step
        world.check()
        world.depose()
    last = world.start()
    world.wait_for_end()
    end_in_order([last])
    world.check()


SLEEPY = {"times": 2, "signal": "SIGSTOP", "session_timeout_ms": 1500, "timeout_s": 1.5}


def test_an_instance_that_slept_changes_nothing(new_world: NewWorld) -> None:
    """It is stopped with a batch in its hands, past its session, and wakes up."""
    world = new_world()
    for partition in range(PARTITIONS):
        world.write(20, partition)
    sleeper = world.start(step="before writing", **SLEEPY)
    wait_until(lambda: is_stopped(sleeper.pid), 60, "it is stopped")
    other = world.start(session_timeout_ms=1500)
    world.wait_for_end()
    world.write(5, 0)
    sleeper.send_signal(signal.SIGCONT)
    assert sleeper.wait(60) == SINK_FENCED
    said = sleeper.communicate()[0]
    assert "another instance has written" in said
    world.wait_for_end()
    end_in_order([other])
    world.check()


def test_an_instance_that_sleeps_in_its_transaction(new_world: NewWorld) -> None:
    """Others wait for its lock: until it goes on, or the server has enough of it."""
    world = new_world()
    for partition in range(PARTITIONS):
        world.write(20, partition)
    sleeper = world.start(step=world.store.commit, **SLEEPY)
    wait_until(lambda: is_stopped(sleeper.pid), 60, "it is stopped")
    if not world.store.keeps_its_locks:
        world.start(session_timeout_ms=1500)
        world.wait_for_end()
        world.write(5, 0)
    sleeper.send_signal(signal.SIGCONT)
    world.wait_for_end()
    sleeper.send_signal(signal.SIGTERM)
    # Which of the two it hears first: that its transaction is lost (and then that
    # another has written), or from the group.
    assert sleeper.wait(60) in (0, SINK_FENCED)
    world.wait_for_end()
    end_in_order(world.instances[1:])
    world.check()


@pytest.mark.parametrize("batch_size", [1000, 5])
def test_a_topic_that_is_made_anew_and_has_grown(
    kafka: KafkaBroker, ledger: Ledger, topic: str, batch_size: int
) -> None:
    """The client goes on at the old offset: nothing of that is stored.

    Where batches are full, looks at the topic's id are begun before they are judged.
    """
    leader = ledger.claim("w", holder="pod")
    sink = MemorySink()
    runner = SinkRunner(
        {**kafka.config, "group.id": topic, "fetch.wait.max.ms": 20},
        ledger,
        sink,
        require={topic: ["w"]},
        batch_size=batch_size,
        batch_wait_s=0.02,
    )
    expected: list[bytes] = []
    with running(runner, topic):
        for life in range(5):
            if life:
                replace(kafka, topic)
            # At once, and beyond where the sink stands: nothing shows that it is new.
            written = Stream(kafka, topic).write(stamp(leader), 10 * (life + 1))
            expected += written
            wait_for(sink, topic, len(written))
    assert sink.values(topic) == expected


def replace(kafka: KafkaBroker, topic: str) -> None:
    """Delete a topic and create it again, as fast as that goes."""
    admin: Any = kafka.admin
    admin.delete_topics([topic])[topic].result(30)

    def is_created() -> bool:
        try:
            admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
            return False
        return True

    wait_until(is_created, 30, "it is created again", interval_s=0.01)


def wait_for(sink: MemorySink, topic: str, offset: int) -> None:
    def is_there() -> bool:
        state = sink.state(topic)
        return state is not None and state.position.next_offset == offset

    wait_until(is_there, 60, f"the sink is at {offset}")


def is_stopped(process_id: int) -> bool:
    state = Path(f"/proc/{process_id}/stat").read_text().rpartition(")")[2].split()[0]
    return state == "T"


@pytest.mark.parametrize("seed", range(4))
def test_histories(new_world: NewWorld, seed: int) -> None:
    """Kills, pauses, rebalances, leaders and zombies, as a seed has them."""
    play(new_world(), random.Random(seed))
