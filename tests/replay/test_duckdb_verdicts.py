"""The fence in SQL against the engine: histories by chance, and cases from reports."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import ForeignField
from epochfence.replay.audit import Audit
from epochfence.replay.duckdb_verdicts import sql, verdicts
from epochfence.replay.files import InvalidFileError
from support.arrow_worlds import Json, Place, audit_of, engine_says, table_of
from support.worlds import world

HISTORIES = 200
RECORDS = 100

_DATA = Path(__file__).parent.parent / "data" / "cases.jsonl"
_CASES: list[Json] = [json.loads(line) for line in _DATA.read_text().splitlines()]


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(config={"threads": 1}) as opened:
        yield opened


def judged(
    connection: duckdb.DuckDBPyConnection,
    table: Any,
    audit: Audit | dict[str, Audit],
) -> dict[Any, Any]:
    rows = verdicts(connection, connection.from_arrow(table), audit).fetchall()
    found = {row[:5]: row[5:] for row in rows}
    assert len(found) == len(rows)
    return found


def test_agreement(connection: duckdb.DuckDBPyConnection) -> None:
    """All histories at once, each as topics of its own."""
    worlds = {f"w{seed}.": world(seed, RECORDS) for seed in range(HISTORIES)}
    found = agrees(connection, worlds)
    assert len(found) == HISTORIES * RECORDS
    assert len({reason for _, reason, *_ in found.values()}) == 8


def test_cases(connection: duckdb.DuckDBPyConnection) -> None:
    cases = {f"c{number}.": case for number, case in enumerate(_CASES)}
    found = agrees(connection, cases)
    for prefix, case in cases.items():
        told = Counter((one["verdict"], one["reason"]) for one in case["expected"])
        assert told == Counter(
            row[:2] for place, row in found.items() if place[0].startswith(prefix)
        ), case["id"]


def agrees(
    connection: duckdb.DuckDBPyConnection, worlds: dict[str, Json]
) -> dict[Any, Any]:
    """Judge many worlds at once, and compare them with the engine, one by one."""
    tables: list[pa.Table] = []
    audits: dict[str, Audit] = {}
    expected: dict[Place, Any] = {}
    for seed, (prefix, made) in enumerate(worlds.items()):
        audit = audit_of(made, prefix)
        tables.append(table_of(made["records"], seed, prefix))
        audits |= {prefix + one["topic"]: audit for one in made["records"]}
        expected |= engine_says(made, audit, prefix)
    found = judged(connection, pa.concat_tables(tables), audits)
    faults = [place for place in expected if expected[place] != found.get(place)]
    assert faults == []
    assert len(found) == len(expected)
    return found


def test_the_file_alone_is_enough(connection: duckdb.DuckDBPyConnection) -> None:
    """Whoever takes verdicts.sql along fills its four tables and runs it."""
    connection.execute("""
        CREATE TABLE epochfence_records AS SELECT
            'orders' AS topic, 0 AS "partition", CAST(NULL AS BIGINT) AS life,
            CAST(NULL AS VARCHAR) AS topic_id, CAST(NULL AS BIGINT) AS leader_epoch,
            i AS "offset",
            [{'key': 'epoch', 'value': CAST(e AS VARCHAR)::BLOB}] AS headers
        FROM (VALUES (0, 1), (1, 2), (2, 1), (3, 9)) AS t(i, e);
        CREATE TABLE epochfence_settings AS SELECT
            'orders' AS topic, 'epoch' AS header, CAST(NULL AS VARCHAR) AS barrier,
            'decimal' AS encoding, CAST([] AS VARCHAR[]) AS required,
            'quarantine' AS unstamped, 'max-seen' AS authority, 5 AS max_jump;
        CREATE TABLE epochfence_grants (scope VARCHAR, epoch BIGINT, grant_id VARCHAR);
        CREATE TABLE epochfence_known_starts (
            topic VARCHAR, "partition" INTEGER, topic_id VARCHAR, scope VARCHAR,
            epoch BIGINT, grant_id VARCHAR, leader_epoch BIGINT, start_offset BIGINT);
    """)
    connection.execute(sql())
    rows = connection.sql(
        'SELECT reason, current_epoch FROM epochfence_verdicts ORDER BY "offset"'
    ).fetchall()
    assert rows == [("ok", 1), ("ok", 2), ("stale-epoch", 2), ("implausible", 2)]


def line(offset: int, **more: Any) -> Json:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "key": None,
        "value": None,
        "headers": [],
        **more,
    }


def admitting() -> Audit:
    return Audit(FenceSettings(unstamped="admit", authority="max-seen"), None)


@pytest.mark.parametrize(
    ("records", "problem"),
    [
        ([line(1), line(1)], "orders[0] has two records at offset 1"),
        (
            [line(5, leader_epoch=1), line(5)],
            "orders[0] has two records at offset 5",
        ),
        # The one without leader epoch stands between them by its offset.
        (
            [line(9, leader_epoch=1), line(5), line(1, leader_epoch=2)],
            "their positions contradict each other",
        ),
        ([line(-1)], "negative"),
    ],
)
def test_records_that_contradict_each_other_are_refused(
    connection: duckdb.DuckDBPyConnection, records: list[Json], problem: str
) -> None:
    with pytest.raises(InvalidFileError) as caught:
        judged(connection, table_of(records), admitting())
    assert problem in str(caught.value)


def test_lives_that_cannot_be_told_apart_are_refused(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    table = table_of([line(0, topic_id="a" * 22), line(1, topic_id="b" * 22)])
    assert len(judged(connection, table, admitting())) == 2
    with pytest.raises(InvalidFileError, match="column life"):
        judged(connection, table.drop_columns(["life"]), admitting())


def test_a_life_without_an_id_is_refused(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    table = table_of([line(0, topic_id="a" * 22), line(1, topic_id="b" * 22)])
    ids = table.schema.get_field_index("topic_id")
    bare = table.set_column(ids, "topic_id", [["a" * 22, None]])
    with pytest.raises(InvalidFileError, match="begins without a topic id"):
        judged(connection, bare, admitting())


def test_a_missing_column_is_named(connection: duckdb.DuckDBPyConnection) -> None:
    table = table_of([line(0)]).drop_columns(["headers"])
    with pytest.raises(MisconfiguredError, match="'headers' is missing"):
        judged(connection, table, admitting())


def test_a_topic_that_nothing_is_said_of(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(InvalidFileError, match="what topic orders is judged by"):
        judged(connection, table_of([line(0)]), {"payments": admitting()})


def test_stamps_in_the_payload_are_refused(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    settings = FenceSettings(stamps=ForeignField("term", lambda value: None))
    with pytest.raises(MisconfiguredError, match="not in a payload"):
        judged(connection, table_of([line(0)]), Audit(settings, None))
