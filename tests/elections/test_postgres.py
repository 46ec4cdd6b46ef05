"""What is PostgreSQL's own of an election by an advisory lock."""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from epochfence import ElectionUnavailable, MisconfiguredError
from epochfence.elections import PostgresElection
from epochfence.elections.postgres import lock_key
from epochfence.elections.postgres_session import LockSession
from support.elections import session_of
from support.postgres import OwnPostgres, Postgres
from support.postgres_proxy import AFTER, BEFORE, CuttingProxy, Proxy
from support.waiting import wait_until

_WAIT_S = 60
_TRY = "pg_try_advisory_lock"


@pytest.fixture
def scope() -> str:
    return f"office-{secrets.token_hex(6)}"


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


def hasty(conninfo: str, scope: str, **times: float) -> PostgresElection:
    """A candidate that looks often."""
    return PostgresElection(conninfo, scope, **{"interval_s": 0.1, **times})


class SilentProxy(Proxy):
    """Passes everything on until the network is cut: nobody is told."""

    def __init__(self, conninfo: str) -> None:
        self.is_cut = threading.Event()
        self.has_swallowed = threading.Event()
        self._is_over = threading.Event()
        super().__init__(conninfo)

    def _asked(self, data: bytes) -> bool:
        return self._passes()

    def _answered(self) -> bool:
        return self._passes()

    def _passes(self) -> bool:
        if self.is_cut.is_set():
            self.has_swallowed.set()
            self._is_over.wait()
        return not self.is_cut.is_set()

    def close(self) -> None:
        self._is_over.set()
        super().close()


def test_the_lock_is_where_it_is_said_to_be(
    database: str, scope: str, connection: psycopg.Connection[Any]
) -> None:
    # Part of the interface: others may look for it, and all versions must agree.
    assert lock_key("orders-writer") == -5691468598082559934
    with hasty(database, scope) as candidate:
        assert candidate.campaign(_WAIT_S)
        held_by = session_of(connection, scope)
        row = connection.execute(
            "SELECT application_name FROM pg_stat_activity WHERE pid = %s", [held_by]
        ).fetchone()
    assert row == (f"epochfence election {scope}",)


def test_a_session_knows_what_it_holds(database: str) -> None:
    """Keys of either sign: pg_locks has them in two unsigned halves."""
    for key in (lock_key("a"), -1, 2**63 - 1, -(2**63), 2**32, 5):
        holder = LockSession(database, key, "test", 10.0)
        other = LockSession(database, key, "test", 10.0)
        assert not holder.has_lock()
        assert holder.try_lock()
        assert holder.has_lock()
        assert not other.try_lock()
        assert not other.has_lock()
        holder.close()
        wait_until(other.try_lock, 10, "the lock is free")
        other.close()


def test_who_is_cut_off_hears_of_it_and_is_replaced(database: str, scope: str) -> None:
    """Neither side is told: each goes by the other's silence."""
    proxy = SilentProxy(database)
    cut_off = hasty(proxy.conninfo, scope, silence_s=1.0)
    other = hasty(database, scope)
    try:
        assert cut_off.campaign(_WAIT_S)
        assert not other.campaign(0)
        proxy.is_cut.set()
        assert other.campaign(_WAIT_S)
        assert cut_off.lost.wait(_WAIT_S)
    finally:
        other.close()
        cut_off.close()
        proxy.close()


def test_who_is_cut_off_can_resign(database: str, scope: str) -> None:
    proxy = SilentProxy(database)
    cut_off = hasty(proxy.conninfo, scope, silence_s=3000.0)
    try:
        assert cut_off.campaign(_WAIT_S)
        proxy.is_cut.set()
        assert proxy.has_swallowed.wait(_WAIT_S)  # and it waits for the answer
    finally:
        cut_off.close()
        proxy.close()


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_an_answer_that_never_came_leaves_no_lock(
    when: str, database: str, scope: str
) -> None:
    with CuttingProxy(database) as proxy, hasty(database, scope) as other:
        proxy.cut(_TRY, when)
        candidate = hasty(proxy.conninfo, scope)
        with pytest.raises(ElectionUnavailable) as unavailable:
            candidate.campaign(_WAIT_S)
        assert f"for {scope!r} in PostgreSQL (127.0.0.1:" in unavailable.value.election
        assert candidate.lost.is_set()
        assert other.campaign(_WAIT_S)
        assert not candidate.campaign(0)
        other.resign()
        assert candidate.campaign(_WAIT_S)
        candidate.close()


def test_a_server_that_restarts(own_postgres: OwnPostgres, scope: str) -> None:
    with own_postgres.database() as database:
        candidate = hasty(database, scope)
        assert candidate.campaign(_WAIT_S)
        own_postgres.stop()
        assert candidate.lost.wait(_WAIT_S)
        for _ in range(2):
            with pytest.raises(ElectionUnavailable, match="refused"):
                candidate.campaign(0)
        own_postgres.start()
        assert candidate.campaign(_WAIT_S)
        candidate.close()


def test_a_session_that_was_silent_between_two_calls_is_replaced(
    database: str, scope: str, connection: psycopg.Connection[Any]
) -> None:
    with hasty(database, scope) as elected:
        assert elected.campaign(_WAIT_S)
        with hasty(database, scope, silence_s=0.5) as waiting:
            assert not waiting.campaign(0)
            name = f"epochfence election {scope}"
            wait_until(
                lambda: count_of_sessions(connection, name) == 1, 30, "it has ended"
            )
            assert not waiting.campaign(0)
            assert count_of_sessions(connection, name) == 2


def count_of_sessions(connection: psycopg.Connection[Any], name: str) -> int:
    row = connection.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s", [name]
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_any_role_will_do(postgres: Postgres, database: str, scope: str) -> None:
    with postgres.role() as role:
        conninfo = make_conninfo(database, user=role, password=role)
        with hasty(conninfo, scope) as candidate:
            assert candidate.campaign(_WAIT_S)


def test_a_standby_is_no_place_to_elect(
    database: str, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = "epochfence.elections.postgres_session"
    monkeypatch.setattr(f"{session}._IS_STANDBY", "SELECT true")
    with (
        hasty(database, scope) as candidate,
        pytest.raises(ElectionUnavailable, match="standby"),
    ):
        candidate.campaign(_WAIT_S)


def test_an_old_server_gets_a_warning(
    database: str,
    scope: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = "epochfence.elections.postgres_session"
    monkeypatch.setattr(f"{session}._IDLE_TIMEOUT_VERSION", 10**9)
    caplog.set_level(logging.WARNING, logger=session)
    with hasty(database, scope) as candidate:
        assert candidate.campaign(_WAIT_S)
    assert "does not end silent sessions" in caplog.text


@pytest.mark.parametrize(
    "wrong", [{"user": "nobody_of_this_name"}, {"dbname": "nothing_of_this_name"}]
)
def test_what_the_server_will_always_refuse(
    wrong: dict[str, str], database: str, scope: str
) -> None:
    with hasty(make_conninfo(database, **wrong), scope) as candidate:
        with pytest.raises(MisconfiguredError, match="does not exist") as refused:
            candidate.campaign(_WAIT_S)
        assert refused.value.setting == "connect"


def test_what_is_not_allowed_is_no_outage(postgres: Postgres, scope: str) -> None:
    """Somebody has taken the function from the public."""
    with postgres.database() as database, postgres.role() as role:
        with psycopg.connect(database) as connection:
            connection.execute(
                "REVOKE EXECUTE ON FUNCTION pg_try_advisory_lock(bigint) FROM PUBLIC"
            )
        conninfo = make_conninfo(database, user=role, password=role)
        with (
            hasty(conninfo, scope) as candidate,
            pytest.raises(MisconfiguredError, match="permission denied"),
        ):
            candidate.campaign(_WAIT_S)


def test_a_server_that_is_not_there() -> None:
    conninfo = "host=127.0.0.1 port=1 dbname=d user=u password=secret"
    with (
        hasty(conninfo, "office") as candidate,
        pytest.raises(ElectionUnavailable) as unavailable,
    ):
        candidate.campaign(0)
    assert "refused" in str(unavailable.value)
    assert "secret" not in str(unavailable.value)


def test_arguments_are_checked(database: str) -> None:
    with psycopg.connect(database) as connection:
        not_a_string: Any = connection
        with pytest.raises(MisconfiguredError, match="neither a pool nor"):
            PostgresElection(not_a_string, "office")
    with pytest.raises(MisconfiguredError) as refused:
        PostgresElection("host=h password=se cret", "office")
    assert "cret" not in str(refused.value)
    for times in ({"silence_s": 0.0}, {"interval_s": -1.0}):
        with pytest.raises(MisconfiguredError, match="not a time") as refused:
            PostgresElection(database, "office", **times)
        assert [refused.value.setting] == list(times)
    with pytest.raises(MisconfiguredError, match="a third of it"):
        PostgresElection(database, "office", silence_s=2.0, interval_s=1.0)
    with hasty(database, "office") as candidate:
        never: Any
        for never in (-1, float("nan"), True, None, "1"):
            with pytest.raises(MisconfiguredError, match="only look"):
                candidate.campaign(never)
    with pytest.raises(RuntimeError, match="closed"):
        candidate.campaign(0)
