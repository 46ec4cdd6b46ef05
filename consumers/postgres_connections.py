"""Where a sink gets its PostgreSQL connections from, and what their errors mean."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from math import ceil
from typing import Any, Protocol

import psycopg
from psycopg.pq import TransactionStatus

from epochfence.epochs.errors import MisconfiguredError, SinkUnavailable
from epochfence.epochs.postgres import conninfo_with_limits, passes

Connection = psycopg.Connection[Any]


class Pool(Protocol):
    """What is needed of a `psycopg_pool.ConnectionPool`."""

    def connection(
        self, timeout: float | None = None
    ) -> AbstractContextManager[Connection]:
        """Lend a connection."""
        ...


class Connections(ABC):
    """Transactions on the connections of one database."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        limit_ms = ceil(timeout_s * 1000)
        # The second: a client that was stopped must not keep its locks.
        self._limits = (
            f"SET LOCAL statement_timeout = {limit_ms};"
            f"SET LOCAL idle_in_transaction_session_timeout = {limit_ms}"
        ).encode()
        self._store = "in PostgreSQL"  # until a connection tells where

    @abstractmethod
    def _lent(self) -> AbstractContextManager[Connection]:
        """A connection to be used alone."""

    def close(self) -> None:  # noqa: B027 - whoever made a connection closes it
        """Close what was opened here."""

    @contextmanager
    def transaction(self) -> Generator[Connection, None, None]:
        """One transaction, of which no statement waits for longer than the time-out.

        Raises:
            SinkUnavailable: The server does not answer, or not now; where that was
                told at the end, the transaction may have been committed.
            MisconfiguredError: The connection is in the middle of another one.
        """
        try:
            with self._lent() as connection:
                self._store = _name(connection)
                _check_idle(connection)
                with connection.transaction():
                    connection.execute(self._limits)
                    yield connection
                if connection.closed:  # by somebody else, so: committed, or not
                    raise psycopg.OperationalError("the connection was closed")
        except psycopg.Error as error:
            if not passes(error):
                raise
            raise SinkUnavailable(self._store, " ".join(str(error).split())) from error


class OwnConnection(Connections):
    """A connection made here, and made again where it is lost."""

    def __init__(self, conninfo: str, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._conninfo = conninfo_with_limits(conninfo, timeout_s)
        self._connection: Connection | None = None
        self._is_closed = False

    @contextmanager
    def _lent(self) -> Generator[Connection, None, None]:
        if self._is_closed:
            raise psycopg.InterfaceError("the sink is closed")
        if self._connection is None or self._connection.closed:
            self._connection = psycopg.connect(self._conninfo, autocommit=True)
        try:
            yield self._connection
        finally:
            if self._connection.info.transaction_status != TransactionStatus.IDLE:
                self._connection.close()

    def close(self) -> None:
        self._is_closed = True
        if self._connection is not None:
            self._connection.close()


class GivenConnection(Connections):
    """A connection of the application's."""

    def __init__(self, connection: Connection, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._connection = connection

    @contextmanager
    def _lent(self) -> Generator[Connection, None, None]:
        if self._connection.closed:
            raise psycopg.OperationalError(
                "the connection that the sink was given is closed (a pool, or a "
                "conninfo string, would be connected again)"
            )
        yield self._connection


class PooledConnections(Connections):
    """The connections of a pool of the application's."""

    def __init__(self, pool: Pool, timeout_s: float) -> None:
        super().__init__(timeout_s)
        self._pool = pool

    def _lent(self) -> AbstractContextManager[Connection]:
        lent = self._pool.connection(timeout=self._timeout_s)
        if not isinstance(lent, AbstractContextManager):
            raise _no_connections(self._pool)
        return lent


def connections_of(connect: object, timeout_s: float) -> Connections:
    """The connections that a conninfo string, a pool or a connection stands for.

    Raises:
        MisconfiguredError: It is none of these.
    """
    if isinstance(connect, str):
        return OwnConnection(connect, timeout_s)
    if isinstance(connect, psycopg.Connection):
        return GivenConnection(connect, timeout_s)
    connection: Callable[..., Any] | None = getattr(connect, "connection", None)
    if callable(connection):
        pool: Any = connect
        return PooledConnections(pool, timeout_s)
    raise _no_connections(connect)


def _no_connections(connect: object) -> MisconfiguredError:
    return MisconfiguredError(
        "connect", connect, "no connections are to be had of it",
        "Give a conninfo string, a psycopg_pool.ConnectionPool or a "
        "psycopg.Connection (none of asyncio's).",
    )  # fmt: skip


def _check_idle(connection: Connection) -> None:
    if connection.info.transaction_status == TransactionStatus.IDLE:
        return
    if connection.closed:
        raise psycopg.OperationalError("the connection is lost")
    raise MisconfiguredError(
        "connect", ..., "a transaction has been begun on the connection, in which the "
        "sink's own would be a part",
        "Commit or roll it back before, or give the sink a connection of its own.",
    )  # fmt: skip


def _name(connection: Connection) -> str:
    info = connection.info
    return f"in PostgreSQL ({info.host}:{info.port}/{info.dbname})"
