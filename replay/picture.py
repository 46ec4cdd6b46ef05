"""What all pictures of a report share: which partitions, lanes and colours."""

from __future__ import annotations

from typing import NamedTuple

from epochfence.epochs.verdicts import REJECTED
from epochfence.replay.report import PartitionReport, Report, Severity
from epochfence.replay.timeline import Mark, Span

#: Fills of epochs, one after the other, under dark text. Neighbours differ in lightness
#: as well as in hue, and none is red: red is for what was rejected.
FILLS = ("#9ccaf2", "#f7cf6b", "#83cfb4", "#d9b3e2", "#c3c8d1")

_SEVERITIES: tuple[Severity, ...] = ("critical", "warning", "notice")

Place = tuple[str, int]


class Lane(NamedTuple):
    """What one scope has on one partition."""

    scope: str | None
    spans: list[Span]
    marks: list[Mark]

    @property
    def rejected(self) -> int:
        """How many records were rejected in it."""
        return sum(one.records for one in self.marks if one.kind in REJECTED)


def worst_severities(report: Report) -> dict[Place, Severity]:
    """The worst severity found on each partition, of those with findings."""
    worst: dict[Place, Severity] = {}
    for one in report.findings:  # the worst first
        if one.topic is not None and one.partition is not None:
            worst.setdefault((one.topic, one.partition), one.severity)
    return worst


def worst_first(report: Report) -> list[PartitionReport]:
    """The partitions, those first that most has to be known of."""
    worst = worst_severities(report)

    def rank(partition: PartitionReport) -> tuple[int, int, str, int]:
        place = (partition.topic, partition.partition)
        severity = worst.get(place)
        return (
            len(_SEVERITIES) if severity is None else _SEVERITIES.index(severity),
            -rejected_of(partition),
            *place,
        )

    return sorted(report.partitions, key=rank)


def rejected_of(partition: PartitionReport) -> int:
    """How many of a partition's records were rejected."""
    return sum(one.records for one in partition.verdicts if one.verdict in REJECTED)


def lanes_of(partition: PartitionReport) -> list[Lane]:
    """A lane for each scope, by name; the one of records without a scope comes last."""
    lanes: dict[str | None, Lane] = {}
    for span in partition.timeline.spans:
        lanes.setdefault(span.scope, Lane(span.scope, [], [])).spans.append(span)
    for mark in partition.timeline.marks:
        lanes.setdefault(mark.scope, Lane(mark.scope, [], [])).marks.append(mark)
    return sorted(lanes.values(), key=lambda lane: (lane.scope is None, lane.scope))


def colours_of(report: Report) -> dict[tuple[str, int], int]:
    """Which of `FILLS` an epoch has: the same everywhere, and the next one another."""
    epochs: dict[str, set[int]] = {}
    for partition in report.partitions:
        for span in partition.timeline.spans:
            epochs.setdefault(span.scope, set()).update((span.epoch, span.last_epoch))
    return {
        (scope, epoch): number % len(FILLS)
        for scope, there in epochs.items()
        for number, epoch in enumerate(sorted(there))
    }


def holders_of(partition: PartitionReport) -> dict[tuple[str, int], str]:
    """Who held an epoch that began on a partition, where a ledger says so."""
    return {
        (one.scope, one.epoch): one.holder
        for one in partition.epochs
        if one.holder is not None and one.start is not None
    }
