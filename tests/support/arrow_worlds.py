"""Generated worlds as Arrow columns, in any order, and as an audit."""

from __future__ import annotations

import base64
import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader
from epochfence.epochs.values import Claim, EpochStart, Position
from epochfence.replay.audit import Audit, LedgerSource

Json = dict[str, Any]

#: As Spark's Kafka source has them, and three that it lacks.
SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
        ("key", pa.binary()),
        ("value", pa.binary()),
        (
            "headers",
            pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
        ),
        ("topic_id", pa.string()),
        ("leader_epoch", pa.int32()),
        ("life", pa.int32()),
    ]
)

Place = tuple[str, int, int, int | None, int]


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def lives_of(records: Sequence[Json]) -> list[int]:
    """Which life of its partition each record is of."""
    ids: dict[tuple[str, int], str | None] = {}
    lives: dict[tuple[str, int], int] = {}
    found: list[int] = []
    for record in records:
        place = (record["topic"], record["partition"])
        topic_id = record.get("topic_id")
        known = ids.get(place)
        if topic_id is not None and known is not None and topic_id != known:
            lives[place] = lives.get(place, 0) + 1
        ids[place] = topic_id or known
        found.append(lives.get(place, 0))
    return found


def table_of(records: Sequence[Json], seed: int | None = None, prefix: str = "") -> Any:
    """Records as a table; shuffled where a seed is given."""
    rows = [
        {
            "topic": prefix + record["topic"],
            "partition": record["partition"],
            "offset": record["offset"],
            "timestamp": record.get("timestamp"),
            "key": _bytes(record["key"]),
            "value": _bytes(record["value"]),
            "headers": [
                {"key": name, "value": _bytes(value)}
                for name, value in record["headers"]
            ]
            or None,
            "topic_id": record.get("topic_id"),
            "leader_epoch": record.get("leader_epoch"),
            "life": life,
        }
        for record, life in zip(records, lives_of(records), strict=True)
    ]
    if seed is not None:
        random.Random(seed).shuffle(rows)
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def engine_says(made: Json, audit: Audit, prefix: str = "") -> dict[Place, Any]:
    """What the engine says of a world's records, each by its place."""
    records: list[Json] = made["records"]
    found: dict[Place, Any] = {}
    for record, life in zip(records, lives_of(records), strict=True):
        topic = prefix + record["topic"]
        verdict = audit.partition(topic, record["partition"]).judge(
            record.get("topic_id"),
            record.get("leader_epoch"),
            record["offset"],
            record.get("timestamp"),
            [(name, _bytes(value)) for name, value in record["headers"]],
            _bytes(record["value"]),
        )
        place = (
            topic,
            record["partition"],
            life,
            record.get("leader_epoch"),
            record["offset"],
        )
        cause = verdict.cause
        found[place] = (
            verdict.kind,
            verdict.reason,
            None if cause is None else cause.scope,
            None if cause is None else cause.epoch,
            verdict.current_epoch,
        )
    audit.partitions.clear()
    return found


def audit_of(made: Json, prefix: str = "") -> Audit:
    """What a world is to be judged by."""
    settings: Json = made["settings"]
    ledger = None
    if made["ledger"] is not None:
        claims = (
            Claim(
                one["scope"],
                one["epoch"],
                one["previous"],
                one["grant_id"],
                one["holder"],
                one["claimed_at"],
                one.get("attributes", {}),
            )
            for one in made["ledger"]
        )
        ledger = LedgerSource(LedgerState(claims), "ledger")
    starts = [
        EpochStart(
            prefix + one["topic"],
            one.get("topic_id"),
            one["partition"],
            one["scope"],
            one["epoch"],
            one.get("grant_id"),
            Position(one.get("leader_epoch"), one["start_offset"]),
        )
        for one in made.get("table") or ()
    ]
    return Audit(
        FenceSettings(
            settings.get("scopes") or (),
            unstamped=settings.get("unstamped") or "quarantine",
            authority=settings.get("authority"),
            stamps=stamp_reader(settings.get("stamp") or "epochfence"),
            max_jump=settings.get("max_jump"),
        ),
        ledger,
        starts,
    )
