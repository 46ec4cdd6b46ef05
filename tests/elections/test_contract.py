"""Every election of ours passes the tests that we give to others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from itertools import cycle

import psycopg
import pytest

from epochfence.elections import (
    Election,
    EtcdElection,
    KafkaElection,
    KubernetesElection,
    PostgresElection,
    ZookeeperElection,
)
from epochfence.testing.election_contract import ElectionContract
from support.brokers import KafkaBroker
from support.election_servers import Etcd, Zookeeper
from support.elections import (
    HASTY,
    delete_elected,
    expel_elected,
    revoke_elected,
    session_of,
)
from support.leases import LeasePlace
from support.waiting import wait_until


class TestKafkaElection(ElectionContract):
    """By a consumer group, on a real broker."""

    @pytest.fixture(autouse=True)
    def _office(self, kafka: KafkaBroker, meeting_topic: str) -> None:
        self.kafka = kafka
        self.topic = meeting_topic
        self.scope = f"office-{secrets.token_hex(6)}"

    def open(self) -> Election:
        return self._candidate(self.scope)

    def open_for(self, scope: str) -> Election:
        return self._candidate(scope)

    def _candidate(self, scope: str) -> KafkaElection:
        return KafkaElection({**self.kafka.config, **HASTY}, scope, topic=self.topic)

    def kill(self, candidate: Election) -> None:
        assert not candidate.lost.is_set(), "who is not elected is not found"
        expel_elected(self.kafka, self.scope)


class TestPostgresElection(ElectionContract):
    """By an advisory lock, on a real server."""

    @pytest.fixture(autouse=True)
    def _office(self, database: str) -> None:
        self.database = database
        self.scope = f"office-{secrets.token_hex(6)}"

    def open(self) -> Election:
        return PostgresElection(self.database, self.scope, interval_s=0.1)

    def open_for(self, scope: str) -> Election:
        return PostgresElection(self.database, scope, interval_s=0.1)

    def kill(self, candidate: Election) -> None:
        assert not candidate.lost.is_set(), "who is not elected is not found"
        with psycopg.connect(self.database, autocommit=True) as connection:
            session = session_of(connection, self.scope)
            assert session is not None
            connection.execute("SELECT pg_terminate_backend(%s)", [session])
            wait_until(
                lambda: session_of(connection, self.scope) != session,
                10,
                "the session is over",
            )


class TestEtcdElection(ElectionContract):
    """By keys, on a real server."""

    @pytest.fixture(autouse=True)
    def _office(self, etcd: Etcd) -> None:
        self.etcd = etcd
        self.scope = f"office-{secrets.token_hex(6)}"

    def open(self) -> Election:
        return self.open_for(self.scope)

    def open_for(self, scope: str) -> Election:
        return EtcdElection(self.etcd.endpoint, scope, ttl_s=2, interval_s=0.05)

    def kill(self, candidate: Election) -> None:
        assert not candidate.lost.is_set(), "who is not elected is not found"
        revoke_elected(self.etcd, self.scope)


class TestKubernetesElection(ElectionContract):
    """By a Lease, at what stands in for Kubernetes or, if it is named, at a cluster."""

    @pytest.fixture(autouse=True)
    def _office(self, kubernetes: LeasePlace) -> Iterator[None]:
        self.kubernetes = kubernetes
        self.scope = f"office-{secrets.token_hex(6)}"
        self.offices = {self.scope}
        yield
        for scope in self.offices:
            kubernetes.delete(scope)

    def open(self) -> Election:
        return self.open_for(self.scope)

    def open_for(self, scope: str) -> Election:
        election = KubernetesElection(
            self.kubernetes.kubeconfig, scope, lease_duration_s=2, interval_s=0.05
        )
        self.offices.add(scope)
        return election

    def kill(self, candidate: Election) -> None:
        assert not candidate.lost.is_set(), "who is not elected is not found"
        self.kubernetes.change(self.scope, holder_identity="")


class TestZookeeperElection(ElectionContract):
    """By nodes, on a real server: a session each, or that of the application."""

    @pytest.fixture(autouse=True)
    def _office(self, zookeeper: Zookeeper) -> Iterator[None]:
        self.zookeeper = zookeeper
        self.scope = f"office-{secrets.token_hex(6)}"
        with zookeeper.client() as client:
            self.connects = cycle([zookeeper.hosts, client])
            yield

    def open(self) -> Election:
        return self.open_for(self.scope)

    def open_for(self, scope: str) -> Election:
        return ZookeeperElection(next(self.connects), scope)

    def kill(self, candidate: Election) -> None:
        assert not candidate.lost.is_set(), "who is not elected is not found"
        delete_elected(self.zookeeper, self.scope)
