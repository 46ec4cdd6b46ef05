"""A log's topics, as confluent-kafka tells of them."""

from __future__ import annotations

from typing import Any

from confluent_kafka import KafkaError
from confluent_kafka.admin import ClusterMetadata, PartitionMetadata, TopicMetadata

from epochfence.testing.log import MemoryLog


def metadata_of(log: MemoryLog, topic: str | None) -> ClusterMetadata:
    """What `list_topics` gives: one topic, or all of them."""
    cluster: Any = ClusterMetadata()  # its annotations say that all is None
    cluster.cluster_id = log.cluster_id
    topics = log.topics()
    for name in topics if topic is None else [topic]:
        described: Any = TopicMetadata()
        described.topic = name
        if name not in topics:
            described.error = KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)
        for number in topics.get(name, ()):
            partition: Any = PartitionMetadata()
            partition.id, partition.leader = number, 0
            described.partitions[number] = partition
        cluster.topics[name] = described
    told: ClusterMetadata = cluster
    return told
