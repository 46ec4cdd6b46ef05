"""Epochs that PostgreSQL counts: the numbers of a sequence."""

from __future__ import annotations

import psycopg
from psycopg import errors

from epochfence.elections.postgres_session import Session, SessionLostError, text_of
from epochfence.epochs.errors import EpochUnavailable, MisconfiguredError
from epochfence.epochs.postgres import conninfo_with_limits
from epochfence.epochs.values import check_timeout

_LOOK = """
SELECT s.seqincrement, s.seqcycle, s.seqcache, c.relpersistence
FROM pg_catalog.pg_sequence s JOIN pg_catalog.pg_class c ON c.oid = s.seqrelid
WHERE c.oid = pg_catalog.to_regclass($1)
"""
_NEXT = "SELECT pg_catalog.nextval(pg_catalog.to_regclass($1))"


class PostgresSequence:
    """Gives the next number of a sequence, at each call.

    The sequence has to be one that only rises: permanent, INCREMENT BY 1 or more, NO
    CYCLE, and CACHE 1 (else each session has a stock of its own, and numbers are handed
    out in no order). It is looked at before each number.

    It falls back where somebody resets it (`setval`, `ALTER SEQUENCE ... RESTART`, or
    drops and creates it), where a backup is restored, or with a standby that was
    promoted and lacked the last numbers. The ledger refuses what it then gives;
    `SELECT setval('billing_epoch', N)`, N being the latest epoch, ends that.

    Each call connects, and disconnects. The role needs USAGE on the sequence.

    Args:
        connect: A conninfo string, such as `postgresql://user@host/database`.
        sequence: The sequence, as SQL names it: `billing_epoch`, `app.billing_epoch`.
        timeout_s: How long to connect may take, and how long to be answered.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(self, connect: str, sequence: str, *, timeout_s: float = 10.0) -> None:
        if not isinstance(connect, str):
            raise MisconfiguredError(
                "connect", connect, "each number takes a connection of its own",
                "Give a conninfo string: neither a pool nor a connection.",
            )  # fmt: skip
        if not isinstance(sequence, str) or not sequence or "\0" in sequence:
            raise MisconfiguredError(
                "sequence", sequence, "no sequence's name",
                "Use, for instance, 'billing_epoch' or 'app.billing_epoch'.",
            )  # fmt: skip
        self._sequence = sequence
        self._timeout_s = check_timeout(timeout_s)
        conninfo_with_limits(connect, timeout_s)  # raises if it is none
        self._conninfo = connect

    def __call__(self) -> int:
        """The next number; a call that fails may have taken one.

        Raises:
            EpochUnavailable: The server does not answer, or not now.
            MisconfiguredError: There is no such sequence, it may not be used, or it is
                not one that only rises.
        """
        place = "PostgreSQL"  # until a session tells where
        try:
            session = Session(
                self._conninfo, f"epochfence epoch {self._sequence}", self._timeout_s
            )
            try:
                place = f"PostgreSQL ({session.place})"
                return self._next(session)
            finally:
                session.close()
        except SessionLostError as error:
            raise EpochUnavailable(
                f"sequence {self._sequence} in {place}", str(error)
            ) from error

    def _next(self, session: Session) -> int:
        try:
            found = session.ask(_LOOK, self._sequence)
            if not found:
                raise self._misconfigured(
                    "there is no such sequence", f"CREATE SEQUENCE {self._sequence}"
                )
            self._check(*(value.decode() for value in found[0] if value is not None))
            ((number,),) = session.ask(_NEXT, self._sequence)
        except errors.InsufficientPrivilege as error:
            raise self._misconfigured(
                text_of(error),
                f"Its role needs USAGE on the sequence, and on a schema of yours: "
                f"GRANT USAGE ON SEQUENCE {self._sequence} TO <role>",
            ) from error
        except errors.SequenceGeneratorLimitExceeded as error:
            raise self._misconfigured(
                text_of(error),
                f"ALTER SEQUENCE {self._sequence} AS bigint NO MAXVALUE",
            ) from error
        except psycopg.Error as error:
            raise self._misconfigured(
                f"the server refuses it: {text_of(error)}",
                "Name a sequence as SQL does: 'billing_epoch', 'app.billing_epoch'",
            ) from error
        return int(number or b"")

    def _check(self, increment: str, cycles: str, cache: str, kept: str) -> None:
        alter = f"ALTER SEQUENCE {self._sequence}"
        if int(increment) < 1:
            raise self._misconfigured(
                f"it counts by {increment}, and epochs only rise",
                "Use one that counts up",
            )
        if cycles == "t":
            raise self._misconfigured(
                "it begins anew at its end, and epochs only rise", f"{alter} NO CYCLE"
            )
        if cache != "1":
            raise self._misconfigured(
                f"each session has a stock of {cache} numbers, so that they are not "
                f"handed out in order",
                f"{alter} CACHE 1",
            )
        if kept != "p":
            raise self._misconfigured(
                "it is unlogged, or temporary, and begins anew after a crash",
                f"{alter} SET LOGGED",
            )

    def _misconfigured(self, problem: str, remedy: str) -> MisconfiguredError:
        return MisconfiguredError("sequence", self._sequence, problem, f"{remedy}.")
