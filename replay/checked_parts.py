"""What the checks beyond the fence are given: what was read, and records at will."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Message

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.partition_audit import PartitionState
from epochfence.replay.topic_source import Slice

#: How many things of a kind a finding names one by one.
SHOWN = 5

#: How many findings of a kind there are, before the rest is only counted.
MOST_FINDINGS = 20


@dataclass(frozen=True)
class PartRead:
    """What was read of one partition.

    Attributes:
        piece: What was to be read.
        reached: Up to where it was judged.
        state: What was found.
    """

    piece: Slice
    reached: int
    state: PartitionState

    @property
    def where(self) -> str:
        """The partition, for people."""
        return f"{self.piece.topic}[{self.piece.partition}]"

    @property
    def is_whole(self) -> bool:
        """Whether nothing below what was reached is missing."""
        return self.piece.start == 0

    def holds(self, start: EpochStart) -> bool:
        """Whether the reading met the place of an epoch start."""
        return (
            (start.topic, start.partition) == (self.piece.topic, self.piece.partition)
            and start.topic_id == self.piece.topic_id
            and self.piece.start <= start.position.offset < self.reached
        )

    def starts(self) -> list[EpochStart]:
        """The epoch starts that the replay has, of what was read."""
        return [one for one in self.state.starts if self.holds(one)]


class Records(Protocol):
    """The records of a topic, for who looks again."""

    def read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        """The committed records from one offset up to another, and without it."""
        ...

    def at(self, partition: int, offset: int) -> Message | None:
        """The committed record at an offset; None: there is none."""
        ...

    def end(self, partition: int) -> int:
        """The offset behind the last record now."""
        ...


class StartIndex:
    """Epoch starts of one partition; where a leader epoch is unknown, any will do.

    Args:
        starts: The epoch starts.
    """

    def __init__(self, starts: Iterable[EpochStart]) -> None:
        self._leader_epochs: dict[tuple[object, ...], set[int | None]] = {}
        for one in starts:
            place = self._leader_epochs.setdefault(_without_leader(one), set())
            place.add(one.position.leader_epoch)

    def __contains__(self, start: EpochStart) -> bool:
        found = self._leader_epochs.get(_without_leader(start), set())
        wanted = start.position.leader_epoch
        return bool(found) and (wanted is None or bool({None, wanted} & found))


def _without_leader(start: EpochStart) -> tuple[object, ...]:
    return start.scope, start.epoch, start.grant_id, start.position.offset


def scopes_of(parts: Iterable[PartRead], settings: FenceSettings) -> set[str]:
    """The scopes that a topic carries, or has to carry."""
    return {
        scope
        for part in parts
        for scope in (
            *part.state.scopes,
            *settings.required_scopes(part.piece.partition),
        )
    }


def some(names: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown
