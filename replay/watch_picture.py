"""The picture of a watch: one value, from which every form of it is made.

`epochfence watch --json` prints it. New fields may come; none goes or changes its
meaning without a new `version`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from epochfence.epochs.verdicts import Kind, Reason
from epochfence.replay.report import (
    LedgerReport,
    OutcomeCount,
    RejectedReport,
    SettingsReport,
)
from epochfence.replay.texts import counted

#: How a number of records develops: compared are the last half minute and the one
#: before. `new`: there were none before; `over`: there are none in the last minute.
Trend = Literal["new", "rising", "steady", "falling", "over"]


class ScopePicture(msgspec.Struct, frozen=True):
    """A scope on one topic.

    Attributes:
        topic: The topic.
        scope: The scope.
        epoch: Its newest epoch: the latest granted, or the highest that has begun;
            None: none yet.
        holder: Who holds it, None where no ledger says so.
        since: When it was claimed by the claimant's clock, ms since 1970; without a
            ledger, when its first record was written. None: not known.
        begun_on: On how many partitions it has begun.
        barriers: On how many of them its barrier was seen by this watch.
        partitions: How many partitions the scope is known or required on.
    """

    topic: str
    scope: str
    epoch: int | None
    holder: str | None
    since: int | None
    begun_on: int
    barriers: int
    partitions: int


class EpochPicture(msgspec.Struct, frozen=True):
    """The current epoch of a scope on one partition.

    Attributes:
        scope: The scope.
        epoch: Its current epoch there.
        start_offset: Where that began, None where it began in an earlier life.
        has_barrier: Whether it was seen to begin with its barrier.
    """

    scope: str
    epoch: int
    start_offset: int | None
    has_barrier: bool


class PartitionPicture(msgspec.Struct, frozen=True):
    """One partition.

    Attributes:
        topic: The topic.
        topic_id: The present life of the topic, None where unknown.
        partition: The partition's number.
        read_from: The offset where this watch began.
        next_offset: Everything from there up to this offset was read.
        last_offset: The last record, None where none was read.
        is_catching_up: Whether it still reads what was there when the watch began.
        epochs: The current epoch of each scope.
        records: Records judged by this watch.
        rejected: Those rejected among them.
        records_per_s: In the last ten seconds; without what it catches up on.
    """

    topic: str
    topic_id: str | None
    partition: int
    read_from: int
    next_offset: int
    last_offset: int | None
    is_catching_up: bool
    epochs: list[EpochPicture]
    records: int
    rejected: int
    records_per_s: float


class RejectedPicture(msgspec.Struct, frozen=True):
    """Rejected records with the same cause: the same reason, and the same stamp.

    Attributes:
        verdict: `stale` or `quarantined`.
        reason: Why.
        scope: The scope of the stamp that decided, None where none did.
        epoch: Its epoch.
        grant_id: Its grant id.
        holder: Who claimed that, None where no ledger says so.
        records: How many since the watch began.
        last_minute: How many of them came in the last minute; without what the watch
            catches up on.
        trend: How that develops.
        topic: The topic of the last of them.
        partition: Its partition.
        offset: Its offset.
    """

    verdict: Kind
    reason: Reason
    scope: str | None
    epoch: int | None
    grant_id: str | None
    holder: str | None
    records: int
    last_minute: int
    trend: Trend
    topic: str
    partition: int
    offset: int

    @property
    def writer(self) -> str:
        """Whose records they are, for people."""
        if self.epoch is None:
            return "somebody"
        return f"{self.holder or 'somebody'} (epoch {self.epoch} of {self.scope})"

    def __str__(self) -> str:
        what = "stale" if self.verdict == "stale" else f"quarantined ({self.reason})"
        rising = self.trend in ("new", "rising")
        trend = f"{self.trend}: look at it" if rising else self.trend
        still = "still writes" if self.verdict == "stale" else "writes"
        return (
            f"{self.writer} {still}: {self.last_minute:,} {what} in the last minute, "
            f"{trend}"
        )


class Picture(msgspec.Struct, frozen=True):
    """What a watch sees at one moment.

    Attributes:
        at: The moment by this machine's clock, ms since 1970.
        topics: What is watched.
        settings: What the records must carry.
        ledger: The ledger that the verdicts rest on; None with authority max-seen.
        problem: What is wrong with the cluster now, None where nothing is.
        verdicts: Records since the watch began, by verdict and reason.
        scopes: Who leads.
        partitions: Partition by partition.
        rejected: What was rejected, by cause; most in the last minute first.
        last_rejected: The last rejected records, the newest last.
        attention: What to look at now, in plain words.
        notes: What else to know, in plain words.
        version: Of this form.
    """

    at: int
    topics: list[str]
    settings: SettingsReport
    ledger: LedgerReport | None
    problem: str | None
    verdicts: list[OutcomeCount]
    scopes: list[ScopePicture]
    partitions: list[PartitionPicture]
    rejected: list[RejectedPicture]
    last_rejected: list[RejectedReport]
    attention: list[str]
    notes: list[str]
    version: int = 1

    @property
    def records(self) -> int:
        """How many records were judged since the watch began."""
        return sum(one.records for one in self.verdicts)

    def summary(self) -> str:
        """How many records there were, and what became of them."""
        kinds: dict[str, int] = {"admitted": 0, "barrier": 0, "stale": 0}
        kinds["quarantined"] = 0
        for one in self.verdicts:
            kinds[one.verdict] += one.records
        records = counted(self.records, "record")
        return (
            f"{records}: {kinds['admitted']:,} admitted, {kinds['barrier']:,} "
            f"{'barrier' if kinds['barrier'] == 1 else 'barriers'}, "
            f"{kinds['stale']:,} stale, {kinds['quarantined']:,} quarantined."
        )


def changes(before: Picture | None, now: Picture) -> Iterator[str]:
    """What is new in a picture, a line each; None: everything is."""
    if before is None or before.problem != now.problem:
        if now.problem is not None:
            yield now.problem
        elif before is not None:
            yield "the cluster answers again"
    yield from _new(before.notes if before else [], now.notes)
    known = {} if before is None else {_lead(one): one for one in before.scopes}
    for scope in now.scopes:
        yield from _change_of_scope(known.get(_lead(scope)), scope)
    epochs = {} if before is None else dict(_epochs(before))
    for place, epoch in _epochs(now):
        was = epochs.get(place)
        if was is None or was.epoch != epoch.epoch:
            yield _began(place, epoch)
    causes = {} if before is None else {_cause(one): one for one in before.rejected}
    for rejected in now.rejected:
        was_there = causes.get(_cause(rejected))
        more = rejected.records - (0 if was_there is None else was_there.records)
        if more:
            yield _rejected(rejected, more)


def _new(before: list[str], now: list[str]) -> Iterator[str]:
    for note in now:
        if note not in before:
            yield note


def _lead(one: ScopePicture) -> tuple[str, str]:
    return one.topic, one.scope


def _change_of_scope(was: ScopePicture | None, now: ScopePicture) -> Iterator[str]:
    what = f"{now.topic}: epoch {now.epoch} of {now.scope}"
    if now.epoch is not None and (was is None or was.epoch != now.epoch):
        who = "" if now.holder is None else f" is held by {now.holder}, and"
        yield f"{what}{who} has begun on {now.begun_on} of {now.partitions} partitions"
    elif was is not None and was.begun_on < now.begun_on == now.partitions:
        yield f"{what} has begun on all of {now.partitions} partitions"


def _epochs(picture: Picture) -> Iterator[tuple[tuple[str, int, str], EpochPicture]]:
    for one in picture.partitions:
        for epoch in one.epochs:
            yield (one.topic, one.partition, epoch.scope), epoch


def _began(place: tuple[str, int, str], epoch: EpochPicture) -> str:
    topic, partition, scope = place
    at = "" if epoch.start_offset is None else f" at offset {epoch.start_offset}"
    how = " with its barrier" if epoch.has_barrier else ""
    return f"{topic}[{partition}]: epoch {epoch.epoch} of {scope} began{at}{how}"


def _cause(one: RejectedPicture) -> tuple[object, ...]:
    return one.reason, one.scope, one.epoch, one.grant_id


def _rejected(one: RejectedPicture, more: int) -> str:
    records = counted(more, "record")
    where = f"{one.topic}[{one.partition}] offset {one.offset}"
    text = f"{records} rejected ({one.reason}), the last at {where}: "
    return text + (str(one) if one.last_minute else one.writer)
