"""Records as Arrow columns, named as Spark's Kafka source names them.

| column | type | |
|---|---|---|
| `topic` | string | |
| `partition`, `offset` | integer | |
| `headers` | list of struct `key` (string), `value` (binary) | null: none |
| `timestamp` | timestamp, or integer: ms since 1970 | may be missing |
| `value` | binary | only where the stamp lies in it |
| `topic_id` | string | may be missing: the life of the topic |
| `leader_epoch` | integer | may be missing: the broker's |
| `life` | integer | may be missing: which of the topic's lives, rising |

Positions do not tell which of two lives came first. So where a topic was deleted and
made anew, its records need the column `life`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import ForeignHeader, OwnStamps
from epochfence.replay.log_order import OutOfOrderError

Batch = Any
Schema = Any

_INTEGERS = ("partition", "offset", "leader_epoch", "life")
_OPTIONAL = ("timestamp", "topic_id", "leader_epoch", "life")
_MILLISECONDS = pa.timestamp("ms")


class ColumnError(ValueError):
    """Columns are not those of records, or hold what no record can."""


class Row(NamedTuple):
    """One record."""

    topic: str
    partition: int
    life: int | None
    topic_id: str | None
    leader_epoch: int | None
    offset: int
    timestamp: int | None
    headers: Sequence[tuple[str, bytes | None]]
    value: bytes | None


def needs_value(settings: FenceSettings) -> bool:
    """Whether verdicts take the records' values: nothing but a field of them does."""
    return not isinstance(settings.stamps, OwnStamps | ForeignHeader)


def columns_of(schema: Schema, with_value: bool) -> list[str]:
    """The columns that are needed, of those that are there.

    Raises:
        ColumnError: One is missing, or of another type.
    """
    needed = ["topic", "partition", "offset", "headers"]
    if with_value:
        needed.append("value")
    for name in needed:
        if name not in schema.names:
            raise ColumnError(
                f"column {name!r} is missing. Columns are those of Spark's Kafka "
                f"source with includeHeaders: topic, partition, offset, timestamp, "
                f"key, value, headers"
            )
    wanted = needed + [name for name in _OPTIONAL if name in schema.names]
    for name in wanted:
        found = schema.field(name).type
        expected = _expected(name, found)
        if expected is not None:
            raise ColumnError(f"column {name!r} is {found}; {expected} is expected")
    return wanted


def _expected(name: str, found: Any) -> str | None:
    """What a column has to be, None where it is that."""
    types = pa.types
    if name in _INTEGERS:
        return None if types.is_integer(found) else "an integer"
    if name == "timestamp":
        is_time = types.is_timestamp(found) or types.is_integer(found)
        return None if is_time else "a timestamp, or ms since 1970"
    if name == "value":
        return None if _is_binary(found) else "binary"
    if name == "headers":
        return (
            None if _is_headers(found) else "list<struct<key: string, value: binary>>"
        )
    return None if _is_string(found) else "a string"


def _is_string(found: Any) -> bool:
    if pa.types.is_dictionary(found):
        found = found.value_type
    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def _is_binary(found: Any) -> bool:
    return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found))


def _is_headers(found: Any) -> bool:
    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return False
    header = found.value_type
    if not pa.types.is_struct(header):
        return False
    fields = {field.name: field.type for field in header}
    return (
        fields.keys() == {"key", "value"}
        and _is_string(fields["key"])
        and _is_binary(fields["value"])
    )


def rows_of(batch: Batch) -> Iterator[Row]:
    """The records of a batch.

    Raises:
        ColumnError: A record has no place, or one that cannot be.
    """
    count = batch.num_rows
    names = batch.schema.names

    def column(name: str) -> Sequence[Any]:
        if name not in names:
            return [None] * count
        found = batch.column(name)
        if pa.types.is_timestamp(found.type):
            found = found.cast(_MILLISECONDS, safe=False).cast(pa.int64())
        cells: list[Any] = found.to_pylist()
        return cells

    headers = _headers(batch.column("headers"))
    columns = [column(name) for name in Row._fields if name != "headers"]
    for topic, partition, life, topic_id, leader_epoch, offset, timestamp, value in zip(
        *columns, strict=True
    ):
        if not topic or partition is None or offset is None:
            raise ColumnError("a record lacks its topic, its partition or its offset")
        if (
            partition < 0
            or offset < 0
            or (leader_epoch is not None and leader_epoch < 0)
        ):
            raise ColumnError(
                f"{topic}[{partition}] offset {offset} (leader epoch {leader_epoch}): "
                f"none of these is ever negative"
            )
        yield Row(
            topic, partition, life, topic_id, leader_epoch, offset, timestamp,
            next(headers), value,
        )  # fmt: skip


def _headers(column: Any) -> Iterator[Sequence[tuple[str, bytes | None]]]:
    """The headers of each record. They lie flat in memory: nothing is copied twice."""
    offsets = column.offsets.to_pylist()
    is_null = column.is_null().to_pylist() if column.null_count else None
    flat = column.values
    pairs = list(
        zip(flat.field("key").to_pylist(), flat.field("value").to_pylist(), strict=True)
    )
    for number in range(len(column)):
        if is_null is not None and is_null[number]:
            yield ()
        else:
            yield pairs[offsets[number] : offsets[number + 1]]


class LifeCheck:
    """Sees that the lives of topics can be told apart, and come in order."""

    def __init__(self) -> None:
        self._lives: dict[tuple[str, int], int | None] = {}
        self._ids: dict[tuple[str, int], str | None] = {}

    def check(self, row: Row) -> None:
        """See that the next record is of the same life as those before, or begins one.

        Raises:
            OutOfOrderError: It is not, or that cannot be told.
        """
        place = (row.topic, row.partition)
        life = self._lives.setdefault(place, row.life)
        topic_id = self._ids.get(place)
        if row.life != life or (
            row.topic_id is not None
            and topic_id is not None
            and row.topic_id != topic_id
        ):
            _check_enters(row, life, topic_id)
            self._lives[place] = row.life
        if row.topic_id is not None:
            self._ids[place] = row.topic_id


def _check_enters(row: Row, life: int | None, topic_id: str | None) -> None:
    where = f"{row.topic}[{row.partition}] offset {row.offset}"
    if row.life is None or life is None:
        raise OutOfOrderError(
            f"{where} is of topic id {row.topic_id}, others are of {topic_id}, and "
            f"which came first cannot be told: give each life of the topic a number of "
            f"its own in the column 'life', rising"
        )
    if row.life <= life:
        raise OutOfOrderError(
            f"{where} (topic id {row.topic_id}) is of life {row.life}, and comes after "
            f"records of life {life} (topic id {topic_id})"
        )
    if row.topic_id is None or row.topic_id == topic_id:
        raise OutOfOrderError(
            f"{where} begins life {row.life} without a topic id of its own: a later "
            f"life is known by that"
        )
