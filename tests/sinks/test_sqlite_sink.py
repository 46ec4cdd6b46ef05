"""SQLite as a sink: what befalls files, and applications' functions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message

from epochfence import (
    MisconfiguredError,
    SinkBatch,
    SinkState,
    SinkUnavailable,
    SqliteSink,
    Upsert,
)
from support.sinks import APPLIED, applied_in, apply_sqlite, at, message


def batch(
    messages: Sequence[Message], expected: int | None = None, to: int = 1
) -> SinkBatch:
    before = None if expected is None else at(expected)
    return SinkBatch("orders", 0, messages, before, at(to), ())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "orders.db"
    with closing(sqlite3.connect(found)) as database:
        database.execute(APPLIED)
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, level, seen_in)")
    return found


@pytest.fixture
def sink(path: Path) -> Iterator[SqliteSink]:
    with SqliteSink(path, apply_sqlite, timeout_s=0.2) as opened:
        yield opened


def rows(path: Path, statement: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as database:
        return database.execute(statement).fetchall()


def test_what_the_function_raises_undoes_everything(path: Path) -> None:
    def fail(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        apply_sqlite(cursor, messages)
        raise ZeroDivisionError

    with SqliteSink(path, fail) as sink:
        with pytest.raises(ZeroDivisionError):
            sink.write([batch([message(0, b"a")])])
        assert sink.load("orders", 0) is None
    assert applied_in(path) == []


def test_a_write_that_was_begun_and_given_up_holds_nothing(
    path: Path, sink: SqliteSink
) -> None:
    """Ctrl-C, before anybody has got hold of its end."""
    sink.begin_write([batch([message(0, b"a")])])
    assert applied_in(path) == []
    with SqliteSink(path, apply_sqlite, timeout_s=0.2) as other:
        other.write([batch([message(0, b"b")])])
    assert sink.load("orders", 0) is not None


def test_a_wrong_statement_of_the_function_is_told_as_it_is(path: Path) -> None:
    def misspelt(cursor: sqlite3.Cursor, _: Sequence[Message]) -> None:
        cursor.execute("INSERT INTO no_such_table VALUES (1)")

    with SqliteSink(path, misspelt) as sink:
        with pytest.raises(sqlite3.OperationalError, match="no_such_table"):
            sink.write([batch([message(0, b"a")])])
        assert sink.load("orders", 0) is None


@pytest.mark.parametrize(
    "ending",
    ["commit", "rollback", "script", "COMMIT", "ROLLBACK", "with", "INSERT"],
)
def test_a_function_that_ends_the_transaction_changes_nothing(
    path: Path, ending: str
) -> None:
    def apply(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        apply_sqlite(cursor, messages)
        connection = cursor.connection
        if ending == "commit":
            connection.commit()
        elif ending == "rollback":
            connection.rollback()
        elif ending == "script":
            cursor.executescript("SELECT 1")
        elif ending == "with":
            with connection:
                pass
        elif ending == "INSERT":
            with suppress(sqlite3.IntegrityError):
                insert = "INSERT OR ROLLBACK INTO applied SELECT * FROM applied"
                cursor.execute(insert)
        else:
            cursor.execute(ending)

    with SqliteSink(path, apply) as sink:
        with pytest.raises(MisconfiguredError, match="ends the transaction"):
            sink.write([batch([message(0, b"a")])])
        assert sink.load("orders", 0) is None
    assert applied_in(path) == []


def test_a_function_may_do_anything_else(path: Path) -> None:
    """Savepoints, its own cursors, factories, a closed cursor: the sink goes on."""

    def apply(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        connection = cursor.connection
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        cursor.execute("SAVEPOINT here")
        apply_sqlite(cursor, messages)
        cursor.execute("ROLLBACK TO here")
        cursor.execute("RELEASE here")
        apply_sqlite(connection.cursor(), messages)
        cursor.close()

    with SqliteSink(path, apply) as sink:
        sink.write([batch([message(0, b"a")])])
        sink.write([batch([message(1, b"b")], 1, 2)])
        assert sink.load("orders", 0) == SinkState(at(2))
    assert [row[-1] for row in applied_in(path)] == [b"a", b"b"]


async def asynchronous(_: sqlite3.Cursor, __: Sequence[Message]) -> None: ...


class CalledAsynchronously:
    async def __call__(self, _: sqlite3.Cursor, __: Sequence[Message]) -> None: ...


@pytest.mark.parametrize("wrong", [asynchronous, CalledAsynchronously()])
def test_a_function_that_does_nothing_yet(path: Path, wrong: Any) -> None:
    with pytest.raises(MisconfiguredError, match="asynchronous"):
        SqliteSink(path, wrong)


@pytest.mark.parametrize("name", ["is_locked", "disk_usage", "readonly"])
def test_names_that_sound_like_the_files_faults(path: Path, name: str) -> None:
    def apply(cursor: sqlite3.Cursor, _: Sequence[Message]) -> None:
        cursor.execute(f"SELECT {name} FROM applied")

    told = pytest.raises(sqlite3.OperationalError, match=name)
    with SqliteSink(path, apply) as sink, told:
        sink.write([batch([message(0, b"a")])])


def test_a_position_is_read_past_a_writer(path: Path, sink: SqliteSink) -> None:
    sink.write([batch([message(0, b"a")])])
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        assert sink.load("orders", 0) == SinkState(at(1))


def test_another_writer_is_waited_for_and_then_told_of(
    path: Path, sink: SqliteSink
) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkUnavailable, match="locked"):
            sink.write([batch([message(0, b"a")])])
        other.execute("ROLLBACK")
    sink.write([batch([message(0, b"a")])])
    assert len(applied_in(path)) == 1


def test_a_full_disk_is_told_and_changes_nothing(path: Path) -> None:
    most_pages = 20

    def apply(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        cursor.execute(f"PRAGMA max_page_count = {most_pages}")
        apply_sqlite(cursor, messages)

    with SqliteSink(path, apply) as sink:
        sink.write([batch([message(0, b"a")])])
        with pytest.raises(SinkUnavailable, match="full"):
            sink.write([batch([message(1, b"x" * 1_000_000)], 1, 2)])
        most_pages = 1_000_000
        sink.write([batch([message(1, b"b")], 1, 2)])
    assert [row[-1] for row in applied_in(path)] == [b"a", b"b"]


def test_a_file_that_cannot_be_written_to(path: Path) -> None:
    def apply(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        cursor.execute("PRAGMA query_only = ON")
        apply_sqlite(cursor, messages)

    with SqliteSink(path, apply) as sink, pytest.raises(SinkUnavailable, match="read"):
        sink.write([batch([message(0, b"a")])])
    assert applied_in(path) == []


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("not a database, but long enough to be taken for one " * 20)
    with pytest.raises(MisconfiguredError, match="no SQLite database"):
        SqliteSink(other, apply_sqlite)
    with pytest.raises(SinkUnavailable, match="unable to open"):
        SqliteSink(tmp_path / "nowhere" / "x.db", apply_sqlite)
    with pytest.raises(MisconfiguredError, match="Upsert"):
        SqliteSink(tmp_path / "x.db", "orders")  # type: ignore[arg-type]


def test_a_newer_version_is_not_guessed_at(path: Path) -> None:
    SqliteSink(path, apply_sqlite).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("UPDATE epochfence_schema SET version = 7")
    with pytest.raises(MisconfiguredError, match="version 7"):
        SqliteSink(path, apply_sqlite)


def test_rows_by_key(path: Path) -> None:
    upsert = Upsert(
        "stock",
        key=lambda m: {"item": (m.key() or b"").decode()},
        values=lambda m: {"level": int(m.value() or b""), "seen_in": m.partition()},
    )
    told = [("cup", b"1"), ("mug", b"2"), ("cup", b"3"), ("mug", None), ("jar", b"4")]
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE stock ADD COLUMN note")
    messages = [message(n, value, key.encode()) for n, (key, value) in enumerate(told)]
    with SqliteSink(path, upsert) as sink:
        sink.write([batch(messages, None, 5)])
        assert rows(path, "SELECT item, level FROM stock ORDER BY item") == [
            ("cup", 3),
            ("jar", 4),
        ]
        sink.write([batch([message(5, None, b"cup"), message(6, b"9", b"mug")], 5, 7)])
    assert rows(path, "SELECT item, level, seen_in FROM stock ORDER BY item") == [
        ("jar", 4, 0),
        ("mug", 9, 0),
    ]


@pytest.mark.parametrize(
    ("upsert", "told"),
    [
        (Upsert("stock", lambda _: {}, lambda _: {}), "key = {}"),
        (Upsert("stock", lambda _: ["x"], lambda _: {}), "key = .'x'."),  # type: ignore[arg-type, return-value]
        (Upsert("stock", lambda _: {"item": 1}, lambda _: None), "values = None"),  # type: ignore[arg-type, return-value]
        (
            Upsert("stock", lambda m: {m.key(): 1}, lambda _: {}),  # type: ignore[dict-item]
            "the same columns",
        ),
        (Upsert("stock", lambda _: {"item": None}, lambda _: {}), "a null is"),
        (Upsert("stock", lambda _: {"item": []}, lambda _: {}), "unhashable"),
        (
            Upsert("stock", lambda _: {"item": 1}, lambda _: {"item": 2}),
            "columns of the key",
        ),
        (
            Upsert(
                "stock",
                lambda m: {"row": m.offset()},
                lambda m: {(m.key() or b"").decode(): 1},
            ),
            "those of the one before are ['item']",
        ),
    ],
)
def test_functions_that_give_no_columns(path: Path, upsert: Upsert, told: str) -> None:
    messages = [message(0, b"v", b"item"), message(1, b"v", b"level")]
    with SqliteSink(path, upsert) as sink, pytest.raises(MisconfiguredError) as wrong:
        sink.write([batch(messages, None, 2)])
    assert told.replace(".'x'.", "['x']") in str(wrong.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": ""},
        {"table": "a..b"},
        {"table": 5},
        {"key": None},
        {"values": "level"},
    ],
)
def test_arguments_of_an_upsert(wrong: dict[str, Any]) -> None:
    good: dict[str, Any] = {"table": "t", "key": dict, "values": dict}
    with pytest.raises(MisconfiguredError, match=next(iter(wrong))):
        Upsert(**{**good, **wrong})


def test_a_row_that_was_deleted_begins_anew_wherever_batches_are_cut(
    tmp_path: Path,
) -> None:
    upsert = Upsert(
        "stock", lambda m: {"item": m.key()}, lambda m: {"level": m.value()}
    )
    told = [b"1", None, b"2"]
    found: list[Any] = []
    for cuts in ([3], [1, 1, 1], [2, 1], [1, 2]):
        path = tmp_path / f"{len(found)}.db"
        with closing(sqlite3.connect(path)) as database:
            database.execute("CREATE TABLE stock (item PRIMARY KEY, level, note)")
            database.execute("INSERT INTO stock VALUES (X'6b', 0, 'of another')")
            database.commit()
        with SqliteSink(path, upsert) as sink:
            offset = 0
            for count in cuts:
                messages = [
                    message(n, told[n], b"k") for n in range(offset, offset + count)
                ]
                sink.write([batch(messages, offset or None, offset + count)])
                offset += count
        found.append(rows(path, "SELECT * FROM stock"))
    assert found == [[(b"k", b"2", None)]] * len(found)


def test_odd_names_are_quoted(tmp_path: Path) -> None:
    path = tmp_path / "odd.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute('CREATE TABLE "or""der" ("select" PRIMARY KEY)')
    upsert = Upsert('or"der', lambda m: {"select": m.key()}, lambda _: {})
    with SqliteSink(path, upsert) as sink:
        sink.write([batch([message(0, b"v", b"k"), message(1, b"v", b"k")], None, 2)])
    assert rows(path, 'SELECT * FROM "or""der"') == [(b"k",)]


KILLED = """
import os, signal, sqlite3, sys
from confluent_kafka import Message
from epochfence import SinkBatch, SinkPosition, SqliteSink
path, statement, before = sys.argv[1:]

def apply(cursor, messages):
    cursor.executemany(
        "INSERT INTO applied VALUES ('orders', 0, 0, ?, ?)",
        [(m.offset(), m.value()) for m in messages],
    )

sink = SqliteSink(path, apply)
message = Message(topic="orders", partition=0, offset=0, leader_epoch=0, value=b"a")
batch = SinkBatch("orders", 0, [message], None, SinkPosition(None, 0, 1), ())

def told(text):
    if statement in text:
        os.kill(os.getpid(), signal.SIGKILL)

if before == "before":
    sink._database.set_trace_callback(told)
    sink.write([batch])
else:
    sink.write([batch])
    os.kill(os.getpid(), signal.SIGKILL)
"""

STEPS = ["BEGIN", "SELECT topic_id", "INSERT INTO applied", "INTO epochfence_positions"]


@pytest.mark.parametrize("step", [*STEPS, "COMMIT", "after"])
def test_killed_at_each_step(path: Path, step: str) -> None:
    """All of a transaction is there, or nothing."""
    SqliteSink(path, apply_sqlite).close()
    when = "after" if step == "after" else "before"
    child = subprocess.run(
        [sys.executable, "-c", KILLED, str(path), step, when],
        check=False,
        env=os.environ,
    )
    assert child.returncode == -9
    with SqliteSink(path, apply_sqlite) as sink:
        state = sink.load("orders", 0)
        if step == "after":
            assert state is not None
            assert state.position == at(1)
            assert len(applied_in(path)) == 1
            return
        assert state is None
        assert applied_in(path) == []
        sink.write([batch([message(0, b"a")])])
    assert len(applied_in(path)) == 1
