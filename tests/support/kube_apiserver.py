"""A real kube-apiserver on an etcd of its own, where somebody has built the program."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import urllib3

from support.election_servers import ElectionServer, Etcd, start_etcd
from support.kafka_node import LOOPBACK, pick_ports
from support.kube_files import write_kubeconfig
from support.lease_fake import ADMIN, MALLORY, READER
from support.scratch import Scratch
from support.unavailable import Unavailable

_ROLES = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles"
_BINDINGS = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"


class KubeApiserver(ElectionServer):
    """One server, which knows the users of `support.lease_fake`, by their names."""

    def __init__(self, scratch: Scratch, program: str, etcd: Etcd) -> None:
        super().__init__(scratch)
        found = shutil.which(program)
        if found is None:
            raise Unavailable(f"no kube-apiserver: there is no program {program}")
        self._program = found
        self._etcd = etcd
        (self._port,) = pick_ports(1)
        self._http = urllib3.PoolManager(cert_reqs="CERT_NONE")
        self.url = f"https://{LOOPBACK}:{self._port}"
        self._certificates = scratch.path / "certificates"
        self._key = scratch.path / "service-accounts.key"
        subprocess.run(
            ["openssl", "genrsa", "-out", str(self._key), "2048"],
            check=True, capture_output=True,
        )  # fmt: skip
        self._tokens = scratch.path / "tokens.csv"
        self._tokens.write_text(
            f'{ADMIN},{ADMIN},1,"system:masters"\n'
            f"{MALLORY},{MALLORY},2\n{READER},{READER},3\n"
        )

    def _command(self) -> list[str]:
        options = {
            "etcd-servers": self._etcd.endpoint,
            "secure-port": str(self._port),
            "bind-address": LOOPBACK,
            "cert-dir": str(self._certificates),
            "service-account-issuer": "https://kubernetes.local",
            "service-account-key-file": str(self._key),
            "service-account-signing-key-file": str(self._key),
            "token-auth-file": str(self._tokens),
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.0.0.0/24",
        }
        return [self._program, *(f"--{name}={at}" for name, at in options.items())]

    def _answers(self) -> bool:
        try:
            return bool(self.ask("GET", "/readyz").status == 200)
        except urllib3.exceptions.HTTPError:
            return False

    def ask(self, method: str, path: str, body: object = None) -> Any:
        """An answer to the administrator."""
        return self._http.request(
            method, self.url + path, json=body, retries=False, timeout=5,
            headers={"Authorization": f"Bearer {ADMIN}"},
        )  # fmt: skip

    def version(self) -> str:
        """Its own."""
        version: str = self.ask("GET", "/version").json()["gitVersion"]
        return version

    def let_read(self, user: str) -> None:
        """Allow a user to read Leases, and nothing else."""
        rule = {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "verbs": ["get"],
        }
        role = {"metadata": {"name": "lease-reader"}, "rules": [rule]}
        binding = {
            "metadata": {"name": "lease-reader"},
            "subjects": [
                {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}
            ],
            "roleRef": {
                "kind": "Role",
                "name": "lease-reader",
                "apiGroup": "rbac.authorization.k8s.io",
            },
        }
        for path, body in ((_ROLES, role), (_BINDINGS, binding)):
            assert self.ask("POST", path, body).status == 201

    def kubeconfig(self, folder: Path) -> Path:
        """A kubeconfig of the administrator."""
        return write_kubeconfig(
            folder / "admin.yaml", self.url, ADMIN,
            authority=self._certificates / "apiserver.crt",
        )  # fmt: skip


def start_kube_apiserver(stack: ExitStack, program: str) -> KubeApiserver:
    """A server of one's own.

    Raises:
        Unavailable: There is no such program, or no etcd.
    """
    etcd = start_etcd(stack)
    scratch = stack.enter_context(Scratch("kube-apiserver"))
    server = KubeApiserver(scratch, program, etcd)
    stack.callback(server.stop)
    server.start()
    server.let_read(READER)
    return server
