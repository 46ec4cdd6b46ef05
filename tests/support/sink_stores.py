"""Stores that instances of an application with a sink write to, by name.

Each is known by its address alone, which is told to the instances: they open a sink on
it, the tests look into it.
"""

from __future__ import annotations

import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import ClassVar

import psycopg
from psycopg import errors

from epochfence import Sink
from support.postgres import Postgres
from support.sink_faults import (
    POSTGRES_STEPS,
    SQLITE_STEPS,
    Faults,
    faulty_postgres,
    faulty_sqlite,
)
from support.sinks import APPLIED, APPLIED_IN_POSTGRES, applied_in

#: Partition, offset and value of a message that was applied.
Applied = tuple[int, int, bytes]


class Store(ABC):
    """One store, in which nothing is to begin with.

    Args:
        address: Where it is.
    """

    #: What it is called.
    name: ClassVar[str]
    #: The steps of a run in order, at which an instance can meet a fault.
    steps: ClassVar[tuple[str, ...]]
    #: Whether who is stopped in a transaction keeps others out for as long.
    keeps_its_locks: ClassVar[bool]

    def __init__(self, address: str) -> None:
        self.address = address

    @abstractmethod
    def open(self, faults: Faults, timeout_s: float) -> AbstractContextManager[Sink]:
        """The sink of an instance, which tells its steps to `faults`."""

    @abstractmethod
    def next_offsets(self) -> dict[int, int]:
        """How far each partition has come; none, where no sink was there yet."""

    @abstractmethod
    def applied(self) -> list[Applied]:
        """What was applied, in order."""

    @abstractmethod
    def starts(self) -> list[tuple[int, int, int]]:
        """Partition, epoch and offset of each epoch start, in order."""


class SqliteStore(Store):
    """A file of SQLite."""

    name = "sqlite"
    steps = SQLITE_STEPS
    keeps_its_locks = True

    def open(self, faults: Faults, timeout_s: float) -> AbstractContextManager[Sink]:
        return faulty_sqlite(self.address, faults, timeout_s)

    def next_offsets(self) -> dict[int, int]:
        with closing(sqlite3.connect(self.address)) as database:
            statement = "SELECT partition, next_offset FROM epochfence_positions"
            try:
                return dict(database.execute(statement).fetchall())
            except sqlite3.OperationalError as error:
                assert "no such table" in str(error)  # noqa: PT017
                return {}

    def applied(self) -> list[Applied]:
        return [(row[1], row[3], row[4]) for row in applied_in(Path(self.address))]

    def starts(self) -> list[tuple[int, int, int]]:
        with closing(sqlite3.connect(self.address)) as database:
            statement = "SELECT partition, epoch, start_offset FROM epochfence_starts"
            return sorted(database.execute(statement).fetchall())


class PostgresStore(Store):
    """A database of PostgreSQL."""

    name = "postgres"
    steps = POSTGRES_STEPS
    keeps_its_locks = False

    def open(self, faults: Faults, timeout_s: float) -> AbstractContextManager[Sink]:
        return faulty_postgres(self.address, faults, timeout_s)

    def next_offsets(self) -> dict[int, int]:
        with psycopg.connect(self.address) as connection:
            try:
                return dict(
                    connection.execute(
                        "SELECT partition, next_offset FROM epochfence.positions "
                        "WHERE next_offset IS NOT NULL"
                    ).fetchall()
                )
            except errors.UndefinedTable:
                return {}

    def applied(self) -> list[Applied]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(
                "SELECT partition, position, value FROM applied ORDER BY 1, 2"
            ).fetchall()

    def starts(self) -> list[tuple[int, int, int]]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(
                "SELECT partition, epoch, start_offset FROM epochfence.starts "
                "ORDER BY 1, 2, 3"
            ).fetchall()


#: By name.
STORES: Mapping[str, type[Store]] = {
    store.name: store for store in (SqliteStore, PostgresStore)
}


@contextmanager
def new_store(
    name: str, folder: Path, postgres: Callable[[], Postgres]
) -> Generator[Store, None, None]:
    """A new store, which is there as long as the block lasts.

    Args:
        name: Of what kind.
        folder: Where files go.
        postgres: Gives the server where one is needed.
    """
    if name == PostgresStore.name:
        with postgres().database() as conninfo:
            with psycopg.connect(conninfo) as connection:
                connection.execute(APPLIED_IN_POSTGRES)
            yield PostgresStore(conninfo)
        return
    path = folder / f"{secrets.token_hex(4)}.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(APPLIED)
    yield SqliteStore(str(path))
