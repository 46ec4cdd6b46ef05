"""Making Kafka lose records that it had acknowledged, by an unclean leader election.

A partition with two replicas loses its follower, takes more records by its leader
alone, and loses the leader as well; then the follower comes back, which has none of
those records. Where the topic allows it, the controller makes it leader all the same:
from where it ended the log goes on under a newer leader epoch, and the old leader,
once it is back, cuts off what the new one does not have.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from support.brokers import IMPATIENT
from support.cluster_view import PartitionView
from support.kafka_local import KafkaCluster
from support.waiting import wait_until

TRUNCATABLE: Mapping[str, str] = {
    "min.insync.replicas": "1",
    "unclean.leader.election.enable": "true",
}
"""Settings of a topic on which `truncate` works. It needs a replication factor of 2,
which leaves one node to keep the cluster going."""

_STEP_TIMEOUT_S = 60


@dataclass(frozen=True)
class Truncation:
    """What became of a partition's log.

    The records from `first_lost` up to, not including, `lost_end` had been
    acknowledged and readable and are gone. The log now ends at `end`, and
    `leader` has led it since; it was `old_leader` that had them.
    """

    first_lost: int
    lost_end: int
    end: int
    old_leader: int
    leader: int


def truncate(
    cluster: KafkaCluster,
    topic: str,
    lost: Sequence[bytes],
    written_after: Sequence[bytes],
    *,
    partition: int = 0,
    before_loss: Callable[[], None] | None = None,
) -> Truncation:
    """Write the records `lost`, have them cut off, and write the others in their place.

    `before_loss` is called when the records to be lost have been acknowledged and can
    be read: the moment to read them and to commit offsets. One node is down then, and
    another one is from then on until the leader has changed. When this returns, every
    node is up again and every replica in sync. Takes about 20 s.
    """
    if not lost or not written_after:
        raise ValueError("there have to be records to lose, and others after them")
    view = _view(cluster, topic, partition)
    if view is None or view.leader < 0 or view.in_sync != view.replicas:
        raise ValueError(f"the replicas of {topic}/{partition} are not in sync: {view}")
    if len(view.replicas) != 2:
        raise ValueError(f"{topic}/{partition} has to have two replicas: {view}")
    leader, (follower,) = view.leader, view.replicas - {view.leader}

    cluster.nodes[follower].kill()
    # Only then can the records that the leader takes alone be read.
    _wait_for_view(
        cluster,
        topic,
        partition,
        lambda seen: set(seen.in_sync) == {leader},
        f"node {leader} alone is in sync",
    )
    lost_offsets = _write(cluster, topic, partition, lost)
    if before_loss is not None:
        before_loss()

    cluster.nodes[leader].kill()
    cluster.nodes[follower].start()
    _wait_for_view(
        cluster,
        topic,
        partition,
        lambda seen: seen.leader == follower,
        f"node {follower}, which is behind, leads",
    )
    new_offsets = _write(cluster, topic, partition, written_after)
    cluster.heal()
    if new_offsets[0] != lost_offsets[0]:
        raise RuntimeError(f"nothing was truncated: {lost_offsets}, {new_offsets}")
    return Truncation(
        first_lost=lost_offsets[0],
        lost_end=lost_offsets[-1] + 1,
        end=new_offsets[-1] + 1,
        old_leader=leader,
        leader=follower,
    )


def _view(cluster: KafkaCluster, topic: str, partition: int) -> PartitionView | None:
    """Return the partition as the first node sees it that answers."""
    for view in cluster.views():
        if view is not None:
            return view.topics.get(topic, {}).get(partition)
    return None


def _wait_for_view(
    cluster: KafkaCluster,
    topic: str,
    partition: int,
    condition: Callable[[PartitionView], bool],
    message: str,
) -> None:
    """Wait until every node that is up sees the partition so."""

    def everywhere() -> bool:
        for view in cluster.views():
            seen = view and view.topics.get(topic, {}).get(partition)
            if not seen or not condition(seen):
                return False
        return True

    wait_until(everywhere, _STEP_TIMEOUT_S, f"{topic}/{partition}: {message}")


def _write(
    cluster: KafkaCluster, topic: str, partition: int, values: Sequence[bytes]
) -> list[int]:
    """Write records and return their offsets, in order, once all are acknowledged."""
    offsets: list[int] = []
    failures: list[KafkaError] = []

    def delivered(error: KafkaError | None, record: Message) -> None:
        offset = record.offset()
        if error is not None:
            failures.append(error)
        elif offset is not None:
            offsets.append(offset)

    # Not idempotent: the new leader knows nothing of a producer's earlier records.
    settings = {**cluster.config, **IMPATIENT, "log_level": 2}
    producer = Producer({**settings, "acks": "all", "enable.idempotence": False})
    for value in values:
        producer.produce(topic, value, partition=partition, on_delivery=delivered)
    producer.flush(_STEP_TIMEOUT_S)
    if failures:
        raise KafkaException(failures[0])
    if len(offsets) != len(values):
        raise TimeoutError(f"{topic} did not take {len(values)} records")
    return sorted(offsets)
