"""Rows of PostgreSQL that several write, of which the one with the latest epoch stands.

A sink's position keeps other instances of that sink out. It does not know of writers
that come another way, such as a correction by hand, a back-fill, or a second pipeline.
Where all of them write through this guard, none overwrites what is newer than its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from epochfence.consumers.upsert import (
    delete_statement,
    escaped,
    quoted,
    quoted_table,
    upsert_statement,
)
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_epoch

if TYPE_CHECKING:
    from psycopg import Cursor

# Who comes second waits for the end of the first one's transaction, and then compares
# with what that one has left. The table goes by its full name, however it was spelt.
_RAISE = """
INSERT INTO {schema}.guards AS kept (table_name, row_key, epoch, partition, position)
SELECT format('%%I.%%I', namespace.nspname, class.relname), %s, %s, %s, %s
FROM pg_class AS class JOIN pg_namespace AS namespace
    ON namespace.oid = class.relnamespace
WHERE class.oid = %s::regclass
ON CONFLICT (table_name, row_key) DO UPDATE SET epoch = excluded.epoch,
    partition = excluded.partition, position = excluded.position
WHERE (kept.epoch, kept.position) < (excluded.epoch, excluded.position)
"""


def guarded_upsert(
    cursor: Cursor[Any],
    table: str,
    key: Mapping[str, Any],
    values: Mapping[str, Any] | None,
    *,
    epoch: int,
    partition: int,
    offset: int,
    schema: str = "epochfence",
) -> bool:
    """Insert, overwrite or delete a row, unless a later message has done so.

    Beside the row, (epoch, partition, offset) of the message that wrote or deleted it
    is kept, in the table `guards` of the schema that a `PostgresSink` has created. A
    write takes effect only if its (epoch, offset) is above what is kept: whatever the
    order in which writers commit, what stands is that of the highest. It is up to every
    writer of the table to go through here, to give the same key for the same row
    (numbers and texts that look alike are alike), and to commit. A key's messages come
    from one partition.

    Args:
        cursor: Of psycopg, in a transaction, which the caller commits.
        table: The table; `schema.table` where that is meant.
        key: The key's columns; the table has a unique constraint on exactly these.
        values: The other columns; None deletes the row.
        epoch: The epoch that the message was written under.
        partition: The message's partition, for people.
        offset: The message's offset.
        schema: The schema of the guards.

    Returns:
        Whether it took effect.

    Raises:
        MisconfiguredError: The key or the epoch is none, or there is no transaction.
        psycopg.Error: What the server says, such as a deadlock of writers that take the
            same keys in another order: roll back and try again.
    """
    check_epoch(epoch, lowest=0)
    _check_transaction(cursor)
    _execute(
        cursor,
        _RAISE.format(schema=escaped(quoted(schema))),
        [_row_key(key), epoch, partition, offset, quoted_table(table)],
    )
    if cursor.rowcount == 0:
        return False
    # In a statement of its own, which sees what those have left who were waited for.
    # (A DELETE in one with the guard would not see a row that was inserted meanwhile.)
    name, columns = escaped(table), [escaped(column) for column in key]
    if values is None:
        _execute(cursor, delete_statement(name, columns, "%s"), [*key.values()])
        return True
    others = [escaped(column) for column in values]
    row = [*key.values(), *values.values()]
    source = f"VALUES ({', '.join(['%s'] * len(row))})"
    _execute(cursor, upsert_statement(name, columns, others, source), row)
    return True


def _execute(cursor: Cursor[Any], statement: str, parameters: list[Any]) -> None:
    cursor.execute(statement.encode(), parameters)


def _check_transaction(cursor: Cursor[Any]) -> None:
    connection = cursor.connection
    # 0 is libpq's "idle". Without autocommit, the first statement begins one.
    if connection.autocommit and connection.info.transaction_status == 0:
        raise MisconfiguredError(
            "cursor", ..., "it is in no transaction: the guard and the row would "
            "change one after the other",
            "Use `with connection.transaction():`.",
        )  # fmt: skip


def _row_key(key: Mapping[str, Any]) -> str:
    """A key as a text, the same for each writer."""
    if not key or None in key.values():
        raise MisconfiguredError(
            "key", dict(key), "no key of a row", "Give its columns, none of them None."
        )
    texts = {
        name: value.hex() if isinstance(value, bytes) else str(value)
        for name, value in key.items()
    }
    return json.dumps(texts, sort_keys=True, ensure_ascii=False)
