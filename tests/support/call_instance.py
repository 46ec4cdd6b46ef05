"""An instance of an application that calls an API: `call_instance.py JSON`.

The API is a file with a line for each call: the instance's name, key and value. The
instance may be told to kill or to stop itself, as the machine would: at a named step,
when it comes there for the n-th time. Ends with 0 in order, with 3 where it is fenced.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Message

from epochfence import AtLeastOnceSink, Ledger, SinkBatch, SinkRunner
from support.sink_faults import Faults
from support.sink_instance import config_of, faults_of, run

STEPS = (
    "before writing",
    "before going on",
    "before a call",
    "after a call",
    "before committing",
    "after committing",
)


class _FaultySink(AtLeastOnceSink):
    """A sink that tells its steps; its calls are lines of a file."""

    def __init__(self, name: str, path: str, faults: Faults) -> None:
        super().__init__(self._add_line)
        self._name = name
        self._faults = faults
        # Each line is one write at the end of the file: none is torn.
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND)
        self.has_called = False

    def _add_line(self, key: str, message: Message) -> None:
        self._faults("before a call")
        value = (message.value() or b"").decode()
        os.write(self._file, f"{self._name} {key} {value}\n".encode())
        self.has_called = True
        self._faults("after a call")

    def write(self, batches: Sequence[SinkBatch]) -> None:
        self._faults("before writing")
        if any(batch.messages and batch.expected for batch in batches):
            self._faults("before going on")
        super().write(batches)


def main(told: dict[str, Any]) -> int:
    faults = faults_of(told)
    sink = _FaultySink(told["name"], told["path"], faults)
    with Ledger({"bootstrap.servers": told["servers"]}, **told["names"]) as ledger:
        runner = SinkRunner(
            config_of(told),
            ledger,
            sink,
            require={told["topic"]: ["w"]},
            batch_size=5,
            batch_wait_s=0.02,
        )
        consumer: Any = vars(runner)["_consumer"]
        commit = consumer.commit_as_given

        def commits(offsets: Any) -> Any:
            if not sink.has_called:  # the group is only asked
                return commit(offsets)
            sink.has_called = False
            faults("before committing")
            done = commit(offsets)
            faults("after committing")
            return done

        consumer.commit_as_given = commits
        return run(runner, told["topic"])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
