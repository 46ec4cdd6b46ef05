"""Commits: each tells how much of the max-epoch table counts at its offset."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from epochfence.consumers.client import GroupClient
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.settings import OnCommit
from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.starts import CommitMetadata, decode_commit_metadata
from epochfence.epochs.values import Place

_log = logging.getLogger(__name__)


class Committer:
    """Commits offsets with leader epochs and metadata.

    Args:
        client: The client underneath; it has to tell `committed` of each commit.
        looks: Tells topic ids.
        partitions: All that are assigned, kept up to date by its owner.
        on_commit: Is told of each commit.
    """

    def __init__(
        self,
        client: GroupClient,
        looks: TopicLooks,
        partitions: Mapping[Place, AssignedPartition],
        on_commit: OnCommit | None,
    ) -> None:
        self._client = client
        self._looks = looks
        self._partitions = partitions
        self._on_commit = on_commit

    def commit(
        self, offsets: Sequence[TopicPartition], *, is_asynchronous: bool
    ) -> list[TopicPartition] | None:
        """Commit offsets, after a look at the topics' ids.

        Args:
            offsets: Partition and offset of each.
            is_asynchronous: Whether not to wait for the answer.

        Returns:
            What was committed, or could not be; None where it is asynchronous.

        Raises:
            TopicMadeAnew: A topic is another than before. Nothing was committed.
            TopicUnavailable: A topic is gone, or its id is not to be had.
            MisconfiguredError: An offset comes with metadata of another tool.
            KafkaException: The commit failed.
        """
        for tp in offsets:
            _check_metadata(tp)
        self._looks.look(tp.topic for tp in offsets)
        stale = {tp.topic for tp in offsets if self._is_stale(tp)}
        if stale:
            raise TopicMadeAnew(frozenset(stale))
        for tp in offsets:
            self._check_read(tp)
        wanted = [self._with_metadata(tp) for tp in offsets]
        try:
            done = self._client.commit(wanted, is_asynchronous=is_asynchronous)
        except KafkaException as error:
            if not _is_too_large(error.args[0]):
                raise
            shorter = _shortened(wanted)
            done = self._client.commit(shorter, is_asynchronous=is_asynchronous)
        else:
            too_large = [tp for tp in done or () if _is_too_large(tp.error)]
            if too_large and done is not None:
                repeated = self._client.commit(
                    _shortened(too_large), is_asynchronous=False
                )
                rest = [tp for tp in done if not _is_too_large(tp.error)]
                done = rest + list(repeated or ())
        self._note(offsets if done is None else done)
        return done

    def _is_stale(self, tp: TopicPartition) -> bool:
        """Whether what was read of a partition is of an earlier life of its topic."""
        partition = self._partitions.get((tp.topic, tp.partition))
        read = None if partition is None else partition.topic_id
        return read is not None and read != self._looks.topic_id(tp.topic)

    def _check_read(self, tp: TopicPartition) -> None:
        """See that an offset is not of an earlier life: nobody else would notice."""
        if tp.topic not in self._looks.renewed:
            return
        partition = self._partitions.get((tp.topic, tp.partition))
        read_to = None if partition is None else partition.next_offset
        if read_to is None or tp.offset > read_to:
            so_far = "nothing" if read_to is None else f"to offset {read_to}"
            raise TopicUnavailable(
                tp.topic,
                f"it was deleted and made anew, and {so_far} is read of its new life: "
                f"the commit is taken for one of the former life",
                tp.partition,
                tp.offset,
            )

    def _with_metadata(self, tp: TopicPartition) -> TopicPartition:
        partition = self._partitions.get((tp.topic, tp.partition))
        topic_id = self._looks.topic_id(tp.topic)
        leader_epoch: int | None = None
        if partition is None or partition.topic_id != topic_id:
            metadata = CommitMetadata(topic_id)
        else:
            leader_epoch, metadata = partition.metadata_at(tp.offset)
        if metadata.starts is None:
            # With it, the next start finds out whether the log was truncated since.
            leader_epoch = tp.leader_epoch
        if topic_id is None:
            leader_epoch = None  # the embedded broker refuses it
        return _committable(tp, metadata.encode(), leader_epoch)

    def _note(self, offsets: Iterable[TopicPartition]) -> None:
        for tp in offsets:
            partition = self._partitions.get((tp.topic, tp.partition))
            if partition is not None and tp.error is None:
                partition.committed_offset = tp.offset

    def committed(
        self, error: KafkaError | None, offsets: list[TopicPartition]
    ) -> None:
        """Take in the answer to an asynchronous commit, and pass it on."""
        repeated: list[TopicPartition] = []
        for tp in offsets:
            failure = error if tp.error is None else tp.error
            partition = self._partitions.get((tp.topic, tp.partition))
            if failure is None or partition is None:
                continue
            is_last = partition.committed_offset == tp.offset
            if is_last and _is_too_large(failure) and _has_epochs(tp):
                repeated.append(tp)
            elif is_last:
                partition.committed_offset = None  # still to be committed
        if repeated:
            self._client.commit(_shortened(repeated), is_asynchronous=True)
            return
        if self._on_commit is not None:
            self._on_commit(error, offsets)
        elif error is not None and error.code() != KafkaError._NO_OFFSET:
            _log.warning("a commit failed: %s", error.str())


def due(
    partitions: Collection[AssignedPartition], *, is_auto_store: bool
) -> list[TopicPartition]:
    """What there is to commit: done with, and not committed yet."""
    offsets: list[TopicPartition] = []
    for partition in partitions:
        done = partition.next_offset if is_auto_store else partition.stored_offset
        if done is not None and done != partition.committed_offset:
            offsets.append(partition.at(done))
    return offsets


def _check_metadata(tp: TopicPartition) -> None:
    if tp.metadata and decode_commit_metadata(tp.metadata) is None:
        raise MisconfiguredError(
            "metadata", tp.metadata,
            f"commits of {tp.topic}[{tp.partition}] carry the fence's own metadata",
            "Leave it out, and keep yours elsewhere.",
        )  # fmt: skip


def _committable(
    tp: TopicPartition, metadata: str, leader_epoch: int | None
) -> TopicPartition:
    known = -1 if leader_epoch is None else leader_epoch
    return TopicPartition(
        tp.topic, tp.partition, tp.offset, metadata=metadata, leader_epoch=known
    )


def _is_too_large(error: object) -> bool:
    return (
        isinstance(error, KafkaError)
        and error.code() == KafkaError.OFFSET_METADATA_TOO_LARGE
    )


def _has_epochs(tp: TopicPartition) -> bool:
    said = decode_commit_metadata(tp.metadata)
    return said is not None and said.epochs is not None


def _shortened(offsets: Iterable[TopicPartition]) -> list[TopicPartition]:
    """The same commits, without the epochs: the broker's limit is lower than ours."""
    shorter: list[TopicPartition] = []
    for tp in offsets:
        said = decode_commit_metadata(tp.metadata)
        metadata = "" if said is None else said.encode(with_epochs=False)
        shorter.append(_committable(tp, metadata, tp.leader_epoch))
    return shorter
