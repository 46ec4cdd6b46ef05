"""The audit's report as JSON."""

from __future__ import annotations

from typing import Any

from epochfence.audit import Audit, sorted_epochs, sorted_partitions
from epochfence.epochs.verdicts import Kind, Reason


def to_json(audit: Audit) -> dict[str, Any]:
    """The report as one JSON object."""
    settings = audit.settings
    counts = audit.counts()
    return {
        "report": "epochfence-audit",
        "version": 1,
        "ledger": None if audit.source is None else audit.source.to_json(),
        "epoch_starts_known": len(tuple(audit.table)),
        "settings": {
            "stamp": settings.stamps.name,
            "authority": settings.authority,
            "scopes": list(settings.require),
            "unstamped": settings.unstamped,
            "max_jump": settings.max_jump,
        },
        "records": sum(counts.values()),
        "verdicts": _counts_to_json(counts),
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "topic_ids": partition.topic_ids,
                "records": sum(partition.counts.values()),
                "verdicts": _counts_to_json(partition.counts),
                "epochs": [
                    vars(summary) for summary in sorted_epochs(partition.epochs)
                ],
            }
            for partition in sorted_partitions(audit)
        ],
        "rejected_total": audit.rejected_total(),
        "rejected_shown": [
            {
                "topic": one.topic,
                "topic_id": one.topic_id,
                "partition": one.partition,
                "offset": one.offset,
                "verdict": one.verdict.kind,
                "reason": one.verdict.reason,
                "scope": one.verdict.cause and one.verdict.cause.scope,
                "epoch": one.verdict.cause and one.verdict.cause.epoch,
                "current_epoch": one.verdict.current_epoch,
                "holder": one.holder,
            }
            for one in audit.rejected
        ],
        "remarks": audit.remarks(),
    }


def _counts_to_json(counts: dict[tuple[Kind, Reason], int]) -> list[dict[str, Any]]:
    return [
        {"verdict": kind, "reason": reason, "records": count}
        for (kind, reason), count in sorted(counts.items())
    ]
