"""Verdicts as Arrow columns, and as a Parquet file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq

from epochfence.epochs.verdicts import Verdict

#: What is held in memory before it is written: a row group.
_ROWS_PER_GROUP = 1 << 17

_TEXTS = ["topic", "verdict", "reason", "scope"]

#: What is said of a record, behind the columns that say which it is.
VERDICT_FIELDS = [
    ("verdict", pa.string()),
    ("reason", pa.string()),
    ("scope", pa.string()),
    ("epoch", pa.int64()),
    ("current_epoch", pa.int64()),
]

_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        *VERDICT_FIELDS,
    ]
)


def cells(verdict: Verdict) -> tuple[str, str, str | None, int | None, int | None]:
    """A verdict as the cells of `VERDICT_FIELDS`."""
    cause = verdict.cause
    return (
        verdict.kind,
        verdict.reason,
        None if cause is None else cause.scope,
        None if cause is None else cause.epoch,
        verdict.current_epoch,
    )


class ParquetVerdicts:
    """Writes a Parquet file of verdicts: a row for each record.

    Args:
        file: Where to. It is complete when this object, as a context, has ended.
    """

    def __init__(self, file: IO[bytes]) -> None:
        writer: Any = pq.ParquetWriter  # its annotations know less than it does
        self._writer = writer(
            file, _SCHEMA, use_dictionary=_TEXTS, write_page_checksum=True
        )
        self._columns: list[list[Any]] = [[] for _ in _SCHEMA.names]

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Write a row for each record that a verdict was given to."""
        count = len(offsets)
        *head, at = self._columns[0], self._columns[1], self._columns[2]
        for column, cell in zip(head, (topic, partition), strict=True):
            column.extend([cell] * count)
        at.extend(offsets)
        for column, cell in zip(self._columns[3:], cells(verdict), strict=True):
            column.extend([cell] * count)
        if len(at) >= _ROWS_PER_GROUP:
            self._write_group()

    def __enter__(self) -> ParquetVerdicts:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._write_group()
        self._writer.close()

    def _write_group(self) -> None:
        table = pa.Table.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip(self._columns, _SCHEMA, strict=True)
            ],
            schema=_SCHEMA,
        )
        if table.num_rows:
            self._writer.write_table(table, row_group_size=_ROWS_PER_GROUP)
        for column in self._columns:
            column.clear()
