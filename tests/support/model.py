"""The rules of fencing once more: dumb, slow, and easy to check against docs/rules.md.

This is a second implementation, written from the text alone, to compare the real one
with. It keeps no state that could go wrong: for each record it walks over everything
that came before and works out from scratch which life of the topic the record belongs
to, which epoch starts count for it and which epoch is current. Then it tries the rows
of the rules, one after the other.

Records, claims, table rows and verdicts are plain dicts in the file forms of README.md
(bytes as base64 text, null where Kafka has null).
"""

from __future__ import annotations

import base64
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

__all__ = [
    "Grant",
    "Json",
    "Stamp",
    "Start",
    "as_start",
    "counts",
    "judge",
    "ledger_grants",
    "place",
    "read_stamps",
    "topic_ids",
]

Json = dict[str, Any]
"""One line of a JSON lines file."""

Grant = tuple[str, int, str]
"""Scope, epoch, grant id."""

LARGEST = 2**63 - 1

OURS = re.compile(rb"([1-9][0-9]{0,18}):([0-9a-f]{16}):([A-Za-z0-9._/-]{1,200})")

DECIMAL = re.compile(rb"0|[1-9][0-9]{0,18}")


class Stamp(NamedTuple):
    """What one header says."""

    scope: str
    epoch: int
    grant_id: str | None


class Start(NamedTuple):
    """An epoch start of the partition at hand, as seen from the record at hand."""

    scope: str
    epoch: int
    grant_id: str | None
    topic_id: str | None
    leader_epoch: int | None
    offset: int


# --- The ledger ---------------------------------------------------------------------


def ledger_grants(claims: Sequence[Json]) -> set[Grant]:
    """Which claims won: those above every earlier claim of their scope."""
    grants: set[Grant] = set()
    for i, claim in enumerate(claims):
        earlier = [
            other["epoch"] for other in claims[:i] if other["scope"] == claim["scope"]
        ]
        if all(claim["epoch"] > epoch for epoch in earlier):
            grants.add((claim["scope"], claim["epoch"], claim["grant_id"]))
    return grants


# --- Headers ------------------------------------------------------------------------


def parse_ours(value: bytes | None) -> Stamp | None:
    """Our own stamp or barrier value; None where it is malformed."""
    if value is None:
        return None
    match = OURS.fullmatch(value)
    if match is None:
        return None
    epoch = int(match[1].decode("ascii"))
    if epoch > LARGEST:
        return None
    return Stamp(match[3].decode("ascii"), epoch, match[2].decode("ascii"))


def parse_foreign(header: str, encoding: str, value: bytes | None) -> Stamp | None:
    """Somebody else's epoch; None where it is malformed."""
    if value is None:
        return None
    if encoding == "int64be":
        if len(value) != 8:
            return None
        epoch = int.from_bytes(value, "big", signed=True)
        if epoch < 0:
            return None
    else:
        if DECIMAL.fullmatch(value) is None:
            return None
        epoch = int(value.decode("ascii"))
        if epoch > LARGEST:
            return None
    return Stamp("~" + header, epoch, None)


def values_of(record: Json, name: str) -> list[bytes | None]:
    """The values of all headers of one name, in their order."""
    return [
        None if value is None else base64.b64decode(value, validate=True)
        for header, value in record["headers"]
        if header == name
    ]


# --- Lives and positions (sections 2 and 13) ----------------------------------------


def place(line: Json) -> tuple[str, int]:
    """The topic and partition of a record or a row."""
    return line["topic"], line["partition"]


def topic_ids(records: Sequence[Json]) -> list[str | None]:
    """For each record the topic id of its life, as known after the last of them.

    A record without id is of the life that is current. A life that began without an
    id learns it from the first record that brings one; only an id that differs from
    the one known begins another life.
    """
    lives: dict[tuple[str, int], list[str | None]] = {}
    life_of: list[int] = []
    for record in records:
        here = lives.setdefault(place(record), [None])
        topic_id = record.get("topic_id")
        if topic_id is not None and here[-1] is None:
            here[-1] = topic_id
        elif topic_id is not None and topic_id != here[-1]:
            here.append(topic_id)
        life_of.append(len(here) - 1)
    return [
        lives[place(record)][life]
        for record, life in zip(records, life_of, strict=True)
    ]


def as_start(row: Json) -> Start:
    """A row of a table file; what is missing is not known."""
    return Start(
        row["scope"],
        row["epoch"],
        row.get("grant_id"),
        row.get("topic_id"),
        row.get("leader_epoch"),
        row["start_offset"],
    )


def counts(
    start: Start, topic_id: str | None, leader_epoch: int | None, offset: int
) -> bool:
    """Whether an epoch start counts for a record at this place."""
    if (
        start.topic_id is not None
        and topic_id is not None
        and start.topic_id != topic_id
    ):
        return True
    if start.leader_epoch is None or leader_epoch is None:
        return start.offset <= offset
    return (start.leader_epoch, start.offset) <= (leader_epoch, offset)


def current_epoch(starts: Sequence[Start], scope: str) -> int | None:
    """The highest epoch among the counting starts of a scope; None: none yet."""
    return max((start.epoch for start in starts if start.scope == scope), default=None)


def grant_fits(
    starts: Sequence[Start], stamp: Stamp, grants: set[Grant] | None
) -> bool:
    """Whether a stamp's grant id is that of a counting start of the same epoch.

    A start without a grant id stands for any *grant* of its epoch: not for a claim
    that lost.
    """
    if stamp.grant_id is None:
        return True
    return any(
        start.grant_id == stamp.grant_id
        or (start.grant_id is None and (grants is None or stamp in grants))
        for start in starts
        if start.scope == stamp.scope and start.epoch == stamp.epoch
    )


# --- The fence ----------------------------------------------------------------------


def read_stamps(record: Json, stamp: str) -> tuple[list[Stamp], bool, bool]:
    """The stamps of a record, whether it is a barrier, whether all is well formed."""
    if stamp == "epochfence":
        stamp_values = values_of(record, "epochfence")
        barrier_values = values_of(record, "epochfence-barrier")
        parsed = [parse_ours(value) for value in stamp_values + barrier_values]
        is_barrier = len(barrier_values) > 0
        well_formed = len(barrier_values) <= 1 and not (is_barrier and stamp_values)
    else:
        header, encoding = stamp.rsplit(":", 1)
        parsed = [
            parse_foreign(header, encoding, value)
            for value in values_of(record, header)
        ]
        is_barrier = False
        well_formed = True
    stamps = [one for one in parsed if one is not None]
    return stamps, is_barrier, well_formed and len(stamps) == len(parsed)


def decide(
    record: Json, starts: Sequence[Start], grants: set[Grant] | None, settings: Json
) -> tuple[str, str, list[Stamp]]:
    """Verdict and reason of one record, and the stamps that get an epoch start here.

    `starts` are those that count for the record. `grants` is None with max-seen.
    """
    stamps, is_barrier, well_formed = read_stamps(record, settings["stamp"])

    # Row 1.
    if not well_formed:
        return "quarantined", "malformed", []

    # Row 2.
    stamped = [stamp.scope for stamp in stamps]
    if any(stamped.count(scope) > 1 for scope in stamped):
        return "quarantined", "ambiguous", []

    # Row 3.
    required: list[str] = settings["scopes"]
    if required:
        lacking = [scope for scope in required if scope not in stamped]
        lacks = len(lacking) > 0
        begun = any(start.scope in lacking for start in starts)
    else:
        lacks = len(stamps) == 0
        begun = len(starts) > 0
    if is_barrier:
        lacks = False
    if lacks:
        if settings["unstamped"] == "quarantine":
            return "quarantined", "unstamped", []
        if settings["unstamped"] == "admit-until-first-stamp" and begun:
            return "quarantined", "unstamped", []

    # Row 4.
    for stamp in stamps:
        current = current_epoch(starts, stamp.scope)
        if current is not None and stamp.epoch < current:
            return "stale", "stale-epoch", []

    # Row 5.
    misfits = [
        stamp
        for stamp in stamps
        if stamp.epoch == current_epoch(starts, stamp.scope)
        and not grant_fits(starts, stamp, grants)
    ]
    for stamp in misfits:
        if grants is None or stamp in grants:
            return "quarantined", "conflict", []
    if misfits:
        return "quarantined", "ungranted", []

    # Rows 6 and 7.
    above: list[Stamp] = []
    for stamp in stamps:
        current = current_epoch(starts, stamp.scope)
        if current is None or stamp.epoch > current:
            above.append(stamp)
    if grants is not None:
        for stamp in above:
            if stamp not in grants:
                return "quarantined", "ungranted", []
    elif settings["max_jump"] is not None:
        for stamp in above:
            current = current_epoch(starts, stamp.scope)
            if current is not None and stamp.epoch - current > settings["max_jump"]:
                return "quarantined", "implausible", []

    # Row 8 does not occur: the ledger at hand is complete.

    # Row 9.
    if is_barrier:
        return "barrier", "ok", above
    return "admitted", "unstamped" if lacks else "ok", above


def with_defaults(settings: Json) -> Json:
    """The settings of `epochfence audit`; a misspelt one is an error."""
    stamp = settings.get("stamp", "epochfence")
    ours = stamp == "epochfence"
    if not ours and not re.fullmatch(r"(?s).+:(int64be|decimal)", stamp):
        raise ValueError(f"no such stamp: {stamp!r}")
    full: Json = {
        "stamp": stamp,
        "authority": settings.get("authority", "ledger" if ours else "max-seen"),
        "unstamped": settings.get("unstamped", "quarantine"),
        "max_jump": settings.get("max_jump"),
        "scopes": settings.get("scopes", []),
    }
    if full["authority"] not in (["ledger", "max-seen"] if ours else ["max-seen"]):
        raise ValueError(f"no such authority: {full['authority']!r}")
    if full["unstamped"] not in ("quarantine", "admit", "admit-until-first-stamp"):
        raise ValueError(f"no such setting of unstamped: {full['unstamped']!r}")
    unknown = sorted(settings.keys() - full.keys())
    if unknown:
        raise ValueError(f"no such setting: {unknown}")
    return full


def judge(
    records: Sequence[Json],
    ledger: Sequence[Json] | None,
    table: Sequence[Json],
    settings: Json,
) -> tuple[list[Json], list[Json]]:
    """Judge record-file lines; return verdict-file lines and the epoch starts found.

    The starts are table-file rows in the order of the records and, within a record,
    of its headers.
    """
    settings = with_defaults(settings)
    grants: set[Grant] | None = None
    if settings["authority"] == "ledger":
        if ledger is None:
            raise ValueError("authority ledger, and no ledger")
        grants = ledger_grants(ledger)

    verdicts: list[Json] = []
    found: list[tuple[int, Stamp]] = []  # the number of the record, and its stamp
    for i, record in enumerate(records):
        starts = counting_starts(records[: i + 1], table, found)
        verdict, reason, opened = decide(record, starts, grants, settings)
        found.extend((i, stamp) for stamp in opened)
        verdicts.append(
            {
                "topic": record["topic"],
                "partition": record["partition"],
                "offset": record["offset"],
                "verdict": verdict,
                "reason": reason,
            }
        )
    return verdicts, rows_of(records, found)


def rows_of(records: Sequence[Json], found: Sequence[tuple[int, Stamp]]) -> list[Json]:
    """The table-file rows of epoch starts found, as known after the last record."""
    ids = topic_ids(records)
    return [
        {
            "topic": records[i]["topic"],
            "partition": records[i]["partition"],
            "scope": stamp.scope,
            "epoch": stamp.epoch,
            "grant_id": stamp.grant_id,
            "topic_id": ids[i],
            "leader_epoch": records[i].get("leader_epoch"),
            "start_offset": records[i]["offset"],
        }
        for i, stamp in found
    ]


def counting_starts(
    records: Sequence[Json], table: Sequence[Json], found: Sequence[tuple[int, Stamp]]
) -> list[Start]:
    """The epoch starts, given or found, that count for the last of the records."""
    record = records[-1]
    topic_id = topic_ids(records)[-1]
    leader_epoch, offset = record.get("leader_epoch"), record["offset"]
    starts = [
        as_start(row)
        for row in [*table, *rows_of(records, found)]
        if place(row) == place(record)
    ]
    return [start for start in starts if counts(start, topic_id, leader_epoch, offset)]
