"""A process that writes to a PostgreSQL sink, and is killed while it does."""

from __future__ import annotations

import psycopg

from epochfence import (
    EpochStart,
    Position,
    PostgresSink,
    SinkBatch,
    Upsert,
)
from support.sinks import apply_postgres, at, message

MARK = "the write begins"

#: By what it applies messages.
FUNCTION, UPSERT = "function", "upsert"

START = EpochStart("orders", None, 0, "w", 2, None, Position(0, 4))

_KEY = ("topic", "partition", "leader_epoch", "position")


def write(conninfo: str, kind: str) -> None:
    """Write offsets 3, of a null value, and 4, with an epoch that begins there."""
    upsert = Upsert(
        "applied",
        key=lambda m: dict(zip(_KEY, ("orders", 0, 0, m.offset()), strict=True)),
        values=lambda m: {"value": m.value()},
    )
    messages = [message(3, None), message(4, b"a")]
    with psycopg.connect(conninfo, autocommit=True) as connection:
        apply = upsert if kind == UPSERT else apply_postgres
        sink = PostgresSink(connection, apply)
        connection.execute(f"SELECT '{MARK}'".encode())
        sink.write([SinkBatch("orders", 0, messages, at(3), at(5), [START])])
