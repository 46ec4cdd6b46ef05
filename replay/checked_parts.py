"""What the checks beyond the fence are given: what was read, and records at will."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from confluent_kafka import Message

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import LedgerSource
from epochfence.replay.partition_audit import PartitionState
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import Evidence
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


class Witness:
    """Makes evidence of what is known of claims, rows and records.

    Args:
        source: The ledger.
    """

    def __init__(self, source: LedgerSource | None) -> None:
        self._source = source

    def holder(self, scope: str, epoch: int, grant_id: str | None) -> str | None:
        """Who claimed that."""
        if self._source is None:
            return None
        claim = self._source.state.find(scope, epoch, grant_id)
        return None if claim is None else claim.holder

    def is_grant(self, scope: str, epoch: int, grant_id: str | None) -> bool:
        """Whether the ledger holds this grant; without one, any is taken for one."""
        return self._source is None or self._source.state.is_grant(
            scope, epoch, grant_id
        )

    def who(self, scope: str, epoch: int, grant_id: str | None) -> str:
        """A claim, for people."""
        holder = self.holder(scope, epoch, grant_id)
        name = f"epoch {epoch} of scope {scope!r}"
        return name if holder is None else f"{holder!r} ({name})"

    def claim(self, what: str, scope: str, epoch: int, grant_id: str) -> Evidence:
        """A claim of the ledger, and where it stands."""
        source = self._source
        told = None if source is None else source.told
        place = None if told is None else told.places.get((scope, epoch, grant_id))
        is_topic = source is not None and source.is_topic
        return Evidence(
            what=what,
            topic=source.name if source is not None and is_topic else None,
            topic_id=None if told is None else told.topic_id,
            partition=0 if is_topic else None,
            offset=None if place is None else place.offset,
            leader_epoch=None if place is None else place.leader_epoch,
            timestamp=None if place is None else place.timestamp,
            scope=scope,
            epoch=epoch,
            grant_id=grant_id,
            holder=self.holder(scope, epoch, grant_id),
        )

    def start(self, what: str, start: EpochStart) -> Evidence:
        """An epoch start: the record of the data topic that it names."""
        return Evidence(
            what=what,
            topic=start.topic,
            topic_id=start.topic_id,
            partition=start.partition,
            offset=start.position.offset,
            leader_epoch=start.position.leader_epoch,
            scope=start.scope,
            epoch=start.epoch,
            grant_id=start.grant_id,
            holder=self.holder(start.scope, start.epoch, start.grant_id),
        )

    def record(
        self,
        what: str,
        part: PartRead,
        place: RecordPlace,
        stamp: tuple[str | None, int | None, str | None] = (None, None, None),
    ) -> Evidence:
        """A record of the data topic."""
        ids = part.state.topic_ids
        scope, epoch, grant_id = stamp
        holder = None
        if scope is not None and epoch is not None:
            holder = self.holder(scope, epoch, grant_id)
        return Evidence(
            what=what,
            topic=part.piece.topic,
            topic_id=ids[place.life] if place.life < len(ids) else None,
            partition=part.piece.partition,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            timestamp=place.timestamp,
            scope=scope,
            epoch=epoch,
            grant_id=grant_id,
            holder=holder,
        )


def some(names: Sequence[object]) -> str:
    """The first of them, and how many more there are."""
    shown = ", ".join(str(name) for name in names[:SHOWN])
    more = len(names) - SHOWN
    return f"{shown} and {more:,} more" if more > 0 else shown


def counted(number: int, noun: str) -> str:
    """So many of them, for people."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
