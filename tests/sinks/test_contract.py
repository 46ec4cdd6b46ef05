"""One suite over all sinks that need no server."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from epochfence import SinkBatch, SqliteSink
from epochfence.consumers.sink import Sink
from epochfence.testing import MemorySink
from epochfence.testing.sink_contract import FAILING, SinkContract
from support.failing import failing
from support.sinks import APPLIED, applied_in, apply_sqlite


class FailingMemorySink(MemorySink):
    """It applies nothing that could fail by itself."""

    def write(self, batches: Sequence[SinkBatch]) -> None:
        if any(m.value() == FAILING for batch in batches for m in batch.messages):
            self.fail()
        super().write(batches)


class TestMemorySink(SinkContract):
    @pytest.fixture(autouse=True)
    def store(self) -> None:
        self.sink = FailingMemorySink()

    def open(self) -> Sink:
        return self.sink

    def open_failing(self) -> Sink:
        return self.sink

    def applied(self) -> list[bytes]:
        values = [
            value
            for topic in ("orders", "payments")
            for partition in (0, 1)
            for value in self.sink.values(topic, partition)
        ]
        return [value for value in values if value is not None]

    def rejected(self) -> list[bytes]:
        return [one.value or b"" for one in self.sink.rejected("orders")]


class TestSqliteSink(SinkContract):
    @pytest.fixture(autouse=True)
    def store(self, tmp_path: Path) -> Iterator[None]:
        self.path = tmp_path / "orders.db"
        self.opened: list[SqliteSink] = []
        with sqlite3.connect(self.path) as database:
            database.execute(APPLIED)
        yield
        for sink in self.opened:
            sink.close()

    def open(self) -> Sink:
        self.opened.append(SqliteSink(self.path, apply_sqlite, dead_letters=True))
        return self.opened[-1]

    def open_failing(self) -> Sink:
        self.opened.append(
            SqliteSink(self.path, failing(apply_sqlite), dead_letters=True)
        )
        return self.opened[-1]

    def applied(self) -> list[bytes]:
        return [row[-1] for row in applied_in(self.path)]

    def rejected(self) -> list[bytes]:
        with closing(sqlite3.connect(self.path)) as database:
            try:
                rows = database.execute(
                    "SELECT record_value FROM epochfence_dead_letters"
                ).fetchall()
            except sqlite3.OperationalError as error:
                assert "no such table" in str(error)  # noqa: PT017
                return []
        return [value for (value,) in rows]
