"""Kafka started by the tests themselves from the jars: one node, or three."""

import base64
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from support.brokers import KafkaBroker
from support.cluster_view import ClusterView
from support.cut_network import CutNetwork
from support.kafka_node import LOOPBACK, KafkaNode, KafkaRuntime, pick_ports
from support.scratch import Scratch
from support.waiting import wait_until

_HEAL_TIMEOUT_S = 90
_ACL_TIMEOUT_S = 30

# docker/node.sh gives its nodes the same ones.
COMMON_PROPERTIES = {
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    # A misspelt topic must be an error, and deleted topics must stay away.
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "group.initial.rebalance.delay.ms": "0",
    # Lets a test's consumer be taken for dead within seconds.
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "6000",
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
    # See support.compaction.
    "log.cleaner.backoff.ms": "200",
    # A cluster that lives for minutes need not do this behind a test's back.
    "auto.leader.rebalance.enable": "false",
}

GUARDED: Mapping[str, str] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
"""Properties of a node that asks who may do what."""

_CLUSTER_PROPERTIES = {
    "min.insync.replicas": "2",
    # How soon a dead or frozen broker loses its leaderships: by its missing
    # heartbeats at the controller, by its missing fetches at the leaders.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "replica.lag.time.max.ms": "3000",
    "controller.quorum.election.timeout.ms": "1000",
    "controller.quorum.fetch.timeout.ms": "2000",
    # How long a broker waits for a frozen controller before it looks for the new one;
    # until then no follower that lags can be taken out of the in-sync replicas.
    "controller.socket.timeout.ms": "3000",
}


class KafkaCluster(KafkaBroker):
    """Several nodes, each of which a test may take down."""

    def __init__(self, nodes: Sequence[KafkaNode]) -> None:
        super().__init__(",".join(node.bootstrap_servers for node in nodes))
        self.nodes = {node.node_id: node for node in nodes}

    def leader_of(self, topic: str, partition: int) -> int:
        """Return the id of the node that leads a partition, -1 while there is none."""
        return self.admin.list_topics(topic).topics[topic].partitions[partition].leader

    def heal(self) -> None:
        """Bring every node back, and wait until all replicas are in sync again."""
        for node in self.nodes.values():
            node.resume()
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()
        wait_until(self._is_whole, _HEAL_TIMEOUT_S, "every replica is in sync")

    def views(self) -> list[ClusterView | None]:
        """Ask each running node itself: after a fault they may differ."""
        return [node.view() for node in self.nodes.values() if node.is_running]

    def _is_whole(self) -> bool:
        # A node just thawed still shows the cluster of long ago, in which nothing
        # was amiss: all of them must agree as well.
        views = self.views()
        first = views[0] if views else None
        return (
            first is not None
            and len(first.brokers) == len(self.nodes)
            and views == [first] * len(self.nodes)
            and first.is_in_sync()
        )


def local_broker(
    stack: ExitStack, properties: Mapping[str, str] | None = None
) -> KafkaBroker:
    """Start one node (a choice for `support.brokers.open_first`)."""
    (node,) = _start_nodes(1, dict(properties or {}), stack)
    return KafkaBroker(node.bootstrap_servers)


def deny(kafka: KafkaBroker, topic: str, operation: AclOperation) -> None:
    """Forbid everybody something of a topic, on a broker that is `GUARDED`."""
    rule = AclBinding(
        ResourceType.TOPIC, topic, ResourcePatternType.LITERAL, "User:ANONYMOUS",
        "*", operation, AclPermissionType.DENY,
    )  # fmt: skip
    for done in kafka.admin.create_acls([rule]).values():
        done.result(_ACL_TIMEOUT_S)


def local_broker_behind(
    stack: ExitStack, count: int
) -> tuple[KafkaBroker, list[CutNetwork]]:
    """Start one node, which clients also reach over networks that may be cut.

    Whoever comes by one of them is told to come by it again.
    """
    inside = pick_ports(count)
    networks = [stack.enter_context(CutNetwork(port)) for port in inside]
    names = [f"NETWORK{number}" for number in range(count)]
    common = COMMON_PROPERTIES["listener.security.protocol.map"]
    protocols = [common, *(f"{name}:PLAINTEXT" for name in names)]
    listeners = [
        (f"{name}://{LOOPBACK}:{port}", f"{name}://{LOOPBACK}:{network.port}")
        for name, port, network in zip(names, inside, networks, strict=True)
    ]
    properties = {"listener.security.protocol.map": ",".join(protocols)}
    (node,) = _start_nodes(1, properties, stack, listeners)
    return KafkaBroker(node.bootstrap_servers), networks


def local_cluster(stack: ExitStack) -> KafkaCluster:
    """Start three nodes, of which the loss of one is to be noticed soon."""
    return KafkaCluster(_start_nodes(3, _CLUSTER_PROPERTIES, stack))


def _start_nodes(
    count: int,
    extra_properties: dict[str, str],
    stack: ExitStack,
    more_listeners: Sequence[tuple[str, str]] = (),
) -> list[KafkaNode]:
    runtime = KafkaRuntime.find()
    scratch = stack.enter_context(Scratch("kafka"))
    ports = pick_ports(2 * count)
    controllers = [f"{LOOPBACK}:{port}" for port in ports[count:]]
    properties = {
        **COMMON_PROPERTIES,
        **replication(count),
        **extra_properties,
        "controller.quorum.bootstrap.servers": ",".join(controllers),
    }
    nodes: list[KafkaNode] = []
    for node_id, (port, controller) in enumerate(
        zip(ports[:count], controllers, strict=True), start=1
    ):
        client = f"PLAINTEXT://{LOOPBACK}:{port}"
        inside = [
            client,
            f"CONTROLLER://{controller}",
            *(at for at, _ in more_listeners),
        ]
        own = {
            "listeners": ",".join(inside),
            "advertised.listeners": ",".join(
                [client, *(at for _, at in more_listeners)]
            ),
        }
        node = KafkaNode(node_id, port, {**properties, **own}, scratch, runtime)
        stack.callback(node.kill)
        nodes.append(node)
    voters = ",".join(
        f"{node.node_id}@{controller}:{_kafka_uuid()}"
        for node, controller in zip(nodes, controllers, strict=True)
    )
    arguments = ("-t", _kafka_uuid(), "--initial-controllers", voters)
    with ThreadPoolExecutor(count) as pool:
        formatted = [pool.submit(node.format, *arguments) for node in nodes]
    for outcome in formatted:
        outcome.result()
    for node in nodes:
        node.launch()
    for node in nodes:
        node.wait_until_ready()
    return nodes


def replication(count: int) -> dict[str, str]:
    """Return the settings by which everything is kept on `count` nodes."""
    majority = str(count // 2 + 1)
    return {
        "default.replication.factor": str(count),
        "offsets.topic.replication.factor": str(count),
        "transaction.state.log.replication.factor": str(count),
        "transaction.state.log.min.isr": majority,
        "share.coordinator.state.topic.replication.factor": str(count),
        "share.coordinator.state.topic.min.isr": majority,
    }


def _kafka_uuid() -> str:
    """Return a random id as Kafka writes them, which never starts with a dash."""
    while True:
        text = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        if not text.startswith("-"):
            return text
