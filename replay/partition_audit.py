"""The audit of one partition: a fold over its records, in order of position."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import Headers
from epochfence.epochs.values import EpochStart, Position, Stamp
from epochfence.epochs.verdicts import Kind, Reason, Verdict
from epochfence.replay.histories import EpochHistory, Rejections
from epochfence.replay.log_order import LogOrder, OutOfOrderError
from epochfence.replay.places import RecordPlace
from epochfence.replay.timeline import Timeline, TimelineBuilder

#: How many rejected records are kept one by one, and how many causes of rejection.
KEPT_REJECTED = 20
KEPT_CAUSES = 1_000

#: How many scopes are remembered, of those that records carry.
KEPT_SCOPES = 10_000

#: How many epochs are told apart, of those that began or were granted.
KEPT_EPOCHS = 100_000


class Rejected(msgspec.Struct, frozen=True):
    """One rejected record.

    Attributes:
        topic: Its topic.
        topic_id: The life of the topic, None where unknown.
        partition: Its partition.
        offset: Its offset.
        verdict: `stale` or `quarantined`.
        reason: Why.
        scope: The scope of the stamp that decided, None where none did.
        epoch: Its epoch.
        grant_id: Its grant id.
        current_epoch: The current epoch of that scope.
    """

    topic: str
    topic_id: str | None
    partition: int
    offset: int
    verdict: Kind
    reason: Reason
    scope: str | None
    epoch: int | None
    grant_id: str | None
    current_epoch: int | None


class PartitionState(msgspec.Struct):
    """All that an audit knows of one partition; it can go on from it.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        topic_ids: The lives that its records are of, in order.
        counts: Records by verdict and reason.
        scopes: Scopes that its records carry: some of them, where there are very many.
        epochs: Epoch by epoch, in the order in which they were met.
        epochs_left_out: Runs of records whose epoch found no more room there.
        rejections: What was rejected, cause by cause.
        rejected: The first rejected records.
        timeline: The picture.
        first: The first record.
        last: The last one.
        order: Where the next one has to stand.
        starts: Every epoch start that is known, those given included.
    """

    topic: str
    partition: int
    topic_ids: list[str] = []
    counts: dict[Kind, dict[Reason, int]] = {}
    scopes: set[str] = set()
    epochs: list[EpochHistory] = []
    epochs_left_out: int = 0
    rejections: list[Rejections] = []
    rejected: list[Rejected] = []
    timeline: Timeline = msgspec.field(default_factory=Timeline)
    first: RecordPlace | None = None
    last: RecordPlace | None = None
    order: LogOrder = msgspec.field(default_factory=LogOrder)
    starts: list[EpochStart] = []

    @property
    def records(self) -> int:
        """How many records were judged."""
        return sum(sum(by_reason.values()) for by_reason in self.counts.values())


class PartitionAudit:
    """Judges the records of one partition, which come in order of position.

    Args:
        topic: The topic.
        partition: The partition's number.
        settings: What the records must carry.
        ledger: The grants; with authority `max-seen` it only tells who was granted.
        starts: Epoch starts known beforehand; those of other partitions do not matter.
        state: Where an earlier audit of this partition stopped.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        settings: FenceSettings,
        ledger: LedgerState | None,
        starts: Iterable[EpochStart] = (),
        state: PartitionState | None = None,
    ) -> None:
        here = [
            one for one in starts if (one.topic, one.partition) == (topic, partition)
        ]
        self._known = frozenset(here)
        self._rows: dict[tuple[str, int], list[EpochStart]] = {}
        for row in here:
            self._rows.setdefault((row.scope, row.epoch), []).append(row)
        self._ledger = ledger
        self._state = PartitionState(topic, partition) if state is None else state
        self._order = self._state.order
        self._epochs = {one.stamp: one for one in self._state.epochs}
        self._causes = {_cause(one): one for one in self._state.rejections}
        self._timeline = TimelineBuilder(self._state.timeline)
        self._life = max(len(self._state.topic_ids) - 1, 0)
        self.topic_id = self._state.topic_ids[-1] if self._state.topic_ids else None
        # Records with the same verdict, one after the other: a run.
        self._run_verdict: Verdict | None = None
        self._run_first: RecordPlace | None = None
        self._run_records = 0
        self._last_timestamp: int | None = None
        self._fence = PartitionFence(
            topic, partition, settings, ledger, [*here, *self._state.starts]
        )
        self._fence.enter_life(self.topic_id)

    @property
    def topic(self) -> str:
        """The topic."""
        return self._state.topic

    @property
    def partition(self) -> int:
        """The partition's number."""
        return self._state.partition

    @property
    def needs_value(self) -> bool:
        """Whether a verdict may take a record's value."""
        return self._fence.settings.stamps.is_foreign

    @property
    def last_offset(self) -> int:
        """The offset of the last record, -1 before the first of a life."""
        return self._order.last_offset

    @property
    def starts_found(self) -> tuple[EpochStart, ...]:
        """The epoch starts that were not known beforehand."""
        return tuple(one for one in self._fence.starts if one not in self._known)

    def judge(
        self,
        topic_id: str | None,
        leader_epoch: int | None,
        offset: int,
        timestamp: int | None,
        headers: Headers,
        value: bytes | None = None,
    ) -> Verdict:
        """Give the next record its verdict.

        Raises:
            OutOfOrderError: It does not stand behind the ones before it.
        """
        order = self._order
        if topic_id != self.topic_id and topic_id is not None:
            self._enter_life(topic_id)
            order = self._order
        if offset <= order.last_offset or leader_epoch != order.leader_epoch:
            self._check_order(leader_epoch, offset)
        verdict = self._fence.judge(
            leader_epoch, offset, headers, value, ledger_complete=True
        )
        assert verdict is not None  # the ledger is complete
        if verdict is not self._run_verdict:
            self._begin_run(verdict, offset, timestamp)
        self._run_records += 1
        order.last_offset = offset
        self._last_timestamp = timestamp
        if verdict.is_rejected and len(self._state.rejected) < KEPT_REJECTED:
            self._show(verdict, offset)
        return verdict

    def judge_alike(
        self,
        topic_id: str | None,
        leader_epoch: int | None,
        offsets: tuple[int, int],
        timestamps: tuple[int | None, int | None],
        headers: Headers,
        records: int,
    ) -> Verdict | None:
        """Give records that share leader epoch and headers their verdict, all at once.

        Two verdicts are enough: where the first and the last get the very same one,
        nothing began between them.

        Args:
            topic_id: The life of the topic.
            leader_epoch: The leader epoch of all of them.
            offsets: The first offset and the last.
            timestamps: The first record's and the last one's.
            headers: What all of them carry.
            records: How many there are: more than one.

        Returns:
            None if they have to be judged one by one; nothing has changed then. For
            that, a verdict must have been given to such a record right before.

        Raises:
            OutOfOrderError: They do not stand behind the ones before them.
        """
        verdict = self._run_verdict
        if verdict is None or verdict.is_rejected or topic_id != self.topic_id:
            return None
        if leader_epoch != self._order.leader_epoch:
            return None
        first, last = offsets
        if first <= self._order.last_offset:
            self._check_order(leader_epoch, first)
        for offset in offsets:
            judged = self._fence.judge(
                leader_epoch, offset, headers, ledger_complete=True
            )
            if judged is not verdict:
                return None
        self._run_records += records
        self._order.last_offset = last
        self._last_timestamp = timestamps[1]
        return verdict

    def state(self) -> PartitionState:
        """What is known so far. To be asked for between two records, or at the end."""
        self._end_run()
        state = self._state
        state.epochs = list(self._epochs.values())
        state.rejections = list(self._causes.values())
        state.timeline = self._timeline.timeline
        state.order = self._order
        state.starts = list(self._fence.starts)
        return state

    def _enter_life(self, topic_id: str) -> None:
        if topic_id in self._state.topic_ids:
            raise OutOfOrderError(
                f"topic id {topic_id} of {self.topic}[{self.partition}] comes back "
                f"after {self.topic_id}: a life of a topic does not return"
            )
        self._end_run()
        self._state.topic_ids.append(topic_id)
        if self.topic_id is not None:
            self._life += 1
            self._order = LogOrder()
        self.topic_id = topic_id
        self._fence.enter_life(topic_id)

    def _check_order(self, leader_epoch: int | None, offset: int) -> None:
        if leader_epoch != self._order.leader_epoch:
            self._end_run()  # what is kept of its last record has its leader epoch
        try:
            self._order.check(leader_epoch, offset)
        except OutOfOrderError as error:
            where = f"{self.topic}[{self.partition}]"
            raise OutOfOrderError(f"{where} {error}") from None

    # Runs: what is kept is brought up to date where the verdict changes.

    def _begin_run(self, verdict: Verdict, offset: int, timestamp: int | None) -> None:
        self._end_run()
        first = self._place(offset, timestamp)
        self._run_verdict, self._run_first = verdict, first
        if self._state.first is None:
            self._state.first = first
        opened = {Stamp(one.scope, one.epoch, one.grant_id) for one in verdict.starts}
        for stamp in verdict.stamps:
            if stamp not in opened and not self._is_known_start(verdict, stamp, first):
                continue
            history = self._history(stamp, has_begun=True)
            if history is not None and history.start is None:
                history.start = first

    def _is_known_start(
        self, verdict: Verdict, stamp: Stamp, place: RecordPlace
    ) -> bool:
        """Whether an epoch is known beforehand to begin with this record."""
        if verdict.is_rejected:
            return False
        here = Position(place.leader_epoch, place.offset)
        return any(
            self._life_of(row) == place.life
            and row.position.is_at_or_before(here)
            and here.is_at_or_before(row.position)
            for row in self._rows.get((stamp.scope, stamp.epoch), ())
            if row.grant_id == stamp.grant_id
        )

    def _life_of(self, row: EpochStart) -> int | None:
        """Which of the lives that were read a row is of, None for none of them."""
        if row.topic_id is None or self.topic_id is None:
            return self._life
        ids = self._state.topic_ids
        return ids.index(row.topic_id) if row.topic_id in ids else None

    def _place(self, offset: int, timestamp: int | None) -> RecordPlace:
        return RecordPlace(offset, self._order.leader_epoch, timestamp, self._life)

    def _end_run(self) -> None:
        """Sum up the records that got the same verdict in a row."""
        verdict, first = self._run_verdict, self._run_first
        records, self._run_records = self._run_records, 0
        self._run_verdict = self._run_first = None
        if verdict is None or first is None:
            return
        last = self._place(self._order.last_offset, self._last_timestamp)
        state = self._state
        state.last = last
        by_reason = state.counts.setdefault(verdict.kind, {})
        by_reason[verdict.reason] = by_reason.get(verdict.reason, 0) + records
        for stamp in verdict.stamps:
            if len(state.scopes) < KEPT_SCOPES:
                state.scopes.add(stamp.scope)
            history = self._history(stamp)
            if history is not None:
                history.take(verdict.kind, verdict.reason, records, first, last)
            if not verdict.is_rejected:
                self._timeline.admit(stamp.scope, stamp.epoch, first, last, records)
        if verdict.is_rejected:
            self._reject(verdict, first, last, records)
        if verdict.kind == "barrier":
            self._mark(verdict, verdict.stamps[0], first, last, records)

    def _mark(
        self,
        verdict: Verdict,
        stamp: Stamp | None,
        first: RecordPlace,
        last: RecordPlace,
        records: int,
    ) -> None:
        scope, epoch, _ = _cited(stamp)
        self._timeline.mark(
            verdict.kind, verdict.reason, scope, epoch, first, last, records
        )

    def _reject(
        self, verdict: Verdict, first: RecordPlace, last: RecordPlace, records: int
    ) -> None:
        self._mark(verdict, verdict.cause, first, last, records)
        scope, epoch, grant_id = _cited(verdict.cause)
        key = (verdict.reason, scope, epoch, grant_id)
        there = self._causes.get(key)
        if there is None and len(self._causes) >= KEPT_CAUSES:
            # Made-up stamps have no end: from here on, one for each reason.
            scope = epoch = grant_id = None
            key = (verdict.reason, None, None, None)
            there = self._causes.get(key)
        if there is None:
            there = self._causes[key] = Rejections(
                verdict.kind, verdict.reason, scope, epoch, grant_id,
                verdict.current_epoch, 0, first, last,
            )  # fmt: skip
            self._set_against(there, verdict)
        there.records += records
        there.last = last

    def _set_against(self, rejections: Rejections, verdict: Verdict) -> None:
        """Find what the first of them contradicts: where the current epoch began."""
        if verdict.cause is None or verdict.current_epoch is None:
            return
        for history in self._epochs.values():
            if (
                history.scope == verdict.cause.scope
                and history.epoch == verdict.current_epoch
                and history.start is not None
            ):
                rejections.against = history.start
                rejections.against_grant_id = history.grant_id
        if rejections.against is None:
            self._set_against_row(rejections, verdict.cause.scope)

    def _set_against_row(self, rejections: Rejections, scope: str) -> None:
        """The same, where only a row tells of it; its time is not known."""
        for row in self._rows.get((scope, rejections.current_epoch or 0), ()):
            life = self._life_of(row)
            if life is not None:
                leader_epoch, offset = row.position
                rejections.against = RecordPlace(offset, leader_epoch, None, life)
                rejections.against_grant_id = row.grant_id
                return

    def _show(self, verdict: Verdict, offset: int) -> None:
        """Keep a rejected record one by one."""
        state = self._state
        cited = _cited(verdict.cause)
        state.rejected.append(
            Rejected(
                state.topic,
                self.topic_id,
                state.partition,
                offset,
                verdict.kind,
                verdict.reason,
                *cited,
                verdict.current_epoch,
            )
        )

    def _history(self, stamp: Stamp, has_begun: bool = False) -> EpochHistory | None:
        """Only for what began here or was granted: made-up epochs have no end."""
        history = self._epochs.get(stamp)
        if history is None and (has_begun or self._is_granted(stamp)):
            if len(self._epochs) >= KEPT_EPOCHS:
                self._state.epochs_left_out += 1
                return None
            history = EpochHistory(stamp.scope, stamp.epoch, stamp.grant_id)
            self._epochs[stamp] = history
        return history

    def _is_granted(self, stamp: Stamp) -> bool:
        ledger = self._ledger
        return ledger is not None and ledger.is_grant(
            stamp.scope, stamp.epoch, stamp.grant_id
        )


def _cause(rejections: Rejections) -> tuple[str, str | None, int | None, str | None]:
    return (
        rejections.reason,
        rejections.scope,
        rejections.epoch,
        rejections.grant_id,
    )


def _cited(stamp: Stamp | None) -> tuple[str | None, int | None, str | None]:
    """What a stamp says, in parts."""
    if stamp is None:
        return None, None, None
    return stamp.scope, stamp.epoch, stamp.grant_id
