"""PostgreSQL as a sink: what befalls servers, connections, and functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from confluent_kafka import Message
from psycopg import IsolationLevel, errors
from psycopg.conninfo import make_conninfo
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from epochfence import (
    EpochStart,
    MisconfiguredError,
    Position,
    PostgresSink,
    SinkBatch,
    SinkFenced,
    SinkUnavailable,
)
from epochfence.consumers.sink import Sink
from epochfence.testing.sink_contract import SinkContract
from support.failing import failing
from support.postgres import OwnPostgres, Postgres
from support.postgres_proxy import AFTER, BEFORE, CuttingProxy
from support.sinks import apply_nothing, apply_postgres, at, message
from support.waiting import wait_until

Cursor = psycopg.Cursor[Any]

TERMINATE = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
    AND backend_type = 'client backend'
"""

LOCKED = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


def batch(expected: int | None = None, to: int = 1, partition: int = 0) -> SinkBatch:
    """A batch with the one message below its position."""
    before = None if expected is None else at(expected)
    messages = [message(to - 1, partition=partition)]
    return SinkBatch("orders", partition, messages, before, at(to), ())


def rows(database: str, statement: str) -> list[Any]:
    with psycopg.connect(database, autocommit=True) as connection:
        cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


def offsets(database: str) -> list[int]:
    return [at for (at,) in rows(database, "SELECT position FROM applied ORDER BY 1")]


@pytest.fixture
def sink(database: str) -> Iterator[PostgresSink]:
    with PostgresSink(database, apply_postgres) as opened:
        yield opened


# The contract, whatever the connections.


class TestPostgresSink(SinkContract):
    @pytest.fixture(autouse=True, params=["conninfo", "pool", "connection"])
    def store(self, database: str, request: pytest.FixtureRequest) -> Iterator[None]:
        self.database = database
        self.kind: str = request.param
        with ExitStack() as self.opened:
            yield

    def open(self) -> Sink:
        return self._open(apply_postgres)

    def open_failing(self) -> Sink:
        return self._open(failing(apply_postgres))

    def _open(self, apply: Callable[[Cursor, Sequence[Message]], object]) -> Sink:
        connect: Any = self.database
        if self.kind == "pool":
            pool = ConnectionPool(self.database, min_size=1, open=True)
            connect = self.opened.enter_context(pool)
        elif self.kind == "connection":
            connect = self.opened.enter_context(psycopg.connect(self.database))
            connect.row_factory = dict_row
        sink = PostgresSink(connect, apply, dead_letters=True)
        return self.opened.enter_context(sink)

    def rejected(self) -> list[bytes]:
        with psycopg.connect(self.database) as connection:
            try:
                rows = connection.execute(
                    "SELECT record_value FROM epochfence.dead_letters"
                ).fetchall()
            except psycopg.errors.UndefinedTable:
                return []
        return [value for (value,) in rows]

    def applied(self) -> list[bytes]:
        return [value for (value,) in rows(self.database, "SELECT value FROM applied")]


# What the function does.


def test_what_the_function_raises_undoes_everything(database: str) -> None:
    def fail(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        raise ZeroDivisionError

    with PostgresSink(database, fail) as sink:
        with pytest.raises(ZeroDivisionError):
            sink.write([batch()])
        assert sink.load("orders", 0) is None
    assert offsets(database) == []


PASSING = [
    "08006", "25006", "40001", "40P01", "53100", "53300",
    "55P03", "57014", "57P01", "57P03", "58030",
]  # fmt: skip
LASTING = [
    "0A000", "21000", "22012", "23505", "42501", "42P01", "54001", "P0001",
]  # fmt: skip


@pytest.mark.parametrize("state", [*PASSING, *LASTING])
def test_what_passes_is_told_from_what_is_wrong(database: str, state: str) -> None:
    statement = f"DO $$ BEGIN RAISE 'no luck' USING ERRCODE = '{state}'; END $$"
    is_failing = True

    def fail(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        if is_failing:
            cursor.execute(statement.encode())

    with PostgresSink(database, fail) as sink:
        with pytest.raises((SinkUnavailable, psycopg.Error), match="no luck") as found:
            sink.write([batch()])
        assert isinstance(found.value, SinkUnavailable) == (state in PASSING)
        assert sink.load("orders", 0) is None
        assert offsets(database) == []
        is_failing = False
        sink.write([batch()])
    assert offsets(database) == [0]


def test_an_error_that_the_function_swallows_is_told(database: str) -> None:
    def swallow(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        with pytest.raises(errors.UndefinedTable):
            cursor.execute("INSERT INTO no_such_table VALUES (1)")

    with PostgresSink(database, swallow) as sink:
        with pytest.raises(errors.InFailedSqlTransaction):
            sink.write([batch()])
        assert sink.load("orders", 0) is None
    assert offsets(database) == []


def test_a_constraint_that_is_checked_at_the_end(database: str) -> None:
    rows(
        database, "ALTER TABLE applied ADD UNIQUE (value) DEFERRABLE INITIALLY DEFERRED"
    )
    with PostgresSink(database, apply_postgres) as sink:
        sink.write([batch()])
        with pytest.raises(errors.UniqueViolation):
            sink.write([batch(1, 2)])
        state = sink.load("orders", 0)
        assert state is not None
        assert state.position == at(1)


@pytest.mark.parametrize(
    "end", ["COMMIT", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN"]
)
@pytest.mark.parametrize("autocommit", [True, False])
def test_a_function_that_ends_the_transaction_is_told_so(
    database: str, end: str, autocommit: bool
) -> None:
    def ends(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        cursor.execute(end.encode())

    with psycopg.connect(database, autocommit=autocommit) as connection:
        sink = PostgresSink(connection, ends)
        with pytest.raises(MisconfiguredError, match="ended the transaction"):
            sink.write([batch()])
        assert sink.load("orders", 0) is None
        with pytest.raises(SinkFenced) as fenced:
            sink.write([batch(1, 2)])
        assert fenced.value.found == (None, None, None)


def test_a_function_that_commits_is_kept_from_it(database: str) -> None:
    def commits(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        cursor.connection.commit()

    with PostgresSink(database, commits) as sink:
        with pytest.raises(psycopg.ProgrammingError, match="commit"):
            sink.write([batch()])
        assert sink.load("orders", 0) is None
    assert offsets(database) == []


def test_a_function_may_use_savepoints(database: str) -> None:
    def careful(cursor: Cursor, messages: Sequence[Message]) -> None:
        with pytest.raises(errors.UndefinedTable), cursor.connection.transaction():
            cursor.execute("INSERT INTO no_such_table VALUES (1)")
        apply_postgres(cursor, messages)

    with PostgresSink(database, careful) as sink:
        sink.write([batch()])
    assert offsets(database) == [0]


# What befalls connections.


@pytest.mark.parametrize("has_pool", [False, True])
def test_a_terminated_backend_is_told_and_replaced(
    database: str, has_pool: bool
) -> None:
    is_failing = True

    def terminated(cursor: Cursor, messages: Sequence[Message]) -> None:
        if is_failing:
            rows(database, TERMINATE)
        apply_postgres(cursor, messages)

    with ExitStack() as stack:
        connect: Any = database
        if has_pool:
            pool = ConnectionPool(database, min_size=1, open=True)
            connect = stack.enter_context(pool)
        sink = stack.enter_context(PostgresSink(connect, terminated))
        with pytest.raises(SinkUnavailable, match="terminat"):
            sink.write([batch()])
        is_failing = False
        sink.write([batch()])
    assert offsets(database) == [0]


def test_a_lost_connection_that_was_given_stays_lost(database: str) -> None:
    with psycopg.connect(database) as connection:
        sink = PostgresSink(connection, apply_postgres)
        rows(database, TERMINATE)
        with pytest.raises(SinkUnavailable, match="terminat"):
            sink.write([batch()])
        with pytest.raises(SinkUnavailable, match="a pool, or a conninfo string"):
            sink.write([batch()])


def test_a_connection_closed_by_the_function(database: str) -> None:
    def closes(cursor: Cursor, messages: Sequence[Message]) -> None:
        cursor.connection.close()

    with PostgresSink(database, closes) as sink:
        with pytest.raises(SinkUnavailable, match="closed"):
            sink.write([batch()])
        assert sink.load("orders", 0) is None


def test_a_connection_closed_before_the_end_is_not_taken_for_success(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """psycopg ends the transaction of a closed connection without a word."""
    store = PostgresSink._store  # pyright: ignore[reportPrivateUsage]

    def store_and_close(
        sink: PostgresSink, connection: psycopg.Connection[Any], *rest: Any
    ) -> None:
        store(sink, connection, *rest)
        connection.close()

    with PostgresSink(database, apply_postgres) as sink:
        monkeypatch.setattr(PostgresSink, "_store", store_and_close)
        with pytest.raises(SinkUnavailable, match="closed"):
            sink.write([batch()])
        assert sink.load("orders", 0) is None


def test_a_backend_terminated_in_the_middle_of_the_commit(database: str) -> None:
    rows(
        database,
        """
        CREATE FUNCTION hold() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END';
        CREATE CONSTRAINT TRIGGER held AFTER INSERT ON applied
            DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION hold();
        """,
    )
    waiting = f"{LOCKED} AND query = 'COMMIT'"
    with (
        PostgresSink(database, apply_postgres) as sink,
        psycopg.connect(database) as holder,
        ThreadPoolExecutor(1) as pool,
    ):
        holder.execute("SELECT pg_advisory_xact_lock(1)")
        writing = pool.submit(sink.write, [batch()])
        wait_until(lambda: rows(database, waiting), 20, "the commit waits")
        rows(database, f"SELECT pg_terminate_backend(pid, 5000) FROM ({waiting}) AS w")
        with pytest.raises(SinkUnavailable, match="terminat"):
            writing.result(20)
        holder.rollback()
        assert sink.load("orders", 0) is None
        sink.write([batch()])
    assert offsets(database) == [0]


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_commit_that_is_not_answered(database: str, when: str) -> None:
    """Whether it was carried out, the position tells."""
    with (
        CuttingProxy(database) as proxy,
        PostgresSink(proxy.conninfo, apply_postgres) as sink,
    ):
        proxy.cut("COMMIT", when)
        with pytest.raises(SinkUnavailable):
            sink.write([batch()])
        state = sink.load("orders", 0)
        assert (state is not None) == (when == AFTER)
        sink.write([batch()] if state is None else [batch(1, 2)])
    assert offsets(database) == ([0] if when == BEFORE else [0, 1])


def test_loading_waits_for_a_transaction_that_may_be_committed(database: str) -> None:
    """Else what a lost connection leaves undecided would be taken for undone."""
    entered, leave = threading.Event(), threading.Event()

    def slow(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        if messages[0].offset() == 1:
            entered.set()
            assert leave.wait(20)

    start = EpochStart("orders", None, 0, "w", 2, None, Position(0, 1))
    following = SinkBatch("orders", 0, [message(1)], at(1), at(2), [start])
    with (
        PostgresSink(database, slow) as one,
        PostgresSink(database, slow) as other,
        ThreadPoolExecutor(2) as pool,
    ):
        one.write([batch()])
        writing = pool.submit(one.write, [following])
        assert entered.wait(20)
        loading = pool.submit(other.load, "orders", 0)
        wait_until(lambda: rows(database, LOCKED), 20, "the load waits")
        leave.set()
        writing.result(20)
        state = loading.result(20)
        assert state is not None
        assert state.position == at(2)
        assert state.starts == (start,)


def test_an_instance_that_is_stopped_does_not_keep_others_out(database: str) -> None:
    entered, goes_on = threading.Event(), threading.Event()

    def stopped(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        cursor.execute("SELECT 1")  # see DESIGN.md, of executemany
        entered.set()
        assert goes_on.wait(20)
        cursor.execute("SELECT 1")

    with (
        PostgresSink(database, stopped, timeout_s=0.5) as zombie,
        PostgresSink(database, apply_postgres) as sink,
        ThreadPoolExecutor(1) as pool,
    ):
        writing = pool.submit(zombie.write, [batch()])
        assert entered.wait(20)
        sink.write([batch()])
        goes_on.set()
        with pytest.raises(SinkUnavailable, match="idle-in-transaction"):
            writing.result(20)
        with pytest.raises(SinkFenced):
            zombie.write([batch()])
    assert offsets(database) == [0]


def test_a_server_that_is_restarted(own_postgres: OwnPostgres) -> None:
    is_failing = False

    def apply(cursor: Cursor, messages: Sequence[Message]) -> None:
        apply_postgres(cursor, messages)
        if is_failing:
            own_postgres.stop()

    with own_postgres.database() as database:
        rows(
            database,
            "CREATE TABLE applied (a text, b int, c int, position int, d bytea)",
        )
        with PostgresSink(database, apply) as sink:
            sink.write([batch()])
            is_failing = True
            with pytest.raises(SinkUnavailable):
                sink.write([batch(1, 2)])
            with pytest.raises(SinkUnavailable, match="refused"):
                sink.write([batch(1, 2)])
            is_failing = False
            own_postgres.start()
            state = sink.load("orders", 0)
            assert state is not None
            assert state.position == at(1)
            sink.write([batch(1, 2)])
        assert offsets(database) == [0, 1]


def test_a_database_that_is_read_only(database: str) -> None:
    read_only = make_conninfo(database, options="-c default_transaction_read_only=on")
    with pytest.raises(SinkUnavailable, match="read-only"):
        PostgresSink(read_only, apply_postgres)
    PostgresSink(database, apply_postgres).close()
    with psycopg.connect(read_only) as connection:
        sink = PostgresSink(connection, apply_postgres)
        with pytest.raises(SinkUnavailable, match="read-only"):
            sink.write([batch()])
        connection.read_only = False
        sink.write([batch()])
    assert offsets(database) == [0]


def test_a_lock_is_not_waited_for_for_ever(database: str) -> None:
    with PostgresSink(database, apply_postgres, timeout_s=0.2) as sink:
        sink.write([batch()])
        with psycopg.connect(database) as other:
            other.execute("SELECT FROM epochfence.positions FOR UPDATE")
            with pytest.raises(SinkUnavailable, match="timeout"):
                sink.write([batch(1, 2)])
            with pytest.raises(SinkUnavailable, match="timeout"):
                sink.load("orders", 0)
        sink.write([batch(1, 2)])
    assert offsets(database) == [0, 1]


def test_an_empty_pool_is_not_waited_for_for_ever(database: str) -> None:
    with ConnectionPool(database, min_size=1, max_size=1, open=True) as pool:
        sink = PostgresSink(pool, apply_postgres, timeout_s=0.2)
        with pool.connection(), pytest.raises(SinkUnavailable, match=r"0\.2"):
            sink.write([batch()])
        sink.write([batch()])
    assert offsets(database) == [0]


def test_a_transaction_of_the_applications_is_not_joined(database: str) -> None:
    with psycopg.connect(database) as connection:
        sink = PostgresSink(connection, apply_postgres)
        connection.execute("SELECT 1")
        with pytest.raises(MisconfiguredError, match="has been begun"):
            sink.write([batch()])
        connection.rollback()
        sink.write([batch()])
        assert offsets(database) == [0]
        sink.close()
        assert not connection.closed


def test_a_closed_sink_stays_closed(database: str) -> None:
    sink = PostgresSink(database, apply_postgres)
    sink.close()
    sink.close()
    with pytest.raises(psycopg.InterfaceError, match="closed"):
        sink.write([batch()])


# Several instances.


@pytest.mark.parametrize(
    "isolation", [None, IsolationLevel.REPEATABLE_READ, IsolationLevel.SERIALIZABLE]
)
def test_of_those_who_find_nothing_one_wins(
    database: str, isolation: IsolationLevel | None
) -> None:
    racers, rounds = 4, 10
    barrier = threading.Barrier(racers, timeout=20)

    def race(racer: int) -> list[Exception | None]:
        order = 1 if racer % 2 else -1
        outcomes: list[Exception | None] = []
        with psycopg.connect(database) as connection:
            connection.isolation_level = isolation
            sink = PostgresSink(connection, apply_postgres)
            for n in range(rounds):
                both = [batch(partition=n), batch(partition=n + rounds)][::order]
                barrier.wait()
                try:
                    sink.write(both)
                    outcomes.append(None)
                except (SinkFenced, SinkUnavailable) as error:
                    outcomes.append(error)
        return outcomes

    PostgresSink(database, apply_postgres).close()
    with ThreadPoolExecutor(racers) as pool:
        racing = [pool.submit(race, racer) for racer in range(racers)]
        by_racer = [done.result(60) for done in racing]
    for outcomes in zip(*by_racer, strict=True):
        losers = [error for error in outcomes if error is not None]
        assert len(losers) == racers - 1
        for error in losers:
            # To a snapshot, the winner's row is one that came too late.
            assert isinstance(error, SinkFenced) or isolation is not None
            assert not isinstance(error, SinkFenced) or error.found == at(1)
    assert len(offsets(database)) == 2 * rounds


def test_threads_take_turns(database: str, sink: PostgresSink) -> None:
    def write(partition: int) -> None:
        for n in range(10):
            sink.write([batch(n or None, n + 1, partition)])
            assert sink.load("orders", partition) is not None

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(write, partition) for partition in range(4)]:
            done.result(60)
    assert len(offsets(database)) == 40


# The sink's own schema.


def test_several_may_create_the_schema_at_once(database: str) -> None:
    instances = 8
    barrier = threading.Barrier(instances, timeout=20)

    def open_one() -> None:
        barrier.wait()
        PostgresSink(database, apply_postgres).close()

    with ThreadPoolExecutor(instances) as pool:
        for opened in [pool.submit(open_one) for _ in range(instances)]:
            opened.result(60)
    assert rows(database, "SELECT version FROM epochfence.version") == [(1,)]


def test_a_newer_version_is_not_guessed_at(database: str, sink: PostgresSink) -> None:
    rows(database, "UPDATE epochfence.version SET version = 7")
    with pytest.raises(MisconfiguredError, match="version 7"):
        PostgresSink(database, apply_postgres)


def test_schemas_are_apart(database: str, sink: PostgresSink) -> None:
    sink.write([batch()])
    for name in ('od"d %s', "{schema}"):
        with PostgresSink(database, apply_nothing, schema=name) as other:
            assert other.load("orders", 0) is None
            other.write([batch()])
            assert other.load("orders", 0) is not None


@pytest.mark.parametrize("may", ["nothing", "use the schema", "create in the schema"])
def test_a_role_without_rights_is_told_what_to_have_run(
    postgres: Postgres, database: str, may: str
) -> None:
    with postgres.role() as role:
        rows(database, f'GRANT INSERT ON applied TO "{role}"')
        if may != "nothing":
            rows(
                database,
                f"CREATE SCHEMA epochfence;"
                f'GRANT USAGE, CREATE ON SCHEMA epochfence TO "{role}"',
            )
        own = make_conninfo(database, user=role, password=role)
        if may == "use the schema":
            PostgresSink(database, apply_postgres).close()
        if may == "create in the schema":
            PostgresSink(own, apply_postgres).close()
        else:
            with pytest.raises(MisconfiguredError, match="permission denied") as wrong:
                PostgresSink(own, apply_postgres)
            rows(database, str(wrong.value).partition("\n\n")[2])
        with PostgresSink(own, apply_postgres) as sink:
            sink.write([batch()])
            assert sink.load("orders", 0) is not None
            if may == "use the schema":
                rows(database, f'REVOKE INSERT ON epochfence.positions FROM "{role}"')
                with pytest.raises(MisconfiguredError, match="GRANT SELECT"):
                    sink.write([batch(1, 2)])
        rows(database, f'DROP OWNED BY "{role}" CASCADE')


def test_too_many_connections(postgres: Postgres, database: str) -> None:
    with postgres.role() as role:
        rows(database, f'ALTER ROLE "{role}" CONNECTION LIMIT 0')
        with pytest.raises(SinkUnavailable, match="too many connections"):
            PostgresSink(make_conninfo(database, user=role), apply_postgres)


# Arguments.


@pytest.mark.parametrize(
    "conninfo",
    [
        "host=localhost password='secret",
        "postgresql://me:se/cret@localhost/orders",
        "password=secret localhost",
    ],
)
def test_no_password_is_told(conninfo: str) -> None:
    with pytest.raises(MisconfiguredError, match="no connection string") as wrong:
        PostgresSink(conninfo, apply_postgres)
    assert "cret" not in str(wrong.value)
    assert wrong.value.__suppress_context__


def test_a_server_that_is_not_there() -> None:
    conninfo = "postgresql://me:secret@127.0.0.1:1/orders"
    with pytest.raises(SinkUnavailable, match="refused") as gone:
        PostgresSink(conninfo, apply_postgres)
    assert "secret" not in str(gone.value)


def test_what_gives_no_connections(database: str) -> None:
    for wrong in (None, 5, object()):
        with pytest.raises(MisconfiguredError, match="connect"):
            PostgresSink(wrong, apply_postgres)  # type: ignore[arg-type]
    asynchronous: Any = AsyncConnectionPool(database, open=False)
    with pytest.raises(MisconfiguredError, match="none of asyncio's"):
        PostgresSink(asynchronous, apply_postgres)


@pytest.mark.parametrize(
    "wrong", [{"apply": "orders"}, {"schema": ""}, {"schema": 5}, {"timeout_s": 0}]
)
def test_other_arguments(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"connect": "", "apply": apply_postgres}
    with pytest.raises(MisconfiguredError, match=next(iter(wrong))):
        PostgresSink(**{**good, **wrong})
