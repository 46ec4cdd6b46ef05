"""Elections in a hurry, and who is elected as the other side sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import psycopg

from epochfence.elections.postgres import lock_key
from support.brokers import KafkaBroker
from support.groups import expel, members_of

#: Settings by which a group hears of changes soon.
HASTY: Mapping[str, Any] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}


def group_of(scope: str) -> str:
    """The group of an office."""
    return f"epochfence-election-{scope}"


def expel_elected(kafka: KafkaBroker, scope: str) -> None:
    """Have the group take the elected candidate for dead."""
    members = members_of(kafka.admin, group_of(scope))
    (elected,) = [member for member, has in members.items() if has]
    expel(kafka.bootstrap_servers, group_of(scope), elected)


def session_of(connection: psycopg.Connection[Any], scope: str) -> int | None:
    """The process id of the session that holds the lock of an office."""
    row = connection.execute(
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"
        " AND objsubid = 1 AND (classid::bigint << 32 | objid::bigint) = %s",
        [lock_key(scope)],
    ).fetchone()
    return None if row is None else row[0]
