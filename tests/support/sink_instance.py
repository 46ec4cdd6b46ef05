"""An instance of an application with a sink, as a process: `sink_instance.py JSON`.

It may be told to kill or to stop itself, as the machine would: at a named step, when
it comes there for the n-th time. Ends with 0 in order, with 3 where another instance
has taken over.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from epochfence import Ledger, SinkBatch, SinkFenced, SinkRunner, SinkState, SqliteSink
from support.sinks import apply_sqlite

#: The steps of a run in order; the statements are those of `SqliteSink`.
STEPS = (
    "before loading",
    "after loading",
    "before writing",
    "BEGIN",
    "SELECT topic_id",
    "INSERT INTO applied",
    "INSERT INTO epochfence_starts",
    "INSERT INTO epochfence_positions",
    "COMMIT",
    "after writing",
    "before committing offsets",
    "after committing offsets",
)
SINK_FENCED = 3


class Faults:
    """Sends a signal to this process at a step."""

    def __init__(self, step: str | None, times: int, number: int) -> None:
        self._step = step
        self._left = times
        self._number = number

    def __call__(self, step: str) -> None:
        if self._step is None or not step.lstrip().startswith(self._step):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._number)


class FaultySink(SqliteSink):
    """A sink that meets faults on its way."""

    def __init__(self, path: str, faults: Faults, timeout_s: float) -> None:
        super().__init__(path, apply_sqlite, timeout_s=timeout_s)
        self._faults = faults
        self._is_writing = False
        self._database.set_trace_callback(self._statement)

    def _statement(self, text: str) -> None:
        if self._is_writing:
            self._faults(text)

    def load(self, topic: str, partition: int) -> SinkState | None:
        self._faults("before loading")
        state = super().load(topic, partition)
        self._faults("after loading")
        return state

    def write(self, batches: Sequence[SinkBatch]) -> None:
        self._faults("before writing")
        self._is_writing = True
        try:
            super().write(batches)
        finally:
            self._is_writing = False
        self._faults("after writing")


def main(told: dict[str, Any]) -> int:
    number: int = getattr(signal, told.get("signal", "SIGKILL"))
    faults = Faults(told.get("step"), told.get("times", 1), number)
    config = {
        "bootstrap.servers": told["servers"],
        "group.id": told["group"],
        "fetch.wait.max.ms": 20,
        "session.timeout.ms": told.get("session_timeout_ms", 6000),
        "heartbeat.interval.ms": 300,
    }
    sink = FaultySink(told["path"], faults, 5.0)
    with sink, Ledger({"bootstrap.servers": told["servers"]}, **told["names"]) as one:
        runner = SinkRunner(
            config,
            one,
            sink,
            require={told["topic"]: [told["scope"]]},
            batch_size=told.get("batch_size", 5),
            batch_wait_s=0.02,
            commit_interval_s=0,
        )
        consumer: Any = vars(runner)["_consumer"]
        commit = consumer.commit

        def commits(*arguments: Any, **options: Any) -> Any:
            faults("before committing offsets")
            done = commit(*arguments, **options)
            faults("after committing offsets")
            return done

        consumer.commit = commits
        try:
            runner.run([told["topic"]])
        except SinkFenced as error:
            print(error, flush=True)
            return SINK_FENCED
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
