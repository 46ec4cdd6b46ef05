"""What a transactional sink has stored, read in one read-only transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from epochfence.consumers.sink import start_of_row
from epochfence.consumers.upsert import quoted, quoted_table
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import SinkPosition, SinkState

#: Takes the key and the value of each row, as the store has them.
RowTaker = Callable[[Iterator[tuple[Any, Any]]], None]


@dataclass(frozen=True)
class SinkTable:
    """The table that a sink keeps: a row for each key, whose value is a message's.

    Attributes:
        name: The table, or `schema.table`.
        key: The column of the messages' keys.
        value: The column of their values.
    """

    name: str
    key: str
    value: str

    @property
    def statement(self) -> str:
        """Selects keys and values."""
        # By the table's name: SQLite takes a quoted name of no column for a text.
        columns = f"stored.{quoted(self.key)}, stored.{quoted(self.value)}"
        return f"SELECT {columns} FROM {quoted_table(self.name)} AS stored"


@dataclass(frozen=True)
class SinkSnapshot:
    """What a sink had stored of a topic at one moment.

    Attributes:
        name: The sink, for people.
        partitions: What it had stored of each partition that it knows.
    """

    name: str
    partitions: Mapping[int, SinkState]


@dataclass(frozen=True)
class SinkAddress:
    """Where a sink keeps what it stores.

    Args:
        kind: `sqlite` or `postgres`.
        place: The file, or the conninfo string.
        schema: In PostgreSQL, the schema of the sink's own tables.
    """

    kind: str
    place: str
    schema: str = "epochfence"

    @classmethod
    def parse(cls, text: str, schema: str | None) -> SinkAddress:
        """The address that an option spells: `sqlite:PATH` or `postgres:CONNINFO`.

        Raises:
            MisconfiguredError: It is none.
        """
        kind, colon, place = text.partition(":")
        if kind in ("postgresql", "postgres") and place.startswith("//"):
            kind, place = "postgres", text
        if not colon or kind not in ("sqlite", "postgres") or not place:
            raise MisconfiguredError(
                "--sink", ..., "it says neither sqlite:PATH nor postgres:CONNINFO",
                "Give, for instance, --sink sqlite:orders.db, or --sink "
                "postgresql://user@host/database.",
            )  # fmt: skip
        if kind == "sqlite" and schema is not None:
            raise MisconfiguredError(
                "--sink-schema", schema, "SQLite has no schemas of that kind",
                "Leave it out.",
            )  # fmt: skip
        return cls(kind, place, schema or "epochfence")

    def read(
        self,
        topic: str,
        timeout_s: float,
        table: SinkTable | None = None,
        take: RowTaker | None = None,
    ) -> SinkSnapshot:
        """Read what the sink has stored of a topic, as of one moment.

        Args:
            topic: The topic.
            timeout_s: How long to wait for the store.
            table: The table whose rows are wanted as well.
            take: Takes them, before the moment is over.

        Raises:
            MisconfiguredError: There is no such sink, or it cannot be read.
        """
        reading = _sqlite if self.kind == "sqlite" else _postgres
        with reading(self, timeout_s) as rows:
            states: dict[int, SinkState] = {}
            for partition, *position in rows(_POSITIONS[self.kind], topic):
                starts = rows(_STARTS[self.kind], topic, partition)
                states[partition] = SinkState(
                    SinkPosition(*position), tuple(map(start_of_row, starts))
                )
            if table is not None and take is not None:
                take(rows(table.statement))
        name = f"file {self.place}" if self.kind == "sqlite" else "PostgreSQL"
        return SinkSnapshot(name, states)


_POSITIONS = {
    "sqlite": "SELECT partition, topic_id, leader_epoch, next_offset "
    "FROM epochfence_positions WHERE topic = ? ORDER BY partition",
    "postgres": "SELECT partition, topic_id, leader_epoch, next_offset "
    "FROM {schema}.positions WHERE topic = %s AND next_offset IS NOT NULL "
    "ORDER BY partition",
}
_FIELDS = "topic, topic_id, partition, scope, epoch, grant_id, leader_epoch"
_STARTS = {
    "sqlite": f"SELECT {_FIELDS}, start_offset FROM epochfence_starts "
    "WHERE topic = ? AND partition = ? ORDER BY start_offset, scope, epoch",
    "postgres": f"SELECT {_FIELDS}, start_offset FROM {{schema}}.starts "
    "WHERE topic = %s AND partition = %s ORDER BY start_offset, scope, epoch",
}
_Rows = Callable[..., Iterator[tuple[Any, ...]]]

#: How many rows of PostgreSQL are in memory at a time.
_FETCHED = 2_000


@contextmanager
def _sqlite(address: SinkAddress, timeout_s: float) -> Generator[_Rows, None, None]:
    try:
        # It is not created where it is missing.
        uri = f"file:{quote(address.place)}?mode=ro"
        with closing(sqlite3.connect(uri, uri=True, timeout=timeout_s)) as database:
            database.isolation_level = None
            database.execute("BEGIN")

            def rows(statement: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
                return database.execute(statement, parameters)

            yield rows
    except sqlite3.Error as error:
        problem = str(error)
        if "no such table: epochfence_" in problem:
            problem = "it is no sink's file: it has no tables of epochfence"
        raise MisconfiguredError(
            "--sink", address.place, problem,
            "Name the file of a SqliteSink; --sink-table, --sink-key and --sink-value "
            "name a table of it and two of its columns.",
        ) from error  # fmt: skip


@contextmanager
def _postgres(address: SinkAddress, timeout_s: float) -> Generator[_Rows, None, None]:
    try:
        import psycopg
    except ImportError as error:
        raise MisconfiguredError(
            "--sink", ..., f"it needs psycopg ({error})",
            "Install it: pip install 'epochfence[cli,postgres]'",
        ) from error  # fmt: skip
    from epochfence.epochs.postgres import conninfo_with_limits

    conninfo = conninfo_with_limits(address.place, timeout_s)
    try:
        with psycopg.connect(conninfo) as connection:
            connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            connection.read_only = True
            number = 0

            def rows(statement: str, *parameters: Any) -> Iterator[tuple[Any, ...]]:
                nonlocal number
                number += 1
                if parameters:  # ours; a name of a column may hold braces
                    statement = statement.format(
                        schema=quoted(address.schema).replace("%", "%%")
                    )
                else:
                    statement = statement.replace("%", "%%")
                with connection.cursor(f"epochfence_{number}") as cursor:
                    cursor.itersize = _FETCHED
                    cursor.execute(statement.encode(), parameters)
                    yield from cursor

            yield rows
    except psycopg.Error as error:
        # Not the conninfo: it may hold a password.
        raise MisconfiguredError(
            "--sink", ..., str(error).strip().splitlines()[0],
            "See that the server is there and lets this user read, that --sink-schema "
            "is that of the PostgresSink, and that --sink-table, --sink-key and "
            "--sink-value name a table and two of its columns.",
        ) from error  # fmt: skip
