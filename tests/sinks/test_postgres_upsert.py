"""Rows by key in PostgreSQL."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
from uuid import UUID

import psycopg
import pytest
from confluent_kafka import Message
from psycopg import errors
from psycopg.types.json import Jsonb

from epochfence import MisconfiguredError, PostgresSink, SinkBatch, Upsert
from support.sinks import at

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, timezone.utc)


def told(*changes: tuple[Any, Any], first: int = 0) -> SinkBatch:
    """Messages of these keys and values, as JSON; None deletes."""
    messages = [
        Message(
            topic="orders", partition=0, offset=first + n, leader_epoch=0,
            key=json.dumps(key).encode(),
            value=None if value is None else json.dumps(value).encode(),
        )
        for n, (key, value) in enumerate(changes)
    ]  # fmt: skip
    before = at(first) if first else None
    return SinkBatch("orders", 0, messages, before, at(first + len(changes)), ())


def key_of(message: Message) -> Any:
    return json.loads(message.key() or b"")


def value_of(message: Message) -> Any:
    return json.loads(message.value() or b"")


def giving(columns: dict[str, Any]) -> Callable[[Message], dict[str, Any]]:
    return lambda _: columns


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(database, autocommit=True) as opened:
        yield opened


def rows(connection: psycopg.Connection, query: str) -> list[Any]:
    return connection.execute(query.encode()).fetchall()


def test_the_last_of_each_key_stands(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute(
        "CREATE TABLE stock (item text PRIMARY KEY, level int, seen_in int)"
    )
    upsert = Upsert(
        "public.stock",
        key=lambda m: {"item": key_of(m)},
        values=lambda m: {"level": value_of(m), "seen_in": m.partition()},
    )
    query = "SELECT item, level, seen_in FROM stock ORDER BY item"
    with PostgresSink(database, upsert) as sink:
        sink.write(
            [told(("cup", 1), ("mug", 2), ("cup", 3), ("mug", None), ("jar", 4))]
        )
        assert rows(connection, query) == [("cup", 3, 0), ("jar", 4, 0)]
        sink.write([told(("cup", None), ("mug", 9), first=5)])
        assert rows(connection, query) == [("jar", 4, 0), ("mug", 9, 0)]
        # More often than a statement is run before the client has the server keep it.
        for n in range(7, 20):
            sink.write([told(("jar", n), first=n)])
        assert rows(connection, query) == [("jar", 19, 0), ("mug", 9, 0)]


def test_several_partitions_in_one_transaction(
    database: str, connection: psycopg.Connection
) -> None:
    connection.execute("CREATE TABLE stock (item text PRIMARY KEY, level int)")
    upsert = Upsert(
        "stock", lambda m: {"item": key_of(m)}, lambda m: {"level": value_of(m)}
    )
    of_one = told(("cup", 1), ("mug", None))
    of_other = SinkBatch("payments", 0, told(("jar", 2)).messages, None, at(1), ())
    with PostgresSink(database, upsert) as sink:
        sink.write([of_one, of_other])
    assert rows(connection, "SELECT * FROM stock ORDER BY 1") == [
        ("cup", 1),
        ("jar", 2),
    ]


def test_keys_of_several_columns(database: str, connection: psycopg.Connection) -> None:
    connection.execute(
        "CREATE TABLE stock (shop int, item text, level int, UNIQUE (item, shop))"
    )
    upsert = Upsert(
        "stock",
        key=lambda m: dict(zip(("shop", "item"), key_of(m), strict=True)),
        values=lambda m: {"level": value_of(m)},
    )
    with PostgresSink(database, upsert) as sink:
        sink.write([told(([1, "cup"], 1), ([2, "cup"], 2), ([1, "mug"], 3))])
        sink.write([told(([2, "cup"], 8), ([1, "cup"], None), first=3)])
    assert rows(connection, "SELECT * FROM stock ORDER BY 1, 2") == [
        (1, "mug", 3),
        (2, "cup", 8),
    ]


def test_odd_names_are_quoted(database: str, connection: psycopg.Connection) -> None:
    table = '"50%s"."or""der"'
    connection.execute('CREATE SCHEMA "50%s"')
    columns = '"%(a)s" text PRIMARY KEY, "select" int, "{x}" int'
    connection.execute(f"CREATE TABLE {table} ({columns})".encode())
    upsert = Upsert(
        '50%s.or"der',
        lambda m: {"%(a)s": key_of(m)},
        lambda m: {"select": value_of(m), "{x}": 1},
    )
    with PostgresSink(database, upsert) as sink:
        sink.write([told(("a\tb\\N\n", 1), ("b", 2))])
        sink.write([told(("b", None), first=2)])
    assert rows(connection, f"SELECT * FROM {table}") == [("a\tb\\N\n", 1, 1)]


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        ("jsonb", '{"a": [1, null]}', {"a": [1, None]}),
        ("jsonb", Jsonb({"a": [1, None]}), {"a": [1, None]}),
        ("timestamptz", NOW, NOW),
        ("timestamptz", "2026-01-02 03:04:05.000678+00", NOW),
        ("numeric(9, 2)", Decimal("12.345"), Decimal("12.35")),
        ("bytea", b"\\x00\x00\xff", b"\\x00\x00\xff"),
        ("text[]", ["a,b", 'c"d', "", "\\N"], ["a,b", 'c"d', "", "\\N"]),
        ("uuid", UUID(int=7), UUID(int=7)),
        ("mood", "ok", "ok"),
        ("text", 2**70, str(2**70)),
        ("boolean", True, True),
        ("double precision", float("inf"), float("inf")),
        ("int", None, None),
    ],
)
def test_types_are_those_of_the_table(
    database: str, connection: psycopg.Connection, kind: str, given: Any, read: Any
) -> None:
    connection.execute("CREATE TYPE mood AS ENUM ('sad', 'ok')")
    connection.execute(
        f"CREATE TABLE kinds (id int PRIMARY KEY, value {kind}, "
        f"made int GENERATED ALWAYS AS IDENTITY)".encode()
    )
    upsert = Upsert("kinds", lambda m: {"id": key_of(m)}, giving({"value": given}))
    with PostgresSink(database, upsert) as sink:
        sink.write([told((7, 0))])
    assert rows(connection, "SELECT * FROM kinds") == [(7, read, 1)]


@pytest.mark.parametrize("kind", ["jsonb", "timestamptz", "text", "uuid"])
def test_rows_are_deleted_by_keys_of_any_type(
    database: str, connection: psycopg.Connection, kind: str
) -> None:
    given = {
        "jsonb": '{"a": 1}',
        "timestamptz": NOW,
        "text": 5,
        "uuid": str(UUID(int=7)),
    }
    connection.execute(f"CREATE TABLE kinds (key {kind} PRIMARY KEY)".encode())
    upsert = Upsert("kinds", giving({"key": given[kind]}), giving({}))
    with PostgresSink(database, upsert) as sink:
        sink.write([told((0, 0))])
        assert len(rows(connection, "SELECT * FROM kinds")) == 1
        sink.write([told((0, None), first=1)])
    assert rows(connection, "SELECT * FROM kinds") == []


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"table": "nowhere"}, errors.UndefinedTable),
        ({"key": giving({"itme": "cup"})}, errors.UndefinedColumn),
        ({"key": giving({"seen_in": 1})}, errors.InvalidColumnReference),
        ({"key": giving({})}, MisconfiguredError),
        ({"values": giving({"level": "x"})}, errors.InvalidTextRepresentation),
        ({"values": giving({"level": -1})}, errors.CheckViolation),
        ({"values": giving({"level": object()})}, psycopg.ProgrammingError),
    ],
)
def test_what_is_wrong_is_told_as_it_is(
    database: str,
    connection: psycopg.Connection,
    change: dict[str, Any],
    error: type[Exception],
) -> None:
    connection.execute(
        "CREATE TABLE stock "
        "(item text PRIMARY KEY, level int CHECK (level > 0), seen_in int)"
    )
    right: dict[str, Any] = {
        "table": "stock", "key": giving({"item": "cup"}), "values": giving({})
    }  # fmt: skip
    with PostgresSink(database, Upsert(**{**right, **change})) as sink:
        with pytest.raises(error):
            sink.write([told(("cup", 1))])
        assert sink.load("orders", 0) is None
    assert rows(connection, "SELECT * FROM stock") == []
