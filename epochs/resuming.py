"""What a commit says of the fence, and where a reader begins that finds one.

Nothing here knows Kafka: the offsets, leader epochs and metadata come in as values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.starts import CommitMetadata, decode_commit_metadata
from epochfence.epochs.values import EpochStart, Position, SinkPosition, SinkState


@dataclass(frozen=True, slots=True)
class Resumption:
    """Where a reader begins, as a commit has it.

    Attributes:
        offset: The offset, None: at the log's start, in another life of the topic.
        leader_epoch: That of the last record below it, None: unknown.
        metadata: What must be known there; None: nobody says, so what lies below has
            to be read.
    """

    offset: int | None
    leader_epoch: int | None = None
    metadata: CommitMetadata | None = None


def resume_stored(state: SinkState, topic_id: str | None) -> Resumption:
    """Where to begin, after what a sink has stored.

    Epoch starts that are stored with the position are all that count there; of those
    in the table, a commit says how many do.

    Args:
        state: What it has stored.
        topic_id: The present life of the topic; None where there are no ids.
    """
    stored_id, leader_epoch, offset = state.position
    said = state.said or CommitMetadata(stored_id, starts=0)
    return _resume(offset, leader_epoch, said, topic_id)


def resume(
    offset: int, leader_epoch: int | None, metadata: str | None, topic_id: str | None
) -> Resumption:
    """Where to begin, after a commit.

    Args:
        offset: The committed offset.
        leader_epoch: The committed leader epoch.
        metadata: The commit's metadata string.
        topic_id: The present life of the topic; None where there are no ids.
    """
    found = decode_commit_metadata(metadata)
    if found is None:
        return Resumption(offset, leader_epoch)
    return _resume(offset, leader_epoch, found, topic_id)


def _resume(
    offset: int, leader_epoch: int | None, found: CommitMetadata, topic_id: str | None
) -> Resumption:
    if found.topic_id is not None and topic_id is not None:
        if found.topic_id != topic_id:
            return Resumption(None)
    elif found.topic_id != topic_id:
        return Resumption(offset, leader_epoch)
    has_counted = found.starts is not None
    return Resumption(offset, leader_epoch, found if has_counted else None)


def names_life(metadata: str | None, topic_id: str | None) -> bool:
    """Whether a commit's metadata says that it is of this life of the topic."""
    found = decode_commit_metadata(metadata)
    return found is not None and found.topic_id == topic_id


def metadata_at(
    fence: PartitionFence, leader_epoch: int | None, offset: int
) -> CommitMetadata:
    """What a commit at an offset says: how much counts there, and what is current.

    Args:
        fence: Knows every start below the offset.
        leader_epoch: That of the last judged record below, None: unknown.
        offset: The offset to be committed.
    """
    return metadata_of(fence.topic_id, _below(fence, leader_epoch, offset))


def metadata_of(topic_id: str | None, starts: Collection[EpochStart]) -> CommitMetadata:
    """What a commit says at a place where these starts count."""
    return CommitMetadata(topic_id, len(starts), _current(starts))


def state_at(fence: PartitionFence, position: SinkPosition) -> SinkState:
    """What a sink stores with the effect of all that was admitted below a position.

    Args:
        fence: Knows every start below it.
        position: The position.
    """
    below = _below(fence, position.leader_epoch, position.next_offset)
    return SinkState(position, tuple(below))


def has_all(
    fence: PartitionFence,
    leader_epoch: int | None,
    offset: int,
    metadata: CommitMetadata,
) -> bool:
    """Whether a fence knows the starts that a commit tells of."""
    below = _below(fence, leader_epoch, offset)
    current = _current(below)
    told = metadata.epochs or {}
    return len(below) >= (metadata.starts or 0) and all(
        current.get(scope, -1) >= epoch for scope, epoch in told.items()
    )


def count_below(fence: PartitionFence, leader_epoch: int | None, offset: int) -> int:
    """How many starts count for the last record below an offset."""
    return len(_below(fence, leader_epoch, offset))


def _below(
    fence: PartitionFence, leader_epoch: int | None, offset: int
) -> list[EpochStart]:
    # Not those at the offset itself: whoever commits may not have met them yet.
    return fence.counting(Position(leader_epoch, offset - 1))


def _current(starts: Iterable[EpochStart]) -> dict[str, int]:
    current: dict[str, int] = {}
    for start in starts:
        current[start.scope] = max(start.epoch, current.get(start.scope, -1))
    return current
