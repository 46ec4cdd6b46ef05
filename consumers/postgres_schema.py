"""The sink's own tables in PostgreSQL."""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import errors
from psycopg.rows import tuple_row

from epochfence.consumers.postgres_connections import Connection
from epochfence.consumers.upsert import quoted
from epochfence.epochs.errors import MisconfiguredError

VERSION = 1

# `next_offset` is null in a row that only stands for a partition of which nothing has
# been stored yet, so that there is something to lock.
_TABLES = """\
CREATE TABLE IF NOT EXISTS {schema}.version (version integer NOT NULL);
CREATE TABLE IF NOT EXISTS {schema}.positions (
    topic text NOT NULL,
    partition integer NOT NULL,
    topic_id text,
    leader_epoch bigint,
    next_offset bigint,
    PRIMARY KEY (topic, partition)
);
CREATE TABLE IF NOT EXISTS {schema}.starts (
    topic text NOT NULL,
    topic_id text,
    partition integer NOT NULL,
    scope text NOT NULL,
    epoch bigint NOT NULL,
    grant_id text,
    leader_epoch bigint,
    start_offset bigint NOT NULL
);
CREATE INDEX IF NOT EXISTS starts_of ON {schema}.starts (topic, partition);
CREATE TABLE IF NOT EXISTS {schema}.guards (
    table_name text NOT NULL,
    row_key text NOT NULL,
    epoch bigint NOT NULL,
    partition integer NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (table_name, row_key)
);
CREATE TABLE IF NOT EXISTS {schema}.dead_letters (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text NOT NULL,
    topic_id text,
    partition integer NOT NULL,
    leader_epoch bigint,
    record_offset bigint NOT NULL,
    record_timestamp bigint,
    record_key bytea,
    record_value bytea,
    headers text NOT NULL,
    verdict text NOT NULL,
    reason text NOT NULL,
    scope text,
    epoch bigint,
    current_epoch bigint,
    holder text,
    rejected_at bigint NOT NULL,
    redriven_at bigint
);
INSERT INTO {schema}.version SELECT {version}
    WHERE NOT EXISTS (SELECT FROM {schema}.version);
"""
_RIGHTS = """\
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA {schema} TO {role};
"""

#: The advisory lock of those who create the tables: a number that nobody else uses.
_LOCK = int.from_bytes(b"epochfen", "big")


def prepare(connection: Connection, schema: str) -> None:
    """Create the tables where there are none, within a transaction.

    Raises:
        MisconfiguredError: They are a newer version's, or the role may not create or
            use them.
    """
    try:
        found = _version(connection, schema)
        if found is None:
            # What IF NOT EXISTS finds missing may be there a moment later.
            connection.execute(f"SELECT pg_advisory_xact_lock({_LOCK})".encode())
            found = _version(connection, schema)
        if found is None:
            _create(connection, schema)
    except errors.InsufficientPrivilege as error:
        raise lacking_rights(connection, schema, error) from error
    if found is not None and found > VERSION:
        raise MisconfiguredError(
            "schema", schema, f"a newer version made it (tables of version {found}, "
            f"this one knows {VERSION})",
            "Upgrade epochfence.",
        )  # fmt: skip


def lacking_rights(
    connection: Connection, schema: str, error: psycopg.Error
) -> MisconfiguredError:
    """The error of a role that may not create or use the tables."""
    role = connection.info.user
    names: dict[str, Any] = {
        "schema": quoted(schema), "role": quoted(role), "version": VERSION
    }  # fmt: skip
    script = f"CREATE SCHEMA IF NOT EXISTS {{schema}};\n{_TABLES}{_RIGHTS}"
    return MisconfiguredError(
        "schema", schema, f"the role {role!r} may not create or use its tables "
        f"({str(error).splitlines()[0]})",
        f"Have somebody run who may:\n\n{script.format(**names)}",
    )  # fmt: skip


def _version(connection: Connection, schema: str) -> int | None:
    table = f"{quoted(schema)}.version"
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute("SELECT to_regclass(%s)", [table])
        if cursor.fetchone() == (None,):
            return None
        cursor.execute(f"SELECT max(version) FROM {table}".encode())
        row = cursor.fetchone()
    return None if row is None or row[0] is None else int(row[0])


def _create(connection: Connection, schema: str) -> None:
    with psycopg.Cursor(connection, row_factory=tuple_row) as cursor:
        # Who may create tables in a schema may lack the right to create schemas.
        cursor.execute("SELECT to_regnamespace(%s)", [quoted(schema)])
        if cursor.fetchone() == (None,):
            cursor.execute(f"CREATE SCHEMA {quoted(schema)}".encode())
        tables = _TABLES.format(schema=quoted(schema), version=VERSION)
        cursor.execute(tables.encode())
