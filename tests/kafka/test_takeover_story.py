"""The whole story, with real processes: a leader sleeps through its deposition.

Leader A is stopped (SIGSTOP) with messages on their way; B claims, takes over and
writes; A wakes up, and its messages go out to every partition. A fenced group of two,
one of them killed in the middle and started again, ends with exactly the admitted
effects; whoever reads again, from wherever, gets the same verdicts; and A is told,
message by message, what became of them.
"""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from epochfence import FencedConsumer
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.ledgers import unnamed_topics
from support.reading import read_all
from support.stream import read_to
from support.waiting import wait_until

_SUPPORT = Path(__file__).parents[1] / "support"
PARTITIONS = 2
ORDERS = 6
LATE_ORDERS = 3


@contextmanager
def process(script: str, told: dict[str, Any]) -> Generator[subprocess.Popen[str]]:
    """A process of the story; it does not outlive the block."""
    command = [sys.executable, str(_SUPPORT / script), json.dumps(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        try:
            yield running
        finally:
            if running.poll() is None:
                running.kill()


def said(running: subprocess.Popen[str]) -> Any:
    """The next thing that a process says."""
    assert running.stdout is not None
    return json.loads(running.stdout.readline())


def effects(*files: Path) -> set[tuple[int, int, str]]:
    """What the members of the group have applied."""
    found: set[tuple[int, int, str]] = set()
    for file in files:
        for line in file.read_text("utf-8").splitlines() if file.exists() else []:
            partition, offset, value = line.split(" ")
            found.add((int(partition), int(offset), value))
    return found


@pytest.mark.parametrize("config", [{}, dict(COMPACTABLE)], ids=["plain", "compacted"])
def test_a_leader_that_slept(
    kafka: KafkaBroker, tmp_path: Path, config: dict[str, str]
) -> None:
    topics = unnamed_topics(kafka)
    topic = kafka.create_topic("orders", PARTITIONS, config=config)
    ends = dict.fromkeys(range(PARTITIONS), 0)
    told: dict[str, Any] = {
        "servers": kafka.bootstrap_servers,
        "names": topics.names,
        "topic": topic,
        "scope": "orders-writer",
        "group": f"g-{secrets.token_hex(4)}",
        "partitions": PARTITIONS,
        "orders": ORDERS,
        "late_orders": LATE_ORDERS,
    }
    files = [tmp_path / "one", tmp_path / "two"]
    leader_a = {**told, "holder": "pod-7", "is_deposed": True}
    leader_b = {**told, "holder": "pod-8", "is_deposed": False}
    with ExitStack() as stack:
        ledger = stack.enter_context(topics.open())
        one = stack.enter_context(
            process("story_reader.py", {**told, "file": str(files[0])})
        )
        stack.enter_context(process("story_reader.py", {**told, "file": str(files[1])}))

        # A is stopped, with messages on their way.
        sleeper = stack.enter_context(process("story_leader.py", leader_a))
        assert said(sleeper) == "handed over"
        sleeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: len(effects(*files)) > 2, 60, "the group is at work")
        one.kill()  # -9, in the middle

        # B leads.
        with process("story_leader.py", leader_b) as successor:
            admitted = said(successor)["outcomes"]
            assert admitted == {"admitted": PARTITIONS * ORDERS}

        # A wakes up.
        sleeper.send_signal(signal.SIGCONT)
        answer = said(sleeper)
        assert answer["deposed_by"] == "pod-8"
        stack.enter_context(process("story_reader.py", {**told, "file": str(files[0])}))

        # What lies in Kafka: nobody has held A's messages up.
        lying = {
            (record.partition() or 0, record.offset() or 0): (
                record.value() or b""
            ).decode()
            for record in read_all(kafka, topic)
        }
        for number in range(PARTITIONS):
            ends[number] = 1 + max(at for place, at in lying if place == number)
        good = {
            (place, at, value)
            for (place, at), value in lying.items()
            if value.startswith("pod-8")
            or (value.startswith("pod-7") and int(value.split("-")[-1]) < ORDERS)
        }
        assert len(good) == 2 * PARTITIONS * ORDERS
        late = [value for value in lying.values() if value.startswith("pod-7")]
        assert len(late) >= PARTITIONS * (ORDERS + LATE_ORDERS)

        # Message by message: A's first ones were admitted, the others fenced.
        receipts = {(place, at): outcome for place, at, outcome in answer["receipts"]}
        assert receipts == {
            (place, at): "admitted" if (place, at, value) in good else "fenced"
            for (place, at), value in lying.items()
            if value.startswith("pod-7")
        }

        # The group ends with exactly the admitted effects.
        wait_until(
            lambda: effects(*files) >= good, 90, "the group has applied what is good"
        )
        assert effects(*files) == good

        if config:
            force_compaction(kafka, topic, key=b"filler")
        again: dict[str, Any] = {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": told["group"] + "-again",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 20,
        }
        consumer = FencedConsumer(again, ledger, require={topic: ["orders-writer"]})
        with consumer:
            # From every restart point, backwards and forwards.
            consumer.assign(
                [TopicPartition(topic, number, 0) for number in range(PARTITIONS)]
            )
            places = {(topic, number): end for number, end in ends.items()}
            highest = max(ends.values())
            for offset in [*range(highest, -1, -1), 0, highest // 2, highest - 1]:
                for number in range(PARTITIONS):
                    consumer.seek(
                        TopicPartition(topic, number, min(offset, ends[number]))
                    )
                got = {
                    (m.partition(), m.offset(), (m.value() or b"").decode())
                    for m in read_to(consumer, places)
                    if (m.offset() or 0) < ends[m.partition() or 0]
                }
                assert got == {one for one in good if one[1] >= offset}
        # A new group, from the start.
        again["group.id"] += "-new"
        with FencedConsumer(
            again, ledger, require={topic: ["orders-writer"]}
        ) as consumer:
            consumer.subscribe([topic])
            messages = read_to(consumer, places)
            got = {
                (m.partition(), m.offset(), (m.value() or b"").decode())
                for m in messages
                if (m.offset() or 0) < ends[m.partition() or 0]
            }
            assert got == good
