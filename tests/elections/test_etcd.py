"""What is etcd's own of an election by its keys."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import certifi
import pytest

from epochfence import ElectionUnavailable, MisconfiguredError
from epochfence.elections import EtcdElection
from epochfence.elections.etcd import election_prefix
from support.answering import answering
from support.election_servers import Etcd
from support.elections import keys_of

_WAIT_S = 60


@pytest.fixture
def scope() -> str:
    return f"office-{secrets.token_hex(6)}"


def test_the_keys_are_where_they_are_said_to_be(etcd: Etcd, scope: str) -> None:
    # Part of the interface: others may look for them, and all versions must agree.
    assert election_prefix("orders/3") == "epochfence-election/orders%2F3/"
    with EtcdElection(etcd.endpoint, scope) as first:
        assert first.campaign(_WAIT_S)
        with EtcdElection(etcd.endpoint, scope) as second:
            assert not second.campaign(0)
            oldest, newer = keys_of(etcd, scope)
        assert int(newer["create_revision"]) > int(oldest["create_revision"])
        lease = f"{int(oldest['lease']):x}"
        assert oldest["key"].decode() == election_prefix(scope) + lease
        assert first.revision == int(oldest["create_revision"])


def test_an_office_is_no_part_of_another(etcd: Etcd, scope: str) -> None:
    with (
        EtcdElection(etcd.endpoint, f"{scope}/3") as part,
        EtcdElection(etcd.endpoint, scope) as whole,
    ):
        assert part.campaign(_WAIT_S)
        assert whole.campaign(0)


def test_a_key_that_is_deleted_deposes_though_its_lease_lives(
    etcd: Etcd, scope: str
) -> None:
    with EtcdElection(etcd.endpoint, scope, ttl_s=2) as candidate:
        assert candidate.campaign(_WAIT_S)
        (key,) = keys_of(etcd, scope)
        with etcd.client() as client:
            assert client.delete(key["key"])
        assert candidate.lost.wait(_WAIT_S)
        assert candidate.campaign(_WAIT_S)


def test_servers_are_asked_until_one_answers(etcd: Etcd, scope: str) -> None:
    endpoints = f"127.0.0.1:1, {etcd.endpoint}"
    with EtcdElection(endpoints, scope) as candidate:
        assert candidate.campaign(_WAIT_S)


def test_a_user_that_may(etcd_with_users: Etcd, scope: str) -> None:
    """Its token ends with the server that gave it; then there is another."""
    server = etcd_with_users
    login: dict[str, Any] = {"user": "root", "password": "root"}
    with (
        EtcdElection(server.endpoint, scope, **login, ttl_s=30) as first,
        EtcdElection(server.endpoint, scope, **login, ttl_s=30) as second,
    ):
        assert first.campaign(_WAIT_S)
        assert not second.campaign(0)
        server.stop()
        server.start()
        assert not second.campaign(0)
        assert not first.lost.is_set()
        first.resign()  # which takes a token, too; else its lease lasts
        assert second.campaign(10)


def test_a_login_is_no_harm_where_nobody_is_asked(etcd: Etcd, scope: str) -> None:
    with EtcdElection(etcd.endpoint, scope, user="any", password="any") as candidate:
        assert candidate.campaign(_WAIT_S)


@pytest.mark.parametrize(
    ("login", "said"),
    [
        ({}, "user name is empty"),
        ({"user": "root", "password": "wr0ng"}, "invalid user ID or password"),
        ({"user": "nobody", "password": "wr0ng"}, "invalid user ID or password"),
        ({"user": "alice", "password": "alice"}, "permission denied"),
    ],
)
def test_who_is_not_let_in(
    login: dict[str, Any], said: str, etcd_with_users: Etcd, scope: str
) -> None:
    with EtcdElection(etcd_with_users.endpoint, scope, **login) as candidate:
        with pytest.raises(MisconfiguredError, match=said) as refused:
            candidate.campaign(_WAIT_S)
        assert refused.value.setting == "user"
        assert "user=..., password=..." in refused.value.remedy
        assert "wr0ng" not in str(refused.value)
        assert candidate.lost.is_set()


def test_a_secure_server(
    secure_etcd: Etcd, scope: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the environment trusts must not count for more than what is given.
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())
    with EtcdElection(secure_etcd.endpoint, scope, ca=str(secure_etcd.ca)) as trusting:
        assert trusting.campaign(_WAIT_S)
    with EtcdElection(secure_etcd.endpoint, scope) as doubting:
        with pytest.raises(MisconfiguredError, match=r"self.signed") as refused:
            doubting.campaign(_WAIT_S)
        assert "ca=..." in refused.value.remedy
    plain = secure_etcd.endpoint.replace("https", "http")
    with (
        EtcdElection(plain, scope) as candidate,
        pytest.raises(ElectionUnavailable, match="closed connection without response"),
    ):
        candidate.campaign(_WAIT_S)


def test_a_plain_server_that_is_asked_for_tls(etcd: Etcd, scope: str) -> None:
    endpoint = etcd.endpoint.replace("http", "https")
    with (
        EtcdElection(endpoint, scope) as candidate,
        pytest.raises(ElectionUnavailable, match=r"reached: \[SSL: .*EOF"),
    ):
        candidate.campaign(_WAIT_S)


@pytest.mark.parametrize(
    ("status", "text", "kind", "said"),
    [
        (404, b"no such page", MisconfiguredError, "not the JSON gateway"),
        (200, b"{}", MisconfiguredError, "not the JSON gateway"),
        (200, b"<html>", ElectionUnavailable, "cannot be read"),
        (503, b"<html>maintenance", ElectionUnavailable, "maintenance"),
        (500, b"oh", ElectionUnavailable, "oh"),
    ],
)
def test_what_is_no_etcd(
    status: int, text: bytes, kind: type[Exception], said: str
) -> None:
    with (
        answering(status, text) as endpoint,
        EtcdElection(endpoint, "office") as candidate,
        pytest.raises(kind, match=said),
    ):
        candidate.campaign(0)


def test_arguments_are_checked(tmp_path: Path) -> None:
    wrong: Any
    for wrong in ("", "a,,b", "ftp://a", "http://u:p@a", "a:port", "a:99999", "a/b", 5):
        with pytest.raises(MisconfiguredError) as refused:
            EtcdElection(wrong, "office")
        assert refused.value.setting == "endpoints"
    for wrong in (0, 1, 2.5, True, "10", 3601):
        with pytest.raises(MisconfiguredError, match="whole seconds"):
            EtcdElection("a", "office", ttl_s=wrong)
    with pytest.raises(MisconfiguredError, match="not a time") as refused:
        EtcdElection("a", "office", interval_s=0)
    assert refused.value.setting == "interval_s"
    there = tmp_path / "there.pem"
    there.touch()
    alone: Any
    for alone in ({"user": "u"}, {"password": "p4ss"}, {"cert": str(there)}):
        with pytest.raises(MisconfiguredError, match="no use alone") as refused:
            EtcdElection("a", "office", **alone)
        assert "p4ss" not in str(refused.value)
    with pytest.raises(MisconfiguredError, match="no such file"):
        EtcdElection("a", "office", ca=str(tmp_path / "gone.pem"))
