"""What the benchmark of sinks writes to: by hand, and by a sink."""

from __future__ import annotations

import json
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from confluent_kafka import Consumer, Message

from epochfence import Sink, SqliteSink

#: Applies messages within a transaction.
Apply = Callable[[Any, Sequence[Message]], object]

#: Writes a transaction.
Write = Callable[[Sequence[Message]], None]


class Database(ABC):
    """A database with a table for messages, and one for the offset by hand."""

    name: ClassVar[str]
    #: What is done by hand likewise.
    likewise: ClassVar[str] = "the same writes"

    @abstractmethod
    def empty(self) -> None:
        """Make the tables anew; those of the sink are gone."""

    @abstractmethod
    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        """Keep each message."""

    @abstractmethod
    def by_hand(
        self, apply: Apply, consumer: Consumer
    ) -> AbstractContextManager[Write]:
        """What applies messages and stores the next offset, without a sink.

        Args:
            apply: Applies messages.
            consumer: Reads them.
        """

    @abstractmethod
    def sink(self, apply: Apply) -> AbstractContextManager[Sink]:
        """The sink."""

    @abstractmethod
    def count(self) -> int:
        """How many messages it has kept."""


def _next_offset(messages: Sequence[Message]) -> list[int]:
    return [(messages[-1].offset() or 0) + 1]


#: So many items have a row each.
_ITEMS = 10_000

_STOCK = "CREATE TABLE stock (item {text} PRIMARY KEY, level integer, seen integer)"
_UPSERT = (
    "INSERT INTO stock VALUES ({}, {}, 1) ON CONFLICT (item) DO UPDATE SET "
    "level = excluded.level, seen = stock.seen + 1"
)


def order(number: int) -> bytes:
    """The value of a message: JSON of some 100 bytes."""
    item = f"item-{number % _ITEMS:05d}"
    told = {"item": item, "level": number % 97, "order": number, "note": "x" * 40}
    return json.dumps(told).encode()


def _stock_rows(messages: Sequence[Message]) -> list[tuple[str, int]]:
    orders = [json.loads(message.value() or b"{}") for message in messages]
    return [(one["item"], one["level"]) for one in orders]


class SqliteDatabase(Database):
    """A file, set up as `SqliteSink` does it."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "orders.db"

    def empty(self) -> None:
        for file in self._folder.iterdir():
            file.unlink()
        with closing(sqlite3.connect(self._path)) as database:
            database.execute("CREATE TABLE orders (at INTEGER PRIMARY KEY, value BLOB)")
            database.execute("CREATE TABLE offsets (partition INTEGER PRIMARY KEY, "
                             "next INTEGER)")  # fmt: skip

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        rows = [(m.offset(), m.value()) for m in messages]
        cursor.executemany("INSERT INTO orders VALUES (?, ?)", rows)

    @contextmanager
    def by_hand(self, apply: Apply, consumer: Consumer) -> Generator[Write, None, None]:
        with closing(sqlite3.connect(self._path, isolation_level=None)) as database:
            database.execute("PRAGMA journal_mode = WAL")
            database.execute("PRAGMA synchronous = FULL")

            def write(messages: Sequence[Message]) -> None:
                cursor = database.cursor()
                cursor.execute("BEGIN IMMEDIATE")
                apply(cursor, messages)
                store = "INSERT OR REPLACE INTO offsets VALUES (0, ?)"
                cursor.execute(store, _next_offset(messages))
                cursor.execute("COMMIT")

            yield write

    def sink(self, apply: Apply) -> SqliteSink:
        return SqliteSink(self._path, apply)

    def count(self) -> int:
        with closing(sqlite3.connect(self._path)) as database:
            (count,) = database.execute("SELECT count(*) FROM orders").fetchone()
            return int(count)


class SqliteStock(SqliteDatabase):
    """The same, with a table in which each message is parsed and overwrites a row."""

    name = "SQLite, parsed and upserted"

    def empty(self) -> None:
        super().empty()
        with closing(sqlite3.connect(self._path)) as database:
            database.execute(_STOCK.format(text="TEXT"))

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        cursor.executemany(_UPSERT.format(*"??"), _stock_rows(messages))

    def count(self) -> int:
        with closing(sqlite3.connect(self._path)) as database:
            (count,) = database.execute("SELECT sum(seen) FROM stock").fetchone()
            return int(count)


class PostgresDatabase(Database):
    """A database on a server; psycopg is an extra, and not needed but for this."""

    name = "PostgreSQL"

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @contextmanager
    def _connected(self) -> Generator[Any, None, None]:
        import psycopg

        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            yield connection

    def empty(self) -> None:
        with self._connected() as connection:
            connection.execute(
                "DROP SCHEMA IF EXISTS epochfence CASCADE;"
                "DROP TABLE IF EXISTS orders, offsets;"
                "CREATE TABLE orders (at bigint PRIMARY KEY, value bytea);"
                "CREATE TABLE offsets (partition integer PRIMARY KEY, next bigint)"
            )

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        rows = [(m.offset(), m.value()) for m in messages]
        with cursor.copy("COPY orders FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def by_hand(self, apply: Apply, consumer: Consumer) -> Generator[Write, None, None]:
        store = (
            "INSERT INTO offsets VALUES (0, %s) "
            "ON CONFLICT (partition) DO UPDATE SET next = excluded.next"
        )
        with self._connected() as connection:

            def write(messages: Sequence[Message]) -> None:
                with connection.transaction(), connection.cursor() as cursor:
                    apply(cursor, messages)
                    cursor.execute(store, _next_offset(messages))

            yield write

    def sink(self, apply: Apply) -> AbstractContextManager[Sink]:
        from epochfence import PostgresSink

        return PostgresSink(self._conninfo, apply)

    def count(self) -> int:
        with self._connected() as connection:
            (count,) = connection.execute("SELECT count(*) FROM orders").fetchone()
            return int(count)


class PostgresStock(PostgresDatabase):
    """The same, with a table in which each message is parsed and overwrites a row."""

    name = "PostgreSQL, parsed and upserted"

    def empty(self) -> None:
        super().empty()
        with self._connected() as connection:
            connection.execute("DROP TABLE IF EXISTS stock")
            connection.execute(_STOCK.format(text="text"))

    def insert(self, cursor: Any, messages: Sequence[Message]) -> None:
        cursor.executemany(_UPSERT.format("%s", "%s"), _stock_rows(messages))

    def count(self) -> int:
        with self._connected() as connection:
            (count,) = connection.execute("SELECT sum(seen) FROM stock").fetchone()
            return int(count)
