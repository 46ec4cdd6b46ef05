"""A topic, judged from captured start to captured end."""

from __future__ import annotations

from collections.abc import Iterator

from epochfence.replay.audit import Audit
from epochfence.replay.checked_parts import PartRead
from epochfence.replay.checking import Checks
from epochfence.replay.report import Finding, Report
from epochfence.replay.sources import Progress, VerdictWriter
from epochfence.replay.summing_up import sum_up
from epochfence.replay.topic_source import Slice, TopicSource, audit_slice


def audit_topic(
    audit: Audit,
    source: TopicSource,
    verdicts: VerdictWriter | None = None,
    progress: Progress | None = None,
    checks: Checks | None = None,
) -> Report:
    """Judge the records of a topic, one partition after the other.

    Args:
        audit: What to judge by.
        source: The topic.
        verdicts: Takes each record's verdict.
        progress: Told how many records were judged so far.
        checks: What it is compared with beyond the fence.

    Raises:
        TopicUnavailable: A partition could not be read.
    """
    judged = 0
    findings: list[Finding] = []
    parts: list[PartRead] = []

    def after_batch(_: int, records: int) -> None:
        nonlocal judged
        judged += records
        if progress is not None:
            progress(judged)

    for piece in source.slices:
        partition = audit.partition(piece.topic, piece.partition)
        reached = audit_slice(
            partition,
            source.config,
            piece,
            timeout_s=source.timeout_s,
            verdicts=verdicts,
            after_batch=after_batch,
        )
        findings += _limits_of(piece, reached)
        parts.append(PartRead(piece, reached, partition.state()))
    findings += _changes_of(source)
    if checks is not None:
        findings += checks.findings(audit, parts)
    return sum_up(
        audit,
        f"topic {source.topic}",
        bounds={
            (one.topic, one.partition): (one.start, one.end) for one in source.slices
        },
        findings=findings,
        compared_with=() if checks is None else checks.compared_with(),
    )


def _limits_of(piece: Slice, reached: int) -> Iterator[Finding]:
    """What could not be known of a partition."""
    where = f"{piece.topic}[{piece.partition}]"
    if piece.log_start > 0:
        yield Finding(
            severity="notice",
            code="head-gone",
            text=f"{where} begins at offset {piece.log_start}: epochs that began "
            f"before it are known only from a table (--table-topic, --table).",
            topic=piece.topic,
            partition=piece.partition,
            remedy="Give the table of its consumers: what is judged without it may "
            "admit a record of a leader that had been deposed before.",
        )
    if reached < piece.end:
        yield Finding(
            severity="warning",
            code="open-transaction",
            text=f"{where} offsets {reached} to {piece.end - 1} lie behind an open "
            f"transaction and were not judged.",
            topic=piece.topic,
            partition=piece.partition,
            remedy="Run the audit again when it has ended; kafka-transactions.sh "
            "find-hanging finds one that does not.",
        )


def _changes_of(source: TopicSource) -> Iterator[Finding]:
    """What became of the topic while it was read."""
    problem = source.problem()
    if problem is not None:
        yield Finding(
            severity="critical",
            code="topic-replaced",
            text=f"{source.topic}: {problem}.",
            topic=source.topic,
        )
    added = source.partitions_added()
    if added:
        yield Finding(
            severity="notice",
            code="partitions-added",
            text=f"{source.topic} got partitions meanwhile, which were not judged: "
            f"{', '.join(map(str, added))}.",
            topic=source.topic,
            remedy="Run the audit again for those (--partition).",
        )
    if source.is_compacted:
        yield Finding(
            severity="notice",
            code="compacted",
            text=f"{source.topic} is compacted: records that the cleaner removed were "
            f"not judged, and a stale record may have replaced an admitted one of its "
            f"key.",
            topic=source.topic,
        )
