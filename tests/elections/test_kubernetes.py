"""What is Kubernetes's own of an election by a Lease."""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from kubernetes.config import incluster_config

from epochfence import ElectionUnavailable, MisconfiguredError
from epochfence.elections import KubernetesElection, kubernetes_config
from epochfence.elections.kubernetes import lease_name
from support.answering import answering
from support.cut_network import CutNetwork
from support.election_servers import Etcd
from support.kafka_node import LOOPBACK
from support.kube_files import write_kubeconfig
from support.lease_fake import ADMIN, MALLORY, FakeLeases
from support.lease_http import Answer, ConnectionBroken, LeaseServer, Question
from support.leases import LeasePlace
from support.waiting import wait_until

_WAIT_S = 60
_MOMENT_S = 5
_LONG_S = 60


@pytest.fixture
def scope() -> str:
    return f"office-{secrets.token_hex(6)}"


class Meddler:
    """Between questions and their answers; does nothing until it is told."""

    def __init__(self) -> None:
        self._leases = FakeLeases()
        self.asked: list[Question] = []
        #: What becomes of the next questions.
        self.tricks: list[Callable[[Question], Answer | None]] = []
        #: What all questions are refused with meanwhile.
        self.refusal: Answer | None = None

    def answer(self, question: Question) -> Answer:
        self.asked.append(question)
        if self.refusal is not None:
            return self.refusal
        if self.tricks and question.method != "GET":
            changed = self.tricks.pop(0)(question)
            if changed is not None:
                return changed
        return self._leases.answer(question)

    def lose_answer(self, question: Question) -> Answer:
        """It is done; who asked does not hear of it."""
        self._leases.answer(question)
        return Answer(504, {"message": "gateway timeout"})

    def break_connection(self, question: Question) -> Answer:
        """It is done, and the connection breaks."""
        self._leases.answer(question)
        raise ConnectionBroken

    def renew_before(self, question: Question) -> None:
        """Write the same Lease as it is, just before."""
        read = Question("GET", question.path, question.token)
        found = self._leases.answer(read).body
        self._leases.answer(Question("PUT", question.path, question.token, found))


@pytest.fixture
def meddler() -> Meddler:
    return Meddler()


@pytest.fixture
def place(meddler: Meddler, tmp_path: Path) -> Iterator[LeasePlace]:
    with LeaseServer(meddler.answer) as server:
        yield LeasePlace(server.kubeconfig(tmp_path, ADMIN))


def _open(place: LeasePlace, scope: str, lasts_s: int = _LONG_S) -> KubernetesElection:
    return KubernetesElection(
        place.kubeconfig, scope, lease_duration_s=lasts_s, interval_s=0.05
    )


def _rival_holds(place: LeasePlace, scope: str, **more: Any) -> None:
    """Have the Lease be somebody's who does not renew it."""
    with _open(place, scope) as candidate:
        assert candidate.campaign(_WAIT_S)
    place.change(scope, holder_identity="rival", **more)


def test_the_lease_is_where_it_is_said_to_be(kubernetes: LeasePlace) -> None:
    # Part of the interface: others may look for it, and all versions must agree.
    assert lease_name("orders/3") == "epochfence-orders-3-05a7b773aadb4633"
    assert lease_name("-/-") == "epochfence-bf0ed375a6f41900"
    assert len({lease_name(scope) for scope in ("a/b", "a.b", "a-b", "A/B")}) == 4
    scope = f"office-{secrets.token_hex(6)}"
    try:
        with _open(kubernetes, scope) as candidate:
            assert candidate.campaign(_WAIT_S)
            spec = kubernetes.read(scope).spec
            assert spec is not None
            host, process, _ = (spec.holder_identity or "").rsplit(":", 2)
            assert (host, process) == (os.uname().nodename, str(os.getpid()))
            assert spec.lease_duration_seconds == _LONG_S
            assert spec.lease_transitions == candidate.transitions == 0
        spec = kubernetes.read(scope).spec
        assert spec is not None
        # As client-go gives it up.
        assert (spec.holder_identity, spec.lease_duration_seconds) == ("", 1)
    finally:
        kubernetes.delete(scope)


def test_a_lease_of_another_name_in_another_namespace(
    place: LeasePlace, meddler: Meddler
) -> None:
    with KubernetesElection(
        place.kubeconfig, "office", namespace="default", lease="billing.leader"
    ) as candidate:
        assert candidate.campaign(_WAIT_S)
    assert meddler.asked[0].path.endswith("/namespaces/default/leases/billing.leader")


def test_the_namespace_is_the_contexts(tmp_path: Path) -> None:
    config = write_kubeconfig(
        tmp_path / "config", f"http://{LOOPBACK}:1", ADMIN, namespace="billing"
    )
    for namespace, said in ((None, "billing/"), ("other", "other/")):
        with (
            KubernetesElection(str(config), "office", namespace=namespace) as candidate,
            pytest.raises(ElectionUnavailable, match=f"the Lease {said}epochfence-off"),
        ):
            candidate.campaign(0)


def test_a_kubeconfig_without_a_current_context(tmp_path: Path) -> None:
    path = tmp_path / "config"
    for current in ({}, {"current-context": ""}):
        write_kubeconfig(path, f"http://{LOOPBACK}:1", ADMIN, namespace="billing")
        told = json.loads(path.read_text())
        del told["current-context"]
        path.write_text(json.dumps({**told, **current}))
        with (
            KubernetesElection(str(path), "office", context="here") as candidate,
            pytest.raises(ElectionUnavailable, match="the Lease billing/"),
        ):
            candidate.campaign(0)
        with pytest.raises(MisconfiguredError) as refused:
            KubernetesElection(str(path), "office")
        assert refused.value.setting == "connect"


def test_who_waits_follows_soon(place: LeasePlace, scope: str) -> None:
    """Long before anybody could be taken for dead."""
    with _open(place, scope) as first, _open(place, scope) as second:
        assert first.campaign(_WAIT_S)
        elected: list[bool] = []
        waiting = threading.Thread(
            target=lambda: elected.append(second.campaign(_LONG_S))
        )
        waiting.start()
        first.resign()
        waiting.join(_LONG_S)
        assert elected == [True]


def test_who_waits_only_looks(place: LeasePlace, meddler: Meddler, scope: str) -> None:
    with _open(place, scope) as first, _open(place, scope) as second:
        assert first.campaign(_WAIT_S)
        begun = len(meddler.asked)
        assert not second.campaign(0.3)
        second.resign()
    looks = [one.method for one in meddler.asked[begun:-2]]
    assert len(looks) > 1
    assert set(looks) == {"GET"}


def test_who_is_cut_off_knows_before_another_is_elected(
    lease_server: LeaseServer, scope: str, tmp_path: Path
) -> None:
    place = LeasePlace(lease_server.kubeconfig(tmp_path, ADMIN))
    with CutNetwork(lease_server.port) as network, _open(place, scope, 3) as other:
        config = write_kubeconfig(
            tmp_path / "cut", f"http://{LOOPBACK}:{network.port}", ADMIN
        )
        cut_off = _open(LeasePlace(str(config)), scope, 3)
        assert cut_off.campaign(_WAIT_S)
        network.cut()
        assert other.campaign(_WAIT_S)
        assert cut_off.lost.wait(1)  # of which a busy machine may need some
        begun = time.monotonic()
        cut_off.close()
        assert time.monotonic() - begun < 2 * _MOMENT_S


@pytest.mark.parametrize("year", [2001, 2999])
def test_no_time_in_a_lease_counts(place: LeasePlace, scope: str, year: int) -> None:
    """Whatever the clock of the other one says."""
    then = datetime(year, 1, 1, microsecond=1, tzinfo=timezone.utc)
    times = {"acquire_time": then, "renew_time": then}
    _rival_holds(place, scope, **times, lease_duration_seconds=2)
    with _open(place, scope) as candidate:
        begun = time.monotonic()
        assert not candidate.campaign(0)
        assert candidate.campaign(_WAIT_S)
        assert time.monotonic() - begun >= 2
        assert candidate.transitions == 1


def test_what_was_seen_is_remembered_between_two_looks(
    place: LeasePlace, scope: str
) -> None:
    _rival_holds(place, scope, lease_duration_seconds=1)
    with _open(place, scope) as candidate:
        wait_until(lambda: candidate.campaign(0), _WAIT_S, "it is elected by looking")


def test_who_renews_is_not_replaced(place: LeasePlace, scope: str) -> None:
    _rival_holds(place, scope, lease_duration_seconds=5)
    with _open(place, scope) as candidate:
        for second in range(12):
            then = datetime(2026, 1, 1, 0, 0, second, 1, tzinfo=timezone.utc)
            place.change(scope, renew_time=then)
            assert not candidate.campaign(0.5)


def test_a_lease_that_tells_no_time_lasts_as_long_as_an_own_one(
    place: LeasePlace, scope: str
) -> None:
    _rival_holds(place, scope, lease_duration_seconds=None, lease_transitions=None)
    with _open(place, scope, 1) as candidate:
        begun = time.monotonic()
        assert candidate.campaign(_WAIT_S)
        assert time.monotonic() - begun >= 1
        assert candidate.transitions == 1


def test_an_answer_that_was_lost_is_found_out(
    place: LeasePlace, meddler: Meddler, scope: str
) -> None:
    """The Lease was taken, or made, and nobody was told."""
    with _open(place, scope) as first, _open(place, scope) as second:
        for transitions, candidate in ((0, first), (1, second), (2, first)):
            meddler.tricks = [meddler.lose_answer]
            with pytest.raises(ElectionUnavailable, match=r"504 .*gateway timeout"):
                candidate.campaign(_WAIT_S)
            assert candidate.lost.is_set()
            assert candidate.campaign(0)
            assert candidate.transitions == transitions
            candidate.resign()
        meddler.tricks = [meddler.lose_answer]
        with pytest.raises(ElectionUnavailable):
            first.campaign(_WAIT_S)
        first.resign()
        assert second.campaign(0)


def test_a_connection_that_breaks_is_no_matter(
    place: LeasePlace, meddler: Meddler, scope: str
) -> None:
    """What was asked on it is asked again; twice it is not done."""
    with _open(place, scope) as candidate:
        for transitions in range(2):
            meddler.tricks = [meddler.break_connection]
            assert candidate.campaign(_WAIT_S)
            assert candidate.transitions == transitions
            meddler.tricks = [meddler.break_connection]
            candidate.resign()
            spec = place.read(scope).spec
            assert spec is not None
            assert spec.holder_identity == ""


def test_renewals_go_on_whatever_happens_to_one(
    place: LeasePlace, meddler: Meddler, scope: str
) -> None:
    """Done and not told of, refused, or the Lease written meanwhile by an annotator."""
    refused = Answer(403, {"kind": "Status", "message": "RBAC: not there yet"})
    with _open(place, scope, 6) as candidate:
        assert candidate.campaign(_WAIT_S)
        meddler.tricks = [
            meddler.lose_answer, meddler.renew_before, lambda question: refused,
        ]  # fmt: skip
        wait_until(lambda: not meddler.tricks, _WAIT_S, "the tricks have been played")
        before = place.read(scope).spec
        wait_until(lambda: place.read(scope).spec != before, _WAIT_S, "it renews")
        assert not candidate.lost.is_set()


_REFUSALS = [
    Answer(status, {"kind": "Status", "message": "not there yet"})
    for status in (401, 403, 422)
]


@pytest.mark.parametrize("refusal", _REFUSALS, ids=lambda answer: str(answer.status))
def test_a_refusal_that_passes_ends_no_candidacy(
    place: LeasePlace, meddler: Meddler, scope: str, refusal: Answer
) -> None:
    """Roles that are replaced, a webhook, a server that starts."""
    with _open(place, scope) as first, _open(place, scope) as second:
        assert first.campaign(_WAIT_S)
        assert not second.campaign(0)
        meddler.refusal = refusal
        for _ in range(2):
            with pytest.raises(ElectionUnavailable, match="not there yet"):
                second.campaign(0)
        meddler.refusal = None
        assert not second.campaign(0)
        first.resign()
        assert second.campaign(0)


def test_a_refusal_that_lasts_is_told(
    place: LeasePlace, meddler: Meddler, scope: str
) -> None:
    with _open(place, scope, 1) as candidate:
        assert candidate.campaign(_WAIT_S)
        candidate.resign()
        meddler.refusal = _REFUSALS[1]

        told: list[str] = []

        def is_told() -> bool:
            with suppress(ElectionUnavailable):
                try:
                    candidate.campaign(0)
                except MisconfiguredError as error:
                    told.append(error.remedy)
            return bool(told)

        wait_until(is_told, _WAIT_S, "it is told that it is refused")
        assert "get, create and update" in told[0]


def test_each_renewal_says_how_long_it_lasts(place: LeasePlace, scope: str) -> None:
    """Others go by it: one that was edited would be a leader's for too short."""
    with _open(place, scope, 6) as candidate:
        assert candidate.campaign(_WAIT_S)
        place.change(scope, lease_duration_seconds=1)

        def said() -> int | None:
            spec = place.read(scope).spec
            return None if spec is None else spec.lease_duration_seconds

        wait_until(lambda: said() == 6, _WAIT_S, "the Lease lasts as long as ever")
        assert not candidate.lost.is_set()


def test_a_lease_that_was_written_is_given_up_all_the_same(
    place: LeasePlace, meddler: Meddler, scope: str
) -> None:
    with _open(place, scope) as first, _open(place, scope) as second:
        assert first.campaign(_WAIT_S)
        meddler.tricks = [meddler.renew_before]
        first.resign()
        assert second.campaign(0)


def test_a_lease_that_is_taken_or_deleted_deposes(
    place: LeasePlace, scope: str
) -> None:
    with _open(place, scope, 3) as candidate:
        assert candidate.campaign(_WAIT_S)
        place.change(scope, holder_identity="rival", lease_duration_seconds=_LONG_S)
        assert candidate.lost.wait(_WAIT_S)
        assert not candidate.campaign(0)
        candidate.resign()
        spec = place.read(scope).spec
        assert spec is not None
        assert spec.holder_identity == "rival"
        place.delete(scope)
        assert candidate.campaign(0)
        place.delete(scope)
        assert candidate.lost.wait(_WAIT_S)


def test_a_secure_server(secure_etcd: Etcd, scope: str, tmp_path: Path) -> None:
    """etcd's certificate will do: nothing is asked of etcd."""
    with LeaseServer(FakeLeases().answer, secure_etcd.certificate) as server:
        trusting = server.kubeconfig(tmp_path, ADMIN, authority=secure_etcd.ca)
        with KubernetesElection(trusting, scope) as candidate:
            assert candidate.campaign(_WAIT_S)
        doubting = server.kubeconfig(tmp_path, ADMIN)
        with KubernetesElection(doubting, scope) as candidate:
            with pytest.raises(MisconfiguredError, match=r"self.signed") as refused:
                candidate.campaign(_WAIT_S)
            assert "certificate-authority" in refused.value.remedy


def test_in_a_pod(
    secure_etcd: Etcd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Question] = []
    leases = FakeLeases()

    def answer(question: Question) -> Answer:
        asked.append(question)
        return leases.answer(question)

    for name, text in (("token", ADMIN), ("namespace", "default\n")):
        (tmp_path / name).write_text(text)
    with pytest.raises(MisconfiguredError, match="host/port is not set") as refused:
        KubernetesElection("in-cluster", "office")
    assert refused.value.setting == "connect"
    with LeaseServer(answer, secure_etcd.certificate) as server:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", LOOPBACK)
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
        token, ca = str(tmp_path / "token"), str(secure_etcd.ca)
        monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", token)
        monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", ca)
        there = tmp_path / "namespace"
        monkeypatch.setattr(kubernetes_config, "POD_NAMESPACE_FILE", there)
        with KubernetesElection("in-cluster", "office") as candidate:
            assert candidate.campaign(_WAIT_S)
        assert {one.token.lower() for one in asked} >= {ADMIN}
    with pytest.raises(MisconfiguredError, match="one cluster only"):
        KubernetesElection("in-cluster", "office", context="here")


@pytest.mark.parametrize(
    ("token", "namespace", "setting", "said", "remedy"),
    [
        ("nobody", None, "connect", "Unauthorized", "Log in as somebody"),
        (MALLORY, None, "connect", "cannot get resource", "get, create and update"),
        (ADMIN, "gone", "namespace", "no such", "create namespace gone"),
    ],
)
def test_who_is_not_let_in(
    token: str,
    namespace: str | None,
    setting: str,
    said: str,
    remedy: str,
    lease_server: LeaseServer,
    tmp_path: Path,
) -> None:
    config = lease_server.kubeconfig(tmp_path, token)
    with KubernetesElection(config, "office", namespace=namespace) as candidate:
        with pytest.raises(MisconfiguredError, match=said) as refused:
            candidate.campaign(_WAIT_S)
        assert refused.value.setting == setting
        assert remedy in refused.value.remedy
        assert candidate.lost.is_set()


_STRANGE = "not the API of Kubernetes"


@pytest.mark.parametrize(
    ("status", "text", "kind", "said"),
    [
        (404, b"no such page", MisconfiguredError, _STRANGE),
        (404, b'{"kind": "Status", "details": {}}', MisconfiguredError, _STRANGE),
        (200, b"{}", MisconfiguredError, _STRANGE),
        (200, b"[1]", MisconfiguredError, _STRANGE),
        (200, b"<html>", MisconfiguredError, _STRANGE),
        (302, b"<html>elsewhere", MisconfiguredError, _STRANGE),
        (418, b'{"kind": "Status", "message": "tea"}', MisconfiguredError, "tea"),
        (400, b"HTTP request to an HTTPS server.", MisconfiguredError, "no secure"),
        (503, b"<html>maintenance", ElectionUnavailable, "maintenance"),
        (429, b"too many", ElectionUnavailable, "429 too many"),
        (500, b"", ElectionUnavailable, "500"),
    ],
)
def test_what_is_no_kubernetes(
    status: int, text: bytes, kind: type[Exception], said: str, tmp_path: Path
) -> None:
    with answering(status, text) as endpoint:
        config = write_kubeconfig(tmp_path / "config", endpoint, ADMIN)
        with (
            KubernetesElection(str(config), "office") as candidate,
            pytest.raises(kind, match=said),
        ):
            candidate.campaign(0)


def _changed(path: Path, what: str, more: dict[str, Any]) -> str:
    """A kubeconfig, with its cluster or its user changed; what is None is left out."""
    told = json.loads(write_kubeconfig(path, "https://127.0.0.1:1", ADMIN).read_text())
    changed = {**told[f"{what}s"][0][what], **more}
    told[f"{what}s"][0][what] = {
        name: value for name, value in changed.items() if value is not None
    }
    path.write_text(json.dumps(told))
    return str(path)


@pytest.mark.parametrize(
    ("what", "more", "said"),
    [
        ("cluster", {"server": None}, "has no server"),
        ("cluster", {"server": ""}, "has no server"),
        ("cluster", {"server": "there:6443"}, "'there:6443' is no URL"),
        ("cluster", {"server": "https://a b"}, "'https://a b' is no URL"),
        ("cluster", {"server": "https://there:port"}, "is no URL"),
        ("cluster", {"server": "https://"}, "is no URL|has no server"),
        # The base64 of "nonsense".
        (
            "cluster",
            {"certificate-authority-data": "bm9uc2Vuc2U="},
            "its certificate-authority cannot be used",
        ),
        (
            "user",
            {
                "client-certificate-data": "bm9uc2Vuc2U=",
                "client-key-data": "bm9uc2Vuc2U=",
            },
            "its client-certificate, with its client-key, cannot be used",
        ),
    ],
)
def test_what_cannot_be_reached_is_told_at_once(
    what: str, more: dict[str, Any], said: str, tmp_path: Path
) -> None:
    config = _changed(tmp_path / "config", what, more)
    with pytest.raises(MisconfiguredError, match=said) as refused:
        KubernetesElection(config, "office")
    assert refused.value.setting == "connect"


def _logging_in(script: str) -> dict[str, Any]:
    command = ["-c", script]
    version = "client.authentication.k8s.io/v1"
    return {
        "token": None,
        "exec": {"apiVersion": version, "command": "sh", "args": command},
    }


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo no ticket >&2; exit 3", "login command failed: .*3. no ticket"),
        ("echo nothing", "login command failed: failed to decode"),
        ("exec no-such-program", "login command failed: .*127"),
    ],
)
def test_a_login_command_that_fails(
    script: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing is sent without a login; nor does the client's own log line get out."""
    handlers = list(logging.getLogger().handlers)
    config = _changed(tmp_path / "config", "user", _logging_in(script))
    with pytest.raises(MisconfiguredError, match=said) as refused:
        KubernetesElection(config, "office")
    assert refused.value.setting == "connect"
    assert capfd.readouterr().err == ""
    assert logging.getLogger().handlers == handlers


def test_a_login_that_is_over_and_cannot_be_had_anew(
    meddler: Meddler, scope: str, tmp_path: Path
) -> None:
    """It may pass: the candidacy goes on."""
    is_broken = tmp_path / "broken"
    login = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "kind": "ExecCredential",
        "status": {"token": ADMIN, "expirationTimestamp": "2001-01-01T00:00:00Z"},
    }
    script = f"test ! -e {is_broken} || exit 3; echo '{json.dumps(login)}'"
    path = tmp_path / "config"
    with LeaseServer(meddler.answer) as server:
        config = _changed(path, "user", _logging_in(script))
        endpoint = f"http://{LOOPBACK}:{server.port}"
        path.write_text(path.read_text().replace("https://127.0.0.1:1", endpoint))
        with KubernetesElection(config, scope) as candidate:
            assert candidate.campaign(_WAIT_S)
            candidate.resign()
            is_broken.touch()
            with pytest.raises(ElectionUnavailable, match=r"login command failed: .*3"):
                candidate.campaign(0)
            is_broken.unlink()
            assert candidate.campaign(_WAIT_S)


def test_what_is_no_kubeconfig_is_told_in_words(tmp_path: Path) -> None:
    there = tmp_path / "config"
    there.write_text("just a text")
    with pytest.raises(MisconfiguredError, match="it is no kubeconfig") as refused:
        KubernetesElection(str(there), "office")
    assert "object" not in str(refused.value)
    with pytest.raises(MisconfiguredError, match="is a folder"):
        KubernetesElection(str(tmp_path), "office")


def test_arguments_are_checked(tmp_path: Path) -> None:
    there = tmp_path / "config"
    wrong: Any
    for wrong in ("", None, 5, str(tmp_path / "gone")):
        with pytest.raises(MisconfiguredError) as refused:
            KubernetesElection(wrong, "office")
        assert refused.value.setting == "connect"
        assert "in-cluster" in refused.value.remedy
    for text in ("", "a: b: c", "[]", "clusters: 7", "current-context: x", "\0"):
        there.write_text(text)
        with pytest.raises(MisconfiguredError) as refused:
            KubernetesElection(str(there), "office")
        assert refused.value.setting == "connect"
    config = str(write_kubeconfig(there, "http://127.0.0.1:1", ADMIN))
    with pytest.raises(MisconfiguredError, match="elsewhere"):
        KubernetesElection(config, "office", context="elsewhere")
    KubernetesElection(config, "office", context="here").close()
    for wrong in ("", "Upper", "-a", "a-", "a..b", "a_b", "a/b", "x" * 254, "a\n", 5):
        with pytest.raises(MisconfiguredError, match="no name that Kub") as refused:
            KubernetesElection(config, "office", lease=wrong)
        assert refused.value.setting == "lease"
    for wrong in ("", "a.b", "x" * 64, "a\n", 5):
        with pytest.raises(MisconfiguredError, match="no name that Kub") as refused:
            KubernetesElection(config, "office", namespace=wrong)
        assert refused.value.setting == "namespace"
    for wrong in (0, 2.5, True, "10", 3601):
        with pytest.raises(MisconfiguredError, match="whole seconds"):
            KubernetesElection(config, "office", lease_duration_s=wrong)
    with pytest.raises(MisconfiguredError, match="not a time") as refused:
        KubernetesElection(config, "office", interval_s=0)
    assert refused.value.setting == "interval_s"
