"""What is ZooKeeper's own of an election by its nodes."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from epochfence import ElectionUnavailable, MisconfiguredError
from epochfence.elections import ZookeeperElection
from epochfence.elections.zookeeper import election_path
from support.election_servers import Zookeeper
from support.elections import nodes_of
from support.waiting import wait_until

_WAIT_S = 60


@pytest.fixture
def scope() -> str:
    return f"office-{secrets.token_hex(6)}"


@pytest.fixture
def client(zookeeper: Zookeeper) -> Iterator[Any]:
    with zookeeper.client() as client:
        yield client


def test_the_nodes_are_where_they_are_said_to_be(
    zookeeper: Zookeeper, client: Any, scope: str
) -> None:
    # Part of the interface: others may look for them, and all versions must agree.
    assert election_path("orders/3") == "/epochfence-election/scope-orders%2F3"
    with ZookeeperElection(zookeeper.hosts, scope) as first:
        assert first.campaign(_WAIT_S)
        (node,) = nodes_of(zookeeper, scope)
        stat = client.exists(node)
        assert first.zxid == stat.czxid
        assert stat.ephemeralOwner != 0


def test_a_node_that_is_deleted_deposes_at_once(
    zookeeper: Zookeeper, client: Any, scope: str
) -> None:
    """Long before its session would be looked after."""
    with ZookeeperElection(zookeeper.hosts, scope, session_timeout_s=60) as candidate:
        assert candidate.campaign(_WAIT_S)
        wait_until(lambda: _watches(client, scope) == 1, 10, "it watches its node")
        client.delete(nodes_of(zookeeper, scope)[0])
        assert candidate.lost.wait(5)
        assert candidate.campaign(_WAIT_S)


def _watches(client: Any, scope: str) -> int:
    """How many watch a node of the office."""
    told: str = client.command(b"wchp")
    return sum(line.startswith(election_path(scope)) for line in told.splitlines())


def test_waiting_candidates_watch_only_who_is_right_before(
    zookeeper: Zookeeper, client: Any, scope: str
) -> None:
    """Else all of them would come and ask whenever one has gone."""
    opened = [ZookeeperElection(zookeeper.hosts, scope) for _ in range(4)]
    try:
        assert opened[0].campaign(_WAIT_S)
        assert not any(one.campaign(0) for one in opened[1:])
        wait_until(lambda: _watches(client, scope) == 4, _WAIT_S, "all nodes watched")
        told = client.command(b"wchp").split("/epochfence-election/")
        counts = sorted(
            node.count("\t0x") for node in told if node.startswith("scope-")
        )
        assert counts == [1, 2, 2, 2]  # its own, and the one behind
    finally:
        for one in opened:
            one.close()


def test_a_client_of_the_applications_stays_open(
    zookeeper: Zookeeper, client: Any, scope: str
) -> None:
    with ZookeeperElection(client, scope) as candidate:
        assert candidate.campaign(_WAIT_S)
        assert nodes_of(zookeeper, scope)
    assert nodes_of(zookeeper, scope) == []
    assert client.connected


def test_a_client_that_others_keep_busy_hides_no_silence(
    zookeeper: Zookeeper, scope: str
) -> None:
    """kazoo takes each question for a ping, and stays CONNECTED: the clock does not."""
    client = KazooClient(zookeeper.hosts, timeout=1)
    client.start()
    try:
        candidate = ZookeeperElection(client, scope, session_timeout_s=1)
        assert candidate.campaign(_WAIT_S)
        zookeeper.freeze()
        deadline = time.monotonic() + 3
        while not candidate.lost.wait(0.05) and time.monotonic() < deadline:
            client.exists_async("/")
        assert candidate.lost.is_set()
        assert client.connected
        zookeeper.thaw()
        candidate.close()
    finally:
        zookeeper.thaw()
        client.stop()
        client.close()


@pytest.mark.parametrize("is_own", [True, False])
def test_who_resigns_while_the_server_is_down_is_gone_soon_after(
    is_own: bool, zookeeper: Zookeeper, scope: str
) -> None:
    """Else its node blocks the office as long as the session lasts."""
    # Named several times: a server that is starting may swallow a first try.
    client = KazooClient(",".join([zookeeper.hosts] * 10), timeout=20)
    connect = zookeeper.hosts if is_own else client
    candidate = ZookeeperElection(connect, scope, session_timeout_s=20)
    other = ZookeeperElection(zookeeper.hosts, scope)
    try:
        client.start()
        assert candidate.campaign(_WAIT_S)
        assert not other.campaign(0)
        zookeeper.stop()
        wait_until(lambda: not client.connected, _WAIT_S, "it is cut off")
        candidate.resign()
        zookeeper.start()
        wait_until(lambda: _is_elected(other), 18, "the other one is elected")
    finally:
        other.close()
        client.stop()
        client.close()


def _is_elected(candidate: ZookeeperElection) -> bool:
    try:
        return candidate.campaign(1)
    except ElectionUnavailable:
        return False


def test_a_client_that_does_not_run(zookeeper: Zookeeper, scope: str) -> None:
    client = KazooClient(zookeeper.hosts)
    candidate = ZookeeperElection(client, scope)
    for _ in range(2):
        with pytest.raises(MisconfiguredError, match=r"does not run.*was started"):
            candidate.campaign(0)
        client.start()
        assert candidate.campaign(_WAIT_S)
        client.stop()
        assert candidate.lost.is_set()
    candidate.close()
    client.close()


def test_servers_may_name_a_path(zookeeper: Zookeeper, client: Any, scope: str) -> None:
    with ZookeeperElection(f"{zookeeper.hosts}/apps/shop", scope) as candidate:
        with pytest.raises(MisconfiguredError, match=r"no node /apps/shop.*Create"):
            candidate.campaign(0)
        client.ensure_path("/apps/shop")
        assert candidate.campaign(_WAIT_S)
        assert client.exists(f"/apps/shop{election_path(scope)}")


def test_servers_are_tried_until_one_listens(zookeeper: Zookeeper, scope: str) -> None:
    with ZookeeperElection(f"127.0.0.1:1,{zookeeper.hosts}", scope) as candidate:
        assert candidate.campaign(_WAIT_S)


def test_who_may_and_who_may_not(zookeeper: Zookeeper, client: Any, scope: str) -> None:
    client.ensure_path("/epochfence-election")
    acl = [make_digest_acl("alice", "s3cret", all=True)]
    client.create(election_path(scope), acl=acl)
    right = {"auth_data": [("digest", "alice:s3cret")]}
    with ZookeeperElection(zookeeper.hosts, scope, settings=right) as candidate:
        assert candidate.campaign(_WAIT_S)
    wrong: dict[str, Any]
    for wrong in ({}, {"auth_data": [("digest", "alice:wr0ng")]}):
        with ZookeeperElection(zookeeper.hosts, scope, settings=wrong) as candidate:
            with pytest.raises(MisconfiguredError, match=r"NoAuth.*auth_data") as no:
                candidate.campaign(_WAIT_S)
            assert "wr0ng" not in str(no.value)
            assert candidate.lost.is_set()


def test_credentials_that_zookeeper_does_not_know(
    zookeeper: Zookeeper, scope: str
) -> None:
    settings = {"auth_data": [("nonsense", "alice:s3cret")]}
    with (
        ZookeeperElection(zookeeper.hosts, scope, settings=settings) as candidate,
        pytest.raises(MisconfiguredError, match="does not let this client in"),
    ):
        candidate.campaign(_WAIT_S)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"hosts": "a"}, "sets this itself"),
        ({"timeout": 3}, "sets this itself"),
        ({"what": 3}, "does not take them"),
        ({"ca": "/nowhere/ca.pem"}, "cannot be read"),
        ({"sasl_options": {"mechanism": "DIGEST-MD5"}}, "pure-sasl"),
        ("use_ssl", "a mapping"),
    ],
)
def test_settings_are_checked(settings: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(MisconfiguredError, match=said):
        ZookeeperElection("127.0.0.1:1", "office", settings=settings)


def test_arguments_are_checked(client: Any) -> None:
    wrong: Any
    for wrong in (
        "", ",", "a:port", "a:99999", "[::1", 5, None,
        "zookeeper://a:2181", "a b c", "a:1 b:2", "a:", "user@a", "a//path", "a:1,",
    ):  # fmt: skip
        with pytest.raises(MisconfiguredError) as refused:
            ZookeeperElection(wrong, "office")
        assert refused.value.setting == "connect"
    for right in ("a", "a:1, b:2", "[::1]:2181", "a:1/path", "a:1/"):
        ZookeeperElection(right, "office").close()
    with pytest.raises(MisconfiguredError, match="made already"):
        ZookeeperElection(client, "office", settings={"use_ssl": True})
    with pytest.raises(MisconfiguredError, match="not a time") as refused:
        ZookeeperElection("a", "office", session_timeout_s=0)
    assert refused.value.setting == "session_timeout_s"
