"""Systems that count, each with an election, and what takes their numbers back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import closing

import psycopg

from epochfence.elections import (
    Election,
    EtcdElection,
    PostgresElection,
    PostgresSequence,
    ZookeeperElection,
)
from support.election_servers import Etcd, Redis, Zookeeper
from support.elections import SOON
from support.local_election import LocalElection, LocalOffice

_WAIT_S = 60


class Source(ABC):
    """A system that counts.

    Args:
        scope: The office.
    """

    #: Whether its numbers jump over more than 2^32.
    allow_jump = False

    def __init__(self, scope: str) -> None:
        self._scope = scope

    @abstractmethod
    def candidate(self) -> Election:
        """Stands for the office of the numbers."""

    @abstractmethod
    def epoch(self, elected: Election) -> int | None:
        """The number of whoever is elected: `lead(epoch=)`."""

    @abstractmethod
    def fall_back(self) -> None:
        """Go back to lower numbers, as such systems do."""

    def number(self) -> int:
        """The number of one more who was elected, and has resigned."""
        with closing(self.candidate()) as candidate:
            assert candidate.campaign(_WAIT_S)
            number = self.epoch(candidate)
            assert number is not None
            return number


class RestoredEtcd(Source):
    """Revisions; a backup is restored."""

    def __init__(self, scope: str, etcd: Etcd) -> None:
        super().__init__(scope)
        self._etcd = etcd
        self._saved = etcd.back_up()

    def candidate(self) -> EtcdElection:
        return EtcdElection(self._etcd.endpoint, self._scope, **SOON["etcd"])

    def epoch(self, elected: Election) -> int | None:
        assert isinstance(elected, EtcdElection)
        return elected.revision

    def fall_back(self) -> None:
        self._etcd.restore(self._saved)


class EmptiedZookeeper(Source):
    """Transaction ids; its data is lost."""

    allow_jump = True

    def __init__(self, scope: str, zookeeper: Zookeeper) -> None:
        super().__init__(scope)
        self._zookeeper = zookeeper

    def candidate(self) -> ZookeeperElection:
        return ZookeeperElection(
            self._zookeeper.hosts, self._scope, session_timeout_s=10
        )

    def epoch(self, elected: Election) -> int | None:
        assert isinstance(elected, ZookeeperElection)
        return elected.zxid

    def fall_back(self) -> None:
        self._zookeeper.lose_all()


class RecreatedNode(EmptiedZookeeper):
    """Versions of a node, which is deleted and made anew."""

    allow_jump = False

    def __init__(self, scope: str, zookeeper: Zookeeper) -> None:
        super().__init__(scope, zookeeper)
        self._node = f"/counter-{scope}"
        with zookeeper.client() as client:
            client.create(self._node)

    def epoch(self, elected: Election) -> int | None:
        with self._zookeeper.client() as client:
            return int(client.set(self._node, b"").version)

    def fall_back(self) -> None:
        with self._zookeeper.client() as client:
            client.delete(self._node)
            client.create(self._node)


class ResetSequence(Source):
    """Numbers of a sequence, which somebody resets."""

    def __init__(self, scope: str, conninfo: str) -> None:
        super().__init__(scope)
        self._conninfo = conninfo
        self._name = f'"{scope}"'
        self._do(f"CREATE SEQUENCE {self._name}")
        self._sequence = PostgresSequence(conninfo, self._name)

    def candidate(self) -> PostgresElection:
        return PostgresElection(self._conninfo, self._scope, **SOON["postgres"])

    def epoch(self, elected: Election) -> int | None:
        return self._sequence()

    def fall_back(self) -> None:
        self._do(f"ALTER SEQUENCE {self._name} RESTART")

    def _do(self, statement: str) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(statement.encode())


class RestartedRedis(Source):
    """INCR, at a server that writes nothing down, and restarts."""

    def __init__(self, scope: str, redis: Redis) -> None:
        super().__init__(scope)
        self._redis = redis
        self._office = LocalOffice()

    def candidate(self) -> LocalElection:
        return LocalElection(self._office)

    def epoch(self, elected: Election) -> int | None:
        with self._redis.client() as client:
            number = client.incr(self._scope)
            assert isinstance(number, int)
            return number

    def fall_back(self) -> None:
        self._redis.stop()
        self._redis.start()
