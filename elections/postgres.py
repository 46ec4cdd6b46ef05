"""An election by an advisory lock of PostgreSQL: whoever holds it is elected."""

from __future__ import annotations

import threading
import time
from hashlib import sha256

from epochfence.elections.candidate import Candidate
from epochfence.elections.postgres_session import LockSession, SessionLostError
from epochfence.epochs.errors import ElectionUnavailable, MisconfiguredError
from epochfence.epochs.postgres import conninfo_with_limits
from epochfence.epochs.values import check_scope, check_timeout


def lock_key(scope: str) -> int:
    """The advisory lock of an office, a signed 64-bit number.

    The first eight bytes, the highest first, of the SHA-256 of
    `epochfence-election/<scope>`.
    """
    digest = sha256(f"epochfence-election/{check_scope(scope)}".encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


class PostgresElection(Candidate):
    """Elects by a session-level advisory lock: neither tables nor rights are needed.

    The lock is `lock_key(scope)`, in the database that all candidates connect to. The
    session that holds it is named `epochfence election <scope>` in `pg_stat_activity`.

    - **How soon another is elected.** After `resign`, or a crash of the process: when
      a waiting candidate looks next (`interval_s`). After a pause or a cut network:
      `silence_s`, in which the server hears nothing of a session (it ends it then:
      `idle_session_timeout`, which PostgreSQL has from version 14 on; before, the
      office stays taken until the connection breaks). A candidate that gets no answer
      finds `lost` set by then too; one whose session was ended, or whose server went
      down, within `interval_s`.
    - **Who comes next** is chance: candidates look every `interval_s`, and do not stand
      in a line. A statement that waited for the lock would be served in order; but for
      as long as it waits it holds a snapshot, which keeps VACUUM from removing rows in
      the whole database and CREATE INDEX CONCURRENTLY from ending.
    - **Elected, and lost, means out**: it stands again only with the next `campaign`.
    - **Replication** does not carry locks. A standby is refused, but while a primary
      that was replaced goes on, each of the two may elect somebody; the ledger decides.
    - **PgBouncer** will do in session pooling only. With transaction pooling, each
      statement may go to another session: then `lost` is soon set, again and again.

    Only a connection string is taken. A pool's connection would be given to others,
    lock and all; an application's own may be in the middle of a transaction or of a
    long query, and could not be asked whether it is still there.

    Args:
        connect: A conninfo string, such as `postgresql://user@host/database`.
        scope: The office: what is led.
        silence_s: How long a session may be silent before it counts as dead.
        interval_s: How often the elected candidate asks whether it still is, and how
            often a waiting one looks; at most a third of `silence_s`.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        connect: str,
        scope: str,
        *,
        silence_s: float = 10.0,
        interval_s: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(connect, str):
            raise MisconfiguredError(
                "connect", connect, "an election needs a connection of its own, for "
                "as long as it lasts",
                "Give a conninfo string: neither a pool nor a connection.",
            )  # fmt: skip
        self._key = lock_key(scope)
        self._scope = scope
        self._silence_s = check_timeout(silence_s, "silence_s")
        self._interval_s = check_timeout(interval_s, "interval_s")
        if interval_s > silence_s / 3:
            raise MisconfiguredError(
                "interval_s", interval_s, f"too long for silence_s = {silence_s:g}",
                "Use a third of it at most: one late answer is no death.",
            )  # fmt: skip
        conninfo_with_limits(connect, silence_s)  # raises if it is none
        self._conninfo = connect
        self._place = "PostgreSQL"  # until a session tells where
        self._session: LockSession | None = None
        self._watch: threading.Thread | None = None

    def campaign(self, timeout_s: float) -> bool:
        """Stand for election; whether this candidate is elected when this returns.

        Args:
            timeout_s: How long to wait. 0: look once.

        Raises:
            ElectionUnavailable: The server does not answer; with an answer to wait
                for, that may take longer than `timeout_s` (`silence_s` at most).
            MisconfiguredError: It refuses, and would refuse again.
        """
        deadline = self._deadline(timeout_s)
        if not self._lost.is_set():
            return True
        if self._watch is not None:  # it was elected, and is no more
            self.resign()
        while not self._has_taken_it():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            time.sleep(min(left_s, self._interval_s))
        return True

    def _has_taken_it(self) -> bool:
        """Look once whether the office is free, and take it."""
        try:
            session, is_ours = self._look()
        except SessionLostError as error:
            self.resign()
            raise ElectionUnavailable(self._name, str(error)) from error
        except BaseException:
            self.resign()  # nobody knows whether the lock was taken
            raise
        if is_ours:
            self._take_office(session)
        return is_ours

    def _look(self) -> tuple[LockSession, bool]:
        if self._session is not None:
            try:
                return self._session, self._session.try_lock()
            except SessionLostError:
                # Nobody has kept it awake between two calls of `campaign`.
                self.resign()
        name = f"epochfence election {self._scope}"
        session = LockSession(self._conninfo, self._key, name, self._silence_s)
        self._session, self._place = session, f"PostgreSQL ({session.place})"
        return session, session.try_lock()

    def _take_office(self, session: LockSession) -> None:
        self._watch = threading.Thread(
            target=self._keep, args=(session,), name="epochfence-election", daemon=True
        )
        try:
            self._lost.clear()
            self._watch.start()
        except BaseException:
            self.resign()
            raise

    def _keep(self, session: LockSession) -> None:
        """Ask again and again, on a thread of its own, until the office is lost."""
        try:
            while not session.is_given_up.wait(self._interval_s):
                if not session.has_lock():
                    return
        except (SessionLostError, MisconfiguredError):
            pass  # the next `campaign` will tell what it is
        finally:
            # Who has resigned may have been elected again, with another session.
            if not session.is_given_up.is_set():
                self._lost.set()
            session.close()

    @property
    def _name(self) -> str:
        return f"for {self._scope!r} in {self._place}"

    def _leave(self) -> None:
        """End the session, lock and all."""
        self._lost.set()
        session, self._session = self._session, None
        watch, self._watch = self._watch, None
        if session is not None:
            session.is_given_up.set()
        if watch is not None and watch.ident is not None:
            watch.join()
        elif session is not None:
            session.close()
