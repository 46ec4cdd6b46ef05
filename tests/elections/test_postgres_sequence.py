"""A sequence of PostgreSQL as what gives epochs: only one that rises will do."""

from __future__ import annotations

import re
import secrets
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from epochfence import EpochUnavailable, MisconfiguredError
from epochfence.elections import PostgresSequence
from support.postgres import OwnPostgres, Postgres
from support.postgres_proxy import BEFORE, CuttingProxy, Proxy


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def sequence(connection: psycopg.Connection[Any]) -> str:
    return created(connection)


def created(connection: psycopg.Connection[Any], options: str = "") -> str:
    name = f"epoch_{secrets.token_hex(6)}"
    connection.execute(f"CREATE SEQUENCE {name} {options}".encode())
    return name


def test_each_call_gives_the_next_number(database: str, sequence: str) -> None:
    epoch, other = (PostgresSequence(database, sequence) for _ in range(2))
    assert [epoch(), other(), epoch()] == [1, 2, 3]


@pytest.mark.parametrize("name", ['odd"s.name', "Mixed", "'); DROP TABLE t; --"])
def test_a_name_is_spelt_as_in_sql(
    database: str, connection: psycopg.Connection[Any], name: str
) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    connection.execute(f"CREATE SEQUENCE {quoted} START 7".encode())
    try:
        assert PostgresSequence(database, quoted)() == 7
        assert PostgresSequence(database, f"public.{quoted}")() == 8
    finally:
        connection.execute(f"DROP SEQUENCE {quoted}".encode())


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ("CYCLE", "begins anew at its end", "NO CYCLE"),
        ("CACHE 20", "a stock of 20 numbers", "CACHE 1"),
    ],
)
def test_a_sequence_that_does_not_only_rise_is_refused(
    database: str,
    connection: psycopg.Connection[Any],
    options: str,
    problem: str,
    remedy: str,
) -> None:
    """And the remedy that is named helps."""
    name = created(connection, options)
    epoch = PostgresSequence(database, name)
    with pytest.raises(MisconfiguredError, match=problem) as refused:
        epoch()
    assert f"ALTER SEQUENCE {name} {remedy}" in str(refused.value)
    # No number was taken for it.
    assert connection.execute(f"SELECT is_called FROM {name}".encode()).fetchone() == (
        False,
    )
    connection.execute(f"ALTER SEQUENCE {name} {remedy}".encode())
    assert epoch() == 1


def test_a_sequence_that_counts_down_is_refused(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    name = created(connection, "INCREMENT BY -1")
    with pytest.raises(MisconfiguredError, match=r"counts by -1.*counts up"):
        PostgresSequence(database, name)()


def test_a_sequence_that_a_crash_resets_is_refused(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    if connection.info.server_version < 150_000:
        pytest.skip("PostgreSQL has unlogged sequences from version 15 on")
    name = f"epoch_{secrets.token_hex(6)}"
    connection.execute(f"CREATE UNLOGGED SEQUENCE {name}".encode())
    epoch = PostgresSequence(database, name)
    with pytest.raises(MisconfiguredError, match="unlogged") as refused:
        epoch()
    (remedy,) = re.findall(r"ALTER SEQUENCE .* SET LOGGED", str(refused.value))
    connection.execute(remedy.encode())
    assert epoch() == 1


def test_a_sequence_at_its_end(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    name = created(connection, "AS smallint START 32767")
    epoch = PostgresSequence(database, name)
    assert epoch() == 32767
    with pytest.raises(MisconfiguredError, match="reached maximum") as refused:
        epoch()
    (remedy,) = re.findall(r"ALTER SEQUENCE .* NO MAXVALUE", str(refused.value))
    connection.execute(remedy.encode())
    assert epoch() == 32768


def test_who_may_not_use_it(
    postgres: Postgres, database: str, sequence: str, connection: Any
) -> None:
    with postgres.role() as role:
        conninfo = make_conninfo(database, user=role, password=role)
        epoch = PostgresSequence(conninfo, sequence)
        with pytest.raises(MisconfiguredError, match="GRANT USAGE ON SEQUENCE"):
            epoch()
        connection.execute(f"GRANT USAGE ON SEQUENCE {sequence} TO {role}")
        assert epoch() == 1
        connection.execute(f"DROP SEQUENCE {sequence}")


@pytest.mark.parametrize("name", ["nowhere", "no.such", "pg_class"])
def test_what_is_no_sequence(database: str, name: str) -> None:
    with pytest.raises(MisconfiguredError, match="no such sequence") as refused:
        PostgresSequence(database, name)()
    assert f"CREATE SEQUENCE {name}." in str(refused.value)


@pytest.mark.parametrize("name", ["a.b.c.d", 'x"', "a b c"])
def test_what_cannot_be_a_name(database: str, name: str) -> None:
    with pytest.raises(MisconfiguredError) as refused:
        PostgresSequence(database, name)()
    assert refused.value.setting == "sequence"
    assert not re.search(r"[^.]\.\.\Z", str(refused.value))


class StandingStill(Proxy):
    """A server that takes a question, and never answers."""

    def __init__(self, conninfo: str) -> None:
        self._is_over = threading.Event()
        super().__init__(conninfo)

    def _asked(self, data: bytes) -> bool:
        if b"nextval" in data:
            self._is_over.wait()
        return True

    def close(self) -> None:
        self._is_over.set()
        super().close()


def test_a_server_that_stands_still_is_not_waited_for(
    database: str, sequence: str
) -> None:
    with closing(StandingStill(database)) as proxy:
        epoch = PostgresSequence(proxy.conninfo, sequence, timeout_s=1.0)
        with pytest.raises(EpochUnavailable, match="no answer within 1 s") as failed:
            epoch()
    assert failed.value.source.startswith(
        f"sequence {sequence} in PostgreSQL (127.0.0.1:"
    )
    assert PostgresSequence(database, sequence)() >= 1


def test_a_connection_that_breaks(database: str, sequence: str) -> None:
    with CuttingProxy(database) as proxy:
        proxy.cut("nextval", BEFORE)
        epoch = PostgresSequence(proxy.conninfo, sequence)
        with pytest.raises(EpochUnavailable):
            epoch()
        assert epoch() == 1


def test_nobody_listens() -> None:
    with pytest.raises(EpochUnavailable, match=r"refused\. Nothing was claimed"):
        PostgresSequence("host=127.0.0.1 port=1", "s")()


def test_a_server_that_restarts(own_postgres: OwnPostgres) -> None:
    with own_postgres.database() as database:
        with psycopg.connect(database) as connection:
            name = created(connection)
        epoch = PostgresSequence(database, name)
        before = epoch()
        own_postgres.stop()
        with pytest.raises(EpochUnavailable, match="refused"):
            epoch()
        own_postgres.start()
        assert epoch() > before


@pytest.mark.parametrize(
    ("arguments", "setting"),
    [
        ((7, "s"), "connect"),
        (("host=x nonsense", "s"), "connect"),
        (("host=x", ""), "sequence"),
        (("host=x", 7), "sequence"),
        (("host=x", "a\0b"), "sequence"),
    ],
)
def test_arguments_that_make_no_sense(arguments: Any, setting: str) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        PostgresSequence(*arguments)
    assert wrong.value.setting == setting
    with pytest.raises(MisconfiguredError, match="timeout_s"):
        PostgresSequence("host=x", "s", timeout_s=0)
