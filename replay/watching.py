"""The state of a watch: a fold over records as they come. No I/O, and no clock.

Moments are told to it: by any clock that only goes forward, in seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import Headers
from epochfence.epochs.values import EpochStart, Stamp
from epochfence.epochs.verdicts import Kind, Reason, Verdict
from epochfence.replay.partition_audit import KEPT_CAUSES, Rejected
from epochfence.replay.report import OutcomeCount, RejectedReport
from epochfence.replay.topic_source import Slice
from epochfence.replay.watch_picture import (
    EpochPicture,
    PartitionPicture,
    RejectedPicture,
    ScopePicture,
    Trend,
)

#: How many of the last rejected records are kept.
KEPT_LAST = 10

#: Scopes of one partition that are shown: anybody can stamp made-up ones.
KEPT_SCOPES = 1_000

_MINUTE_S = 60
_RATE_S = 10

_Cause = tuple[Reason, str | None, int | None, str | None]


class Recent:
    """How many records came in the last minute, second by second."""

    def __init__(self) -> None:
        self._seconds: deque[list[int]] = deque()

    def add(self, now_s: float, records: int) -> None:
        """So many came now."""
        second = int(now_s)
        if self._seconds and self._seconds[-1][0] >= second:
            self._seconds[-1][1] += records
        else:
            self._seconds.append([second, records])
        while self._seconds[0][0] <= second - _MINUTE_S:
            self._seconds.popleft()

    def within(self, now_s: float, last_s: int, until_s: int = 0) -> int:
        """How many came in the last so many seconds, up to so many seconds ago."""
        second = int(now_s)
        return sum(
            records
            for at, records in self._seconds
            if second - last_s < at <= second - until_s
        )

    def trend(self, now_s: float) -> Trend:
        """How it develops."""
        half_s = _MINUTE_S // 2
        last = self.within(now_s, half_s)
        before = self.within(now_s, _MINUTE_S, half_s)
        if not last and not before:
            return "over"
        if not before:
            return "new"
        if last == before:
            return "steady"
        return "rising" if last > before else "falling"


class Arrived(NamedTuple):
    """A record that was read.

    Attributes:
        leader_epoch: The broker's leader epoch, None: unknown.
        offset: Its offset.
        timestamp: Milliseconds since 1970, as the record says.
        headers: Its headers.
        value: Its value, where a verdict may take that.
    """

    leader_epoch: int | None
    offset: int
    timestamp: int | None
    headers: Headers
    value: bytes | None = None


@dataclass
class _Begun:
    """The current epoch of a scope on one partition."""

    epoch: int
    grant_id: str | None
    offset: int | None
    timestamp: int | None = None
    has_barrier: bool = False


@dataclass
class _Rejections:
    """Rejected records with the same cause."""

    kind: Kind
    records: int = 0
    last: tuple[str, int, int] = ("", 0, 0)
    recent: Recent = field(default_factory=Recent)


class PartitionWatch:
    """One partition.

    Args:
        piece: Where the reading begins, and the end of the log when the watch began.
        settings: What the records must carry.
        ledger: The grants; None with authority max-seen.
        rows: Epoch starts known beforehand, of all partitions.
    """

    def __init__(
        self,
        piece: Slice,
        settings: FenceSettings,
        ledger: LedgerState | None,
        rows: Sequence[EpochStart],
    ) -> None:
        known = piece.floor_of(rows)
        self.topic, self.partition = piece.topic, piece.partition
        self.read_from, self.next_offset = piece.start, piece.start
        self.known = len(known)
        self.last_offset: int | None = None
        self.records = 0
        self.rejected = 0
        self.recent = Recent()
        self.begun: dict[str, _Begun] = {}
        self._end_at_start = piece.end
        self._is_at_end = piece.start >= piece.end
        self._fence = PartitionFence(
            piece.topic, piece.partition, settings, ledger, known
        )
        self._fence.enter_life(piece.topic_id)
        for start in sorted(known, key=lambda one: one.epoch):
            is_here = start.topic_id in (None, piece.topic_id)
            offset = start.position.offset if is_here else None
            self.begun[start.scope] = _Begun(start.epoch, start.grant_id, offset)

    @property
    def topic_id(self) -> str | None:
        """The present life of the topic."""
        return self._fence.topic_id

    @property
    def is_catching_up(self) -> bool:
        """Whether it still reads what was there when the watch began."""
        return not self._is_at_end

    def has_read_to(self, offset: int, *, is_end: bool = False) -> None:
        """Everything below this offset was read; perhaps the log ends there."""
        self.next_offset = max(self.next_offset, offset)
        if is_end or offset >= self._end_at_start:
            self._is_at_end = True

    def begin_anew(self, piece: Slice) -> None:
        """The topic has another life, or the log goes on elsewhere."""
        if piece.topic_id != self.topic_id:
            self.read_from, self._end_at_start = piece.start, piece.end
            for here in self.begun.values():
                here.offset, here.has_barrier = None, False
        self._fence.enter_life(piece.topic_id)
        self.next_offset = piece.start
        self._is_at_end = piece.start >= self._end_at_start

    def judge(self, record: Arrived, *, is_ledger_complete: bool) -> Verdict | None:
        """Give a record its verdict; None: read the ledger to its end, and ask again.

        Args:
            record: The record.
            is_ledger_complete: Whether the ledger was read to its end after the record
                had been received.
        """
        verdict = self._fence.judge(
            record.leader_epoch,
            record.offset,
            record.headers,
            record.value,
            ledger_complete=is_ledger_complete,
        )
        if verdict is not None:
            self._fold(record, verdict)
        return verdict

    def _fold(self, record: Arrived, verdict: Verdict) -> None:
        self.records += 1
        self.last_offset = record.offset
        self.rejected += verdict.is_rejected
        is_barrier = verdict.kind == "barrier"
        for start in verdict.starts:
            if start.scope in self.begun or len(self.begun) < KEPT_SCOPES:
                self.begun[start.scope] = _Begun(
                    start.epoch, start.grant_id, record.offset, record.timestamp
                )
        if is_barrier:
            for stamp in verdict.stamps:
                here = self.begun.get(stamp.scope)
                if here is not None and here.epoch == stamp.epoch:
                    here.has_barrier = True

    def picture(self, now_s: float) -> PartitionPicture:
        """What is known of it."""
        return PartitionPicture(
            topic=self.topic,
            topic_id=self.topic_id,
            partition=self.partition,
            read_from=self.read_from,
            next_offset=self.next_offset,
            last_offset=self.last_offset,
            is_catching_up=self.is_catching_up,
            epochs=[
                EpochPicture(scope, one.epoch, one.offset, one.has_barrier)
                for scope, one in sorted(self.begun.items())
            ],
            records=self.records,
            rejected=self.rejected,
            records_per_s=self.recent.within(now_s, _RATE_S) / _RATE_S,
        )


class WatchState:
    """All that a watch knows.

    Args:
        settings: What the records must carry.
        ledger: The grants, which may become more meanwhile; None with authority
            max-seen.
        rows: Epoch starts known beforehand.
    """

    def __init__(
        self,
        settings: FenceSettings,
        ledger: LedgerState | None,
        rows: Iterable[EpochStart] = (),
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._rows = tuple(rows)
        self._partitions: dict[tuple[str, int], PartitionWatch] = {}
        self._counts: dict[tuple[Kind, Reason], int] = {}
        self._causes: dict[_Cause, _Rejections] = {}
        self._last: deque[Rejected] = deque(maxlen=KEPT_LAST)

    @property
    def partitions(self) -> list[PartitionWatch]:
        """By topic and number."""
        return [self._partitions[place] for place in sorted(self._partitions)]

    @property
    def records(self) -> int:
        """How many records were judged."""
        return sum(self._counts.values())

    def begin(self, piece: Slice) -> PartitionWatch:
        """A partition is watched from here on; or again, where its log goes on."""
        place = piece.topic, piece.partition
        there = self._partitions.get(place)
        if there is None:
            there = PartitionWatch(piece, self._settings, self._ledger, self._rows)
            self._partitions[place] = there
        else:
            there.begin_anew(piece)
        return there

    def find(self, topic: str, partition: int) -> PartitionWatch | None:
        """A partition, None where it is not watched."""
        return self._partitions.get((topic, partition))

    def take(
        self,
        there: PartitionWatch,
        record: Arrived,
        now_s: float,
        *,
        is_ledger_complete: bool,
    ) -> bool:
        """Judge a record; False: it takes the ledger, read to its end.

        Args:
            there: Its partition.
            record: The record.
            now_s: The moment.
            is_ledger_complete: See `PartitionWatch.judge`.
        """
        is_live = not there.is_catching_up
        verdict = there.judge(record, is_ledger_complete=is_ledger_complete)
        if verdict is None:
            return False
        key = verdict.kind, verdict.reason
        self._counts[key] = self._counts.get(key, 0) + 1
        if is_live:
            there.recent.add(now_s, 1)
        if verdict.is_rejected:
            self._reject(there, record, verdict, now_s, is_live)
        there.has_read_to(record.offset + 1)
        return True

    def _reject(
        self,
        there: PartitionWatch,
        record: Arrived,
        verdict: Verdict,
        now_s: float,
        is_live: bool,
    ) -> None:
        cited = _cited(verdict.cause)
        key: _Cause = (verdict.reason, *cited)
        if key not in self._causes and len(self._causes) >= KEPT_CAUSES:
            # Made-up stamps have no end: from here on, one for each reason.
            key = (verdict.reason, None, None, None)
        cause = self._causes.setdefault(key, _Rejections(verdict.kind))
        cause.records += 1
        cause.last = there.topic, there.partition, record.offset
        if is_live:
            cause.recent.add(now_s, 1)
        self._last.append(
            Rejected(
                there.topic, there.topic_id, there.partition, record.offset,
                verdict.kind, verdict.reason, *cited, verdict.current_epoch,
            )
        )  # fmt: skip

    # What there is to see.

    def counts(self) -> list[OutcomeCount]:
        """Records by verdict and reason."""
        return [
            OutcomeCount(kind, reason, records)
            for (kind, reason), records in sorted(self._counts.items())
        ]

    def rejected(self, now_s: float) -> list[RejectedPicture]:
        """What was rejected, by cause; most in the last minute first."""
        found = [
            RejectedPicture(
                verdict=one.kind,
                reason=reason,
                scope=scope,
                epoch=epoch,
                grant_id=grant_id,
                holder=self._holder(scope, epoch, grant_id),
                records=one.records,
                last_minute=one.recent.within(now_s, _MINUTE_S),
                trend=one.recent.trend(now_s),
                topic=one.last[0],
                partition=one.last[1],
                offset=one.last[2],
            )
            for (reason, scope, epoch, grant_id), one in self._causes.items()
        ]
        return sorted(found, key=lambda one: (-one.last_minute, -one.records))

    def last_rejected(self) -> list[RejectedReport]:
        """The last rejected records, the newest last."""
        return [
            RejectedReport.of(one, self._holder(one.scope, one.epoch, one.grant_id))
            for one in self._last
        ]

    def scopes(self) -> list[ScopePicture]:
        """Who leads, topic by topic."""
        lanes: dict[tuple[str, str], list[PartitionWatch]] = {}
        for there in self.partitions:
            required = self._settings.required_scopes(there.partition)
            for scope in dict.fromkeys([*required, *there.begun]):
                lanes.setdefault((there.topic, scope), []).append(there)
        return [
            self._scope(topic, scope, lanes[topic, scope])
            for topic, scope in sorted(lanes)
        ]

    def _scope(
        self, topic: str, scope: str, partitions: list[PartitionWatch]
    ) -> ScopePicture:
        here = [
            one.begun[scope] for one in partitions if one.begun.get(scope) is not None
        ]
        grant = None if self._ledger is None else self._ledger.latest(scope)
        epoch = max([one.epoch for one in here], default=None)
        if grant is not None and (epoch is None or grant.epoch >= epoch):
            epoch = grant.epoch
            since: int | None = grant.claimed_at
        else:
            grant = None
            times = [
                one.timestamp
                for one in here
                if one.epoch == epoch and one.timestamp is not None
            ]
            since = min(times, default=None)
        newest = [one for one in here if one.epoch == epoch]
        return ScopePicture(
            topic=topic,
            scope=scope,
            epoch=epoch,
            holder=None if grant is None else grant.holder,
            since=since,
            begun_on=len(newest),
            barriers=sum(one.has_barrier for one in newest),
            partitions=len(partitions),
        )

    def notes(self) -> Iterator[str]:
        """What looks like a mistake, and what cannot be known."""
        unheard = {
            scope: None
            for one in self.partitions
            for scope in self._settings.required_scopes(one.partition)
            if self._ledger is not None and not self._ledger.epoch_of(scope)
        }
        if unheard:
            yield (
                f"the ledger grants nothing of scope {', '.join([*unheard][:3])}: is "
                f"--scope misspelt?"
            )
        unknown = [
            one for one in self.partitions if one.read_from > 0 and not one.known
        ]
        if unknown:
            places = ", ".join(f"{one.topic}[{one.partition}]" for one in unknown[:3])
            more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
            yield (
                f"{places}{more}: the table has no row from before where this watch "
                f"began, so a record of a leader that had been deposed by then may "
                f"pass for admitted until the next epoch begins (--from-start knows)"
            )

    def _holder(
        self, scope: str | None, epoch: int | None, grant_id: str | None
    ) -> str | None:
        if self._ledger is None or scope is None or epoch is None:
            return None
        claim = self._ledger.find(scope, epoch, grant_id)
        return None if claim is None else claim.holder


def _cited(stamp: Stamp | None) -> tuple[str | None, int | None, str | None]:
    """What a stamp says, in parts."""
    if stamp is None:
        return None, None, None
    return stamp.scope, stamp.epoch, stamp.grant_id
