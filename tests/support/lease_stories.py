"""What candidates and an administrator do at a server of Leases, the same each time.

Each story is told to a real server, while it is recorded, and then to the recording.
No Lease has to be renewed while one is told.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from epochfence import MisconfiguredError
from epochfence.elections import KubernetesElection
from support.kube_files import write_kubeconfig
from support.lease_fake import ADMIN, MALLORY, READER
from support.lease_http import Answer, Question, ask

LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
_LONG_S = 3600
_TIME = "2026-01-01T00:00:00.000001Z"


@dataclass(frozen=True)
class Teller:
    """Tells a story to a server."""

    url: str
    folder: Path

    def open(
        self, lease: str, token: str = ADMIN, namespace: str = "default"
    ) -> KubernetesElection:
        """A candidate."""
        config = write_kubeconfig(self.folder / f"{token}.yaml", self.url, token)
        return KubernetesElection(
            str(config), "office", lease=lease, namespace=namespace,
            lease_duration_s=_LONG_S,
        )  # fmt: skip

    def ask(
        self, method: str, name: str = "", body: Any = None, token: str = ADMIN
    ) -> Answer:
        """Ask about a Lease, or about all, in one's own words."""
        path = f"{LEASES}/{name}" if name else LEASES
        return ask(self.url, Question(method, path, token, body))


def succession(teller: Teller) -> None:
    """One wins, one waits; who resigns is followed at once."""
    first, second = teller.open("succession"), teller.open("succession")
    assert first.campaign(0)
    assert first.transitions == 0
    assert not second.campaign(0)
    first.resign()
    assert teller.ask("GET", "succession").body["spec"]["holderIdentity"] == ""
    assert second.campaign(0)
    assert second.transitions == 1
    assert not first.campaign(0)
    second.close()
    assert first.campaign(0)
    assert first.transitions == 2
    first.close()


def deposition(teller: Teller) -> None:
    """Who was deposed meanwhile gives nothing up that is another's."""
    first, second = teller.open("deposition"), teller.open("deposition")
    assert first.campaign(0)
    lease = teller.ask("GET", "deposition").body
    lease["spec"].update(holderIdentity="other", leaseTransitions=7, renewTime=_TIME)
    assert teller.ask("PUT", "deposition", lease).status == 200
    first.close()
    assert not second.campaign(0)
    lease = teller.ask("GET", "deposition").body
    assert lease["spec"]["holderIdentity"] == "other"
    del lease["spec"]["holderIdentity"]
    assert teller.ask("PUT", "deposition", lease).status == 200
    assert second.campaign(0)
    assert second.transitions == 8
    second.close()


def deletion(teller: Teller) -> None:
    """A Lease that was deleted is made anew."""
    first, second = teller.open("deletion"), teller.open("deletion")
    assert first.campaign(0)
    assert teller.ask("DELETE", "deletion").status == 200
    first.close()
    assert second.campaign(0)
    assert second.transitions == 0
    second.close()


def refusals(teller: Teller) -> None:
    """Who is not known, may not do it, or means no namespace that is there."""
    for token, lease, namespace, said in (
        ("nobody", "refusals", "default", "Unauthorized"),
        (MALLORY, "refusals", "default", "cannot get resource"),
        (READER, "refusals", "default", "cannot create resource"),
        (ADMIN, "refusals", "gone", "no such namespace"),
    ):
        with (
            teller.open(lease, token, namespace) as candidate,
            pytest.raises(MisconfiguredError, match=said),
        ):
            candidate.campaign(0)
    with teller.open("refusals") as elected, teller.open("refusals", READER) as other:
        assert elected.campaign(0)
        assert not other.campaign(0)
        elected.resign()
        with pytest.raises(MisconfiguredError, match="cannot update resource"):
            other.campaign(0)


def writes(teller: Teller) -> None:
    """What is written from an old version is refused, and what is malformed."""
    spec = {
        "holderIdentity": "first", "leaseDurationSeconds": 15, "leaseTransitions": 0,
        "acquireTime": _TIME, "renewTime": _TIME,
    }  # fmt: skip
    new = {"metadata": {"name": "writes"}, "spec": spec}
    assert teller.ask("POST", "", new).status == 201
    assert teller.ask("POST", "", new).status == 409
    old = teller.ask("GET", "writes").body
    renewed = {**old, "spec": {**spec, "renewTime": "2026-01-01T00:00:10.000000Z"}}
    assert teller.ask("PUT", "writes", renewed).status == 200
    assert teller.ask("PUT", "writes", renewed).status == 409
    assert teller.ask("PUT", "writes", old).status == 409
    latest = teller.ask("GET", "writes").body
    for wrong, status in (
        ({"leaseDurationSeconds": 0}, 422),
        ({"leaseTransitions": -1}, 422),
        ({"renewTime": "2026-01-01T00:00:20+00:00"}, 400),
    ):
        changed = {**latest, "spec": {**latest["spec"], **wrong}}
        assert teller.ask("PUT", "writes", changed).status == status
    assert teller.ask("DELETE", "writes").status == 200
    assert teller.ask("DELETE", "writes").status == 404
    assert teller.ask("PUT", "writes", latest).status == 409
    strange = Question("GET", LEASES.replace("v1", "v9") + "/writes", ADMIN)
    assert ask(teller.url, strange).status == 404


STORIES: Mapping[str, Callable[[Teller], None]] = {
    one.__name__: one for one in (succession, deposition, deletion, refusals, writes)
}
