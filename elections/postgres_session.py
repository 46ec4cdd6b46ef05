"""A session of PostgreSQL that never waits for long; it may hold one advisory lock.

Its questions go by libpq's own calls: those of a psycopg connection wait for an answer
without an end, and a server that stands still (its system acknowledges every packet)
would keep an election from noticing.
"""

from __future__ import annotations

import logging
import re
import selectors
import threading
import time
from math import ceil

import psycopg
from psycopg import errors
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.postgres import conninfo_with_limits, passes

_log = logging.getLogger(__name__)

#: How often a wait for an answer looks whether it is still wanted.
_SLICE_S = 0.1

#: The server ends a session that has been silent for too long from this version on.
_IDLE_TIMEOUT_VERSION = 140_000

_MAX_NAME = 63  # bytes; the server cuts longer ones off

# By a 64-bit key as pg_locks shows it: two halves, and 1 for "one number".
_TRY_LOCK = "SELECT pg_catalog.pg_try_advisory_lock({key})"
_HAS_LOCK = """
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND pid = pg_catalog.pg_backend_pid() AND granted
        AND classid = {high} AND objid = {low} AND objsubid = 1
)
"""
_IS_STANDBY = "SELECT pg_catalog.pg_is_in_recovery()"

#: Of what a server refuses a connection with, libpq tells no code, only the text; where
#: it is in another language, the refusal counts as one that may pass.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf "
    r"rejects|(?:role|database) \".*\" does not exist|not permitted to log in"
    r"|permission denied for database|does not support SSL"
    r"|definition of service \".*\" not found"
)


#: As the server spells the values; None for NULL.
Rows = list[tuple[bytes | None, ...]]


class SessionLostError(Exception):
    """The session is over, or does not answer; whatever it held is another's."""


class Session:
    """One session, used by one thread at a time.

    Args:
        conninfo: The server.
        name: Names the session, for people who look at the server.
        silence_s: How long nothing may be answered before this side gives it up.

    Raises:
        SessionLostError: The server does not answer.
        MisconfiguredError: It refuses, and would refuse again.
    """

    def __init__(self, conninfo: str, name: str, silence_s: float) -> None:
        self._silence_s = silence_s
        #: Set by whoever wants no answers any more.
        self.is_given_up = threading.Event()
        self._connection = _connect(conninfo, name, silence_s)
        self._libpq = self._connection.pgconn
        self._asked_at = time.monotonic()
        info = self._connection.info
        #: Where it is: a server's database.
        self.place = f"{info.host}:{info.port}/{info.dbname}"

    def ask(self, statement: str, *parameters: str) -> Rows:
        """The rows of an answer, none of a command.

        It has to come before the server may take the session for silent, counted from
        the last question that was answered.

        Raises:
            SessionLostError: No answer; the session has to be closed.
            psycopg.Error: The server refuses, and would refuse again.
        """
        asked_at = time.monotonic()
        deadline = self._asked_at + self._silence_s
        try:
            if parameters:
                given = [parameter.encode() for parameter in parameters]
                self._libpq.send_query_params(statement.encode(), given)
            else:
                self._libpq.send_query(statement.encode())
            while self._libpq.flush():
                self._wait(deadline, selectors.EVENT_READ | selectors.EVENT_WRITE)
                self._libpq.consume_input()
            results = self._results(deadline)
            if time.monotonic() > deadline:  # this process was stopped meanwhile
                raise SessionLostError(f"no answer within {self._silence_s:g} s")
            self._asked_at = asked_at
            return [row for result in results for row in _rows_of(result)]
        except psycopg.Error as error:
            if passes(error):
                raise SessionLostError(text_of(error)) from error
            raise

    def _results(self, deadline: float) -> list[PGresult]:
        results: list[PGresult] = []
        while True:
            while self._libpq.is_busy():
                self._wait(deadline, selectors.EVENT_READ)
                self._libpq.consume_input()
            result = self._libpq.get_result()
            if result is None:
                return results
            results.append(result)

    def _wait(self, deadline: float, events: int) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._libpq.socket, events)
            while not self.is_given_up.is_set():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise SessionLostError(f"no answer within {self._silence_s:g} s")
                if selector.select(min(left_s, _SLICE_S)):
                    return
        raise SessionLostError("it was given up")

    def close(self) -> None:
        """End the session, with what it holds."""
        self._connection.close()


class LockSession(Session):
    """A session that may hold an advisory lock.

    Args:
        conninfo: The server.
        key: The lock's.
        name: Names the session, for people who look at the server.
        silence_s: How long the session may be silent before the server ends it, and
            before this side gives it up.

    Raises:
        SessionLostError: The server does not answer, or is not one to elect by now.
        MisconfiguredError: It refuses, and would refuse again.
    """

    def __init__(self, conninfo: str, key: int, name: str, silence_s: float) -> None:
        super().__init__(conninfo, name, silence_s)
        self._key = key
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def _prepare(self) -> None:
        if self._libpq.server_version >= _IDLE_TIMEOUT_VERSION:
            self._is_so(f"SET idle_session_timeout = {ceil(self._silence_s * 1000)}")
        else:
            _log.warning(
                "PostgreSQL before 14 does not end silent sessions: a leader that is "
                "stopped, or cut off, stays elected until its connection breaks"
            )
        if self._is_so(_IS_STANDBY):
            raise SessionLostError("it is a standby, whose locks are not the primary's")

    def try_lock(self) -> bool:
        """Take the lock if nobody has it.

        Raises:
            SessionLostError: No answer; the session has to be closed.
            MisconfiguredError: The server refuses, and would refuse again.
        """
        return self._is_so(_TRY_LOCK.format(key=self._key))

    def has_lock(self) -> bool:
        """Whether this session has the lock, as the server says.

        Raises:
            SessionLostError: No answer; the session has to be closed.
            MisconfiguredError: The server refuses, and would refuse again.
        """
        bits = self._key % 2**64
        return self._is_so(_HAS_LOCK.format(high=bits >> 32, low=bits % 2**32))

    def _is_so(self, statement: str) -> bool:
        """The answer to a question of one truth value; False to any other."""
        try:
            return self.ask(statement) == [(b"t",)]
        except psycopg.Error as error:
            raise MisconfiguredError(
                "connect", ..., f"the server refuses the election: {text_of(error)}",
                "Connect as a role that may use advisory locks.",
            ) from error  # fmt: skip


def _connect(conninfo: str, name: str, timeout_s: float) -> psycopg.Connection[object]:
    limited = conninfo_with_limits(conninfo, timeout_s)
    if "application_name" not in conninfo_to_dict(limited):
        limited = make_conninfo(limited, application_name=name[:_MAX_NAME])
    try:
        return psycopg.connect(limited, autocommit=True)
    except psycopg.Error as error:
        if passes(error) and not _REFUSED.search(str(error)):
            raise SessionLostError(text_of(error)) from error
        raise MisconfiguredError(
            "connect", ..., f"the server refuses the connection: {text_of(error)}",
            "Give a role and a database that are there, and what the role logs in by.",
        ) from error  # fmt: skip


def _rows_of(result: PGresult) -> Rows:
    if result.status == ExecStatus.TUPLES_OK:
        return [
            tuple(result.get_value(row, column) for column in range(result.nfields))
            for row in range(result.ntuples)
        ]
    if result.status == ExecStatus.COMMAND_OK:
        return []
    state = result.error_field(DiagnosticField.SQLSTATE) or b""
    said = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or b""
    try:
        kind = errors.lookup(state.decode())
    except KeyError:
        kind = psycopg.OperationalError
    raise kind(said.decode(errors="replace"))


def text_of(error: psycopg.Error) -> str:
    """What the server says, in one line, without libpq's hints (behind a tab)."""
    said = str(error).split("\n")
    told = " ".join(line for line in said if not line.startswith("\t"))
    return " ".join(told.split()).rstrip(".")
