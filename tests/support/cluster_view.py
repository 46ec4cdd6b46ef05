"""What a Kafka node says about its cluster, as values that can be compared."""

from collections.abc import Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException
from confluent_kafka.admin import AdminClient


@dataclass(frozen=True)
class PartitionView:
    """Who leads a partition (-1: nobody), who keeps it, and who of them keeps up."""

    leader: int
    replicas: frozenset[int]
    in_sync: frozenset[int]


@dataclass(frozen=True)
class ClusterView:
    """The brokers that are up, and every topic's partitions by their number."""

    brokers: frozenset[int]
    topics: Mapping[str, Mapping[int, PartitionView]]

    def leads_all(self, topic: str, partitions: int) -> bool:
        """Tell whether a topic has so many partitions, each with a leader."""
        seen = self.topics.get(topic, {})
        return len(seen) == partitions and all(p.leader >= 0 for p in seen.values())

    def is_in_sync(self) -> bool:
        """Tell whether every replica of every partition keeps up."""
        return all(
            partition.in_sync == partition.replicas
            for topic in self.topics.values()
            for partition in topic.values()
        )


def ask(client: AdminClient, timeout_s: float) -> ClusterView | None:
    """Return the cluster as the client gets to see it; None where nobody answers."""
    try:
        answer = client.list_topics(timeout=timeout_s)
    except KafkaException:
        return None
    return ClusterView(
        brokers=frozenset(answer.brokers),
        topics={
            name: {
                number: PartitionView(
                    leader=partition.leader,
                    replicas=frozenset(partition.replicas),
                    in_sync=frozenset(partition.isrs),
                )
                for number, partition in topic.partitions.items()
            }
            for name, topic in answer.topics.items()
        },
    )


def partitions_of(client: AdminClient | Consumer, topic: str) -> list[int]:
    """Return the numbers of a topic's partitions; a topic that is missing raises."""
    answer = client.list_topics(topic, timeout=10).topics[topic]
    if answer.error is not None:
        raise KafkaException(answer.error)
    return sorted(answer.partitions)
