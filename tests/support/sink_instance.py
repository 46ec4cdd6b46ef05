"""An instance of an application with a sink, as a process: `sink_instance.py JSON`.

It may be told to kill or to stop itself, as the machine would: at a named step, when
it comes there for the n-th time. Ends with 0 in order, with 3 where another instance
has taken over.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

from epochfence import Ledger, SinkFenced, SinkRunner
from support.sink_faults import Faults
from support.sink_stores import STORES

SINK_FENCED = 3


def faults_of(told: dict[str, Any]) -> Faults:
    """The faults that an instance is told to meet."""
    number: int = getattr(signal, told.get("signal", "SIGKILL"))
    return Faults(told.get("step"), told.get("times", 1), number)


def config_of(told: dict[str, Any]) -> dict[str, Any]:
    """The settings of its member of the group."""
    return {
        "bootstrap.servers": told["servers"],
        "group.id": told["group"],
        "fetch.wait.max.ms": 20,
        "session.timeout.ms": told.get("session_timeout_ms", 6000),
        "heartbeat.interval.ms": 300,
    }


def run(runner: SinkRunner, topic: str) -> int:
    """Run to the end; the exit code for it."""
    try:
        runner.run([topic])
    except SinkFenced as error:
        print(error, flush=True)
        return SINK_FENCED
    return 0


def main(told: dict[str, Any]) -> int:
    faults = faults_of(told)
    store = STORES[told["store"]](told["address"])
    with (
        store.open(faults, told.get("timeout_s", 5.0), told) as sink,
        Ledger({"bootstrap.servers": told["servers"]}, **told["names"]) as one,
    ):
        runner = SinkRunner(
            config_of(told),
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
        return run(runner, told["topic"])


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
