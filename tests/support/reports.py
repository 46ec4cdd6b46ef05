"""Reports to be shown: of the recorded incident, and made-up ones of any size."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import Claim
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.file_source import audit_file
from epochfence.replay.files import read_ledger, read_table
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import Evidence, Finding, PartitionReport, Report
from epochfence.replay.summing_up import sum_up
from epochfence.replay.timeline import Mark, Span, Timeline
from support.histories import grant_id, stamp

INCIDENT = Path(__file__).parents[2] / "examples" / "incident"

#: A name by which a page would betray that it takes data for markup.
HOSTILE = "</script><img src=x onerror=document.title='broken'>\u202e|`$x$"


def incident() -> Report:
    """The report of the recording in examples/incident."""
    audit = Audit(
        FenceSettings(),
        LedgerSource(LedgerState(read_ledger(str(INCIDENT / "ledger.jsonl"))), "file"),
        tuple(read_table(str(INCIDENT / "table.jsonl"))),
    )
    return audit_file(audit, str(INCIDENT / "payments.jsonl")).report


def takeover(
    holder: str = "pod-1", first_epoch: int = 1, timestamp: int | None = 1_000
) -> Report:
    """Two leaders on `orders[0]`; the first, of that name, writes once too late."""
    epochs = (first_epoch, first_epoch + 1)
    ledger = LedgerState(
        Claim("s", epoch, 0, grant_id(epoch), holder, 0) for epoch in epochs
    )
    audit = Audit(FenceSettings(), LedgerSource(ledger, "file"))
    partition = audit.partition("orders", 0)
    for offset, epoch in enumerate((epochs[0], epochs[1], epochs[0])):
        at = None if timestamp is None else timestamp + offset
        partition.judge(None, None, offset, at, [stamp(epoch)])
    return sum_up(audit, "file orders.jsonl")


def wide(partitions: int, marks: int) -> Report:
    """So many partitions, each with so many epochs and marks; one in seven is bad."""
    report = takeover()
    (shape,) = report.partitions
    (finding,) = [one for one in report.findings if one.code == "stale-writes"]
    return msgspec.structs.replace(
        report,
        partitions=[_crowded(shape, number, marks) for number in range(partitions)],
        findings=[
            _finding(finding, number, marks) for number in range(0, partitions, 7)
        ],
    )


def _crowded(shape: PartitionReport, number: int, marks: int) -> PartitionReport:
    spans: list[Span] = []
    signs: list[Mark] = []
    for epoch in range(1, marks + 1):
        first, last = _place(epoch * 100), _place(epoch * 100 + 99)
        spans.append(Span("s", epoch, epoch, first, last, 100))
        if number % 7 == 0:
            late = _place(epoch * 100 + 50)
            sign = Mark("stale", "stale-epoch", "s", epoch, epoch, late, late, 1)
        else:
            sign = Mark("barrier", "ok", "s", epoch, epoch, first, first, 1)
        signs.append(sign)
    return msgspec.structs.replace(
        shape,
        partition=number,
        epochs=shape.epochs * (marks // 2),
        timeline=Timeline(1, spans, signs),
    )


def _place(offset: int) -> RecordPlace:
    return RecordPlace(offset, 0, 1_700_000_000_000 + offset)


def _finding(shape: Finding, partition: int, marks: int) -> Finding:
    record = Evidence(
        "rejected", "orders", None, partition, marks // 2 * 100 + 50, 0, None, "s"
    )
    return msgspec.structs.replace(shape, partition=partition, evidence=(record,))
