"""Messages as rows of a table: the last one of a key stands, a null value deletes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_function

Columns = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Upsert:
    """Has a sink keep one row for each key of the messages, that of the last one.

    A message with a null value deletes the row of its key.

    Args:
        table: The table, which exists; `schema.table` where that is meant.
        key: Gives the key's columns of a message, always the same ones; the table has
            a unique constraint on exactly these.
        values: Gives the other columns of a message whose value is not null.

    Raises:
        MisconfiguredError: An argument is of a wrong kind.
    """

    table: str
    key: Callable[[Message], Columns]
    values: Callable[[Message], Columns]

    def __post_init__(self) -> None:
        if not isinstance(self.table, str) or not all(self.table.split(".")):
            raise MisconfiguredError(
                "table", self.table, "no name of a table", "Use table or schema.table."
            )
        for name, function in (("key", self.key), ("values", self.values)):
            if function is None:
                check_function(name, ...)
            check_function(name, function)

    def changes(self, messages: Sequence[Message]) -> Changes:
        """What the messages come to, in order: of each key, what the last one says.

        Raises:
            MisconfiguredError: `key` or `values` gives something else than columns.
        """
        last: dict[tuple[Any, ...], Columns | None] = {}
        names: tuple[str, ...] | None = None
        for message in messages:
            key = _columns("key", self.key(message), message)
            if names is None:
                names = tuple(key)
            if not key or set(key) != set(names):
                raise MisconfiguredError(
                    "key", dict(key), f"{_where(message)}: not the columns of the one "
                    f"before it, {list(names)}",
                    "Give the same columns, at least one, for every message.",
                )  # fmt: skip
            is_deleted = message.value() is None
            # The last one's place, too: what it refers to may have come just before.
            identity = tuple(key[name] for name in names)
            last.pop(identity, None)
            last[identity] = (
                None
                if is_deleted
                else _columns("values", self.values(message), message)
            )
        deleted = [identity for identity, row in last.items() if row is None]
        upserts: dict[tuple[str, ...], list[tuple[Any, ...]]] = {}
        for identity, row in last.items():
            if row is not None:
                of_columns = upserts.setdefault(tuple(row), [])
                of_columns.append((*identity, *row.values()))
        return Changes(names or (), deleted, upserts)


@dataclass(frozen=True, slots=True)
class Changes:
    """What some messages come to.

    Attributes:
        key: The key's columns.
        deleted: The keys of rows to delete.
        upserts: The rows to insert or overwrite, key first, by their other columns.
    """

    key: tuple[str, ...]
    deleted: list[tuple[Any, ...]]
    upserts: dict[tuple[str, ...], list[tuple[Any, ...]]]


def _columns(name: str, given: object, message: Message) -> Columns:
    if isinstance(given, Mapping):
        return given  # type: ignore[return-value, unused-ignore]
    raise MisconfiguredError(
        name, given, f"{_where(message)}: no columns",
        f"Have {name} give a dict of column names and values.",
    )  # fmt: skip


def _where(message: Message) -> str:
    return f"{message.topic()}[{message.partition()}] offset {message.offset()}"


def quoted(name: str) -> str:
    """An identifier of SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def quoted_table(name: str) -> str:
    """The same of a table, whose name may follow its schema's."""
    return ".".join(map(quoted, name.split(".")))


def delete_statement(table: str, key: Sequence[str], placeholder: str) -> str:
    """Deletes a row by its key."""
    where = " AND ".join(f"{quoted(name)} = {placeholder}" for name in key)
    return f"DELETE FROM {quoted_table(table)} WHERE {where}"


def upsert_statement(
    table: str, key: Sequence[str], others: Sequence[str], source: str
) -> str:
    """Inserts rows, or overwrites those that have their keys.

    Args:
        table: The table.
        key: The key's columns.
        others: The other columns.
        source: Where the rows come from: `VALUES (...)`, or a `SELECT`.
    """
    columns = ", ".join(map(quoted, (*key, *others)))
    names = ", ".join(map(quoted, key))
    updates = ", ".join(f"{quoted(name)} = excluded.{quoted(name)}" for name in others)
    action = f"UPDATE SET {updates}" if others else "NOTHING"
    return (
        f"INSERT INTO {quoted_table(table)} ({columns}) {source} "
        f"ON CONFLICT ({names}) DO {action}"
    )
