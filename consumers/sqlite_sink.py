"""SQLite as a sink: for applications that have no server."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from os import PathLike, fspath
from types import TracebackType

from confluent_kafka import Message

from epochfence.consumers.arguments import checked_flag
from epochfence.consumers.dead_letters import COLUMNS, row_of_letter
from epochfence.consumers.sink import (
    SinkBatch,
    checked_apply,
    row_of_start,
    start_of_row,
    taken,
)
from epochfence.consumers.upsert import (
    Upsert,
    delete_statement,
    upsert_statement,
)
from epochfence.epochs.errors import MisconfiguredError, SinkUnavailable
from epochfence.epochs.values import SinkPosition, SinkState, check_timeout

#: Applies messages within the transaction: it must neither commit nor roll back.
Apply = Callable[[sqlite3.Cursor, Sequence[Message]], object]

_VERSION = 1

# A null in a key column would make every row of it distinct: what may be unknown is
# compared by IS.
_SCHEMA = """
CREATE TABLE IF NOT EXISTS epochfence_schema (version INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS epochfence_positions (
    topic TEXT NOT NULL,
    partition INTEGER NOT NULL,
    topic_id TEXT,
    leader_epoch INTEGER,
    next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS epochfence_starts (
    topic TEXT NOT NULL,
    topic_id TEXT,
    partition INTEGER NOT NULL,
    scope TEXT NOT NULL,
    epoch INTEGER NOT NULL,
    grant_id TEXT,
    leader_epoch INTEGER,
    start_offset INTEGER NOT NULL
);
CREATE INDEX IF NOT EXISTS epochfence_starts_of ON epochfence_starts (topic, partition);
"""
_DEAD_LETTERS = """
CREATE TABLE IF NOT EXISTS epochfence_dead_letters (
    id INTEGER PRIMARY KEY,
    topic TEXT NOT NULL,
    topic_id TEXT,
    partition INTEGER NOT NULL,
    leader_epoch INTEGER,
    record_offset INTEGER NOT NULL,
    record_timestamp INTEGER,
    record_key BLOB,
    record_value BLOB,
    headers TEXT NOT NULL,
    verdict TEXT NOT NULL,
    reason TEXT NOT NULL,
    scope TEXT,
    epoch INTEGER,
    current_epoch INTEGER,
    holder TEXT,
    rejected_at INTEGER NOT NULL,
    redriven_at INTEGER
)
"""

_LOAD_POSITION = """
SELECT topic_id, leader_epoch, next_offset FROM epochfence_positions
WHERE topic = ? AND partition = ?
"""
_STORE_POSITION = """
INSERT INTO epochfence_positions (topic, partition, topic_id, leader_epoch, next_offset)
VALUES (?, ?, ?, ?, ?)
ON CONFLICT (topic, partition) DO UPDATE SET topic_id = excluded.topic_id,
    leader_epoch = excluded.leader_epoch, next_offset = excluded.next_offset
"""
_LOAD_STARTS = """
SELECT topic, topic_id, partition, scope, epoch, grant_id, leader_epoch, start_offset
FROM epochfence_starts WHERE topic = ? AND partition = ? ORDER BY rowid
"""
_STORE_START = """
INSERT INTO epochfence_starts
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8 WHERE NOT EXISTS (
    SELECT 1 FROM epochfence_starts WHERE topic = ?1 AND topic_id IS ?2
    AND partition = ?3 AND scope = ?4 AND epoch = ?5 AND grant_id IS ?6
    AND leader_epoch IS ?7 AND start_offset = ?8
)
"""
_STORE_DEAD_LETTER = (
    f"INSERT INTO epochfence_dead_letters ({', '.join(COLUMNS)}) "
    f"VALUES ({', '.join('?' * len(COLUMNS))})"
)


class SqliteSink:
    """Applies messages to an SQLite database, each admitted one once.

    Its own rows are in the tables `epochfence_positions` and `epochfence_starts` of
    the same file, and change in the transaction that changes yours. The file is
    switched to write-ahead logging, so that others can read meanwhile, and every
    transaction is on the disk before it counts (`synchronous=FULL`).

    Safe to use from several threads; they take turns.

    Args:
        path: The file; it is created where there is none.
        apply: What to do with messages of one partition, in order: a function that
            gets a cursor and the messages, and must not end the transaction; or an
            `Upsert`.
        dead_letters: Whether rejected records go to a table
            `epochfence_dead_letters`, in the same transaction: see the command
            `epochfence deadletters`.
        timeout_s: How long to wait for another process that writes.

    Raises:
        MisconfiguredError: The file is no database, or a newer version's.
        SinkUnavailable: It cannot be opened or written to now.
    """

    def __init__(
        self,
        path: str | PathLike[str],
        apply: Apply | Upsert,
        *,
        dead_letters: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        self.keeps_rejected = checked_flag("dead_letters", dead_letters)
        self._apply: Apply
        if isinstance(apply, Upsert):
            self._apply = partial(_upsert, apply)
        else:
            self._apply = checked_apply(apply)
        check_timeout(timeout_s)
        self._path = fspath(path)
        self._is_applying = False
        self._lock = threading.Lock()
        try:
            self._database = sqlite3.connect(
                self._path,
                timeout=timeout_s,
                isolation_level=None,  # transactions begin where this module says so
                check_same_thread=False,
            )
        except sqlite3.Error as error:
            raise self._unavailable(error) from error
        try:
            self._prepare()
        except BaseException:
            self._database.close()
            raise

    def _prepare(self) -> None:
        try:
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            with self._transaction("BEGIN IMMEDIATE") as cursor:
                for statement in _SCHEMA.split(";"):
                    cursor.execute(statement)
                if self.keeps_rejected:
                    cursor.execute(_DEAD_LETTERS)
                found = cursor.execute("SELECT version FROM epochfence_schema")
                versions = [int(version) for (version,) in found]
                if not versions:
                    cursor.execute(
                        "INSERT INTO epochfence_schema VALUES (?)", [_VERSION]
                    )
        except sqlite3.OperationalError as error:
            raise self._unavailable(error) from error
        except sqlite3.DatabaseError as error:
            raise MisconfiguredError(
                "path", self._path, f"it is no SQLite database: {error}",
                "Name another file.",
            ) from error  # fmt: skip
        if max(versions, default=_VERSION) > _VERSION:
            raise MisconfiguredError(
                "path", self._path,
                f"a newer version wrote it (tables of version {max(versions)}, this "
                f"one knows {_VERSION})",
                "Upgrade epochfence.",
            )  # fmt: skip

    def _unavailable(self, error: sqlite3.Error) -> SinkUnavailable:
        return SinkUnavailable(self._path, str(error))

    @contextmanager
    def _transaction(self, begin: str) -> Generator[sqlite3.Cursor, None, None]:
        """One transaction, in which nothing of what a function did to us is left."""
        self._database.row_factory = None
        self._database.text_factory = str
        self._database.execute(begin)
        try:
            yield self._database.cursor()
            self._database.execute("COMMIT")
        except BaseException:
            # A failed COMMIT may leave the transaction open, or have ended it.
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The file cannot be read now.
        """
        with self._lock:
            try:
                # Both as of one moment. No writer is waited for: who is stopped in the
                # middle of a transaction must not keep others from beginning.
                with self._transaction("BEGIN") as cursor:
                    return _state(cursor, topic, partition)
            except sqlite3.OperationalError as error:
                raise self._unavailable(error) from error

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Apply batches of different partitions, all in one transaction.

        Raises:
            SinkFenced: Another instance has written. Nothing has changed.
            SinkUnavailable: The file is locked for too long, cannot be written to, or
                its disk is full.
            Exception: Whatever the function that applies messages raises: nothing has
                changed.
        """
        self.begin_write(batches)()

    def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
        """Do all that `write` does but commit, which is what it gives back.

        Raises:
            Exception: As `write`.
        """
        with ExitStack() as transaction:
            transaction.enter_context(taken(self._lock))
            transaction.enter_context(self._told_apart())
            # At once: what is compared must not change before it is written.
            begin = self._transaction("BEGIN IMMEDIATE")
            cursor = transaction.enter_context(begin)
            for batch in batches:
                batch.check(_position(cursor, *batch.place))
            with self._kept_open():
                for batch in batches:
                    if batch.messages:
                        cursor_of_its_own = self._database.cursor()
                        self._apply(cursor_of_its_own, batch.messages)
            for batch in batches:
                _store(cursor, batch)
            return transaction.pop_all().close

    @contextmanager
    def _told_apart(self) -> Generator[None, None, None]:
        """Tell errors of the file from those of the application's statements."""
        self._is_applying = False
        try:
            yield
        except sqlite3.OperationalError as error:
            if self._is_applying and str(error) not in _OF_THE_FILE:
                raise  # a statement of the user's is wrong
            raise self._unavailable(error) from error

    @contextmanager
    def _kept_open(self) -> Generator[None, None, None]:
        """Let the application's function do anything but end the transaction.

        What it would commit stands without the position, and would come again.

        Raises:
            MisconfiguredError: It tried to. Nothing has changed.
        """
        has_tried = False

        def authorized(action: int, *_: object) -> int:
            nonlocal has_tried
            if action == sqlite3.SQLITE_TRANSACTION:
                has_tried = True
                return sqlite3.SQLITE_DENY
            return sqlite3.SQLITE_OK

        self._is_applying = True
        self._database.set_authorizer(authorized)
        try:
            yield
        except sqlite3.DatabaseError as error:
            if not has_tried:
                raise
            raise _ends_transaction() from error
        finally:
            # None would lift it, but only from Python 3.11 on.
            self._database.set_authorizer(_allowed)
        self._is_applying = False
        if not self._database.in_transaction:  # INSERT OR ROLLBACK
            raise _ends_transaction()

    def close(self) -> None:
        """Close the file. May be called again."""
        with self._lock:
            self._database.close()

    def __enter__(self) -> SqliteSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


#: What is no fault of an application's statement; these texts are SQLite's own.
_OF_THE_FILE = {
    "database is locked",
    "attempt to write a readonly database",
    "disk I/O error",
    "database or disk is full",
    "locking protocol",
}


def _allowed(*_: object) -> int:
    return sqlite3.SQLITE_OK


def _ends_transaction() -> MisconfiguredError:
    return MisconfiguredError(
        "apply", ..., "it ends the transaction, which holds the position as well",
        "Have it neither commit nor roll back: no commit(), executescript(), "
        "'with connection' or INSERT OR ROLLBACK.",
    )  # fmt: skip


def _position(
    cursor: sqlite3.Cursor, topic: str, partition: int
) -> SinkPosition | None:
    row = cursor.execute(_LOAD_POSITION, (topic, partition)).fetchone()
    return None if row is None else SinkPosition(*row)


def _state(cursor: sqlite3.Cursor, topic: str, partition: int) -> SinkState | None:
    position = _position(cursor, topic, partition)
    if position is None:
        return None
    rows = cursor.execute(_LOAD_STARTS, (topic, partition)).fetchall()
    return SinkState(position, tuple(start_of_row(row) for row in rows))


def _store(cursor: sqlite3.Cursor, batch: SinkBatch) -> None:
    for start in batch.new_starts:
        cursor.execute(_STORE_START, row_of_start(start))
    cursor.execute(_STORE_POSITION, (*batch.place, *batch.position))
    if batch.rejected:
        cursor.executemany(_STORE_DEAD_LETTER, map(row_of_letter, batch.rejected))


def _upsert(
    upsert: Upsert, cursor: sqlite3.Cursor, messages: Sequence[Message]
) -> None:
    changes = upsert.changes(messages)
    if changes.deleted:
        delete = delete_statement(upsert.table, changes.key, "?")
        cursor.executemany(delete, changes.deleted)
    if changes.upserts:
        values = ", ".join("?" * len(changes.upserts[0]))
        upserts = upsert_statement(
            upsert.table, changes.key, changes.others, f"VALUES ({values})"
        )
        cursor.executemany(upserts, changes.upserts)
