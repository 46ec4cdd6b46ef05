"""Sinks that meet faults on their way: at a named step, a signal to the process."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any

import psycopg
from confluent_kafka import Message

from epochfence import (
    KafkaSink,
    PostgresSink,
    SinkBatch,
    SinkState,
    SqliteSink,
)
from epochfence.consumers.gate import GateSink
from epochfence.consumers.sink import OverlappingSink, Sink
from epochfence.epochs import clients
from support.postgres_proxy import Proxy
from support.sinks import apply_postgres, apply_sqlite

#: What every sink does, in order; between the two halves are its own steps.
_BEFORE = ("before loading", "after loading", "before writing")
_AFTER = ("after writing", "before committing offsets", "after committing offsets")

#: Statements, by what they begin with.
_SQLITE_STATEMENTS = (
    "BEGIN",
    "SELECT topic_id",
    "INSERT INTO applied",
    "INSERT INTO epochfence_starts",
    "INSERT INTO epochfence_positions",
    "COMMIT",
)
SQLITE_STEPS = (*_BEFORE, *_SQLITE_STATEMENTS, *_AFTER)

#: Statements, by what they hold, around the application's function.
_POSTGRES_STATEMENTS = (
    "BEGIN",
    "SET LOCAL",
    "ON CONFLICT DO NOTHING",
    "FOR UPDATE",
    "excluded.next_offset",
    "EXCEPT",
    "COMMIT",
)
#: The server has done it, and the client does not know.
_COMMITTED = "COMMIT is answered"
POSTGRES_STEPS = (
    *_BEFORE,
    *_POSTGRES_STATEMENTS[:4],
    "before applying",
    "amid applying",
    "after applying",
    *_POSTGRES_STATEMENTS[4:],
    _COMMITTED,
    *_AFTER,
)

#: Calls of the client, before and after each of which a step is told.
_KAFKA_CALLS = {
    "begin_transaction": "beginning",
    "send_offsets_to_transaction": "sending offsets",
    "commit_transaction": "committing",
}
KAFKA_STEPS = (
    *_BEFORE,
    "before beginning",
    "after beginning",
    "before producing",
    "amid producing",
    "after producing",
    "before sending offsets",
    "after sending offsets",
    "before committing",
    "after committing",
    _AFTER[0],
)


class Faults:
    """Sends a signal to this process when it comes to a step for the n-th time."""

    def __init__(self, step: str | None, times: int, number: int) -> None:
        self._step = step
        self._left = times
        self._number = number
        self.is_writing = False

    def __call__(self, step: str) -> None:
        if step != self._step:
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)

    def in_write(self, step: str) -> None:
        """A step that counts only while something is written."""
        if self.is_writing:
            self(step)


class FaultySink:
    """A sink that tells its steps."""

    def __init__(self, sink: Sink, faults: Faults) -> None:
        self.keeps_rejected: bool = vars(sink)["keeps_rejected"]
        self._sink = sink
        self._faults = faults

    def load(self, topic: str, partition: int) -> SinkState | None:
        self._faults("before loading")
        state = self._sink.load(topic, partition)
        self._faults("after loading")
        return state

    def write(self, batches: Sequence[SinkBatch]) -> None:
        with self._writing() as writing:
            self._end(partial(self._sink.write, batches), writing.pop_all())

    @contextmanager
    def _writing(self) -> Generator[ExitStack, None, None]:
        self._faults("before writing")
        with ExitStack() as writing:
            self._faults.is_writing = True
            writing.callback(setattr, self._faults, "is_writing", False)
            yield writing

    def _end(self, end: Callable[[], None], writing: ExitStack) -> None:
        with writing:
            end()
        self._faults("after writing")


class FaultyOverlappingSink(FaultySink):
    """The same, of one whose commits are waited for in another thread."""

    def __init__(self, sink: OverlappingSink, faults: Faults) -> None:
        super().__init__(sink, faults)
        self._begin = sink.begin_write

    def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
        with self._writing() as writing:
            return partial(self._end, self._begin(batches), writing.pop_all())


class FaultyGroupSink(FaultySink):
    """The same, of one whose positions are the group's commits."""

    def __init__(self, sink: KafkaSink, faults: Faults) -> None:
        super().__init__(sink, faults)
        self.join = sink.join
        self.ask = sink.ask


@contextmanager
def faulty_sqlite(
    path: str, faults: Faults, timeout_s: float
) -> Generator[FaultySink, None, None]:
    """SQLite tells each statement before it runs."""

    def statement(text: str) -> None:
        for start in _SQLITE_STATEMENTS:
            if text.lstrip().startswith(start):
                faults.in_write(start)

    with SqliteSink(path, apply_sqlite, dead_letters=True, timeout_s=timeout_s) as sink:
        database: sqlite3.Connection = vars(sink)["_database"]
        database.set_trace_callback(statement)
        yield FaultyOverlappingSink(sink, faults)


@contextmanager
def faulty_postgres(
    conninfo: str, faults: Faults, timeout_s: float
) -> Generator[FaultySink, None, None]:
    """The statements are seen on their way to the server."""

    def apply(cursor: psycopg.Cursor[Any], messages: Sequence[Message]) -> None:
        half = len(messages) // 2
        faults("before applying")
        apply_postgres(cursor, messages[:half])
        faults("amid applying")
        apply_postgres(cursor, messages[half:])
        faults("after applying")

    with (
        closing(_WatchingProxy(conninfo, faults)) as proxy,
        PostgresSink(
            proxy.conninfo, apply, dead_letters=True, timeout_s=timeout_s
        ) as sink,
    ):
        yield FaultyOverlappingSink(sink, faults)


@contextmanager
def faulty_gate(
    config: dict[str, Any],
    source: str,
    destination: str,
    dead_letters: str,
    faults: Faults,
    timeout_s: float,
) -> Generator[FaultySink, None, None]:
    """The client tells its calls, and the function that copies how far it is."""
    module: Any = clients
    made = module.transactional_producer

    def watching(config: Any, last_error: Any, **more: Any) -> Any:
        return _WatchingProducer(made(config, last_error, **more), faults)

    module.transactional_producer = watching
    with GateSink(
        config, source, destination,
        largest_bytes=100_000, dead_letters=dead_letters, timeout_s=timeout_s,
    ) as sink:  # fmt: skip
        copy = vars(sink)["_apply"]

        def apply(output: Any, messages: Sequence[Message]) -> None:
            half = len(messages) // 2
            faults.in_write("before producing")
            copy(output, messages[:half]) if half else None
            faults.in_write("amid producing")
            copy(output, messages[half:])
            faults.in_write("after producing")

        vars(sink)["_apply"] = apply
        yield FaultyGroupSink(sink, faults)


class _WatchingProducer:
    """Tells of the calls that make a transaction."""

    def __init__(self, producer: Any, faults: Faults) -> None:
        self._producer = producer
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._producer, name)
        step = _KAFKA_CALLS.get(name)
        if step is None:
            return call

        def told(*arguments: Any) -> Any:
            self._faults.in_write(f"before {step}")
            done = call(*arguments)
            self._faults.in_write(f"after {step}")
            return done

        return told


class _WatchingProxy(Proxy):
    """Tells the statements of a write. (What is prepared comes without its text.)"""

    def __init__(self, conninfo: str, faults: Faults) -> None:
        self._faults = faults
        self._is_committing = False
        super().__init__(conninfo)

    def _asked(self, data: bytes) -> bool:
        self._is_committing = b"COMMIT" in data
        for text in _POSTGRES_STATEMENTS:
            if text.encode() in data:
                self._faults.in_write(text)
        return True

    def _answered(self) -> bool:
        if self._is_committing:
            self._is_committing = False
            self._faults.in_write(_COMMITTED)
        return True
