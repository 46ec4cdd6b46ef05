"""What a sink costs: `SinkRunner` beside the same writes by hand, without fencing.

By hand: confluent's consumer with `fetch.queue.backoff.ms=10`, the same statements for
1,000 messages at a time, and the next offset of the partition, in one transaction. Both
begin with an empty database, and are timed from when the first messages are there.
"""

from __future__ import annotations

import sqlite3
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.consume import fill
from benchmarks.measuring import SCOPE, Bench, Figure, compare, in_turns
from epochfence import Ledger, SinkBatch, SinkRunner, SqliteSink

MESSAGES = 100_000
BATCH = 1000

_TABLE = "CREATE TABLE orders (position INTEGER PRIMARY KEY, value BLOB)"
_OFFSETS = "CREATE TABLE offsets (partition INTEGER PRIMARY KEY, next INTEGER)"
_INSERT = "INSERT INTO orders VALUES (?, ?)"
_STORE = "INSERT OR REPLACE INTO offsets VALUES (0, ?)"


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure both ways, in turns."""
    with (
        Bench(servers) as bench,
        bench.ledger() as ledger,
        tempfile.TemporaryDirectory() as folder,
    ):
        leadership = ledger.claim(SCOPE, holder="benchmark")
        fill(bench, leadership.stamp_value, MESSAGES)
        path = Path(folder) / "orders.db"
        found = in_turns(
            {
                "by hand": partial(_timed, _by_hand, bench, ledger, path),
                "sink": partial(_timed, _by_sink, bench, ledger, path),
            },
            repeats,
        )
    return [
        compare(
            "sinks",
            "SQLite, to the same writes by hand",
            found["sink"],
            found["by hand"],
            unit="rows/s",
            is_rate=True,
        )
    ]


def _insert(cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
    cursor.executemany(_INSERT, [(m.offset(), m.value()) for m in messages])


class _Clock:
    """Rows a second, from the first batch to the last."""

    def __init__(self) -> None:
        self.rows = 0
        self._begun = 0.0

    def applied(self, cursor: sqlite3.Cursor, messages: Sequence[Message]) -> None:
        if not self.rows:
            self._begun = time.perf_counter()
        _insert(cursor, messages)
        self.rows += len(messages)

    @property
    def rate(self) -> float:
        return self.rows / (time.perf_counter() - self._begun)


def _timed(
    way: Callable[[Bench, Ledger, Path, _Clock], float],
    bench: Bench,
    ledger: Ledger,
    path: Path,
) -> float:
    for file in path.parent.iterdir():
        file.unlink()
    with closing(sqlite3.connect(path)) as database:
        database.execute(_TABLE)
        database.execute(_OFFSETS)
    rate = way(bench, ledger, path, _Clock())
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM orders").fetchone() == (MESSAGES,)
    return rate


def _by_hand(bench: Bench, _: Ledger, path: Path, clock: _Clock) -> float:
    consumer = Consumer(
        {
            **bench.config,
            "group.id": bench.topic,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(bench.topic, 0, 0)])
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        while clock.rows < MESSAGES:
            messages = consumer.consume(BATCH, 0.1)
            if not messages:
                continue
            cursor = database.cursor()
            cursor.execute("BEGIN IMMEDIATE")
            clock.applied(cursor, messages)
            cursor.execute(_STORE, [(messages[-1].offset() or 0) + 1])
            cursor.execute("COMMIT")
        rate = clock.rate
    consumer.close()
    return rate


class _TimedSink(SqliteSink):
    """Knows how fast it was as soon as all is stored, and has its runner stop then."""

    def __init__(self, path: Path, clock: _Clock) -> None:
        super().__init__(path, clock.applied)
        self._clock = clock
        self.rate = 0.0
        self.runner: SinkRunner | None = None

    def write(self, batches: Sequence[SinkBatch]) -> None:
        super().write(batches)
        if self._clock.rows == MESSAGES and self.runner is not None:
            self.rate = self._clock.rate
            self.runner.stop()


def _by_sink(bench: Bench, ledger: Ledger, path: Path, clock: _Clock) -> float:
    config = {**bench.config, "group.id": f"{bench.topic}-{time.time_ns()}"}
    with closing(_TimedSink(path, clock)) as sink:
        sink.runner = SinkRunner(
            config, ledger, sink, require={bench.topic: [SCOPE]}, batch_size=BATCH
        )
        sink.runner.run([bench.topic], handles_signals=False)
    return sink.rate
