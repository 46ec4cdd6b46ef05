"""The audit: judge the records of a topic or of a file, and sum up what was found.

Whatever the records come from, they go through `epochfence.epochs.fence`. What is
kept grows with partitions, epochs and reasons, never with records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from epochfence.epochs.errors import LedgerRegressed, MisconfiguredError
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import Headers
from epochfence.epochs.values import EpochStart, Position, Stamp
from epochfence.epochs.verdicts import REJECTED, Kind, Reason, Verdict

#: How many rejected records a report shows one by one.
SHOWN_REJECTED = 20

#: How many scopes a remark names, and how many a partition's audit remembers.
_SHOWN_SCOPES = 5
_KEPT_SCOPES = 10_000


class OutOfOrderError(ValueError):
    """A record does not stand behind the one before it in its partition."""


@dataclass
class EpochSummary:
    """What one partition holds of one epoch that began there or was granted.

    Attributes:
        scope: Whose epoch.
        epoch: Its number.
        grant_id: Its grant, None for foreign epochs.
        holder: Who held it, None where no ledger says so.
        start_offset: Where it began, None where it did not begin in what was read.
        admitted: Records and barriers let through.
        rejected: Records of it that were not.
        last_rejected_offset: The last of those.
    """

    scope: str
    epoch: int
    grant_id: str | None
    holder: str | None = None
    start_offset: int | None = None
    admitted: int = 0
    rejected: int = 0
    last_rejected_offset: int | None = None


@dataclass(frozen=True)
class Rejected:
    """One rejected record, for people."""

    topic: str
    topic_id: str | None
    partition: int
    offset: int
    verdict: Verdict
    holder: str | None


@dataclass(frozen=True)
class LedgerSource:
    """A ledger for an audit: where it came from, and what it says.

    Attributes:
        state: What it says.
        name: The file's or the topic's name.
        is_topic: Whether it was read from a topic.
        offset: Where the reading of the topic ended.
    """

    state: LedgerState
    name: str
    is_topic: bool = False
    offset: int | None = None

    def __str__(self) -> str:
        claims, grants = self.state.sizes()
        where = (
            f"topic {self.name} as of offset {self.offset}, unsynced (it may be behind)"
            if self.is_topic
            else f"file {self.name}"
        )
        return (
            f"Ledger: {where}: {claims:,} claims, {grants:,} of them granted, "
            f"{len(self.state.scopes()):,} scopes."
        )

    def to_json(self) -> dict[str, Any]:
        """For a report."""
        claims, grants = self.state.sizes()
        return {
            "kind": "topic" if self.is_topic else "file",
            "name": self.name,
            "offset": self.offset,
            "synced": False if self.is_topic else None,
            "claims": claims,
            "grants": grants,
        }


@dataclass
class Audit:
    """Everything that an audit found.

    Args:
        settings: What the records must carry.
        source: The ledger; None where there is none (authority `max-seen`).
        table: Epoch starts known beforehand.

    Raises:
        LedgerRegressed: The ledger of a topic is below the table.
        MisconfiguredError: Authority `ledger` without a ledger; or a file's ledger is
            below the table.
    """

    settings: FenceSettings
    source: LedgerSource | None
    table: Iterable[EpochStart] = ()
    partitions: dict[tuple[str, int], PartitionAudit] = field(
        default_factory=dict["tuple[str, int]", "PartitionAudit"], init=False
    )
    rejected: list[Rejected] = field(default_factory=list[Rejected], init=False)

    def __post_init__(self) -> None:
        self.table = tuple(self.table)
        self.ledger = None if self.source is None else self.source.state
        # With max-seen no verdict asks the ledger: it only names the holders.
        if self.ledger is not None and self.settings.authority == "ledger":
            self._check_not_below(self.ledger)

    def _check_not_below(self, ledger: LedgerState) -> None:
        try:
            ledger.check_not_below((row.scope, row.epoch) for row in self.table)
        except LedgerRegressed as error:
            if self.source is None or self.source.is_topic:
                raise
            raise MisconfiguredError(
                "--ledger", self.source.name,
                f"it ends with epoch {error.ledger_epoch} of scope {error.scope!r}, "
                f"and the table tells where epoch {error.seen_epoch} began",
                "It was written before the table was, or they are not of one cluster: "
                "have epochfence ledger export write it anew.",
            ) from error  # fmt: skip

    def partition(self, topic: str, partition: int) -> PartitionAudit:
        """The audit of one partition."""
        found = self.partitions.get((topic, partition))
        if found is None:
            found = PartitionAudit(self, topic, partition)
            self.partitions[topic, partition] = found
        return found

    def holder(self, stamp: Stamp | None) -> str | None:
        """Who claimed what a stamp cites, None where no ledger says so."""
        if stamp is None or self.ledger is None:
            return None
        claim = self.ledger.find(stamp.scope, stamp.epoch, stamp.grant_id)
        return None if claim is None else claim.holder

    def sources(self) -> str:
        """What the records were judged by, for people."""
        ledger = "No ledger." if self.source is None else str(self.source)
        starts = len(tuple(self.table))
        if not starts:
            return ledger
        noun = "epoch start" if starts == 1 else "epoch starts"
        return f"{ledger} {starts:,} {noun} known beforehand."

    def rejected_total(self) -> int:
        """How many records were rejected."""
        return sum(
            count for (kind, _), count in self.counts().items() if kind in REJECTED
        )

    def remarks(self) -> list[str]:
        """What looks like a mistake in how the audit was asked for."""
        total = sum(self.counts().values())
        found = [self._no_stamps(missing) for missing in self._missing() if total]
        if total and self.ledger is not None and not self.ledger.scopes():
            found.append("the ledger grants nothing: is it the right one?")
        return found

    def _missing(self) -> list[str]:
        """What scopes no record carries: those required; any, where none is."""
        required = {
            scope: None
            for one in self.partitions.values()
            for scope in self.settings.required_scopes(one.partition)
        }
        carried = self._carried()
        if not required:
            return [] if carried else ["any scope"]
        missing = [scope for scope in required if scope not in carried]
        return [" or ".join(missing)] if missing else []

    def _carried(self) -> set[str]:
        return set().union(*(one.scopes for one in self.partitions.values()))

    def _no_stamps(self, missing: str) -> str:
        there = sorted(self._carried())
        hint = "Are --stamp and --scope what you mean?"
        if there:
            shown = ", ".join(there[:_SHOWN_SCOPES])
            left_out = len(there) - _SHOWN_SCOPES
            more = f" and {left_out} more" if left_out > 0 else ""
            hint = f"These scopes are there: {shown}{more}. Is --scope misspelt?"
        return (
            f"no record carries a stamp {self.settings.stamps.name!r} of {missing}. "
            f"{hint}"
        )

    def show(self, partition: PartitionAudit, verdict: Verdict) -> None:
        """Keep the partition's last record for the report, if there is room."""
        if len(self.rejected) < SHOWN_REJECTED:
            self.rejected.append(
                Rejected(
                    partition.topic,
                    partition.topic_id,
                    partition.partition,
                    partition.last_offset,
                    verdict,
                    self.holder(verdict.cause),
                )
            )

    def finish(self) -> None:
        """Bring the sums up to date."""
        for partition in self.partitions.values():
            partition.end_run()

    def counts(self) -> dict[tuple[Kind, Reason], int]:
        """Records by verdict and reason, over all partitions."""
        total: dict[tuple[Kind, Reason], int] = {}
        for partition in self.partitions.values():
            for outcome, count in partition.counts.items():
                total[outcome] = total.get(outcome, 0) + count
        return total


class PartitionAudit:
    """The audit of one partition, whose records come in order of position."""

    def __init__(self, audit: Audit, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.counts: dict[tuple[Kind, Reason], int] = {}
        self.epochs: dict[Stamp, EpochSummary] = {}
        #: Scopes that its records carry: some of them, where there are very many.
        self.scopes: set[str] = set()
        self._audit = audit
        self.topic_ids: list[str] = []
        self.topic_id: str | None = None
        self._forget_order()
        self._run_verdict: Verdict | None = None
        self._run_records = 0
        self._run_is_rejected = False
        self._fence = PartitionFence(
            topic,
            partition,
            audit.settings,
            audit.ledger,
            (r for r in audit.table if (r.topic, r.partition) == (topic, partition)),
        )

    @property
    def starts_found(self) -> tuple[EpochStart, ...]:
        """The epoch starts that were not known beforehand."""
        known = set(self._audit.table)
        return tuple(start for start in self._fence.starts if start not in known)

    def _forget_order(self) -> None:
        """What the next record has to stand behind: nothing."""
        self.last_offset = -1
        self._leader_epoch: int | None = None
        self._last_unnamed = -1
        self._last_named = Position(None, -1)
        self._highest_named = -1

    def judge(
        self,
        topic_id: str | None,
        leader_epoch: int | None,
        offset: int,
        headers: Headers,
        value: bytes | None = None,
    ) -> Verdict:
        """Give the next record its verdict.

        Raises:
            OutOfOrderError: It does not stand behind the one before it.
        """
        if topic_id != self.topic_id and topic_id is not None:
            self._enter_life(topic_id)
        if offset <= self.last_offset or leader_epoch != self._leader_epoch:
            self._check_order(leader_epoch, offset)
        verdict = self._fence.judge(
            leader_epoch, offset, headers, value, ledger_complete=True
        )
        assert verdict is not None  # the ledger is complete
        if verdict is not self._run_verdict:
            self.end_run()
            self._run_verdict = verdict
            self._run_is_rejected = verdict.is_rejected
            if verdict.starts:
                self._note_starts(verdict)
        self._run_records += 1
        self.last_offset = offset
        if self._run_is_rejected:
            self._audit.show(self, verdict)
        return verdict

    def _enter_life(self, topic_id: str) -> None:
        if topic_id in self.topic_ids:
            raise OutOfOrderError(
                f"topic id {topic_id} of {self.topic}[{self.partition}] comes back "
                f"after {self.topic_id}: a life of a topic does not return"
            )
        self.topic_ids.append(topic_id)
        if self.topic_id is not None:
            self.end_run()
            self._forget_order()
        self.topic_id = topic_id
        self._fence.enter_life(topic_id)

    def _check_order(self, leader_epoch: int | None, offset: int) -> None:
        """See that a record stands behind every record of this life before it.

        The one before it is not enough: where a leader epoch is unknown, offsets
        alone are compared, and that order is not transitive.
        """
        here = Position(leader_epoch, offset)
        if self._leader_epoch is None:
            self._last_unnamed = self.last_offset
        else:
            self._last_named = Position(self._leader_epoch, self.last_offset)
            self._highest_named = max(self._highest_named, self.last_offset)
        before = [Position(None, self._last_unnamed), self._last_named]
        if leader_epoch is None:
            before.append(Position(None, self._highest_named))
        for position in before:
            if here.is_at_or_before(position):
                raise OutOfOrderError(
                    f"{self.topic}[{self.partition}] offset {offset} (leader epoch "
                    f"{leader_epoch}) comes after offset {position.offset} (leader "
                    f"epoch {position.leader_epoch}), but does not stand behind it: "
                    f"records must be in order of position, each once"
                )
        self._leader_epoch = leader_epoch

    def end_run(self) -> None:
        """Sum up the records that got the same verdict in a row."""
        verdict, records = self._run_verdict, self._run_records
        self._run_verdict, self._run_records = None, 0
        if verdict is None:
            return
        outcome = (verdict.kind, verdict.reason)
        self.counts[outcome] = self.counts.get(outcome, 0) + records
        for stamp in verdict.stamps:
            if len(self.scopes) < _KEPT_SCOPES:
                self.scopes.add(stamp.scope)
            summary = self._summary(stamp)
            if summary is None:
                continue
            if verdict.is_rejected:
                summary.rejected += records
                summary.last_rejected_offset = self.last_offset
            else:
                summary.admitted += records

    def _note_starts(self, verdict: Verdict) -> None:
        for start in verdict.starts:
            stamp = Stamp(start.scope, start.epoch, start.grant_id)
            summary = self.epochs.setdefault(stamp, self._new_summary(stamp))
            if summary.start_offset is None:
                summary.start_offset = start.position.offset

    def _summary(self, stamp: Stamp) -> EpochSummary | None:
        """Only for what began here or was granted: made-up epochs have no end."""
        summary = self.epochs.get(stamp)
        if summary is None:
            ledger = self._audit.ledger
            if ledger is None or not ledger.is_grant(
                stamp.scope, stamp.epoch, stamp.grant_id
            ):
                return None
            summary = self.epochs[stamp] = self._new_summary(stamp)
        return summary

    def _new_summary(self, stamp: Stamp) -> EpochSummary:
        return EpochSummary(
            stamp.scope, stamp.epoch, stamp.grant_id, self._audit.holder(stamp)
        )


def sorted_partitions(audit: Audit) -> list[PartitionAudit]:
    """The partitions by topic and number."""
    return [audit.partitions[at] for at in sorted(audit.partitions)]


def sorted_epochs(epochs: dict[Stamp, EpochSummary]) -> list[EpochSummary]:
    """The epochs of a partition by scope, epoch and grant id."""
    return sorted(
        epochs.values(), key=lambda one: (one.scope, one.epoch, one.grant_id or "")
    )
