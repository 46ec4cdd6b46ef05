"""A sink's positions, kept as the commits of the group that reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from epochfence.consumers.sink import Sink, SinkBatch
from epochfence.epochs.errors import MisconfiguredError, SinkUnavailable
from epochfence.epochs.resuming import metadata_of
from epochfence.epochs.starts import CommitMetadata, decode_commit_metadata
from epochfence.epochs.values import Place, SinkPosition, SinkState

M = TypeVar("M")

#: By such an error the group says that somebody is no member any more.
NO_MEMBER = {
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.FENCED_MEMBER_EPOCH,
}
#: By such a one, that a member of another generation may have what this one had: it may
#: be a member of the present one, too, of which its client will hear.
NOT_OF_THE_GENERATION = NO_MEMBER | {
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.STALE_MEMBER_EPOCH,
}


class GroupMember(Protocol):
    """The consumer that reads for a sink, as a member of its group."""

    def committed(
        self, partitions: list[TopicPartition], timeout: float = ...
    ) -> list[TopicPartition]:
        """The group's committed offsets."""
        ...

    def consumer_group_metadata(self) -> Any:
        """What a transaction shows of this member, and of its generation."""
        ...


class CommittingMember(GroupMember, Protocol):
    """Such a consumer, which makes commits of a sink's."""

    def commit_as_given(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        """Commit offsets with the leader epochs and the metadata that they carry."""
        ...


@runtime_checkable
class GroupSink(Sink, Protocol):
    """A sink whose positions are the commits of the group that reads.

    It is the group that keeps stale instances from writing.
    """

    def join(self, member: CommittingMember) -> None:
        """Go by this member of the group, from now on."""
        ...

    def ask(self, topic: str, partition: int) -> None:
        """Ask the group whether it would take a commit of its member. None is made.

        Raises:
            KafkaException: It would not.
            SinkUnavailable: It does not answer now.
        """
        ...


def check_alone(sink: object, member: GroupMember | None) -> None:
    """Return if a sink goes by no member of a group yet.

    Raises:
        MisconfiguredError: It does: of two, the commits would be mixed up.
    """
    if member is not None:
        raise MisconfiguredError(
            "sink", sink, "another runner has it: its commits are those of one group",
            "Make a sink for each SinkRunner.",
        )  # fmt: skip


def joined(sink: object, member: M | None) -> M:
    """The member of the group that a sink goes by.

    Raises:
        MisconfiguredError: There is none yet.
    """
    if member is None:
        raise MisconfiguredError(
            "member", None,
            f"{type(sink).__name__} goes by a member of the group that reads",
            "Let a SinkRunner drive it, or call join.",
        )  # fmt: skip
    return member


def stored_states(
    member: GroupMember, places: Sequence[Place], store: str, timeout_s: float
) -> list[SinkState | None]:
    """What the group has committed of partitions, None for nothing yet.

    Args:
        member: A consumer of the group. It has to read committed: then an offset in an
            open transaction is waited for.
        places: The partitions.
        store: Names the cluster, for people.
        timeout_s: How long to wait.

    Raises:
        SinkUnavailable: The group does not answer, or a transaction stays open.
    """
    return [state_of(tp) for tp in stored_commits(member, places, store, timeout_s)]


def stored_commits(
    member: GroupMember, places: Sequence[Place], store: str, timeout_s: float
) -> list[TopicPartition]:
    """The same as the commits themselves; without an offset where there is none."""
    wanted = [TopicPartition(*place) for place in places]
    try:
        found = member.committed(wanted, timeout=timeout_s)
        for tp in found:
            if tp.error is not None:
                raise KafkaException(tp.error)
    except KafkaException as error:
        reason = f"the group's committed offset is not to be had: {error.args[0].str()}"
        raise SinkUnavailable(store, reason) from error
    return found


def state_of(tp: TopicPartition) -> SinkState | None:
    """What a commit has stored of its partition."""
    if tp.offset < 0:
        return None
    # Where somebody else has committed, nothing is said.
    said = decode_commit_metadata(tp.metadata) or CommitMetadata(None)
    return SinkState(SinkPosition(said.topic_id, tp.leader_epoch, tp.offset), said=said)


def commit_of(
    batch: SinkBatch, *, with_epochs: bool = True, copy_id: str | None = None
) -> TopicPartition:
    """The commit that stores a batch's position.

    Args:
        batch: The batch.
        with_epochs: False where the broker refused it as too large.
        copy_id: The life of the topic that is written to, where that matters.
    """
    topic_id, leader_epoch, offset = batch.position
    said = replace(metadata_of(topic_id, batch.starts), copy_id=copy_id)
    metadata = said.encode(with_epochs=with_epochs)
    # The embedded broker, whose topics have no ids, refuses leader epochs.
    known = None if topic_id is None else leader_epoch
    return TopicPartition(
        *batch.place, offset, metadata=metadata,
        leader_epoch=-1 if known is None else known,
    )  # fmt: skip
