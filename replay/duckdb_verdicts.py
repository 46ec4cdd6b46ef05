"""The fence in SQL: verdicts of whole tables of records, by DuckDB.

`verdicts.sql` beside this module holds the rules; it reads four tables and leaves one,
and can be taken along to wherever DuckDB runs. This module fills those tables from an
`Audit`. What it gives is what the engine in Python gives, record by record (the tests
compare them); it makes no report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib.resources import files

import duckdb

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import (
    BARRIER_HEADER,
    STAMP_HEADER,
    ForeignHeader,
    OwnStamps,
)
from epochfence.replay.audit import Audit
from epochfence.replay.files import InvalidFileError

#: The columns of records, and their types in SQL.
_NEEDED = {
    "topic": "VARCHAR",
    "partition": "INTEGER",
    "offset": "BIGINT",
    "headers": "STRUCT(key VARCHAR, value BLOB)[]",
}
_OPTIONAL = {"life": "BIGINT", "topic_id": "VARCHAR", "leader_epoch": "BIGINT"}

#: What `verdicts.sql` says before what is wrong with records.
_MARK = "epochfence: "


def sql() -> str:
    """The text of `verdicts.sql`."""
    return (files("epochfence.replay") / "verdicts.sql").read_text("utf-8")


def verdicts(
    connection: duckdb.DuckDBPyConnection,
    records: duckdb.DuckDBPyRelation,
    audit: Audit | Mapping[str, Audit],
) -> duckdb.DuckDBPyRelation:
    """Judge records.

    Args:
        connection: Where; temporary tables named `epochfence_…` are left there.
        records: A relation of that connection, such as `connection.read_parquet(...)`,
            with the columns `topic`, `partition`, `offset` and `headers` (a list of
            structs `key`, `value`), and perhaps `topic_id`, `leader_epoch` and `life`,
            which has to tell a topic's lives apart where it has several. In any order.
        audit: What to judge by; a mapping: what each topic is judged by. Their ledgers
            are taken together.

    Returns:
        A row for each record: `topic`, `partition`, `life` (0 where it was not told),
        `leader_epoch`, `offset`, `verdict`, `reason`, `scope`, `epoch`,
        `current_epoch`.

    Raises:
        MisconfiguredError: The stamp is a field of the payload; columns are missing.
        InvalidFileError: Records contradict each other: one is there twice, or it
            cannot be told in which order they stood.
    """
    _set_up_records(connection, records)
    by_topic = audit
    if isinstance(by_topic, Audit):
        topics = connection.sql("SELECT DISTINCT topic FROM epochfence_records")
        by_topic = {topic: by_topic for (topic,) in topics.fetchall()}
    _set_up_settings(connection, by_topic)
    _set_up_grants(connection, by_topic.values())
    _set_up_starts(connection, by_topic.values())
    try:
        connection.execute(sql())
    except duckdb.InvalidInputException as error:
        _, mark, problem = str(error).partition(_MARK)
        if not mark:
            raise
        raise InvalidFileError("records", None, problem.splitlines()[0]) from error
    return connection.table("epochfence_verdicts")


def _set_up_records(
    connection: duckdb.DuckDBPyConnection, records: duckdb.DuckDBPyRelation
) -> None:
    there = records.columns
    for name in _NEEDED:
        if name not in there:
            raise MisconfiguredError(
                "records", there, f"column {name!r} is missing",
                "Columns are named as in Spark's Kafka source with includeHeaders.",
            )  # fmt: skip
    columns = [
        f'CAST("{name}" AS {kind}) AS "{name}"'
        if name in there
        else f'CAST(NULL AS {kind}) AS "{name}"'
        for name, kind in (_NEEDED | _OPTIONAL).items()
    ]
    records.project(", ".join(columns)).create_view("epochfence_records", replace=True)


def _set_up_settings(
    connection: duckdb.DuckDBPyConnection, audits: Mapping[str, Audit]
) -> None:
    _fill(
        connection,
        "epochfence_settings",
        {
            "topic": "VARCHAR",
            "header": "VARCHAR",
            "barrier": "VARCHAR",
            "encoding": "VARCHAR",
            "required": "VARCHAR[]",
            "unstamped": "VARCHAR",
            "authority": "VARCHAR",
            "max_jump": "BIGINT",
        },
        ((topic, *_cells(audit.settings)) for topic, audit in audits.items()),
    )


def _cells(settings: FenceSettings) -> tuple[object, ...]:
    stamps = settings.stamps
    if isinstance(stamps, ForeignHeader):
        header, barrier = stamps.header, None
        encoding = stamps.name.rpartition(":")[2]
    elif isinstance(stamps, OwnStamps):
        header, barrier, encoding = STAMP_HEADER, BARRIER_HEADER, OwnStamps.name
    else:
        raise MisconfiguredError(
            "stamps", stamps, "SQL reads stamps in headers, not in a payload",
            "Use audit_parquet of epochfence.replay.parquet_source.",
        )  # fmt: skip
    return (
        header,
        barrier,
        encoding,
        list(settings.require),
        settings.unstamped or "quarantine",
        settings.authority,
        settings.max_jump,
    )


def _set_up_grants(
    connection: duckdb.DuckDBPyConnection, audits: Iterable[Audit]
) -> None:
    ledgers = {id(one.ledger): one.ledger for one in audits if one.ledger is not None}
    _fill(
        connection,
        "epochfence_grants",
        {"scope": "VARCHAR", "epoch": "BIGINT", "grant_id": "VARCHAR"},
        (
            (claim.scope, claim.epoch, claim.grant_id)
            for ledger in ledgers.values()
            for claim, won in ledger.claims()
            if won
        ),
    )


def _set_up_starts(
    connection: duckdb.DuckDBPyConnection, audits: Iterable[Audit]
) -> None:
    _fill(
        connection,
        "epochfence_known_starts",
        {
            "topic": "VARCHAR",
            "partition": "INTEGER",
            "topic_id": "VARCHAR",
            "scope": "VARCHAR",
            "epoch": "BIGINT",
            "grant_id": "VARCHAR",
            "leader_epoch": "BIGINT",
            "start_offset": "BIGINT",
        },
        (
            (
                one.topic,
                one.partition,
                one.topic_id,
                one.scope,
                one.epoch,
                one.grant_id,
                *one.position,
            )
            for audit in {id(audit): audit for audit in audits}.values()
            for one in audit.table
        ),
    )


def _fill(
    connection: duckdb.DuckDBPyConnection,
    table: str,
    columns: dict[str, str],
    rows: Iterable[tuple[object, ...]],
) -> None:
    """Make a table, column by column: row by row would take a millisecond each."""
    values: list[list[object]] = [[] for _ in columns]
    for row in rows:
        for column, value in zip(values, row, strict=True):
            column.append(value)
    parts = [
        f'unnest(CAST(${number} AS {kind}[])) AS "{name}"'
        for number, (name, kind) in enumerate(columns.items(), 1)
    ]
    connection.execute(
        f"CREATE OR REPLACE TEMP TABLE {table} AS SELECT {', '.join(parts)}", values
    )
