"""The scheduler: each tick once, whatever becomes of the schedulers."""

from __future__ import annotations

import json
import signal
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.example_program import Program, Team, admitted, kafka_options, write_as
from support.ledgers import LedgerTopics
from support.waiting import wait_until

_EVERY_S = 0.02
_WAIT_S = 90


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("ticks")


@pytest.fixture
def team(topics: LedgerTopics, ledger: Ledger, topic: str) -> Iterator[Team]:
    since = datetime.now(timezone.utc) + timedelta(seconds=1)

    def start(holder: str) -> Program:
        return Program(
            "scheduler.py", "run", *kafka_options(topics), "--topic", topic,
            *("--since", since.isoformat(), "--every", str(_EVERY_S)),
            *("--holder", holder, "--silence", "1.5"),
        )  # fmt: skip

    with Team(ledger, f"scheduler/{topic}", start) as made:
        yield made


class Counter:
    """The program that counts, killed and started again at will."""

    def __init__(self, topics: LedgerTopics, topic: str, database: Path) -> None:
        self._arguments = [
            *("scheduler.py", "count", *kafka_options(topics), "--topic", topic),
            *("--group", topic, "--database", str(database)),
            *("-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=200"),
        ]
        self._database = database
        self._program = Program(*self._arguments)

    @property
    def ticks(self) -> dict[int, int]:
        """How often each tick was counted."""
        with closing(sqlite3.connect(self._database)) as database:
            try:
                return dict(database.execute("SELECT number, times FROM ticks"))
            except sqlite3.OperationalError:
                return {}  # it has not begun yet

    def wait_for(self, count: int) -> None:
        """Wait until so many ticks were counted."""
        wait_until(lambda: len(self.ticks) >= count, _WAIT_S, "ticks are counted")

    def kill(self) -> None:
        """Kill it, and start it again."""
        self._program.end(signal.SIGKILL)
        self._program = Program(*self._arguments)

    def end(self) -> int:
        """Have it end in order; its exit code."""
        return self._program.end()


@pytest.fixture
def counter(
    topics: LedgerTopics, ledger: Ledger, topic: str, tmp_path: Path
) -> Iterator[Counter]:
    made = Counter(topics, topic, tmp_path / "ticks.db")
    yield made
    made.end()


def test_each_tick_is_fired_once_and_counted_once(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    team: Team,
    counter: Counter,
) -> None:
    claim, leader = team.wait_for_leader()
    for way in ("stop", "kill"):
        before = claim
        counter.wait_for(len(counter.ticks) + 5)
        if way == "stop":
            leader.tell(signal.SIGSTOP)
        else:
            del team.programs[before.holder]
            assert leader.end(signal.SIGKILL) == -signal.SIGKILL
            counter.kill()
        claim, successor = team.wait_for_leader(before.epoch)
        if way == "stop":
            leader.tell(signal.SIGCONT)
            stale = json.dumps({"tick": 1, "due": "", "epoch": before.epoch})
            write_as(topics, topic, before, stale.encode(), b"9000000000")
            leader.wait_for("over: ")
        leader = successor
    counter.wait_for(len(counter.ticks) + 5)
    team.end()
    found = admitted(kafka, ledger, topic, team.scope)
    fired = [json.loads(one.value() or b"")["tick"] for one in found.messages[0]]
    assert fired == list(range(1, len(fired) + 1))
    assert found.counts["stale-epoch"] >= 1
    counter.wait_for(len(fired))
    assert counter.end() == 0
    assert counter.ticks == dict.fromkeys(fired, 1)
