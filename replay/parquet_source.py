"""The records of Parquet files, judged.

The columns are told in `epochfence.replay.arrow_records`. Files are read in the order
of their lowest positions, row group by row group. A first look at the places alone sees
whether that gives every partition's records in order; where it does not, DuckDB sorts
them, on disk where they do not fit into its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from epochfence.epochs.settings import FenceSettings
from epochfence.replay.arrow_records import (
    ColumnError,
    LifeCheck,
    Row,
    columns_of,
    needs_value,
    rows_of,
)
from epochfence.replay.audit import Audit
from epochfence.replay.file_source import StoredRecords
from epochfence.replay.files import InvalidFileError
from epochfence.replay.log_order import LogOrder, OutOfOrderError
from epochfence.replay.sources import INTERRUPTED, Outcome, Progress, VerdictWriter
from epochfence.replay.summing_up import sum_up

_ROWS_PER_BATCH = 1 << 14
_PLACE = ("topic", "partition", "topic_id", "leader_epoch", "offset", "life")


class _File(NamedTuple):
    """A file, and what its statistics say of where its records stand."""

    path: Path
    columns: list[str]
    rows: int
    lowest: tuple[Any, ...]


class _Place(NamedTuple):
    """Where a record is, to find it by."""

    path: Path | None
    row_group: int | None

    def __str__(self) -> str:
        if self.path is None:
            return "sorted"
        return f"{self.path}, row group {self.row_group}"


def audit_parquet(
    audit: Audit,
    path: str,
    what_if: Sequence[FenceSettings] = (),
    *,
    verdicts: VerdictWriter | None = None,
    progress: Progress | None = None,
    must_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Judge the records of a Parquet file, or of all `*.parquet` below a folder.

    Where a file turns out to be damaged, what was judged before is told.

    Args:
        audit: What to judge by.
        path: The file or the folder.
        what_if: Other settings, of which it is told where they disagree.
        verdicts: Takes each record's verdict.
        progress: Told how many were judged.
        must_stop: Asked now and then whether to stop.

    Raises:
        InvalidFileError: A file is no Parquet, or lacks a column; records contradict
            each other, or are out of order and nothing is there to sort them.
    """
    with_value = any(needs_value(one) for one in (audit.settings, *what_if))
    files = sorted(
        (_look(one, with_value) for one in _paths(path)),
        key=lambda one: (one.lowest, str(one.path)),
    )
    total = sum(one.rows for one in files)
    disorder = _disorder(files)
    batches: Iterator[tuple[_Place, Any]] = (
        chain.from_iterable(map(_batches, files))
        if disorder is None
        else _sorted(path, files, disorder)
    )
    records = StoredRecords(audit, what_if, verdicts)
    lives = LifeCheck()
    error: InvalidFileError | None = None
    is_stopped = False
    judged = 0
    try:
        for place, batch in batches:
            judged += _judge(place, batch, records, lives)
            if progress is not None:
                progress(judged, judged, total)
            if must_stop():
                is_stopped = judged < total
                break
    except InvalidFileError as problem:
        error = problem
    partial = INTERRUPTED if is_stopped else None if error is None else str(error)
    report = sum_up(
        audit, f"Parquet {path}", what_if=records.what_if(), partial=partial
    )
    return Outcome(report, error, is_stopped)


def _paths(path: str) -> list[Path]:
    there = Path(path)
    if not there.is_dir():
        return [there]
    found = sorted(
        one
        for one in there.rglob("*.parquet")
        # What Spark and others keep beside the data, or have not finished.
        if not any(part.startswith(("_", ".")) for part in one.relative_to(there).parts)
    )
    if not found:
        raise InvalidFileError(path, None, "no *.parquet is in this folder")
    return found


def _look(path: Path, with_value: bool) -> _File:
    try:
        metadata = pq.read_metadata(path)
        columns = columns_of(metadata.schema.to_arrow_schema(), with_value)
    except ColumnError as error:
        raise InvalidFileError(str(path), None, str(error)) from error
    except (OSError, pa.ArrowException) as error:
        raise InvalidFileError(
            str(path), None, f"not a whole Parquet file: {_short(error)}"
        ) from error
    return _File(path, columns, metadata.num_rows, _lowest(metadata))


def _lowest(metadata: Any) -> tuple[Any, ...]:
    """The lowest life, topic, partition, leader epoch and offset that a file tells."""
    found: dict[str, Any] = {}
    for group in range(metadata.num_row_groups):
        row_group = metadata.row_group(group)
        for number in range(row_group.num_columns):
            column = row_group.column(number)
            name = column.path_in_schema
            statistics = column.statistics
            if name in _PLACE and statistics is not None and statistics.has_min_max:
                lowest = statistics.min
                found[name] = min(found.get(name, lowest), lowest)
    return (
        found.get("life", 0),
        str(found.get("topic", "")),
        found.get("partition", 0),
        found.get("leader_epoch", 0),
        found.get("offset", 0),
    )


def _batches(file: _File, places_only: bool = False) -> Iterator[tuple[_Place, Any]]:
    """The records of a file, a bounded number at a time.

    Raises:
        InvalidFileError: It is damaged.
    """
    columns = [one for one in file.columns if one in _PLACE or not places_only]
    group = 0
    try:
        with pq.ParquetFile(file.path, page_checksum_verification=True) as opened:
            for group in range(opened.num_row_groups):
                place = _Place(file.path, group)
                for batch in opened.iter_batches(
                    _ROWS_PER_BATCH, row_groups=[group], columns=columns
                ):
                    yield place, batch
    except (OSError, pa.ArrowException) as error:
        raise InvalidFileError(
            str(file.path), None, f"row group {group} is damaged: {_short(error)}"
        ) from error


def _judge(place: _Place, batch: Any, records: StoredRecords, lives: LifeCheck) -> int:
    try:
        for row in rows_of(batch):
            lives.check(row)
            records.take(row)
    except (ColumnError, OutOfOrderError) as error:
        raise InvalidFileError(str(place), None, str(error)) from error
    return int(batch.num_rows)


def _disorder(files: Sequence[_File]) -> str | None:
    """Where records are not in order if the files are read as they are.

    What is damaged ends the look: reading will end there, too.
    """
    orders: dict[tuple[str, int], tuple[int | None, LogOrder]] = {}
    try:
        for file in files:
            for place, batch in _batches(file, places_only=True):
                problem = _problem(place, batch, orders)
                if problem is not None:
                    return problem
    except InvalidFileError:
        pass
    return None


def _problem(
    place: _Place,
    batch: Any,
    orders: dict[tuple[str, int], tuple[int | None, LogOrder]],
) -> str | None:
    names = batch.schema.names
    columns = [
        batch.column(name).to_pylist() if name in names else [None] * batch.num_rows
        for name in ("topic", "partition", "life", "leader_epoch", "offset")
    ]
    for topic, partition, life, leader_epoch, offset in zip(*columns, strict=True):
        if offset is None:
            return None  # told when it is judged
        known = orders.get((topic, partition))
        if known is None or known[0] != life:
            if known is not None and (life or 0) < (known[0] or 0):
                return (
                    f"{place}: {topic}[{partition}] offset {offset} of life {life} "
                    f"comes after records of life {known[0]}"
                )
            known = orders[topic, partition] = (life, LogOrder())
        order = known[1]
        if offset <= order.last_offset or leader_epoch != order.leader_epoch:
            try:
                order.check(leader_epoch, offset)
            except OutOfOrderError as error:
                return f"{place}: {topic}[{partition}] {error}"
        order.last_offset = offset
    return None


def _sorted(
    path: str, files: Sequence[_File], disorder: str
) -> Iterator[tuple[_Place, Any]]:
    """The same records in order of position."""
    try:
        from epochfence.replay.duckdb_sorting import sorted_batches
    except ImportError as error:
        raise InvalidFileError(
            path, None,
            f"its records are not in order ({disorder}), and what sorts them is not "
            f"there. Install it: pip install 'epochfence[duckdb]'",
        ) from error  # fmt: skip
    places = [str(one.path) for one in files]
    columns = [one for one in Row._fields if any(one in f.columns for f in files)]
    for batch in sorted_batches(path, places, columns, _ROWS_PER_BATCH):
        yield _Place(None, None), batch


def _short(error: Exception) -> str:
    """The first line of what the library says."""
    return str(error).strip().splitlines()[0] if str(error).strip() else repr(error)
