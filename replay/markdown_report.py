"""The report as Markdown, short enough for an incident ticket.

What comes from records stands in code spans, so that none of it is taken for markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from epochfence.replay.picture import worst_first
from epochfence.replay.report import (
    EpochReport,
    Evidence,
    Finding,
    PartitionReport,
    Report,
)
from epochfence.replay.texts import duration, shortened, utc

#: How many findings, and how many rows of a table, there are at most.
MOST_FINDINGS = 20
MOST_ROWS = 40

_LONGEST_CELL = 80
_LONGEST_TEXT = 1_000
_MARKUP = re.compile(r"([\\`*_\[\]#!|~<>&@$])")


def markdown(report: Report) -> str:
    """The report, with a line feed at its end."""
    lines = [
        "# epochfence audit",
        "",
        f"- Read: {_code(report.source)}",
        *(f"- {_prose(line)}" for line in report.judged_by()),
        f"- Judged as: {_prose(str(report.settings))}",
        *(f"- Mind: {_prose(one)}" for one in report.remarks),
        "",
        f"**{_prose(report.summary())}**",
        "",
        *_findings(report.findings),
        *_partitions(report),
        *_epochs(report),
        *_what_if(report),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "## Findings"
    yield ""
    if not findings:
        yield "None."
        yield ""
    for number, one in enumerate(findings[:MOST_FINDINGS], 1):
        yield f"{number}. **{one.severity}** (`{one.code}`): {_prose(one.text)}"
        if one.remedy:
            indent = " " * len(f"{number}. ")
            yield f"{indent}{_prose(one.remedy)}"
        yield ""
    yield from _left_out(len(findings) - MOST_FINDINGS, "findings, no worse than these")
    rows = [
        [str(number), *_evidence(record)]
        for number, one in enumerate(findings[:MOST_FINDINGS], 1)
        for record in one.evidence
    ]
    if rows:
        yield "## Evidence"
        yield ""
        head = [
            "finding", "record", "partition", "offset", "leader epoch", "time (UTC)",
            "scope", "epoch", "grant", "holder",
        ]  # fmt: skip
        yield from _table(head, rows)


def _evidence(one: Evidence) -> list[str]:
    where = "-" if one.topic is None else _code(f"{one.topic}[{one.partition}]")
    return [
        one.what, where, _text(one.offset), _text(one.leader_epoch),
        utc(one.timestamp), _code(one.scope), _text(one.epoch), _code(one.grant_id),
        _code(one.holder),
    ]  # fmt: skip


def _partitions(report: Report) -> Iterator[str]:
    yield "## Partitions"
    yield ""
    if not report.partitions:
        yield "No records."
        yield ""
        return
    names = [one.name for one in report.verdicts]
    rows: list[list[str]] = []
    for one in worst_first(report):
        there = {count.name: count.records for count in one.verdicts}
        counts = [f"{there.get(name, 0):,}" for name in names]
        rows.append([_where(one), f"{one.records:,}", _offsets(one), *counts])
    yield from _table(["partition", "records", "offsets", *names], rows)


def _offsets(one: PartitionReport) -> str:
    if one.first is None or one.last is None:
        return "-"
    return f"{one.first.offset} to {one.last.offset}"


def _epochs(report: Report) -> Iterator[str]:
    pairs = [(one, epoch) for one in worst_first(report) for epoch in one.epochs]
    if not pairs:
        return
    if len(pairs) > MOST_ROWS:  # then those that something is wrong with come first
        pairs.sort(key=lambda pair: pair[1].rejected == 0)
    yield "## Epochs"
    yield ""
    head = [
        "partition", "scope", "epoch", "holder", "began at", "claimed (UTC)", "gap",
        "admitted", "stale", "quarantined", "wrote on for",
    ]  # fmt: skip
    yield from _table(head, [_epoch(*pair) for pair in pairs])
    yield (
        "*gap*: from the claim to the first write, by two clocks. *wrote on for*: from "
        "the successor's beginning to the last stale record."
    )
    yield ""


def _epoch(partition: PartitionReport, one: EpochReport) -> list[str]:
    quarantined = ", ".join(f"{n:,} {reason}" for reason, n in one.quarantined.items())
    overlap = None if one.overlap is None else one.overlap.wrote_on_ms
    return [
        _where(partition), _code(one.scope), str(one.epoch), _code(one.holder),
        _text(one.start_offset), utc(one.claimed_at), duration(one.gap_ms),
        f"{one.admitted:,}", f"{one.stale:,}", quarantined or "0", duration(overlap),
    ]  # fmt: skip


def _what_if(report: Report) -> Iterator[str]:
    for one in report.what_if:
        yield f"## With {_prose(str(one.settings))}"
        yield ""
        for change in one.changes[:MOST_ROWS]:
            yield f"- {_prose(str(change))}"
        if not one.changes:
            yield "- the same verdicts"
        yield ""
        yield from _left_out(len(one.changes) - MOST_ROWS, "changes")


def _where(one: PartitionReport) -> str:
    return _code(f"{one.topic}[{one.partition}]")


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    yield _row(head)
    yield _row(["---"] * len(head))
    for row in rows[:MOST_ROWS]:
        yield _row(row)
    yield ""
    yield from _left_out(len(rows) - MOST_ROWS, "rows")


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _left_out(count: int, what: str) -> Iterator[str]:
    if count > 0:
        yield f"*{count:,} more {what}: --format json has all.*"
        yield ""


def _prose(text: str) -> str:
    return _MARKUP.sub(r"\\\1", shortened(text, _LONGEST_TEXT))


def _code(text: str | None) -> str:
    """A code span, in a table or outside of one."""
    if not text:
        return "-" if text is None else "(empty)"
    text = shortened(text, _LONGEST_CELL)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}".replace("|", "\\|")


def _text(number: int | None) -> str:
    return "-" if number is None else str(number)
