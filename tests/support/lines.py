"""An office at a server where candidates stand in a line, whichever server it is."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from typing import Any

from epochfence.elections import EtcdElection, ZookeeperElection
from support.election_servers import ElectionServer, Etcd, Zookeeper
from support.elections import keys_of, nodes_of

#: No candidate is taken for dead so soon, whatever else the machine does.
LONG_S = 30


class Line(ABC):
    """An office, and its candidates."""

    #: How soon a silent candidate may be taken for dead.
    shortest_s: float
    #: As `support.candidate` names it.
    kind: str

    def __init__(self, server: ElectionServer) -> None:
        self.server = server
        self.scope = f"office-{secrets.token_hex(6)}"
        self._opened: list[EtcdElection | ZookeeperElection] = []

    @property
    @abstractmethod
    def port(self) -> int:
        """The server's."""

    @abstractmethod
    def told(self, lasts_s: float, port: int | None = None) -> dict[str, Any]:
        """What a candidate in another process is told."""

    @abstractmethod
    def _candidate(
        self, lasts_s: float, port: int | None
    ) -> EtcdElection | ZookeeperElection: ...

    def open(
        self, lasts_s: float = LONG_S, port: int | None = None
    ) -> EtcdElection | ZookeeperElection:
        """Another candidate, closed in the end; by another port than the server's."""
        self._opened.append(self._candidate(lasts_s, port))
        return self._opened[-1]

    @abstractmethod
    def count(self) -> int:
        """How many stand in the line, as the server sees it."""

    @staticmethod
    def number(candidate: EtcdElection | ZookeeperElection) -> int | None:
        """What the office was won with."""
        if isinstance(candidate, EtcdElection):
            return candidate.revision
        return candidate.zxid

    def close(self) -> None:
        for candidate in self._opened:
            candidate.close()


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
