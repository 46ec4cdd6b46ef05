"""What every connection of ours to PostgreSQL goes by; and which errors pass."""

from __future__ import annotations

from math import ceil

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from epochfence.epochs.errors import MisconfiguredError


def conninfo_with_limits(conninfo: str, timeout_s: float) -> str:
    """The conninfo string, with limits by which a server that is gone is noticed.

    Raises:
        MisconfiguredError: It is none.
    """
    try:
        given = conninfo_to_dict(conninfo)
        ports = str(given.get("port") or "0").split(",")
        if not all(port.isdecimal() or not port for port in ports):
            raise psycopg.ProgrammingError("port")
    except psycopg.ProgrammingError:
        # What is wrong may be the password: neither it nor libpq's words are told.
        raise MisconfiguredError(
            "connect", ..., "it is no connection string",
            "Give, for instance, postgresql://user@host:5432/database (special "
            "characters of a password as %XX), or host=... dbname=...",
        ) from None  # fmt: skip
    limits = {
        "connect_timeout": ceil(timeout_s),
        "tcp_user_timeout": ceil(timeout_s * 1000),
        "keepalives_idle": ceil(timeout_s / 2),
        "keepalives_interval": ceil(timeout_s / 4),
        "keepalives_count": 2,
    }
    return make_conninfo(
        conninfo, **{name: at for name, at in limits.items() if name not in given}
    )


#: The classes of SQLSTATE that no statement is to blame for: connections, resources
#: (a full disk, too many connections), an operator's doing, the system.
_PASSING_CLASSES = ("08", "53", "57", "58")

_PASSING_STATES = {
    "25006",  # read-only: a standby, or a primary that is being replaced
    "25P03",  # idle for too long in a transaction
    "40001",  # a serialization failure
    "40003",
    "40P01",  # a deadlock
    "55P03",  # a lock was not to be had in time
}


def passes(error: psycopg.Error) -> bool:
    """Whether a statement that fails so may succeed later, without a change."""
    if error.sqlstate is None:  # of the client: a lost connection, an empty pool
        return isinstance(error, psycopg.OperationalError)
    return error.sqlstate in _PASSING_STATES or error.sqlstate[:2] in _PASSING_CLASSES
