"""Messages as rows of a table: the last one of a key stands, a null value deletes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

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
        values: Gives the other columns of a message whose value is not null, always
            the same ones as well.

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
        last: dict[tuple[Any, ...], tuple[Any, ...] | None] = {}
        # A row whose key had a null value begins anew, also where another one follows.
        deleted: dict[tuple[Any, ...], None] = {}
        key_names: tuple[str, ...] | None = None
        names: tuple[str, ...] | None = None
        for message in messages:
            key_names, key = _columns("key", self.key(message), message, key_names)
            if None in key:
                raise _refused("key", key, message, "a null is the key of no row")
            try:
                hash(key)
            except TypeError as error:
                raise _refused("key", key, message, str(error)) from error
            last.pop(key, None)  # the last one's place, too
            if message.value() is None:
                last[key] = None
                deleted[key] = None
                continue
            names, values = _columns("values", self.values(message), message, names)
            if not set(names).isdisjoint(key_names):
                raise _refused("values", names, message, "it has columns of the key")
            last[key] = (*key, *values)
        rows = [row for row in last.values() if row is not None]
        return Changes(key_names or (), names or (), list(deleted), rows)


@dataclass(frozen=True, slots=True)
class Changes:
    """What some messages come to.

    Attributes:
        key: The key's columns.
        others: The other columns.
        deleted: The keys of rows to delete, before any is inserted.
        upserts: The rows to insert or overwrite, key first.
    """

    key: tuple[str, ...]
    others: tuple[str, ...]
    deleted: list[tuple[Any, ...]]
    upserts: list[tuple[Any, ...]]


def _columns(
    name: str, given: object, message: Message, before: tuple[str, ...] | None
) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Names and values of columns, in the order of the message before."""
    if not isinstance(given, Mapping):
        raise _refused(name, given, message, "no dict of columns and values")
    columns = cast("Columns", given)
    names = tuple(columns) if before is None else before
    is_empty = name == "key" and not names
    if is_empty or columns.keys() ^ set(names) or not all(map(_is_name, names)):
        raise _refused(
            name, given, message,
            "every message has to give the same columns, a key at least one; those of "
            f"the one before are {[] if before is None else list(before)}",
        )  # fmt: skip
    return names, tuple(columns[column] for column in names)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name != ""


def _refused(
    name: str, given: object, message: Message, problem: str
) -> MisconfiguredError:
    where = f"{message.topic()}[{message.partition()}] offset {message.offset()}"
    return MisconfiguredError(
        name, given, f"{where}: {problem}",
        f"Have {name} give a dict of column names and values.",
    )  # fmt: skip


def quoted(name: str) -> str:
    """An identifier of SQL, whatever characters it has."""
    return '"' + name.replace('"', '""') + '"'


def escaped(text: str) -> str:
    """A text of which psycopg takes nothing for a placeholder."""
    return text.replace("%", "%%")


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
