"""From what was found on each partition to the report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import Claim
from epochfence.epochs.verdicts import REJECTED, Kind, Reason
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.histories import EpochHistory, Rejections
from epochfence.replay.partition_audit import KEPT_REJECTED, PartitionState
from epochfence.replay.places import milliseconds_between
from epochfence.replay.replay_findings import findings_of
from epochfence.replay.report import (
    EpochReport,
    Finding,
    LedgerReport,
    OutcomeCount,
    Overlap,
    PartitionReport,
    RejectedReport,
    Report,
    SettingsReport,
    WhatIfChange,
    WhatIfReport,
)
from epochfence.replay.what_if import WhatIfState
from epochfence.replay.witness import Witness

#: How many scopes a remark names.
_SHOWN_SCOPES = 5

_SEVERITIES = ("critical", "warning", "notice")

#: Where reading a partition was to begin, and the offset where it was to end.
Bounds = dict[tuple[str, int], tuple[int, int]]


def sum_up(
    audit: Audit,
    source: str,
    *,
    states: Sequence[PartitionState] | None = None,
    what_if: Iterable[tuple[FenceSettings, Sequence[WhatIfState]]] = (),
    bounds: Bounds | None = None,
    findings: Iterable[Finding] = (),
    partial: str | None = None,
    compared_with: Sequence[str] = (),
) -> Report:
    """Make the report.

    Args:
        audit: What was judged by.
        source: What was read, for people.
        states: What was found; None: by the audit itself.
        what_if: What other settings found.
        bounds: What was to be read of each partition, where that is known.
        findings: What else was found.
        partial: Why not all was judged, None where it was.
        compared_with: What it was compared with beyond the fence, for people.
    """
    states = audit.states() if states is None else states
    witness = Witness(audit.source)
    told = [*findings]
    for state in states:
        read_from, _ = (bounds or {}).get(_place(state), (None, None))
        told += findings_of(state, witness, audit.settings, read_from)
    told.sort(key=_worst_first)
    counts = _counts(states)
    shown = [one for state in states for one in state.rejected][:KEPT_REJECTED]
    return Report(
        source=source,
        partial=partial,
        ledger=None if audit.source is None else ledger_report(audit.source),
        epoch_starts_known=len(tuple(audit.table)),
        settings=settings_report(audit.settings),
        records=sum(one.records for one in counts),
        verdicts=counts,
        partitions=[
            _partition_report(state, witness, (bounds or {}).get(_place(state)))
            for state in states
        ],
        rejected_total=sum(one.records for one in counts if one.verdict in REJECTED),
        rejected_shown=[
            RejectedReport.of(one, witness.holder(one.scope, one.epoch, one.grant_id))
            for one in shown
        ],
        findings=told,
        what_if=[_what_if_report(*one) for one in what_if],
        remarks=_remarks(states, audit.settings, audit.ledger),
        compared_with=[*compared_with],
    )


def _worst_first(finding: Finding) -> tuple[object, ...]:
    return (
        _SEVERITIES.index(finding.severity),
        finding.topic or "",
        -1 if finding.partition is None else finding.partition,
        finding.evidence[-1].offset or 0 if finding.evidence else 0,
        finding.code,
    )


def _place(state: PartitionState) -> tuple[str, int]:
    return state.topic, state.partition


def _counts(states: Iterable[PartitionState]) -> list[OutcomeCount]:
    total: dict[tuple[Kind, Reason], int] = {}
    for state in states:
        for kind, by_reason in state.counts.items():
            for reason, count in by_reason.items():
                total[kind, reason] = total.get((kind, reason), 0) + count
    return [
        OutcomeCount(kind, reason, count)
        for (kind, reason), count in sorted(total.items())
    ]


def ledger_report(source: LedgerSource) -> LedgerReport:
    """The ledger that was asked, for a report."""
    claims, grants = source.state.sizes()
    return LedgerReport(
        kind="topic" if source.is_topic else "file",
        name=source.name,
        offset=source.offset,
        synced=False if source.is_topic else None,
        claims=claims,
        grants=grants,
        scopes=len(source.state.scopes()),
        text=str(source),
    )


def settings_report(settings: FenceSettings) -> SettingsReport:
    """What records have to carry, for a report."""
    return SettingsReport(
        stamp=settings.stamps.name,
        authority=settings.authority,
        scopes=list(settings.require),
        unstamped=settings.unstamped or "quarantine",
        max_jump=settings.max_jump,
    )


def _partition_report(
    state: PartitionState, witness: Witness, bounds: tuple[int, int] | None
) -> PartitionReport:
    epochs = sorted(state.epochs, key=lambda e: (e.scope, e.epoch, e.grant_id or ""))
    stale = {
        (one.scope, one.epoch, one.grant_id): one
        for one in state.rejections
        if one.reason == "stale-epoch"
    }
    read_from, read_to = (None, None) if bounds is None else bounds
    return PartitionReport(
        topic=state.topic,
        partition=state.partition,
        topic_ids=state.topic_ids,
        read_from=read_from,
        read_to=read_to,
        first=state.first,
        last=state.last,
        records=state.records,
        verdicts=_counts([state]),
        epochs=[
            _epoch_report(
                one,
                witness.find(one.scope, one.epoch, one.grant_id),
                _successor(epochs[number + 1 :], one),
                stale.get((one.scope, one.epoch, one.grant_id)),
            )
            for number, one in enumerate(epochs)
        ],
        timeline=state.timeline,
    )


def _successor(
    behind: Iterable[EpochHistory], one: EpochHistory
) -> EpochHistory | None:
    """The next higher epoch of the scope that began on this partition."""
    for other in behind:
        if other.scope != one.scope:
            return None
        if other.epoch > one.epoch and other.start is not None:
            return other
    return None


def _epoch_report(
    one: EpochHistory,
    claim: Claim | None,
    successor: EpochHistory | None,
    stale: Rejections | None,
) -> EpochReport:
    claimed_at = None if claim is None else claim.claimed_at
    wrote_at = None if one.first_write is None else one.first_write.timestamp
    overlap = None
    succeeded_by = None if successor is None else successor.epoch
    if stale is not None:
        began = None if successor is None else successor.start
        if succeeded_by is None or succeeded_by > (stale.current_epoch or 0):
            # Its successor began before what was read: a row tells of it.
            began, succeeded_by = stale.against, stale.current_epoch
        overlap = Overlap(
            stale.first, stale.last, stale.records,
            milliseconds_between(began, stale.last),
        )  # fmt: skip
    return EpochReport(
        scope=one.scope,
        epoch=one.epoch,
        grant_id=one.grant_id,
        holder=None if claim is None else claim.holder,
        claimed_at=claimed_at,
        start_offset=None if one.start is None else one.start.offset,
        start=one.start,
        barrier=one.barrier,
        first_write=one.first_write,
        last_write=one.last_write,
        gap_ms=None
        if claimed_at is None or wrote_at is None
        else wrote_at - claimed_at,
        admitted=one.admitted,
        barriers=one.barriers,
        rejected=sum(one.rejected.values()),
        stale=one.rejected.get("stale-epoch", 0),
        quarantined={
            reason: count
            for reason, count in sorted(one.rejected.items())
            if reason != "stale-epoch"
        },
        last_rejected_offset=None
        if one.last_rejected is None
        else one.last_rejected.offset,
        succeeded_by=succeeded_by,
        overlap=overlap,
    )


def _what_if_report(
    settings: FenceSettings, found: Sequence[WhatIfState]
) -> WhatIfReport:
    return WhatIfReport(
        settings=settings_report(settings),
        verdicts=_counts([one.state for one in found]),
        changes=[
            WhatIfChange(
                topic=one.state.topic,
                partition=one.state.partition,
                verdict=change.verdict,
                reason=change.reason,
                other_verdict=change.other_verdict,
                other_reason=change.other_reason,
                records=change.records,
                first_offset=change.first_offset,
                last_offset=change.last_offset,
            )
            for one in found
            for change in one.changes
        ],
    )


def _remarks(
    states: Sequence[PartitionState],
    settings: FenceSettings,
    ledger: LedgerState | None,
) -> list[str]:
    """What looks like a mistake in how the audit was asked for."""
    if not any(state.records for state in states):
        return []
    carried = set[str]().union(*(state.scopes for state in states))
    found = [
        _no_stamps(missing, settings, carried)
        for missing in _missing(states, settings, carried)
    ]
    if ledger is not None and not ledger.scopes():
        found.append("the ledger grants nothing: is it the right one?")
    return found


def _missing(
    states: Sequence[PartitionState], settings: FenceSettings, carried: set[str]
) -> list[str]:
    """What scopes no record carries: those required; any, where none is."""
    required = {
        scope: None
        for state in states
        for scope in settings.required_scopes(state.partition)
    }
    if not required:
        return [] if carried else ["any scope"]
    missing = [scope for scope in required if scope not in carried]
    return [" or ".join(missing)] if missing else []


def _no_stamps(missing: str, settings: FenceSettings, carried: set[str]) -> str:
    there = sorted(carried)
    hint = "Are --stamp and --scope what you mean?"
    if there:
        shown = ", ".join(there[:_SHOWN_SCOPES])
        left_out = len(there) - _SHOWN_SCOPES
        more = f" and {left_out} more" if left_out > 0 else ""
        hint = f"These scopes are there: {shown}{more}. Is --scope misspelt?"
    return f"no record carries a stamp {settings.stamps.name!r} of {missing}. {hint}"
