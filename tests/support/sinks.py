"""Sinks under test: what they apply, where it is found."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Message

from epochfence import SinkPosition

#: A table in which a message that is applied twice is an error.
APPLIED = """
CREATE TABLE applied (
    topic TEXT, partition INTEGER, leader_epoch INTEGER, position INTEGER, value BLOB,
    UNIQUE (topic, partition, leader_epoch, position)
)
"""


def at(next_offset: int) -> SinkPosition:
    """A position in a partition that sinks write to."""
    return SinkPosition(None, 0, next_offset)


def message(
    offset: int,
    value: bytes | None = b"v",
    key: bytes | None = None,
    *,
    partition: int = 0,
) -> Message:
    """A message of such a partition."""
    return Message(
        topic="orders", partition=partition, offset=offset, leader_epoch=0, key=key,
        value=value,
    )  # fmt: skip


def apply_sqlite(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
    """Keep each message."""
    cursor.executemany(
        "INSERT INTO applied VALUES (?, ?, ?, ?, ?)",
        [
            (m.topic(), m.partition(), m.leader_epoch(), m.offset(), m.value())
            for m in messages
        ],
    )


def applied_in(path: Path) -> list[tuple[str, int, int, int, bytes]]:
    """What was applied, in order of position."""
    with closing(sqlite3.connect(path)) as database:
        return database.execute(
            "SELECT * FROM applied ORDER BY topic, partition, position"
        ).fetchall()


#: The same in PostgreSQL.
APPLIED_IN_POSTGRES = """
CREATE TABLE applied (
    topic text, partition integer, leader_epoch integer, position bigint, value bytea,
    UNIQUE (topic, partition, leader_epoch, position)
)
"""


def apply_nothing(cursor: psycopg.Cursor[Any], messages: Sequence[Message]) -> None:
    """For tests of what is around it."""


def apply_postgres(cursor: psycopg.Cursor[Any], messages: Sequence[Message]) -> None:
    """Keep each message."""
    cursor.executemany(
        "INSERT INTO applied VALUES (%s, %s, %s, %s, %s)",
        [
            (m.topic(), m.partition(), m.leader_epoch(), m.offset(), m.value())
            for m in messages
        ],
    )
