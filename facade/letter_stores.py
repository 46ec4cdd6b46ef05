"""Where dead letters are kept: read from there, and marked there as sent again."""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from confluent_kafka import KafkaError, Message

from epochfence.consumers.dead_letters import (
    COLUMNS,
    REDRIVEN_HEADER,
    DeadLetter,
    letter_of_message,
    letter_of_row,
)
from epochfence.consumers.upsert import quoted
from epochfence.epochs.connection import Config, LastError, writing_producer
from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.full_queue import when_there_is_room
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.topics import TopicKeeper


class StoredLetter(NamedTuple):
    """A dead letter, as it is kept.

    Attributes:
        letter: The dead letter.
        redriven_at: When it was sent again, in milliseconds since 1970; None: not yet.
        row: Where it is, for the store that keeps it.
    """

    letter: DeadLetter
    redriven_at: int | None
    row: Any


class LetterStore(ABC):
    """One place in which dead letters are kept."""

    @abstractmethod
    def read(self) -> list[StoredLetter]:
        """All of them, in the order in which they were rejected.

        Raises:
            MisconfiguredError: There is no such store, or it keeps none.
        """

    @abstractmethod
    def mark(self, letters: Sequence[StoredLetter]) -> None:
        """Mark letters as sent again.

        Raises:
            MisconfiguredError: The store cannot be written to.
        """


def _now() -> int:
    return time.time_ns() // 1_000_000


def _rows_of(database: Any, table: str) -> list[StoredLetter]:
    """The letters of a table, whichever database's connection it is."""
    names = ", ".join(COLUMNS)
    rows = database.execute(f"SELECT {names}, redriven_at, id FROM {table} ORDER BY id")
    return [StoredLetter(letter_of_row(row[:-2]), *row[-2:]) for row in rows]


class SqliteLetters(LetterStore):
    """The table of a `SqliteSink`.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def _database(self, mode: str) -> Generator[sqlite3.Connection, None, None]:
        try:
            # It is not created where it is missing.
            address = f"file:{quote(str(self._path))}?mode={mode}"
            with closing(sqlite3.connect(address, uri=True)) as database:
                yield database
        except sqlite3.Error as error:
            problem = str(error)
            if "no such table" in problem:
                problem = "no dead letters are kept there"
            raise MisconfiguredError(
                "--sqlite", str(self._path), problem,
                "Name the file of a SqliteSink(..., dead_letters=True).",
            ) from error  # fmt: skip

    def read(self) -> list[StoredLetter]:
        with self._database("ro") as database:
            return _rows_of(database, "epochfence_dead_letters")

    def mark(self, letters: Sequence[StoredLetter]) -> None:
        statement = "UPDATE epochfence_dead_letters SET redriven_at = ? WHERE id = ?"
        with self._database("rw") as database, database:
            database.executemany(statement, [(_now(), one.row) for one in letters])


class PostgresLetters(LetterStore):
    """The table of a `PostgresSink`.

    Args:
        conninfo: Where.
        schema: The sink's schema.
        timeout_s: How long to wait for a connection.

    Raises:
        MisconfiguredError: psycopg is not installed.
    """

    def __init__(self, conninfo: str, schema: str, timeout_s: float) -> None:
        self._conninfo = conninfo
        self._schema = schema
        self._table = f"{quoted(schema)}.dead_letters"
        self._timeout_s = timeout_s

    @contextmanager
    def _connection(self) -> Generator[Any, None, None]:
        try:
            import psycopg
        except ImportError as error:
            raise MisconfiguredError(
                "--postgres", ..., f"it needs psycopg ({error})",
                "Install it: pip install 'epochfence[cli,postgres]'",
            ) from error  # fmt: skip
        try:
            with psycopg.connect(
                self._conninfo, connect_timeout=max(2, round(self._timeout_s))
            ) as connection:
                yield connection
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InvalidSchemaName,
        ) as error:
            raise MisconfiguredError(
                "--schema", self._schema, "no dead letters are kept there",
                "Name the schema of a PostgresSink(..., dead_letters=True).",
            ) from error  # fmt: skip
        except psycopg.Error as error:
            # Not the conninfo: it may hold a password.
            raise MisconfiguredError(
                "--postgres", ..., str(error).strip().splitlines()[0],
                "See that the server is there, and lets this user in.",
            ) from error  # fmt: skip

    def read(self) -> list[StoredLetter]:
        with self._connection() as connection:
            return _rows_of(connection, self._table)

    def mark(self, letters: Sequence[StoredLetter]) -> None:
        with self._connection() as connection:
            connection.execute(
                f"UPDATE {self._table} SET redriven_at = %s WHERE id = ANY(%s)",
                (_now(), [one.row for one in letters]),
            )


class TopicLetters(LetterStore):
    """A dead-letter topic, as a `KafkaSink` and `epochfence gate` write it.

    What was sent again is told by a record of its own.

    Args:
        config: Connection settings.
        topic: The topic.
        timeout_s: How long to wait for the cluster.
    """

    def __init__(self, config: Config, topic: str, timeout_s: float) -> None:
        self._config = config
        self._topic = topic
        self._timeout_s = timeout_s
        #: How many of its records were neither dead letters nor told of them.
        self.others = 0

    def read(self) -> list[StoredLetter]:
        facts = TopicKeeper(self._config, self._timeout_s).facts(self._topic)
        if facts is None:
            raise MisconfiguredError(
                "--from-topic", self._topic, "there is no such topic",
                "Name one that dead letters were written to.",
            )  # fmt: skip
        self.others = 0
        # By name: a gate that has lost its place may have kept some a second time.
        found: dict[str, DeadLetter] = {}
        for record in self._records(facts.partitions, "read_committed"):
            letter = letter_of_message(record)
            if letter is not None:
                found.setdefault(letter.name, letter)
            elif _mark_of(record) is None:
                self.others += 1
        # A mark is in no transaction, but may stand behind one that is open.
        redriven: dict[str, int] = {}
        for record in self._records(facts.partitions, "read_uncommitted"):
            name = _mark_of(record)
            if name is not None:
                _, redriven[name] = record.timestamp()
        return [
            StoredLetter(one, redriven.get(one.name), None)
            for one in sorted(found.values(), key=_when_rejected)
        ]

    def _records(
        self, partitions: Iterable[int], isolation: str
    ) -> Generator[Message, None, None]:
        for partition in partitions:
            with PartitionReader(
                self._config, self._topic, partition, isolation=isolation
            ) as reader:
                low, high = reader.bounds(self._timeout_s)
                for batch in reader.read(low, high, stall_timeout_s=self._timeout_s):
                    yield from batch

    def mark(self, letters: Sequence[StoredLetter]) -> None:
        failures: list[KafkaError] = []

        def delivered(error: KafkaError | None, _: Message) -> None:
            if error is not None:
                failures.append(error)

        producer = writing_producer(self._config, LastError(self._config))
        for one in letters:
            name = one.letter.name.encode()
            produce = partial(
                producer.produce, self._topic, key=name,
                headers=[(REDRIVEN_HEADER, name)], on_delivery=delivered,
            )  # fmt: skip
            try:
                when_there_is_room(produce, producer.poll, self._timeout_s)
            except BufferError as error:
                failures.append(KafkaError(KafkaError._QUEUE_FULL, str(error)))
                break
        if producer.flush(self._timeout_s) or failures:
            reason = failures[0].str() if failures else "no acknowledgement in time"
            raise TopicUnavailable(
                self._topic, f"what was sent again could not be marked so: {reason}"
            )


def _mark_of(record: Message) -> str | None:
    """The name of the letter that a record says was sent again."""
    for name, value in headers_of(record):
        if name == REDRIVEN_HEADER:
            return (value or b"").decode("utf-8", "replace")
    return None


def _when_rejected(letter: DeadLetter) -> tuple[int, str, int, int]:
    return letter.rejected_at, letter.topic, letter.partition, letter.offset
