"""The report as one HTML page, which needs nothing but itself.

What comes from records is data in it, never markup: it is put in as JSON that holds no
character that HTML knows, and the page's script writes it as text.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import msgspec

from epochfence.replay.picture import (
    FILLS,
    colours_of,
    lanes_of,
    worst_first,
    worst_severities,
)
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import (
    EpochReport,
    Evidence,
    Finding,
    PartitionReport,
    Report,
)
from epochfence.replay.timeline import Mark, Span, coarser

#: How many spans, and how many marks, a page holds in all; a partition's share of them
#: is never smaller than `_FEWEST_DRAWN`.
MOST_DRAWN = 100_000
_FEWEST_DRAWN = 100

#: How many findings, and how many epochs, a page lists; the same with epochs.
MOST_FINDINGS = 2_000
MOST_EPOCHS = 20_000
_FEWEST_EPOCHS = 20

#: The greatest integer that JavaScript holds exactly. (Epochs go up to 2^63-1.)
_EXACT = 2**53 - 1

_Row = list[Any]


def html_page(report: Report) -> bytes:
    """The page, as UTF-8."""
    style = _resource("report.css")
    script = _resource("report_timeline.js") + _resource("report.js")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}"
    )
    page = _resource("report.html")
    for name, text in (
        ("policy", policy),
        ("style", style),
        ("script", script),
        ("data", _json(_page_data(report))),
    ):
        page = page.replace("{{" + name + "}}", text, 1)
    return page.encode()


def _resource(name: str) -> str:
    return (files("epochfence.replay") / name).read_text("utf-8")


def _digest(text: str) -> str:
    """What a page's policy allows a script or a style by: nothing else will run."""
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _json(data: dict[str, Any]) -> str:
    text = msgspec.json.encode(data).decode()
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _page_data(report: Report) -> dict[str, Any]:
    partitions = worst_first(report)
    numbers = {
        (one.topic, one.partition): number for number, one in enumerate(partitions)
    }
    worst = worst_severities(report)
    share = max(len(partitions), 1)
    drawn = max(MOST_DRAWN // share, _FEWEST_DRAWN)
    listed = max(MOST_EPOCHS // share, _FEWEST_EPOCHS)
    colours = colours_of(report)
    return {
        "source": report.source,
        "judgedBy": report.judged_by(),
        "settings": msgspec.to_builtins(report.settings),
        "summary": report.summary(),
        "partial": report.partial is not None,
        "records": report.records,
        "counts": {
            kind: report.count(kind)
            for kind in ("admitted", "barrier", "stale", "quarantined")
        },
        "remarks": report.remarks,
        "fills": FILLS,
        "findings": [
            _finding(one, numbers, partitions)
            for one in report.findings[:MOST_FINDINGS]
        ],
        "findingsTotal": len(report.findings),
        "partitions": [
            {
                **_partition(one, colours, drawn, listed),
                "worst": worst.get((one.topic, one.partition)),
            }
            for one in partitions
        ],
    }


def _exact(number: int | None) -> int | str | None:
    """A number for the page: as text where JavaScript would round it."""
    return number if number is None or abs(number) <= _EXACT else str(number)


def _finding(
    one: Finding,
    numbers: dict[tuple[str, int], int],
    partitions: list[PartitionReport],
) -> dict[str, Any]:
    number = None
    if one.topic is not None and one.partition is not None:
        number = numbers.get((one.topic, one.partition))
    return {
        "severity": one.severity,
        "code": one.code,
        "text": one.text,
        "remedy": one.remedy,
        "partition": number,
        "scope": one.scope,
        "epoch": _exact(one.epoch),
        "evidence": [
            _evidence(record, None if number is None else partitions[number])
            for record in one.evidence
        ],
    }


def _evidence(one: Evidence, partition: PartitionReport | None) -> dict[str, Any]:
    life = None  # it is of another topic, and not in the picture
    if partition is not None and (one.topic, one.partition) == (
        partition.topic,
        partition.partition,
    ):
        ids = partition.topic_ids
        life = ids.index(one.topic_id) if one.topic_id in ids else 0
    return {
        "what": one.what,
        "where": "" if one.topic is None else f"{one.topic}[{one.partition}]",
        "offset": _exact(one.offset),
        "life": life,
        "leaderEpoch": one.leader_epoch,
        "time": _exact(one.timestamp),
        "scope": one.scope,
        "epoch": _exact(one.epoch),
        "grant": one.grant_id,
        "holder": one.holder,
    }


def _partition(
    one: PartitionReport,
    colours: dict[tuple[str, int], int],
    drawn: int,
    listed: int,
) -> dict[str, Any]:
    timeline = coarser(one.timeline, drawn)
    epochs = _chosen(one.epochs, listed)
    return {
        "topic": one.topic,
        "partition": one.partition,
        "topicIds": one.topic_ids,
        "first": _place(one.first),
        "last": _place(one.last),
        "records": one.records,
        "verdicts": [[count.name, count.records] for count in one.verdicts],
        "lanes": [
            {
                "scope": lane.scope,
                "spans": [
                    _span(span, colours.get((lane.scope or "", span.epoch), 0))
                    for span in lane.spans
                ],
                "marks": [_mark(mark) for mark in lane.marks],
            }
            for lane in lanes_of(msgspec.structs.replace(one, timeline=timeline))
        ],
        "epochs": [_epoch(epoch) for epoch in epochs],
        "epochsTotal": len(one.epochs),
    }


def _chosen(epochs: list[EpochReport], most: int) -> Iterable[EpochReport]:
    """Those of which something was rejected before the others, in their order."""
    if len(epochs) <= most:
        return epochs
    order = sorted(range(len(epochs)), key=lambda at: (epochs[at].rejected == 0, at))
    return [epochs[at] for at in sorted(order[:most])]


def _place(one: RecordPlace | None) -> _Row | None:
    """Life, offset and time."""
    if one is None:
        return None
    return [one.life, _exact(one.offset), _exact(one.timestamp)]


def _stretch(one: Span | Mark) -> _Row:
    """Life, first and last offset, first and last time, and how many records."""
    return [
        one.first.life,
        _exact(one.first.offset),
        _exact(one.last.offset),
        _exact(one.first.timestamp),
        _exact(one.last.timestamp),
        one.records,
        _exact(one.epoch),
        _exact(one.last_epoch),
    ]


def _span(one: Span, colour: int) -> _Row:
    return [*_stretch(one), colour]


def _mark(one: Mark) -> _Row:
    return [*_stretch(one), one.kind, one.reason]


def _epoch(one: EpochReport) -> dict[str, Any]:
    overlap = one.overlap
    return {
        "scope": one.scope,
        "epoch": _exact(one.epoch),
        "grant": one.grant_id,
        "holder": one.holder,
        "claimedAt": _exact(one.claimed_at),
        "start": _place(one.start),
        "barrier": _place(one.barrier),
        "firstWrite": _place(one.first_write),
        "lastWrite": _place(one.last_write),
        "gapMs": _exact(one.gap_ms),
        "admitted": one.admitted,
        "stale": one.stale,
        "quarantined": one.quarantined,
        "overlap": None
        if overlap is None
        else {
            "first": _place(overlap.first),
            "last": _place(overlap.last),
            "records": overlap.records,
            "wroteOnMs": _exact(overlap.wrote_on_ms),
        },
    }
