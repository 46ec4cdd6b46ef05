"""Elections in a hurry, and who is elected as the other side sees it."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

import psycopg
import pytest
from etcd3gw import Lease

from epochfence.elections.etcd import election_prefix
from epochfence.elections.postgres import lock_key
from epochfence.elections.zookeeper import election_path
from support.brokers import KafkaBroker
from support.election_servers import Etcd, Zookeeper
from support.groups import expel, members_of

#: Settings by which a group hears of changes soon.
HASTY: Mapping[str, Any] = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 100}

#: Settings by which each kind takes a silent candidate for dead soon.
SOON: Mapping[str, Mapping[str, Any]] = {
    "kafka": {"session.timeout.ms": 1_500, "heartbeat.interval.ms": 200},
    "postgres": {"silence_s": 1.0, "interval_s": 0.2},
    "etcd": {"ttl_s": 2, "interval_s": 0.2},
    "zookeeper": {"session_timeout_s": 1.0},
    "kubernetes": {"lease_duration_s": 2, "interval_s": 0.2},
}


def an_office(kind: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    """An office of a kind of election, as `support.candidate.opened` takes it."""
    told: dict[str, Any] = {
        "kind": kind,
        "times": SOON[kind],
        "scope": f"office-{secrets.token_hex(6)}",
    }
    if kind == "postgres":
        told["conninfo"] = request.getfixturevalue("database")
    elif kind == "kubernetes":
        told["kubeconfig"] = request.getfixturevalue("kubernetes").kubeconfig
    elif kind != "kafka":
        told["server"] = f"127.0.0.1:{request.getfixturevalue(kind).port}"
    return told


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


def keys_of(etcd: Etcd, scope: str) -> list[dict[str, Any]]:
    """The keys of an office's candidates, as etcd tells of them, the oldest first."""
    with etcd.client() as client:
        found = client.get_prefix(election_prefix(scope), "ascend", "create")
        return [dict(facts) for _, facts in found]


def revoke_elected(etcd: Etcd, scope: str) -> None:
    """Have etcd take the elected candidate for dead."""
    elected = keys_of(etcd, scope)[0]
    with etcd.client() as client:
        Lease(int(elected["lease"]), client).revoke()


def nodes_of(zookeeper: Zookeeper, scope: str) -> list[str]:
    """The nodes of an office's candidates, in their order."""
    path = election_path(scope)
    with zookeeper.client() as client:
        if not client.exists(path):
            return []
        names = sorted(client.get_children(path), key=lambda name: name[-10:])
        return [f"{path}/{name}" for name in names]


def delete_elected(zookeeper: Zookeeper, scope: str) -> None:
    """Delete what the elected candidate is elected by."""
    elected = nodes_of(zookeeper, scope)[0]
    with zookeeper.client() as client:
        client.delete(elected)
