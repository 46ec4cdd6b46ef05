"""A topic with leaders and zombies, instances of a sink, and what must come of it."""

from __future__ import annotations

import json
import secrets
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epochfence import FencedProducer, Leadership, Ledger
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics
from support.model import parse_ours
from support.reading import read_all
from support.sink_stores import Source, Store
from support.stream import Stream, stamp
from support.waiting import wait_until

PARTITIONS = Source.partitions

_END_S = 60


class SinkWorld:
    """One topic, its leaders of now and before, one store, and its instances.

    Args:
        kafka: The broker.
        topics: The ledger's topics.
        ledger: The ledger.
        store: What the instances write to.
    """

    def __init__(
        self, kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, store: Store
    ) -> None:
        self.kafka = kafka
        self.ledger = ledger
        self.topic = kafka.create_topic("orders", PARTITIONS)
        self.scope = f"w-{secrets.token_hex(4)}"
        self.store = store
        self.group = f"g-{secrets.token_hex(4)}"
        store.look_at(kafka, Source(self.topic, self.group, ledger))
        self.leaderships: list[Leadership] = []
        self.stream = Stream(kafka, self.topic)
        self.instances: list[subprocess.Popen[str]] = []
        self._told = {
            "servers": kafka.bootstrap_servers,
            "names": topics.names,
            "topic": self.topic,
            "scope": self.scope,
            "store": store.name,
            "address": store.address,
        }
        self.depose()

    # What is written.

    def depose(self) -> None:
        """Another leadership takes the topic over."""
        leadership = self.ledger.claim(self.scope, holder=str(len(self.leaderships)))
        with FencedProducer(self.kafka.config, self.ledger, leadership) as producer:
            producer.take_over([self.topic])
        self.leaderships.append(leadership)

    def write(self, count: int, partition: int, leader: int = -1) -> None:
        """The leader of now writes, or one of before does."""
        self.stream.write(stamp(self.leaderships[leader]), count, partition=partition)

    # Who applies it.

    def start(self, **options: Any) -> subprocess.Popen[str]:
        """Start an instance: see `sink_instance.py`."""
        told = {**self._told, "group": self.group, **options}
        if self.store.is_of_one_group:
            told["group"] = self.group
        script = Path(__file__).with_name("sink_instance.py")
        instance = subprocess.Popen(
            [sys.executable, str(script), json.dumps(told)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[1],
            env={"PYTHONPATH": str(Path(__file__).parents[1])},
        )
        self.instances.append(instance)
        return instance

    def close(self) -> None:
        """End every instance that is still there."""
        for instance in self.instances:
            if instance.poll() is None:
                instance.kill()
            instance.wait(_END_S)
            if instance.stdout is not None:
                instance.stdout.close()

    # What came of it.

    def ends(self) -> dict[int, int]:
        """How many records each partition has."""
        ends = dict.fromkeys(range(PARTITIONS), 0)
        for record in read_all(self.kafka, self.topic):
            ends[record.partition() or 0] = (record.offset() or 0) + 1
        return ends

    def wait_for_end(self, timeout_s: float = 90) -> None:
        """Wait until everything that is in the topic now has had its effect."""
        ends = self.ends()
        wait_until(
            lambda: self.store.next_offsets() == ends,
            timeout_s,
            f"the sink is at {ends}",
        )

    def check(self) -> None:
        """See that the store holds what is admitted below its next offsets.

        Each record once (invariant 6), and every epoch start below; what was rejected
        there, each record once.
        """
        below = self.store.next_offsets()
        expected: list[tuple[int, int, bytes | None]] = []
        rejected: list[tuple[int, int]] = []
        began: set[tuple[int, int, int]] = set()
        current = dict.fromkeys(range(PARTITIONS), 0)
        for record in read_all(self.kafka, self.topic):
            number, offset = record.partition() or 0, record.offset() or 0
            headers: Any = record.headers()
            ((name, value),) = headers
            found = parse_ours(value)
            assert found is not None
            if offset >= below.get(number, 0):
                continue
            if found.epoch < current[number]:
                rejected.append((number, offset))
                continue
            if found.epoch > current[number]:
                current[number] = found.epoch
                began.add((number, found.epoch, offset))
            if name == "epochfence":
                expected.append((number, offset, record.value()))
        assert self.store.applied() == sorted(expected)
        if below:
            assert self.store.starts() == sorted(began)
            assert self.store.rejected() == sorted(rejected)


def end_in_order(instances: Sequence[subprocess.Popen[str]]) -> None:
    """Ask instances to end, and see that they do so in order."""
    for instance in instances:
        instance.send_signal(signal.SIGTERM)
    for instance in instances:
        assert instance.wait(_END_S) == 0
