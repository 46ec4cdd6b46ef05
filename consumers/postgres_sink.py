"""PostgreSQL as a sink."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from types import TracebackType
from typing import Any

import psycopg
from confluent_kafka import Message
from psycopg import errors
from psycopg.rows import TupleRow, tuple_row

from epochfence.consumers.arguments import checked_flag
from epochfence.consumers.dead_letters import COLUMNS, row_of_letter
from epochfence.consumers.postgres_connections import (
    Connection,
    Pool,
    connections_of,
)
from epochfence.consumers.postgres_schema import lacking_rights, prepare
from epochfence.consumers.sink import (
    SinkBatch,
    checked_apply,
    row_of_start,
    start_of_row,
    taken,
)
from epochfence.consumers.upsert import (
    Upsert,
    escaped,
    quoted,
    quoted_table,
    upsert_statement,
)
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import SinkPosition, SinkState, check_timeout

#: Applies messages within the transaction: it must neither commit nor roll back.
Apply = Callable[[psycopg.Cursor[Any], Sequence[Message]], object]

_LOAD_POSITION = """
SELECT topic_id, leader_epoch, next_offset FROM {schema}.positions
WHERE topic = %s AND partition = %s AND next_offset IS NOT NULL
FOR SHARE
"""
_LOAD_STARTS = """
SELECT topic, topic_id, partition, scope, epoch, grant_id, leader_epoch, start_offset
FROM {schema}.starts WHERE topic = %s AND partition = %s
ORDER BY start_offset, scope, epoch
"""
# A lock takes a row. Of several who insert one, all but the first wait for its end.
_INSERT_MISSING = """
INSERT INTO {schema}.positions (topic, partition)
SELECT * FROM unnest(%s::text[], %s::integer[]) ORDER BY 1, 2
ON CONFLICT DO NOTHING
"""
# Always in the same order: no two instances wait for each other.
_LOCK_POSITIONS = """
SELECT txid_current(), topic, partition, topic_id, leader_epoch, next_offset
FROM {schema}.positions AS stored
JOIN json_to_recordset(%s) AS asked (topic text, partition integer)
    USING (topic, partition)
ORDER BY topic, partition
FOR UPDATE OF stored
"""
_STORE_POSITIONS = """
INSERT INTO {schema}.positions (topic, partition, topic_id, leader_epoch, next_offset)
SELECT * FROM json_to_recordset(%s) AS told (topic text, partition integer,
    topic_id text, leader_epoch bigint, next_offset bigint)
WHERE txid_current() = %s
ON CONFLICT (topic, partition) DO UPDATE SET topic_id = excluded.topic_id,
    leader_epoch = excluded.leader_epoch, next_offset = excluded.next_offset
RETURNING 1
"""
# To EXCEPT, a null is like another.
_STORE_STARTS = """
INSERT INTO {schema}.starts
    (topic, topic_id, partition, scope, epoch, grant_id, leader_epoch, start_offset)
SELECT * FROM unnest(
    %s::text[], %s::text[], %s::integer[], %s::text[],
    %s::bigint[], %s::text[], %s::bigint[], %s::bigint[]
)
EXCEPT
SELECT topic, topic_id, partition, scope, epoch, grant_id, leader_epoch, start_offset
FROM {schema}.starts WHERE (topic, partition) IN (
    SELECT * FROM unnest(%s::text[], %s::integer[])
)
"""
_STORE_DEAD_LETTERS = f"""
INSERT INTO {{schema}}.dead_letters ({", ".join(COLUMNS)})
SELECT * FROM unnest(
    %s::text[], %s::text[], %s::integer[], %s::bigint[], %s::bigint[], %s::bigint[],
    %s::bytea[], %s::bytea[], %s::text[], %s::text[], %s::text[], %s::text[],
    %s::bigint[], %s::bigint[], %s::text[], %s::bigint[]
)
"""


class PostgresSink:
    """Applies messages to a PostgreSQL database (12 or later), each admitted one once.

    Its own rows are in the tables `positions` and `starts` of a schema of its own in
    the same database, and change in the transaction that changes yours. Its
    transactions have the isolation level of the connection; that of the server's
    default, READ COMMITTED, will do.

    Safe to use from several threads; they take turns.

    Args:
        connect: Where: a conninfo string (`postgresql://...`); or a
            `psycopg_pool.ConnectionPool`; or a `psycopg.Connection`, which nobody uses
            meanwhile, and which is not made again when it is lost.
        apply: What to do with messages of one partition, in order: a function that
            gets a cursor and the messages, and must not end the transaction; or an
            `Upsert`.
        dead_letters: Whether rejected records go to the table `dead_letters` of its
            schema, in the same transaction: see the command `epochfence deadletters`.
        schema: The schema of its own tables; it is created where there is none.
        timeout_s: How long to wait for a connection, and for each statement; and how
            long the server waits for the next one, before it ends the transaction for
            the sake of others. (A function that needs longer may `SET LOCAL
            statement_timeout` and `idle_in_transaction_session_timeout`.)

    Raises:
        MisconfiguredError: There are no connections to be had of `connect`; or the
            schema is a newer version's, or the role may not create or use it: then
            the error gives the statements for somebody who may.
        SinkUnavailable: The server does not answer, or cannot be written to now.
    """

    def __init__(
        self,
        connect: str | Pool | Connection,
        apply: Apply | Upsert,
        *,
        dead_letters: bool = False,
        schema: str = "epochfence",
        timeout_s: float = 10.0,
    ) -> None:
        self.keeps_rejected = checked_flag("dead_letters", dead_letters)
        self._apply: Apply
        if isinstance(apply, Upsert):
            self._apply = partial(_upsert, apply)
        else:
            self._apply = checked_apply(apply)
        if not isinstance(schema, str) or not schema:
            raise MisconfiguredError(
                "schema", schema, "no name of a schema", "Use a name of your choice."
            )
        self._schema = schema
        self._lock = threading.Lock()
        self._connections = connections_of(connect, check_timeout(timeout_s))
        try:
            with self._connections.transaction() as connection:
                prepare(connection, schema)
        except BaseException:
            self._connections.close()
            raise

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The server does not answer now.
        """
        with self._lock, self._connections.transaction() as connection:
            # The lock waits for a transaction whose client is gone, but which may
            # yet be committed; and while it lasts, no starts are added.
            found = self._own(connection, _LOAD_POSITION, (topic, partition))
            if not found:
                return None
            starts = self._own(connection, _LOAD_STARTS, (topic, partition))
            return SinkState(SinkPosition(*found[0]), tuple(map(start_of_row, starts)))

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Apply batches of different partitions, all in one transaction.

        Raises:
            SinkFenced: Another instance has written. Nothing has changed.
            SinkUnavailable: The server does not answer, cannot be written to now, its
                disk is full, a lock was not to be had in time, or the transaction got
                in the way of another. Where the connection was lost, all of it may
                have been stored.
            Exception: Whatever the function that applies messages raises, errors of
                its statements among them: nothing has changed.
        """
        if batches:
            self.begin_write(batches)()

    def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
        """Do all that `write` does but commit, which is what it gives back.

        Raises:
            Exception: As `write`.
        """
        with ExitStack() as transaction:
            transaction.enter_context(taken(self._lock))
            begin = self._connections.transaction()
            connection = transaction.enter_context(begin)
            transaction_id = self._check(connection, batches)
            for batch in batches:
                if batch.messages:
                    with connection.cursor() as cursor:
                        self._apply(cursor, batch.messages)
            self._store(connection, batches, transaction_id)
            return transaction.pop_all().close

    def _check(self, connection: Connection, batches: Sequence[SinkBatch]) -> int:
        """Compare under a lock that lasts; give the transaction's id."""
        fresh = [batch.place for batch in batches if batch.expected is None]
        if fresh:
            self._own(connection, _INSERT_MISSING, _columns(fresh))
        places = _json(("topic", "partition"), [batch.place for batch in batches])
        rows = self._own(connection, _LOCK_POSITIONS, [places])
        found = {
            (topic, partition): SinkPosition(*position)
            for _, topic, partition, *position in rows
            if position[-1] is not None
        }
        for batch in batches:
            batch.check(found.get(batch.place))
        return int(rows[0][0])

    def _store(
        self, connection: Connection, batches: Sequence[SinkBatch], transaction_id: int
    ) -> None:
        positions = _json(
            ("topic", "partition", *SinkPosition._fields),
            [(*batch.place, *batch.position) for batch in batches],
        )
        # In place of a transaction that was ended, there is none, or another: then
        # the statement itself gets another id. (psycopg refuses `commit()` and
        # `rollback()` here; it does not know of a statement that does the same.)
        if not self._own(connection, _STORE_POSITIONS, [positions, transaction_id]):
            raise MisconfiguredError(
                "apply", ..., "it has ended the transaction: if it was committed, its "
                "changes stand without the position, and would come again",
                "Have it neither commit nor roll back.",
            )  # fmt: skip
        starts = [row_of_start(s) for batch in batches for s in batch.new_starts]
        if starts:
            places = _columns([batch.place for batch in batches])
            self._own(connection, _STORE_STARTS, [*_columns(starts), *places])
        letters = [row_of_letter(one) for batch in batches for one in batch.rejected]
        if letters:
            self._own(connection, _STORE_DEAD_LETTERS, _columns(letters))

    def _own(
        self, connection: Connection, statement: str, parameters: Sequence[Any] = ()
    ) -> list[TupleRow]:
        """Run a statement on the sink's own tables, whatever cursors the user likes."""
        schema = escaped(quoted(self._schema))
        with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
            try:
                cursor.execute(statement.format(schema=schema).encode(), parameters)
            except errors.InsufficientPrivilege as error:
                raise lacking_rights(connection, self._schema, error) from error
            return cursor.fetchall() if cursor.description else []

    def close(self) -> None:
        """Close the connection, if it was made here. May be called again."""
        with self._lock:
            self._connections.close()

    def __enter__(self) -> PostgresSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _columns(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows as arrays, one a column: a statement takes as many as there are."""
    return [list(column) for column in zip(*rows, strict=True)]


def _json(names: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """Rows as one parameter, which costs less to make than an array a column."""
    return json.dumps([dict(zip(names, row, strict=True)) for row in rows])


_STAGING = "pg_temp.epochfence_staging"


def _upsert(
    upsert: Upsert, cursor: psycopg.Cursor[Any], messages: Sequence[Message]
) -> None:
    changes = upsert.changes(messages)
    table = quoted_table(upsert.table)
    if changes.deleted:
        _stage(cursor, table, changes.key, changes.deleted)
        same = " AND ".join(
            f"{table}.{quoted(name)} = staged.{quoted(name)}" for name in changes.key
        )
        _merge(cursor, f"DELETE FROM {table} USING {_STAGING} AS staged WHERE {same}")
    if changes.upserts:
        columns = (*changes.key, *changes.others)
        _stage(cursor, table, columns, changes.upserts)
        names = ", ".join(map(quoted, columns))
        source = f"SELECT {names} FROM {_STAGING}"
        _merge(
            cursor,
            upsert_statement(upsert.table, changes.key, changes.others, source),
        )


def _stage(
    cursor: psycopg.Cursor[Any],
    table: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
) -> None:
    """Copy rows into a temporary table, whose columns have the types of the table's."""
    names = ", ".join(map(quoted, columns))
    cursor.execute(
        f"CREATE TEMPORARY TABLE {_STAGING} ON COMMIT DROP AS "
        f"SELECT {names} FROM {table} WITH NO DATA".encode()
    )
    with cursor.copy(f"COPY {_STAGING} FROM STDIN".encode()) as copy:
        for row in rows:
            copy.write_row(row)


def _merge(cursor: psycopg.Cursor[Any], statement: str) -> None:
    cursor.execute(statement.encode())
    cursor.execute(f"DROP TABLE {_STAGING}".encode())
