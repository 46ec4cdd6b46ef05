"""The report of an audit: one value, from which every form of it is made.

`report_schema()` is its JSON schema. New fields may come; none goes or changes its
meaning without a new `version`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from epochfence.epochs.verdicts import Kind, Reason
from epochfence.replay.partition_audit import Rejected
from epochfence.replay.places import RecordPlace
from epochfence.replay.texts import counted
from epochfence.replay.timeline import Timeline

#: How bad a finding is: `critical` (what fencing rests on was damaged, or not all
#: could be judged as it has to be), `warning` (somebody wrote what must not be
#: applied), `notice` (worth knowing).
Severity = Literal["critical", "warning", "notice"]


class Evidence(msgspec.Struct, frozen=True, omit_defaults=False):
    """A record that a finding rests on, of a data topic or of one of ours.

    Attributes:
        what: Its part in the story, in a few words.
        topic: The topic.
        topic_id: The life of the topic, None where unknown.
        partition: The partition.
        offset: Its offset, None where it was not told (a ledger file).
        leader_epoch: The broker's leader epoch.
        timestamp: Milliseconds since 1970, as the record says.
        scope: The scope that it is about.
        epoch: The epoch that it carries.
        grant_id: The grant id that it carries.
        holder: Who claimed that, None where no ledger says so.
    """

    what: str
    topic: str | None = None
    topic_id: str | None = None
    partition: int | None = None
    offset: int | None = None
    leader_epoch: int | None = None
    timestamp: int | None = None
    scope: str | None = None
    epoch: int | None = None
    grant_id: str | None = None
    holder: str | None = None


class Finding(msgspec.Struct, frozen=True):
    """Something that an operator should know.

    Attributes:
        severity: How bad it is.
        code: What kind of finding it is, for programs: it never changes.
        text: The same in plain words.
        topic: The topic it is about, None where it is about none.
        partition: The partition, None where it is about none alone.
        scope: The scope it is about.
        epoch: The epoch it is about.
        records: How many records it is about.
        evidence: The records that contradict each other.
        remedy: What to do.
    """

    severity: Severity
    code: str
    text: str
    topic: str | None = None
    partition: int | None = None
    scope: str | None = None
    epoch: int | None = None
    records: int = 0
    evidence: tuple[Evidence, ...] = ()
    remedy: str = ""


class OutcomeCount(msgspec.Struct, frozen=True):
    """How many records got a verdict."""

    verdict: Kind
    reason: Reason
    records: int

    @property
    def name(self) -> str:
        """The verdict and its reason, as a column's head."""
        return self.verdict if self.reason == "ok" else f"{self.verdict}: {self.reason}"


class Overlap(msgspec.Struct, frozen=True):
    """The time in which a deposed leader went on writing.

    Attributes:
        first: Its first stale record.
        last: Its last one.
        records: How many.
        wrote_on_ms: From the successor's beginning to the last stale record, by the
            records' timestamps; None where they have none.
    """

    first: RecordPlace
    last: RecordPlace
    records: int
    wrote_on_ms: int | None


class EpochReport(msgspec.Struct, frozen=True):
    """One epoch on one partition.

    Attributes:
        scope: Whose epoch.
        epoch: Its number.
        grant_id: Its grant, None for foreign epochs.
        holder: Who held it, None where no ledger says so.
        claimed_at: When it was claimed, by the claimant's clock, ms since 1970.
        start_offset: Where it began, None where it did not begin in what was read.
        start: The record with which it began.
        barrier: Its barrier.
        first_write: Its first admitted record, barriers not counted.
        last_write: The last one.
        gap_ms: From its grant to its first write, by two clocks; None: not known.
        admitted: Records and barriers let through.
        barriers: The barriers among them.
        rejected: Records of it that were not.
        stale: Those that came after a later epoch had begun.
        quarantined: Those that could not be trusted, by reason.
        last_rejected_offset: The last rejected record.
        succeeded_by: The epoch that began next on this partition.
        overlap: The time in which its leader went on writing all the same.
    """

    scope: str
    epoch: int
    grant_id: str | None
    holder: str | None
    claimed_at: int | None
    start_offset: int | None
    start: RecordPlace | None
    barrier: RecordPlace | None
    first_write: RecordPlace | None
    last_write: RecordPlace | None
    gap_ms: int | None
    admitted: int
    barriers: int
    rejected: int
    stale: int
    quarantined: dict[str, int]
    last_rejected_offset: int | None
    succeeded_by: int | None
    overlap: Overlap | None


class PartitionReport(msgspec.Struct, frozen=True):
    """One partition.

    Attributes:
        topic: The topic.
        partition: Its number.
        topic_ids: The lives of the topic that its records are of, in order.
        read_from: The offset where reading was to begin, None for a file.
        read_to: The one where it was to end, and without which: the captured end.
        first: The first record.
        last: The last one.
        records: How many were judged.
        verdicts: The same by verdict and reason.
        epochs: The same by epoch.
        timeline: The picture.
    """

    topic: str
    partition: int
    topic_ids: list[str]
    read_from: int | None
    read_to: int | None
    first: RecordPlace | None
    last: RecordPlace | None
    records: int
    verdicts: list[OutcomeCount]
    epochs: list[EpochReport]
    timeline: Timeline


class LedgerReport(msgspec.Struct, frozen=True):
    """The ledger that was asked.

    Attributes:
        kind: `topic` or `file`.
        name: Its name.
        offset: Where the reading of the topic ended.
        synced: Whether it was read to its end for sure; None for a file.
        claims: How many claims it holds.
        grants: How many of them won.
        scopes: Of how many scopes.
        text: The same for people.
    """

    kind: str
    name: str
    offset: int | None
    synced: bool | None
    claims: int
    grants: int
    scopes: int
    text: str


class SettingsReport(msgspec.Struct, frozen=True):
    """What the records had to carry."""

    stamp: str
    authority: str
    scopes: list[str]
    unstamped: str
    max_jump: int | None

    def __str__(self) -> str:
        scopes = ", ".join(self.scopes) or "any scope"
        jump = "" if self.max_jump is None else f", max jump {self.max_jump}"
        return (
            f"stamp {self.stamp} of {scopes}, authority {self.authority}, unstamped: "
            f"{self.unstamped}{jump}"
        )


class WhatIfChange(msgspec.Struct, frozen=True):
    """Records of one partition on which other settings disagree.

    Attributes:
        topic: The topic.
        partition: The partition.
        verdict: What the audit says of them.
        reason: Why.
        other_verdict: What the other settings say.
        other_reason: Why.
        records: How many.
        first_offset: The first of them.
        last_offset: The last.
    """

    topic: str
    partition: int
    verdict: Kind
    reason: Reason
    other_verdict: Kind
    other_reason: Reason
    records: int
    first_offset: int
    last_offset: int

    def __str__(self) -> str:
        records = counted(self.records, "record")
        was = OutcomeCount(self.verdict, self.reason, 0).name
        would_be = OutcomeCount(self.other_verdict, self.other_reason, 0).name
        where = f"offsets {self.first_offset} to {self.last_offset}"
        if self.first_offset == self.last_offset:
            where = f"offset {self.first_offset}"
        return (
            f"{self.topic}[{self.partition}]: {records}, {was} here, would be "
            f"{would_be} ({where})"
        )


class WhatIfReport(msgspec.Struct, frozen=True):
    """What other settings would have said of the same records.

    Attributes:
        settings: Those settings.
        verdicts: Records by verdict and reason.
        changes: Where they disagree with the audit.
    """

    settings: SettingsReport
    verdicts: list[OutcomeCount]
    changes: list[WhatIfChange]


class RejectedReport(msgspec.Struct, frozen=True):
    """One rejected record, and who claimed what it cites."""

    topic: str
    topic_id: str | None
    partition: int
    offset: int
    verdict: Kind
    reason: Reason
    scope: str | None
    epoch: int | None
    current_epoch: int | None
    holder: str | None

    @classmethod
    def of(cls, one: Rejected, holder: str | None) -> RejectedReport:
        """The same with its holder."""
        return cls(
            one.topic, one.topic_id, one.partition, one.offset, one.verdict,
            one.reason, one.scope, one.epoch, one.current_epoch, holder,
        )  # fmt: skip


class Report(msgspec.Struct, frozen=True):
    """What an audit found.

    Attributes:
        source: What was read, for people: a topic, a file.
        partial: Why not everything was judged that was to be, None where all was.
        ledger: The ledger that was asked.
        epoch_starts_known: How many epoch starts were known beforehand.
        settings: What the records had to carry.
        records: How many were judged.
        verdicts: The same by verdict and reason.
        partitions: The same by partition.
        rejected_total: How many were rejected.
        rejected_shown: The first of them.
        findings: What an operator should know, the worst first.
        what_if: What other settings would have said.
        remarks: What looks like a mistake in how the audit was asked for.
        compared_with: What the topic was compared with beyond the fence, for people.
    """

    source: str
    partial: str | None
    ledger: LedgerReport | None
    epoch_starts_known: int
    settings: SettingsReport
    records: int
    verdicts: list[OutcomeCount]
    partitions: list[PartitionReport]
    rejected_total: int
    rejected_shown: list[RejectedReport]
    findings: list[Finding]
    what_if: list[WhatIfReport]
    remarks: list[str]
    compared_with: list[str] = []
    report: Literal["epochfence-audit"] = "epochfence-audit"
    version: Literal[1] = 1

    def count(self, kind: Kind) -> int:
        """How many records got a verdict of this kind."""
        return sum(one.records for one in self.verdicts if one.verdict == kind)

    def judged_by(self) -> list[str]:
        """What the records were judged by, for people."""
        line = "No ledger." if self.ledger is None else self.ledger.text
        starts = self.epoch_starts_known
        if starts:
            line = f"{line} {counted(starts, 'epoch start')} known beforehand."
        lines = [line, *self.compared_with]
        return lines if self.partial is None else [*lines, f"Partial: {self.partial}."]

    def summary(self) -> str:
        """The whole report in a line."""
        return (
            f"{counted(self.records, 'record')}: "
            f"{self.count('admitted'):,} admitted, "
            f"{counted(self.count('barrier'), 'barrier')}, "
            f"{self.count('stale'):,} stale, "
            f"{self.count('quarantined'):,} quarantined."
        )

    def worst(self) -> Severity | None:
        """The worst severity among the findings, None where there are none."""
        return self.findings[0].severity if self.findings else None


def report_schema() -> dict[str, Any]:
    """The JSON schema of a report."""
    return msgspec.json.schema(Report)
