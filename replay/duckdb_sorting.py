"""Records of Parquet files put in order of position, by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import duckdb

from epochfence.replay.files import InvalidFileError

# As in verdicts.sql: a record without leader epoch stands by its offset alone.
_SORTED = """
SELECT {columns} FROM (
    SELECT *, coalesce(max(CASE WHEN {leader_epoch} IS NULL THEN "offset" END) OVER (
        PARTITION BY topic, "partition", {life} ORDER BY "offset"), -1) AS behind
    FROM {records}
)
ORDER BY topic, "partition", {life}, behind, {leader_epoch} NULLS FIRST, "offset"
"""
# Where no leader epoch is told, offsets alone are the order, and nothing is looked up.
_BY_OFFSET = """
SELECT {columns} FROM {records} ORDER BY topic, "partition", {life}, "offset"
"""


def sorted_batches(
    path: str, files: Sequence[str], columns: Sequence[str], rows: int
) -> Iterator[Any]:
    """The records of some files in order, a bounded number at a time.

    What does not fit into DuckDB's memory lies in its own temporary folder meanwhile.

    Args:
        path: What they are called together, for people.
        files: The files.
        columns: Those wanted; only `life` and `leader_epoch` may be missing.
        rows: How many at a time.

    Raises:
        InvalidFileError: They cannot be read.
    """
    query = _SORTED if "leader_epoch" in columns else _BY_OFFSET
    text = query.format(
        columns=", ".join(f'"{one}"' for one in columns),
        # A number alone would be a column's place to ORDER BY.
        life="coalesce(life, 0)" if "life" in columns else "CAST(0 AS BIGINT)",
        leader_epoch="leader_epoch",
        records="read_parquet($1, union_by_name = true)",
    )
    try:
        with duckdb.connect() as connection:
            connection.execute("SET preserve_insertion_order = false")
            found = connection.sql(text, params=[list(files)])
            yield from found.to_arrow_reader(rows)
    except duckdb.Error as error:
        problem = str(error).strip().splitlines()[0]
        raise InvalidFileError(path, None, f"cannot be sorted: {problem}") from error
