"""The outbox relay: each row once, whatever becomes of the relays."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing

import psycopg
import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.example_program import (
    Program,
    Team,
    admitted,
    kafka_options,
    write_as,
)
from support.ledgers import LedgerTopics
from support.waiting import wait_until

_PARTITIONS = 2
_KEYS = 20
_BATCH = 20
#: With so many rows to be sent, the application waits.
_BACKLOG = 60
#: A transaction stays open while so many others are committed: the relay gets to them.
_HELD = 150
_WAIT_S = 90
_SILENCE_S = {"postgres": "1", "kafka": "1.5"}

_UNSENT = "SELECT count(*) FROM outbox WHERE sent_at IS NULL"
_IN_ORDER = "SELECT partition, id FROM outbox ORDER BY xid, id"


class Application:
    """Writes rows, as an application does: some commit late, some not at all."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo
        self._is_over = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            with (
                closing(psycopg.connect(self._conninfo, autocommit=True)) as one,
                closing(psycopg.connect(self._conninfo, autocommit=True)) as other,
                closing(psycopg.connect(self._conninfo)) as slow,
            ):
                self._write((one, other), slow)
        except BaseException as error:
            self._error = error

    def _write(
        self,
        quick: Sequence[psycopg.Connection[object]],
        slow: psycopg.Connection[object],
    ) -> None:
        dice = random.Random(7)
        while not self._is_over.is_set():
            self._insert(slow, dice)  # it has the lowest numbers, and commits last
            for number in range(_HELD):
                self._insert(quick[number % len(quick)], dice)
            if dice.random() < 0.2:
                slow.rollback()
            else:
                slow.commit()
            while self._unsent(quick[0]) > _BACKLOG:
                if self._is_over.wait(0.01):
                    return

    @staticmethod
    def _insert(connection: psycopg.Connection[object], dice: random.Random) -> None:
        connection.execute(
            "INSERT INTO outbox (key, value) VALUES (%s, %s)",
            [f"k{dice.randrange(_KEYS)}", f"v{dice.random()}"],
        )

    @staticmethod
    def _unsent(connection: psycopg.Connection[object]) -> int:
        (row,) = connection.execute(_UNSENT).fetchall()
        assert isinstance(row, tuple)
        return int(row[0])

    def end(self) -> None:
        """Write no more."""
        self._is_over.set()
        self._thread.join(_WAIT_S)
        assert self._error is None, self._error


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("outbox", partitions=_PARTITIONS)


def create_table(database: str, topic: str) -> None:
    options = ("--postgres", database, "--partitions", str(_PARTITIONS))
    made = Program("outbox_relay.py", "create-table", *options, "--topic", topic)
    assert made.wait() == 0, made.said


@pytest.fixture
def outbox(database: str, topic: str) -> str:
    """A database that has the table, whose sessions take numbers in blocks."""
    create_table(database, topic)
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("ALTER SEQUENCE outbox_id_seq CACHE 10")
    return database


@pytest.fixture
def application(outbox: str) -> Iterator[Application]:
    running = Application(outbox)
    yield running
    running.end()


@pytest.fixture
def team(
    request: pytest.FixtureRequest,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    outbox: str,
) -> Iterator[Team]:
    election: str = request.param

    def start(holder: str) -> Program:
        return Program(
            "outbox_relay.py", "run", *kafka_options(topics),
            *("--postgres", outbox, "--holder", holder),
            *("--election", election, "--silence", _SILENCE_S[election]),
            *("--batch", str(_BATCH), "--interval", "0.05"),
        )  # fmt: skip

    with Team(ledger, f"outbox/{topic}", start) as made:
        yield made


@pytest.mark.parametrize(
    ("team", "ways"),
    [("postgres", ["stop", "kill", "end"]), ("kafka", ["stop"])],
    indirect=["team"],
    ids=["postgres", "kafka"],
)
def test_each_row_is_sent_once(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    outbox: str,
    team: Team,
    application: Application,
    ways: list[str],
) -> None:
    claim, leader = team.wait_for_leader()
    for way in ways:
        before = claim
        # In the middle of its work: there are always more rows.
        leader.wait_for(f"epoch {before.epoch}:", 3)
        if way == "stop":
            leader.tell(signal.SIGSTOP)
        else:
            del team.programs[before.holder]
            number = signal.SIGKILL if way == "kill" else signal.SIGTERM
            assert leader.end(number) in (0, -signal.SIGKILL), leader.said
            team.add()
        claim, successor = team.wait_for_leader(before.epoch)
        successor.wait_for(f"epoch {claim.epoch}:", 2)
        if way == "stop":
            # It goes on as if nothing had been, and so does what it had on its way.
            leader.tell(signal.SIGCONT)
            write_as(topics, topic, before, b"stale", b"9000000000:1:%032d" % 0)
            leader.wait_for("over: ")
        leader = successor
    application.end()
    with closing(psycopg.connect(outbox, autocommit=True)) as connection:

        def all_are_marked() -> bool:
            return connection.execute(_UNSENT).fetchall() == [(0,)]

        wait_until(all_are_marked, _WAIT_S, "every row is marked")
        rows = connection.execute(_IN_ORDER).fetchall()
        contents: dict[int, str] = dict(
            connection.execute("SELECT id, value FROM outbox").fetchall()
        )
    team.end()
    found = admitted(kafka, ledger, topic, team.scope)
    cursors: dict[int, list[int]] = {}
    for partition, messages in found.messages.items():
        for message in messages:
            row = _row_of(message.headers())
            assert message.value() == contents[row].encode()
            cursors.setdefault(partition, []).append(row)
    expected: dict[int, list[int]] = {}
    for partition, row in rows:
        expected.setdefault(partition, []).append(row)
    assert cursors == expected
    assert found.counts["stale-epoch"] >= ways.count("stop")


def test_a_row_that_is_too_large(
    kafka: KafkaBroker, topics: LedgerTopics, database: str
) -> None:
    """It ends the relay, which names the row and the setting; the next one, too."""
    config = {"max.message.bytes": "3000"}
    topic = kafka.create_topic("outbox", partitions=_PARTITIONS, config=config)
    create_table(database, topic)
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        for size in (10, 20, 9000, 30):
            connection.execute(
                "INSERT INTO outbox (key, value) VALUES ('k', repeat('v', %s))", [size]
            )
        query = "SELECT id FROM outbox WHERE length(value) = 9000"
        ((row,),) = connection.execute(query).fetchall()
    for holder in ("a", "b"):
        relay = Program(
            "outbox_relay.py", "run", *kafka_options(topics),
            *("--postgres", database, "--holder", holder),
            *("--silence", _SILENCE_S["postgres"]),
        )  # fmt: skip
        assert relay.wait() == 1, relay.said
        assert f"error: row {row} cannot be sent" in relay.said[-1]
        assert "max.message.bytes" in relay.said[-1]


def _row_of(headers: object) -> int:
    assert isinstance(headers, list)
    (cursor,) = [value for name, value in headers if name == "epochfence-cursor"]
    return int(cursor.decode().split(":")[1])
