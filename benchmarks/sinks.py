"""What a sink costs: `SinkRunner` beside the same writes by hand, without fencing.

By hand: confluent's consumer with `fetch.queue.backoff.ms=10`, the same statements for
1,000 messages at a time, and the next offset of the partition, in one transaction. Both
begin with an empty database, and are timed from when the first messages are there.

Into Kafka, each message's key and value are produced to another topic, with the offset
in the same transaction (`Kafka`); or it is copied as by `epochfence gate` (`gate`):
timestamp, headers but for ours, and one that says where it comes from.

Databases get the smallest rows there are, offset and value, which shows the sink's own
part at its largest (a stamp takes some 0.8 µs to be read and judged, such a row 4 to be
inserted). And, in lines of their own (`parsed and upserted`), rows of a more usual
kind: the value is JSON, and overwrites the row of its key.

PostgreSQL gets the smallest by COPY, the fastest way there is. The server is that of
the tests (with `fsync` off, unless the environment names another); where there is none,
it is left out.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.consume import fill
from benchmarks.databases import (
    Apply,
    Database,
    PostgresDatabase,
    PostgresStock,
    SqliteDatabase,
    SqliteStock,
    order,
)
from benchmarks.kafka_topics import GateCopy, KafkaTopic
from benchmarks.measuring import SCOPE, Bench, Figure, compare, in_turns, postgres
from epochfence import Ledger, SinkBatch, SinkRunner
from epochfence.consumers.sink import OverlappingSink

MESSAGES = 100_000
BATCH = 1000


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure both ways with each database, in turns."""
    with (
        Bench(servers) as bench,
        bench.ledger() as ledger,
        tempfile.TemporaryDirectory() as folder,
        postgres() as conninfo,
    ):
        leadership = ledger.claim(SCOPE, holder="benchmark")
        fill(bench, leadership.stamp_value, MESSAGES, order)
        files = Path(folder)
        databases: list[Database] = [SqliteDatabase(files), SqliteStock(files)]
        if conninfo is not None:
            databases += [PostgresDatabase(conninfo), PostgresStock(conninfo)]
        databases += [KafkaTopic(bench), GateCopy(bench)]
        ways = {
            f"{database.name} {name}": partial(_timed, way, bench, ledger, database)
            for database in databases
            for name, way in (("by hand", _by_hand), ("sink", _by_sink))
        }
        found = in_turns(ways, repeats)
    return [
        compare(
            "sinks",
            f"{database.name}, to {database.likewise} by hand",
            found[f"{database.name} sink"],
            found[f"{database.name} by hand"],
            unit="rows/s",
            is_rate=True,
        )
        for database in databases
    ]


class _Clock:
    """Rows a second, from the first batch to the last."""

    def __init__(self, apply: Apply) -> None:
        self.rows = 0
        self._apply = apply
        self._begun = 0.0

    def applied(self, cursor: Any, messages: Sequence[Message]) -> None:
        if not self.rows:
            self._begun = time.perf_counter()
        self._apply(cursor, messages)
        self.rows += len(messages)

    @property
    def rate(self) -> float:
        return self.rows / (time.perf_counter() - self._begun)


def _timed(
    way: Callable[[Bench, Ledger, Database, _Clock], float],
    bench: Bench,
    ledger: Ledger,
    database: Database,
) -> float:
    database.empty()
    rate = way(bench, ledger, database, _Clock(database.insert))
    assert database.count() == MESSAGES
    return rate


def _by_hand(bench: Bench, _: Ledger, database: Database, clock: _Clock) -> float:
    consumer = Consumer(
        {
            **bench.config,
            "group.id": bench.topic,
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 10,
        }
    )
    consumer.assign([TopicPartition(bench.topic, 0, 0)])
    with database.by_hand(clock.applied, consumer) as write:
        while clock.rows < MESSAGES:
            messages = consumer.consume(BATCH, 0.1)
            if messages:
                write(messages)
        rate = clock.rate
    consumer.close()
    return rate


def _by_sink(bench: Bench, ledger: Ledger, database: Database, clock: _Clock) -> float:
    rates: list[float] = []
    config = {**bench.config, "group.id": f"{bench.topic}-{time.time_ns()}"}
    with database.sink(clock.applied) as sink:

        def timed(end: Callable[[], None]) -> None:
            """Take the rate as soon as all is stored; then the run is over."""
            end()
            if clock.rows == MESSAGES:
                rates.append(clock.rate)
                runner.stop()

        if isinstance(sink, OverlappingSink):
            begin = sink.begin_write

            def begun(batches: Sequence[SinkBatch]) -> Callable[[], None]:
                return partial(timed, begin(batches))

            vars(sink)["begin_write"] = begun
        else:
            write = sink.write

            def written(batches: Sequence[SinkBatch]) -> None:
                timed(partial(write, batches))

            vars(sink)["write"] = written
        runner = SinkRunner(
            config, ledger, sink, require={bench.topic: [SCOPE]}, batch_size=BATCH
        )
        runner.run([bench.topic], handles_signals=False)
    return rates[0]
