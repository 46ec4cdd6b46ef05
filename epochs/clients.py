"""Where every shell gets its clients from: the one way to a cluster.

`KAFKA` opens real ones. A ledger brings along what it was opened with, and whoever goes
by that ledger uses the same, so that all of them reach one cluster, or (the testing
kit's `MemoryClients`) none at all.
"""

from __future__ import annotations

from confluent_kafka import Consumer, Producer

from epochfence.epochs.connection import (
    Config,
    LastError,
    appending_producer,
    group_consumer,
    has_member,
    has_member_with,
    transactional_producer,
    writing_producer,
)
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.synced_log import BeforeReload, SyncedLog, Unavailable
from epochfence.epochs.topic_log import Follower
from epochfence.epochs.topics import TopicKeeper


class Clients:
    """Opens clients of Kafka. What is raised, the classes and functions named tell.

    Attributes:
        can_add_partitions: Whether topics may get more partitions while they are used.
    """

    can_add_partitions = True

    def appending_producer(self, config: Config, last_error: LastError) -> Producer:
        """As `connection.appending_producer`."""
        return appending_producer(config, last_error)

    def writing_producer(self, config: Config, last_error: LastError) -> Producer:
        """As `connection.writing_producer`."""
        return writing_producer(config, last_error)

    def transactional_producer(
        self, config: Config, last_error: LastError, *, with_reports: bool = False
    ) -> Producer:
        """As `connection.transactional_producer`."""
        return transactional_producer(config, last_error, with_reports=with_reports)

    def group_consumer(self, config: Config, last_error: LastError) -> Consumer:
        """As `connection.group_consumer`."""
        return group_consumer(config, last_error)

    def partition_reader(
        self,
        config: Config,
        topic: str,
        partition: int,
        *,
        isolation: str = "read_committed",
    ) -> PartitionReader:
        """A `PartitionReader`."""
        return PartitionReader(config, topic, partition, isolation=isolation)

    def topic_keeper(self, config: Config, timeout_s: float) -> TopicKeeper:
        """A `TopicKeeper`."""
        return TopicKeeper(config, timeout_s)

    def has_member_with(
        self, config: Config, group: str, topic: str, partition: int, timeout_s: float
    ) -> bool:
        """As `connection.has_member_with`."""
        return has_member_with(config, group, topic, partition, timeout_s)

    def has_member(
        self, config: Config, group: str, member_id: str, timeout_s: float
    ) -> bool:
        """As `connection.has_member`."""
        return has_member(config, group, member_id, timeout_s)

    def synced_log(
        self,
        config: Config,
        topic: str,
        follower: Follower,
        keeper: TopicKeeper | None,
        *,
        before_reload: BeforeReload,
        unavailable: Unavailable,
    ) -> SyncedLog:
        """A `SyncedLog`."""
        return SyncedLog(
            config,
            topic,
            follower,
            keeper,
            before_reload=before_reload,
            unavailable=unavailable,
        )


#: Opens clients of the real thing.
KAFKA = Clients()
