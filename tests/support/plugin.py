"""The broker fixtures. Loaded by `tests/conftest.py`.

`kafka`           one broker for the whole run, by the first way that is open, or
                  by the one that EPOCHFENCE_TEST_BROKER demands (docker, maven)
`kafka_cluster`   three nodes for the whole run, always started by the tests
`healing_cluster` the same three nodes, healed after the test that used them

and that of PostgreSQL:

`postgres`        a server for the whole run: EPOCHFENCE_TEST_POSTGRES, or a private one
`own_postgres`    a private one, which a test may stop and start again

and those at which elections are held, always started by the tests:

`etcd`, `zookeeper`  one for the whole run; a test may freeze or stop it, and it runs
                     again for the next one
`etcd_with_users`    one that asks who somebody is: `root`, `alice`; each one's password
                     is the name
`secure_etcd`        one that speaks TLS alone
`kubernetes`         the cluster whose kubeconfig EPOCHFENCE_TEST_KUBERNETES names, or
                     what stands in for one
`lease_server`       what stands in for one; a test may freeze or stop it
`restorable_etcd`    `etcd`, where it can be backed up and restored

and one that counts:

`redis`  a server that writes nothing down, which a test may stop and start again
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import NoReturn, TypeVar

import pytest

from support.brokers import (
    BROKER_VARIABLE,
    HOW_TO_GET_JARS,
    Choice,
    KafkaBroker,
    named_by_environment,
    open_first,
    open_forced,
)
from support.election_servers import (
    Etcd,
    Redis,
    Zookeeper,
    check_etcd_tools,
    start_etcd,
    start_redis,
    start_zookeeper,
)
from support.kafka_docker import docker_broker
from support.kafka_local import KafkaCluster, local_broker, local_cluster
from support.lease_fake import FakeLeases
from support.lease_http import LeaseServer
from support.leases import LeasePlace, open_leases
from support.postgres import OwnPostgres, Postgres, open_postgres, start_postgres
from support.unavailable import Unavailable

# In the order in which they are tried, after the one that the environment names.
STARTED_BROKERS: Mapping[str, Choice] = {
    "docker": docker_broker,
    "maven": local_broker,
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep what needs three nodes in one process: a second cluster is a waste."""
    for item in items:
        if "kafka_cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("three nodes"))


def _do_without(reason: str) -> NoReturn:
    """Skip what needs a broker, except where leaving it out would go unnoticed."""
    if os.environ.get("CI", "").lower() == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


Server = TypeVar("Server")


def _had(open_server: Callable[[], Server]) -> Server:
    """The server that is opened; what needs it does without, where there is none."""
    try:
        return open_server()
    except Unavailable as reason:
        _do_without(str(reason))


def open_broker(stack: ExitStack) -> KafkaBroker:
    """Open the broker that is demanded, or the first that is to be had."""
    forced = os.environ.get(BROKER_VARIABLE)
    if forced:
        return open_forced(forced, STARTED_BROKERS, stack)
    return open_first((named_by_environment, *STARTED_BROKERS.values()), stack)


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaBroker]:
    """A real Kafka broker."""
    with ExitStack() as stack:
        yield _had(partial(open_broker, stack))


@pytest.fixture(scope="session")
def kafka_cluster() -> Iterator[KafkaCluster]:
    """Three Kafka nodes; a test that takes one down asks for `healing_cluster`."""
    with ExitStack() as stack:
        try:
            cluster = local_cluster(stack)
        except Unavailable as reason:
            _do_without(f"no Kafka cluster ({reason}): {HOW_TO_GET_JARS}")
        yield cluster


@pytest.fixture
def healing_cluster(kafka_cluster: KafkaCluster) -> Iterator[KafkaCluster]:
    """The three nodes, all of them up and in sync again for the next test."""
    yield kafka_cluster
    kafka_cluster.heal()


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server."""
    with ExitStack() as stack:
        server = _had(partial(open_postgres, stack))
        yield server


@pytest.fixture
def own_postgres(postgres: Postgres) -> Iterator[OwnPostgres]:
    """A server that a test may stop; it runs again for the next one."""
    with ExitStack() as stack:
        if not isinstance(postgres, OwnPostgres):
            postgres = _had(partial(start_postgres, stack))
        yield postgres
        postgres.start()


@pytest.fixture(scope="session")
def _etcd() -> Iterator[Etcd]:
    with ExitStack() as stack:
        server = _had(partial(start_etcd, stack))
        yield server


@pytest.fixture
def etcd(_etcd: Etcd) -> Iterator[Etcd]:
    """An etcd, which runs again for the next test."""
    yield _etcd
    _etcd.heal()


@pytest.fixture(scope="session")
def _etcd_with_users() -> Iterator[Etcd]:
    with ExitStack() as stack:
        server = _had(partial(start_etcd, stack))
        server.enable_users("alice")
        yield server


@pytest.fixture
def etcd_with_users(_etcd_with_users: Etcd) -> Iterator[Etcd]:
    """An etcd that asks who somebody is; it runs again for the next test."""
    yield _etcd_with_users
    _etcd_with_users.heal()


@pytest.fixture(scope="session")
def secure_etcd() -> Iterator[Etcd]:
    """An etcd that speaks TLS alone."""
    with ExitStack() as stack:
        server = _had(partial(start_etcd, stack, is_secure=True))
        yield server


@pytest.fixture(scope="session")
def _zookeeper() -> Iterator[Zookeeper]:
    with ExitStack() as stack:
        server = _had(partial(start_zookeeper, stack))
        yield server


@pytest.fixture
def zookeeper(_zookeeper: Zookeeper) -> Iterator[Zookeeper]:
    """A ZooKeeper, which runs again for the next test."""
    yield _zookeeper
    _zookeeper.heal()


@pytest.fixture
def restorable_etcd(etcd: Etcd) -> Etcd:
    """An etcd that can be backed up and restored; it runs again for the next test."""
    _had(check_etcd_tools)
    return etcd


@pytest.fixture
def redis() -> Iterator[Redis]:
    """A Redis of this test's own."""
    with ExitStack() as stack:
        server = _had(partial(start_redis, stack))
        yield server


@pytest.fixture(scope="session")
def kubernetes() -> Iterator[LeasePlace]:
    """A place for elections by a Lease."""
    with ExitStack() as stack:
        yield open_leases(stack)


@pytest.fixture
def lease_server() -> Iterator[LeaseServer]:
    """A stand-in for Kubernetes, as far as Leases go."""
    with LeaseServer(FakeLeases().answer) as server:
        yield server
