"""The programs in examples/, as processes: what they say, and who of them leads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from confluent_kafka import Consumer, Message, TopicPartition

from epochfence import Claim, FencedConsumer, Ledger
from epochfence.epochs.stamps import CURSOR_HEADER, STAMP_HEADER, encode_stamp
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics, write_record
from support.stream import read_to
from support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
_WAIT_S = 90


class Program:
    """One process; what it says goes line by line into `said`."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.said: list[str] = []
        self._is_stopped = False
        self._process = subprocess.Popen(
            [sys.executable, str(EXAMPLES / name), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONWARNINGS": "error"},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(line.rstrip("\n"))

    def count(self, beginning: str) -> int:
        """How many lines begin so."""
        return sum(line.startswith(beginning) for line in list(self.said))

    def wait_for(self, beginning: str, count: int = 1) -> None:
        """Wait until so many lines begin so."""

        def is_said() -> bool:
            if self.count(beginning) >= count:
                return True
            assert self._process.poll() is None, self.said
            return False

        try:
            wait_until(is_said, _WAIT_S, f"{beginning!r} is said")
        except TimeoutError as error:
            raise TimeoutError(f"{error}: {self.said}") from error

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)
        self._is_stopped = number == signal.SIGSTOP

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Have it end, and wait for that; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        if self._is_stopped:
            self._process.send_signal(signal.SIGCONT)
        return self.wait()

    def wait(self) -> int:
        """Wait until it ends by itself; its exit code."""
        code = self._process.wait(_WAIT_S)
        self._reader.join(_WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        return code


class Team:
    """Two processes of one program, of which one leads, while a block lasts.

    Args:
        ledger: Says which.
        scope: What they lead.
        start: Starts one by the name of a holder.
    """

    def __init__(
        self, ledger: Ledger, scope: str, start: Callable[[str], Program]
    ) -> None:
        self.scope = scope
        self._ledger = ledger
        self._start = start
        self._number = 0
        self.programs: dict[str, Program] = {}

    def __enter__(self) -> Team:
        for _ in range(2):
            self.add()
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def add(self) -> None:
        """Start one more."""
        self._number += 1
        holder = f"pod-{self._number}"
        self.programs[holder] = self._start(holder)

    def wait_for_leader(self, above: int = 0) -> tuple[Claim, Program]:
        """The grant of who leads under a higher epoch, once it says so."""

        def granted() -> Claim | None:
            latest = self._ledger.refresh().latest(self.scope)
            for program in self.programs.values():
                assert not program.count("error:"), program.said
            return latest if latest and latest.epoch > above else None

        def leading() -> tuple[Claim, Program] | None:
            claim = granted()
            program = self.programs.get(claim.holder) if claim else None
            if claim and program and program.count(f"leading: epoch {claim.epoch}"):
                return claim, program
            return None

        found = wait_until(leading, _WAIT_S, f"an epoch above {above} is led")
        assert found is not None
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End all that are there."""
        programs = list(self.programs.values())
        self.programs.clear()
        codes = [program.end(number) for program in programs]
        assert set(codes) <= {0, -number}, [program.said for program in programs]


class Admitted(NamedTuple):
    """What a fenced consumer makes of a topic."""

    messages: Mapping[int, Sequence[Message]]
    counts: Mapping[str, int]


def admitted(kafka: KafkaBroker, ledger: Ledger, topic: str, scope: str) -> Admitted:
    """Read a topic from its start to its end, as its consumers would."""
    config = {**kafka.config, "group.id": topic, "auto.offset.reset": "earliest"}
    plain = Consumer(dict(config))
    try:
        numbers = plain.list_topics(topic, 30).topics[topic].partitions
        ends = {
            (topic, number): plain.get_watermark_offsets(TopicPartition(topic, number))[
                1
            ]
            for number in numbers
        }
    finally:
        plain.close()
    with FencedConsumer(config, ledger, require={topic: [scope]}) as consumer:
        consumer.assign([TopicPartition(*place, 0) for place in ends])
        found: dict[int, list[Message]] = {number: [] for number in numbers}
        for message in read_to(consumer, ends, _WAIT_S):
            assert message.error() is None
            found[message.partition() or 0].append(message)
        return Admitted(found, Counter(consumer.counts))


def write_as(
    topics: LedgerTopics, topic: str, claim: Claim, value: bytes, cursor: bytes
) -> None:
    """Write what a zombie had on its way, under a grant that is over."""
    headers = [(STAMP_HEADER, encode_stamp(claim.stamp)), (CURSOR_HEADER, cursor)]
    write_record(topics.kafka, topic, b"stale", value, headers)


def kafka_options(topics: LedgerTopics) -> list[str]:
    """The options by which an example finds the cluster, and its ledger there."""
    return [
        *("-b", topics.kafka.bootstrap_servers),
        *("--coordination-topic", topics.coordination_topic),
        *("--table-topic", topics.table_topic),
    ]
