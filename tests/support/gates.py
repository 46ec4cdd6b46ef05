"""Gates as processes, and what their copies must hold."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from confluent_kafka import (
    ConsumerGroupTopicPartitions,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from epochfence import Leadership
from support.ledgers import LedgerTopics
from support.model import parse_ours
from support.reading import read_all
from support.waiting import wait_until

_END_S = 60

#: A transaction that goes on is over within this time.
_STABLE_S = 1.0

#: Settings with which a gate hears of everything soon.
SPRY = (
    *("-X", "fetch.wait.max.ms=20"),
    *("-X", "heartbeat.interval.ms=300"),
    *("-X", "session.timeout.ms=1500"),
    *("-X", "transaction.timeout.ms=1000"),
)


class Copy(NamedTuple):
    """A record of a copy."""

    partition: int
    key: bytes | None
    value: bytes | None
    timestamp: int
    headers: list[tuple[str, bytes | None]]


class Gate:
    """The installed command at work, as a process.

    Args:
        topics: The ledger's topics, which tell the cluster too.
        source: What is copied.
        destination: Where to.
        options: Further options.
        log: Where its stderr goes.
    """

    def __init__(
        self,
        topics: LedgerTopics,
        source: str,
        destination: str,
        options: Iterable[str],
        log: Path,
    ) -> None:
        self._log = log
        with log.open("w") as stderr:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "epochfence"),
                    *gate_arguments(topics, source, destination, *SPRY, *options),
                ],
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "COLUMNS": "250"},
            )

    @property
    def said(self) -> str:
        """What it has said so far."""
        said = self._log.read_text()
        assert "Traceback" not in said, said
        return said

    @property
    def copied(self) -> int:
        """How many records it has copied, as it says when it ends."""
        (count,) = re.findall(r"ended in order: records copied: ([\d,]+)", self.said)
        return int(str(count).replace(",", ""))

    def wait_for(self, pattern: str) -> None:
        """Wait until it says something."""

        def is_said() -> bool:
            has_ended = self.process.poll() is not None
            is_found = re.search(pattern, self.said) is not None
            assert is_found or not has_ended, self.said
            return is_found

        wait_until(is_said, _END_S, f"the gate says {pattern!r}")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def code(self) -> int:
        """Wait until it has ended; its exit code."""
        return self.process.wait(_END_S)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Have it end, in order."""
        self.wait_for("copying ")
        self.send(number)
        assert self.code() == 0, self.said

    def close(self) -> None:
        """End it, if it has not ended."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(_END_S)


class Gates:
    """Starts gates from one topic to another.

    Args:
        topics: The ledger's topics, which tell the cluster too.
        folder: Where logs go.
    """

    def __init__(self, topics: LedgerTopics, folder: Path) -> None:
        self._topics = topics
        self._folder = folder
        self._started: list[Gate] = []

    def start(self, source: str, destination: str, *options: str) -> Gate:
        """Start one."""
        log = self._folder / f"gate-{secrets.token_hex(4)}.log"
        gate = Gate(self._topics, source, destination, options, log)
        self._started.append(gate)
        return gate

    def close(self) -> None:
        """End those that have not ended."""
        for gate in self._started:
            gate.close()


def gate_arguments(
    topics: LedgerTopics, source: str, destination: str, *options: str
) -> list[str]:
    """The arguments of the command."""
    return [
        *("gate", source, destination, "-b", topics.kafka.bootstrap_servers),
        *("--coordination-topic", topics.coordination_topic),
        *("--table-topic", topics.table_topic, *options),
    ]


class Replay:
    """What a copy must hold: its source judged once more, in a dumb way.

    Args:
        topics: Tell the cluster.
        source: What is copied.
        scope: Whose stamps its records must carry.
    """

    def __init__(self, topics: LedgerTopics, source: str, scope: str) -> None:
        self._kafka = topics.kafka
        self._source = source
        self._scope = scope
        self._grants: set[bytes] = set()
        # What an earlier life of the source came to, by partition.
        self._before: dict[int, list[Copy]] = {}
        self._current: dict[int, int] = {}

    def granted(self, leadership: Leadership) -> Leadership:
        """Note a leadership, and give it back."""
        self._grants.add(leadership.stamp_value)
        return leadership

    def end_life(self) -> None:
        """Keep what there is: the source is about to be made anew."""
        for copy in self._fold(self._current):
            self._before.setdefault(copy.partition, []).append(copy)

    def expected(self) -> list[Copy]:
        """What the copy must hold now, partition by partition."""
        now = self._fold(dict(self._current))
        numbers = sorted({*self._before, *(copy.partition for copy in now)})
        return [
            copy
            for number in numbers
            for copy in (
                *self._before.get(number, ()),
                *(copy for copy in now if copy.partition == number),
            )
        ]

    def _fold(self, current: dict[int, int]) -> list[Copy]:
        life = topic_id(self._kafka, self._source)
        found: list[Copy] = []
        for record in read_all(
            self._kafka, self._source, isolation_level="read_committed"
        ):
            number = record.partition() or 0
            headers: list[Any] = list(record.headers() or ())
            stamps = [value for name, value in headers if name == "epochfence"]
            barriers = [
                value for name, value in headers if name == "epochfence-barrier"
            ]
            if len(stamps) + len(barriers) != 1:
                continue
            (value,) = stamps + barriers
            stamp = parse_ours(value)
            if (
                stamp is None
                or stamp.scope != self._scope
                or value not in self._grants
                or stamp.epoch < current.get(number, 0)
            ):
                continue
            current[number] = stamp.epoch
            if barriers:
                continue
            source = f"{life}:{number}:{record.leader_epoch()}:{record.offset()}"
            kept = [one for one in headers if not one[0].startswith("epochfence")]
            found.append(
                Copy(
                    number,
                    record.key(),
                    record.value(),
                    record.timestamp()[1],
                    [*kept, ("epochfence-source", source.encode())],
                )
            )
        return found

    def is_read(self, group: str) -> bool:
        """Whether a group has come to the source's end.

        Raises:
            KafkaException: What it has committed last is in an open transaction.
        """
        admin: Any = self._kafka.admin
        described = admin.describe_topics(TopicCollection([self._source]))
        places = [
            TopicPartition(self._source, one.id)
            for one in described[self._source].result(30).partitions
        ]
        latest: Any = OffsetSpec
        found = admin.list_offsets({place: latest.latest() for place in places})
        ends = {place.partition: found[place].result(30).offset for place in places}
        asked = ConsumerGroupTopicPartitions(group, places)
        answers = admin.list_consumer_group_offsets(
            [asked], require_stable=True, request_timeout=_STABLE_S
        )
        committed = {
            tp.partition: max(0, tp.offset)
            for tp in answers[group].result(30).topic_partitions
        }
        return ends == committed

    def wait_for(self, destination: str, group: str) -> None:
        """Wait until a group has copied all there is, and see that it is that."""

        def is_read() -> bool:
            with suppress(KafkaException):
                return self.is_read(group)
            return False

        wait_until(is_read, _END_S, f"{group} is at the end")
        expected = self.expected()
        # The end of a transaction is written to one partition after the other.
        wait_until(
            lambda: len(copies(self._kafka, destination)) >= len(expected),
            _END_S,
            f"{destination} has {len(expected)} records",
        )
        self.check(destination)

    def check(self, destination: str) -> None:
        """See that a copy holds exactly what it must."""
        assert copies(self._kafka, destination) == self.expected()


def copies(kafka: Any, destination: str) -> list[Copy]:
    """What a copy holds, partition by partition; nothing, where it is not there."""
    if topic_id(kafka, destination) is None:
        return []
    found: list[Copy] = []
    for record in read_all(kafka, destination, isolation_level="read_committed"):
        headers: list[Any] = list(record.headers() or ())
        found.append(
            Copy(
                record.partition() or 0,
                record.key(),
                record.value(),
                record.timestamp()[1],
                headers,
            )
        )
    return found


def topic_id(kafka: Any, topic: str) -> str | None:
    """A topic's id, as it stands in headers; None: there is no such topic."""
    described = kafka.admin.describe_topics(TopicCollection([topic]))[topic]
    try:
        uuid = str(described.result(30).topic_id)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        return None
    return uuid.replace("+", "-").replace("/", "_").rstrip("=")
