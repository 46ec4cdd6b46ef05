"""An office at a server that keeps candidates' places, whichever server it is."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

from epochfence.elections import (
    EtcdElection,
    KubernetesElection,
    ZookeeperElection,
)
from epochfence.elections.line import LineElection
from support.election_servers import Etcd, Zookeeper
from support.elections import keys_of, nodes_of
from support.kafka_node import LOOPBACK
from support.kube_files import write_kubeconfig
from support.lease_fake import ADMIN
from support.lease_http import LeaseServer

#: No candidate is taken for dead so soon, whatever else the machine does.
LONG_S = 30


class Office(ABC):
    """An office, and its candidates."""

    #: How soon a silent candidate may be taken for dead.
    shortest_s: float
    #: As `support.candidate` names it.
    kind: str

    def __init__(self, server: Etcd | Zookeeper | LeaseServer) -> None:
        self.server = server
        self.scope = f"office-{secrets.token_hex(6)}"
        self._opened: list[LineElection] = []

    @property
    @abstractmethod
    def port(self) -> int:
        """The server's."""

    @abstractmethod
    def told(self, lasts_s: float, port: int | None = None) -> dict[str, Any]:
        """What a candidate in another process is told."""

    @abstractmethod
    def _candidate(self, lasts_s: float, port: int | None) -> LineElection: ...

    def open(self, lasts_s: float = LONG_S, port: int | None = None) -> LineElection:
        """Another candidate, closed in the end; by another port than the server's."""
        self._opened.append(self._candidate(lasts_s, port))
        return self._opened[-1]

    @staticmethod
    def number(candidate: LineElection) -> int | None:
        """What the office was won with."""
        if isinstance(candidate, EtcdElection):
            return candidate.revision
        if isinstance(candidate, ZookeeperElection):
            return candidate.zxid
        assert isinstance(candidate, KubernetesElection)
        return candidate.transitions

    def close(self) -> None:
        for candidate in self._opened:
            candidate.close()


class Line(Office):
    """An office whose candidates stand in a line."""

    @abstractmethod
    def count(self) -> int:
        """How many do, as the server sees it."""


class EtcdLine(Line):
    """At etcd."""

    shortest_s = 2
    kind = "etcd"

    def __init__(self, server: Etcd) -> None:
        super().__init__(server)
        self._etcd = server

    @property
    def port(self) -> int:
        return self._etcd.port

    def told(self, lasts_s: float, port: int | None = None) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "scope": self.scope,
            "server": f"127.0.0.1:{port or self.port}",
            "times": {"ttl_s": int(lasts_s), "interval_s": 0.05},
        }

    def _candidate(self, lasts_s: float, port: int | None) -> EtcdElection:
        told = self.told(lasts_s, port)
        return EtcdElection(told["server"], self.scope, **told["times"])

    def count(self) -> int:
        return len(keys_of(self._etcd, self.scope))


class ZookeeperLine(Line):
    """At ZooKeeper."""

    shortest_s = 1.0
    kind = "zookeeper"

    def __init__(self, server: Zookeeper) -> None:
        super().__init__(server)
        self._zookeeper = server

    @property
    def port(self) -> int:
        return self._zookeeper.port

    def told(self, lasts_s: float, port: int | None = None) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "scope": self.scope,
            "server": f"127.0.0.1:{port or self.port}",
            "times": {"session_timeout_s": lasts_s},
        }

    def _candidate(self, lasts_s: float, port: int | None) -> ZookeeperElection:
        told = self.told(lasts_s, port)
        return ZookeeperElection(told["server"], self.scope, **told["times"])

    def count(self) -> int:
        return len(nodes_of(self._zookeeper, self.scope))


class LeaseOffice(Office):
    """By a Lease, at what stands in for Kubernetes."""

    shortest_s = 2
    kind = "kubernetes"

    def __init__(self, server: LeaseServer, folder: Path) -> None:
        super().__init__(server)
        self._leases = server
        self._folder = folder

    @property
    def port(self) -> int:
        return self._leases.port

    def told(self, lasts_s: float, port: int | None = None) -> dict[str, Any]:
        port = port or self.port
        config = write_kubeconfig(
            self._folder / f"{port}.yaml", f"http://{LOOPBACK}:{port}", ADMIN
        )
        return {
            "kind": self.kind,
            "scope": self.scope,
            "kubeconfig": str(config),
            "times": {"lease_duration_s": int(lasts_s), "interval_s": 0.05},
        }

    def _candidate(self, lasts_s: float, port: int | None) -> KubernetesElection:
        told = self.told(lasts_s, port)
        return KubernetesElection(told["kubeconfig"], self.scope, **told["times"])
