"""Several processes judge a topic: one that dies is told, and nothing waits for it."""

from __future__ import annotations

import os
import signal
from multiprocessing import active_children

import pytest
from confluent_kafka import Producer

from epochfence.epochs.settings import FenceSettings
from epochfence.replay.slices import Job
from epochfence.replay.topic_source import TopicSource
from epochfence.replay.workers import Task, Told, judge_by_workers
from support.brokers import KafkaBroker
from support.histories import stamp

TIMEOUT_S = 20.0
SETTINGS = FenceSettings(unstamped="quarantine", authority="max-seen")


@pytest.fixture(scope="module")
def topic(kafka: KafkaBroker) -> str:
    topic = kafka.create_topic("judged-by-several", partitions=4)
    producer = Producer({**kafka.config, "acks": "all"})
    for number in range(4 * 500):
        producer.produce(topic, b"v", b"k", number % 4, headers=[stamp(1)])
        producer.poll(0)
    assert producer.flush(30) == 0
    return topic


def job(kafka: KafkaBroker) -> Job:
    return Job(kafka.config, TIMEOUT_S, SETTINGS, None)


def tasks(kafka: KafkaBroker, topic: str) -> list[Task]:
    source = TopicSource(kafka.config, topic, TIMEOUT_S)
    return [Task(piece, None) for piece in source.slices]


def test_every_slice_is_judged_once(kafka: KafkaBroker, topic: str) -> None:
    ends: list[Told] = []

    def listener(told: Told) -> bool:
        if told.is_over:
            ends.append(told)
        return False

    judge_by_workers(job(kafka), tasks(kafka, topic), listener, keeps=False, workers=3)
    assert sorted(one.partition for one in ends) == [0, 1, 2, 3]
    found = [one.state.state.records for one in ends if one.state is not None]
    assert found == [500] * 4
    assert active_children() == []


def test_processes_that_are_killed_are_told(kafka: KafkaBroker, topic: str) -> None:
    """As the kernel does where memory is short."""
    ends: list[Told] = []

    def listener(told: Told) -> bool:
        if told.is_over:
            ends.append(told)
            for process in active_children():
                assert process.pid is not None
                os.kill(process.pid, signal.SIGKILL)
        return False

    judge_by_workers(job(kafka), tasks(kafka, topic), listener, keeps=False, workers=2)
    assert sorted(one.partition for one in ends) == [0, 1, 2, 3]
    # The first had ended when they were killed, and perhaps the second.
    assert {one.failure for one in ends[2:]} == {
        "the process that read it ended without a word"
    }


def test_who_is_asked_to_stop_tells_what_was_found(
    kafka: KafkaBroker, topic: str
) -> None:
    ends: list[Told] = []

    def listener(told: Told) -> bool:
        if told.is_over:
            ends.append(told)
        return True

    judge_by_workers(job(kafka), tasks(kafka, topic), listener, keeps=False, workers=2)
    # One each: the others are not begun any more.
    assert len(ends) == 2
    assert all(one.failure is None and one.state is not None for one in ends)
    assert active_children() == []


def test_a_process_does_not_hear_ctrl_c(kafka: KafkaBroker, topic: str) -> None:
    """It comes to all of them, at whatever moment, and the parent says when to stop."""
    ends: list[Told] = []

    def listener(told: Told) -> bool:
        if told.is_over:
            ends.append(told)
        for process in active_children():
            assert process.pid is not None
            os.kill(process.pid, signal.SIGINT)
            os.kill(process.pid, signal.SIGTERM)
        return False

    judge_by_workers(job(kafka), tasks(kafka, topic), listener, keeps=False, workers=2)
    assert [one.failure for one in ends] == [None] * 4
