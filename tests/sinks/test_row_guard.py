"""Rows that several write: the one with the latest epoch and offset stands."""

from __future__ import annotations

import random
from collections.abc import Generator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from psycopg import errors

from epochfence import MisconfiguredError, PostgresSink, guarded_upsert
from support.sinks import apply_nothing
from support.waiting import wait_until

WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture
def stock(database: str) -> str:
    """A database with the guards and a table."""
    PostgresSink(database, apply_nothing).close()
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE stock (item text PRIMARY KEY, level int)")
    return database


def put(
    connection: psycopg.Connection,
    level: int | None,
    epoch: int,
    offset: int,
    item: str = "cup",
    table: str = "stock",
) -> bool:
    values = None if level is None else {"level": level}
    return guarded_upsert(
        connection.cursor(), table, {"item": item}, values,
        epoch=epoch, partition=0, offset=offset,
    )  # fmt: skip


def rows(database: str, query: str = "SELECT * FROM stock") -> list[Any]:
    with psycopg.connect(database) as connection:
        return connection.execute(query.encode()).fetchall()


def test_only_what_is_later_takes_effect(stock: str) -> None:
    with psycopg.connect(stock, autocommit=True) as connection:

        def written(
            level: int | None, epoch: int, offset: int
        ) -> tuple[bool, list[Any]]:
            with connection.transaction():
                took_effect = put(connection, level, epoch, offset)
            return took_effect, [level for _, level in rows(stock)]

        assert written(1, 2, 10) == (True, [1])
        assert written(2, 2, 10) == (False, [1])  # the same message again
        assert written(2, 1, 99) == (False, [1])  # a deposed leader
        assert written(None, 1, 99) == (False, [1])
        assert written(3, 2, 11) == (True, [3])
        assert written(4, 3, 0) == (True, [4])
        assert written(None, 3, 1) == (True, [])
        # A deleted row is not forgotten.
        assert written(5, 2, 12) == (False, [])
        assert written(5, 3, 2) == (True, [5])
        assert written(6, 2**63 - 1, 2**62) == (True, [6])


def test_a_table_has_one_name(stock: str) -> None:
    with psycopg.connect(stock) as connection:
        assert put(connection, 1, 2, 0)
        assert not put(connection, 2, 1, 0, table="public.stock")
        connection.execute(
            "CREATE SCHEMA other; CREATE TABLE other.stock (LIKE stock INCLUDING ALL)"
        )
        assert put(connection, 2, 1, 0, table="other.stock")


@contextmanager
def racing(
    database: str, first: tuple[int | None, int], second: tuple[int | None, int]
) -> Generator[tuple[psycopg.Connection, bool, Future[bool]], None, None]:
    """One has written and not committed; the other waits."""

    def write() -> bool:
        with psycopg.connect(database) as connection:
            return put(connection, *second, 0)

    with psycopg.connect(database) as connection, ThreadPoolExecutor(1) as pool:
        took_effect = put(connection, *first, 0)
        waiting = pool.submit(write)
        wait_until(lambda: rows(database, WAITING), 20, "the second waits")
        yield connection, took_effect, waiting


@pytest.mark.parametrize("level", [2, None])
def test_the_higher_one_comes_second(stock: str, level: int | None) -> None:
    with racing(stock, (1, 1), (level, 2)) as (first, took_effect, second):
        first.commit()
        assert (took_effect, second.result(20)) == (True, True)
    assert rows(stock) == ([] if level is None else [("cup", level)])


@pytest.mark.parametrize("level", [1, None])
def test_the_higher_one_comes_first(stock: str, level: int | None) -> None:
    with racing(stock, (level, 2), (7, 1)) as (first, took_effect, second):
        first.commit()
        assert (took_effect, second.result(20)) == (True, False)
    assert rows(stock) == ([] if level is None else [("cup", level)])


def test_the_higher_one_gives_up(stock: str) -> None:
    with racing(stock, (1, 2), (7, 1)) as (first, _, second):
        first.rollback()
        assert second.result(20)
    assert rows(stock) == [("cup", 7)]


def test_whatever_the_order_the_highest_stands(stock: str) -> None:
    chance = random.Random(7)
    writes = [
        (item, (epoch, offset), chance.choice([None, epoch * 1000 + offset]))
        for item in ("cup", "mug")
        for epoch in range(4)
        for offset in range(25)
    ]
    expected = {item: level for item, _, level in writes}
    chance.shuffle(writes)

    def write(own: list[tuple[str, tuple[int, int], int | None]]) -> None:
        with psycopg.connect(stock) as connection:
            for item, (epoch, offset), level in own:
                put(connection, level, epoch, offset, item)
                connection.commit()

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(write, writes[n::6]) for n in range(6)]:
            done.result(60)
    assert dict(rows(stock)) == {
        item: level for item, level in expected.items() if level is not None
    }


def test_keys_are_told_apart_by_what_they_say(stock: str) -> None:
    with psycopg.connect(stock) as connection:
        connection.execute(
            'CREATE TABLE odd ("%s" int, "b""c" bytea, n int, UNIQUE ("%s", "b""c"))'
        )
        cursor = connection.cursor()

        def written(number: object, raw: bytes, epoch: int) -> bool:
            return guarded_upsert(
                cursor, "odd", {"%s": number, 'b"c': raw}, {"n": epoch},
                epoch=epoch, partition=0, offset=0,
            )  # fmt: skip

        assert written(1, b"1", 2)
        assert not written("1", b"1", 1)
        assert written(1, b"2", 1)
        assert written(12, b"1", 1)
        assert cursor.execute("SELECT n FROM odd ORDER BY n").fetchall() == [
            (1,),
            (1,),
            (2,),
        ]


def test_without_a_transaction_nothing_is_written(stock: str) -> None:
    with (
        psycopg.connect(stock, autocommit=True) as connection,
        pytest.raises(MisconfiguredError, match="no transaction"),
    ):
        put(connection, 1, 1, 0)
    assert rows(stock, "SELECT * FROM epochfence.guards") == []


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"key": {}}, MisconfiguredError),
        ({"key": {"item": None}}, MisconfiguredError),
        ({"epoch": -1}, MisconfiguredError),
        ({"epoch": "1"}, MisconfiguredError),
        ({"table": "nowhere"}, errors.UndefinedTable),
        ({"schema": "nowhere"}, errors.UndefinedTable),
        ({"values": {"nothing": 1}}, errors.UndefinedColumn),
    ],
)
def test_wrong_arguments(
    stock: str, wrong: dict[str, Any], error: type[Exception]
) -> None:
    good: dict[str, Any] = {
        "table": "stock", "key": {"item": "cup"}, "values": {"level": 1},
        "epoch": 1, "partition": 0, "offset": 0,
    }  # fmt: skip
    with psycopg.connect(stock) as connection, pytest.raises(error):
        guarded_upsert(connection.cursor(), **{**good, **wrong})
    assert rows(stock) == []
