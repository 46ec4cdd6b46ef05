"""A sink's table against the one that the admitted records come to.

Both are kept in a temporary file: memory does not grow with them.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from epochfence.epochs.errors import MisconfiguredError

#: How a row of the sink differs from what it should be.
Difference = Literal["missing", "extra", "different"]

_TABLES = """
CREATE TABLE stored (key BLOB NOT NULL, value BLOB);
CREATE TABLE expected (
    key BLOB PRIMARY KEY, value BLOB, partition INTEGER NOT NULL,
    record_offset INTEGER NOT NULL, partitions INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE rejected (
    key BLOB NOT NULL, value BLOB, partition INTEGER NOT NULL,
    record_offset INTEGER NOT NULL
);
"""
# A key of two partitions has no last message: their order is not known.
_EXPECT = """
INSERT INTO expected VALUES (?1, ?2, ?3, ?4, 1)
ON CONFLICT (key) DO UPDATE SET
    partitions = partitions + (partition <> excluded.partition),
    value = excluded.value, partition = excluded.partition,
    record_offset = excluded.record_offset
"""
_DIFFERENCES = """
CREATE TABLE differences AS
SELECT expected.key AS key,
    CASE WHEN stored.key IS NULL THEN 'missing' ELSE 'different' END AS difference,
    stored.value AS value
FROM expected LEFT JOIN stored ON stored.key = expected.key
WHERE expected.partitions = 1 AND expected.value IS NOT NULL
    AND stored.value IS NOT expected.value
UNION ALL
SELECT stored.key, 'extra', stored.value
FROM stored LEFT JOIN expected ON expected.key = stored.key
WHERE (expected.key IS NULL AND ?1)
    OR (expected.partitions = 1 AND expected.value IS NULL)
"""
# The last rejected record whose effect is what the sink has. One that deletes has the
# effect that a row is missing.
_EXPLAINED = """
CREATE TABLE explained AS
SELECT key, difference, (
    SELECT rejected.rowid FROM rejected
    WHERE rejected.key = differences.key AND rejected.value IS differences.value
        AND (rejected.value IS NULL) = (differences.difference = 'missing')
    ORDER BY rejected.rowid DESC LIMIT 1
) AS record FROM differences
"""


class Explained(NamedTuple):
    """A row that is what a rejected record makes of it.

    Attributes:
        key: The row's key.
        difference: How it differs from what it should be.
        partition: Where the record stands.
        offset: Its offset.
    """

    key: bytes
    difference: Difference
    partition: int
    offset: int


class SinkRows:
    """Compares a sink's rows with those that admitted records come to.

    Args:
        name: The table, for people.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.keyless = 0
        self._folder = tempfile.TemporaryDirectory(prefix="epochfence-audit-")
        path = Path(self._folder.name) / "rows.db"
        self._database = sqlite3.connect(path, isolation_level=None)
        # Nobody needs it after a crash.
        self._database.execute("PRAGMA journal_mode = OFF")
        self._database.execute("PRAGMA synchronous = OFF")
        for statement in _TABLES.split(";"):
            self._database.execute(statement)

    def take_stored(self, rows: Iterable[tuple[Any, Any]]) -> None:
        """Take what the sink has.

        Raises:
            MisconfiguredError: It holds something else than bytes and texts, or the
                key's column has one key more than once.
        """
        pairs = (
            (_as_bytes("--sink-key", key), _as_bytes("--sink-value", value))
            for key, value in rows
        )
        try:
            self._database.execute("BEGIN")
            self._database.executemany("INSERT INTO stored VALUES (?, ?)", pairs)
            self._database.execute("COMMIT")
            self._database.execute("CREATE UNIQUE INDEX stored_key ON stored (key)")
        except sqlite3.IntegrityError as error:
            raise MisconfiguredError(
                "--sink-key", ..., "this column of the sink's table has a null, or one "
                "key more than once",
                "Name the column that has the messages' keys, each once.",
            ) from error  # fmt: skip

    def begin(self) -> None:
        """Records are about to come."""
        self._database.execute("BEGIN")

    def admitted(
        self, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> None:
        """A record was admitted: its value is the row of its key, a null deletes."""
        if key is None:
            self.keyless += 1
            return
        self._database.execute(_EXPECT, (key, value, partition, offset))

    def rejected(
        self, partition: int, offset: int, key: bytes | None, value: bytes | None
    ) -> None:
        """A record was rejected: what it would have done must not be seen."""
        if key is not None:
            self._database.execute(
                "INSERT INTO rejected VALUES (?, ?, ?, ?)",
                (key, value, partition, offset),
            )

    def compare(self, *, is_whole: bool) -> None:
        """All records have come: find the differences.

        Args:
            is_whole: Whether these were all that there ever were; else a row of whose
                key no admitted record was seen may be of one that is gone.
        """
        self._database.execute("COMMIT")
        self._database.execute("CREATE INDEX rejected_key ON rejected (key)")
        self._database.execute(_DIFFERENCES, (is_whole,))
        self._database.execute(_EXPLAINED)

    def _number(self, statement: str) -> int:
        (found,) = self._database.execute(statement).fetchone()
        return int(found)

    def compared(self) -> int:
        """How many rows there should be."""
        return self._number(
            "SELECT count(*) FROM expected WHERE partitions = 1 AND value IS NOT NULL"
        )

    def of_several_partitions(self) -> int:
        """How many keys were left out, since they are in more than one partition."""
        return self._number("SELECT count(*) FROM expected WHERE partitions > 1")

    def differences(self, *, are_explained: bool) -> dict[Difference, int]:
        """How many rows differ, by how they do.

        Args:
            are_explained: Those that are what a rejected record makes of them; else
                the others.
        """
        found = self._database.execute(
            "SELECT difference, count(*) FROM explained "
            "WHERE (record IS NOT NULL) = ? GROUP BY 1 ORDER BY 1",
            (are_explained,),
        )
        return dict(found.fetchall())

    def unexplained(self, most: int) -> list[tuple[bytes, Difference]]:
        """The first rows that differ for no known reason."""
        found = self._database.execute(
            "SELECT key, difference FROM explained WHERE record IS NULL "
            "ORDER BY key LIMIT ?",
            (most,),
        )
        return found.fetchall()

    def explained(self) -> Iterator[Explained]:
        """The rows that are what a rejected record makes of them, by its place."""
        found = self._database.execute(
            "SELECT explained.key, difference, partition, record_offset "
            "FROM explained JOIN rejected ON rejected.rowid = explained.record "
            "ORDER BY partition, record_offset"
        )
        for row in found:
            yield Explained(*row)

    def close(self) -> None:
        """Remove the file. May be called again."""
        self._database.close()
        self._folder.cleanup()

    def __enter__(self) -> SinkRows:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _as_bytes(option: str, value: object) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape")
    if isinstance(value, memoryview):
        return value.tobytes()
    raise MisconfiguredError(
        option, ..., f"this column of the sink's table holds {type(value).__name__}",
        "Only columns of bytes or texts can be compared, which hold a message's key or "
        "value as it is.",
    )  # fmt: skip
