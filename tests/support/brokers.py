"""The broker that the tests talk to: its face, and the ways to come by one."""

import os
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from support.cluster_view import ClusterView, ask
from support.kafka_jars import MINIMUM_JAVA_VERSION
from support.unavailable import StartFailed, Unavailable
from support.waiting import wait_until

BOOTSTRAP_VARIABLE = "EPOCHFENCE_TEST_BOOTSTRAP_SERVERS"
BROKER_VARIABLE = "EPOCHFENCE_TEST_BROKER"
HOW_TO_GET_JARS = f"install a JDK {MINIMUM_JAVA_VERSION} or later and Maven"
HOW_TO_GET_A_BROKER = (
    f"set {BOOTSTRAP_VARIABLE} to the address of a running broker, or install Docker "
    f"and docker compose, or {HOW_TO_GET_JARS}"
)

IMPATIENT: Mapping[str, int] = {
    "socket.timeout.ms": 4_000,
    "socket.connection.setup.timeout.ms": 2_000,
}
"""Client settings for tests that freeze a node. Its connections stay open and new
ones are even accepted (by the system): with the defaults a client waits there for
30 to 60 s before it turns to another node."""

_TOPIC_TIMEOUT_S = 30
_REQUEST_TIMEOUT_S = 10


class KafkaBroker:
    """A running Kafka, with what tests need to make and drop topics."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers
        # Tests that take brokers down are not to be told so on stderr.
        self.admin = AdminClient({**self.config, **IMPATIENT, "log_level": 2})
        # The library leaves it open what its futures hold; nothing is made of it here.
        self._requests = cast(Any, self.admin)
        self._created: set[str] = set()

    @property
    def config(self) -> dict[str, str]:
        """A fresh client configuration, to be extended at will."""
        return {"bootstrap.servers": self.bootstrap_servers}

    def create_topic(
        self,
        name_prefix: str = "t",
        partitions: int = 1,
        replication_factor: int | None = None,
        config: dict[str, str] | None = None,
    ) -> str:
        """Create a topic of a name never used before, and return the name.

        Every partition has a leader when this returns. Without a replication
        factor the broker's own default holds.
        """
        name = f"{name_prefix}-{secrets.token_hex(6)}"
        factor = -1 if replication_factor is None else replication_factor
        topic = NewTopic(name, partitions, factor, config=config or {})
        self._requests.create_topics([topic])[name].result(_TOPIC_TIMEOUT_S)
        self._created.add(name)
        self._wait_for(
            lambda view: view.leads_all(name, partitions), f"topic {name} is led"
        )
        return name

    def delete_topic(self, name: str) -> None:
        """Delete a topic and wait until it is gone."""
        self._created.discard(name)
        self._requests.delete_topics([name])[name].result(_TOPIC_TIMEOUT_S)
        self._wait_for(lambda view: name not in view.topics, f"topic {name} is gone")

    def delete_created_topics(self) -> None:
        """Delete what tests created and left, on a broker that outlives them."""
        for name in sorted(self._created):
            try:
                self.delete_topic(name)
            except KafkaException as error:
                # A test is free to delete its topic in its own way.
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise

    def views(self) -> Collection[ClusterView | None]:
        """Return the cluster as each running node sees it; None: no answer."""
        return [ask(self.admin, _REQUEST_TIMEOUT_S)]

    def _wait_for(self, seen: Callable[[ClusterView], bool], message: str) -> None:
        """Wait until the condition holds for every node's view."""

        def everywhere() -> bool:
            return all(view is not None and seen(view) for view in self.views())

        wait_until(everywhere, _TOPIC_TIMEOUT_S, message)


Choice = Callable[[ExitStack], KafkaBroker]
"""One way to a broker. It leaves what must be undone in the stack, and raises
`Unavailable` where this machine does not offer that way."""


def open_first(choices: Sequence[Choice], stack: ExitStack) -> KafkaBroker:
    """Open the first broker that is to be had; `Unavailable` tells why none is."""
    reasons: list[str] = []
    for choice in choices:
        try:
            return choice(stack)
        except Unavailable as reason:
            reasons.append(str(reason))
    raise Unavailable(f"no Kafka ({'; '.join(reasons)}): {HOW_TO_GET_A_BROKER}")


def open_forced(
    name: str, choices: Mapping[str, Choice], stack: ExitStack
) -> KafkaBroker:
    """Open the broker that `BROKER_VARIABLE` demands, and no other."""
    if name not in choices:
        known = ", ".join(choices)
        raise StartFailed(f"{BROKER_VARIABLE} is {name!r}: it may be one of {known}")
    try:
        return choices[name](stack)
    except Unavailable as reason:
        # Whoever demands one wants to know that it works: a skip would hide it.
        raise StartFailed(f"{BROKER_VARIABLE} is {name!r}, but {reason}") from reason


def named_by_environment(stack: ExitStack) -> KafkaBroker:
    """Use the running broker that the environment names."""
    servers = os.environ.get(BOOTSTRAP_VARIABLE)
    if not servers:
        raise Unavailable(f"{BOOTSTRAP_VARIABLE} is not set")
    broker = KafkaBroker(servers)
    # Whoever names a broker means that one: fail, rather than start another.
    if ask(broker.admin, _REQUEST_TIMEOUT_S) is None:
        raise StartFailed(f"no answer from {servers}, which {BOOTSTRAP_VARIABLE} names")
    stack.callback(broker.delete_created_topics)
    return broker
