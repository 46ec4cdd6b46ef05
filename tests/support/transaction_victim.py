"""A leader that writes in transactions and is killed: `transaction_victim.py JSON`.

It counts on: transaction n puts n on each of two partitions, with n as the cursor. At a
named step, when it comes there for the n-th time, it kills itself as the machine would.
It prints the number of each transaction of which it was told that it is committed.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

from epochfence import FencedTransactionalProducer, Ledger
from epochfence.epochs import clients
from epochfence.producers import barriers
from support.sink_faults import Faults
from support.sink_instance import faults_of

PARTITIONS = 2
#: So many transactions it commits, and aborts one in between, unless it is killed.
_TRANSACTIONS = 4

#: Calls of the client, before and after each of which a step is told.
_CALLS = {
    "init_transactions": "initialising",
    "begin_transaction": "beginning",
    "commit_transaction": "committing",
    "abort_transaction": "aborting",
}
#: Amid this one, the process is killed some milliseconds after it began.
AMID_COMMITTING = "amid committing"

#: What happens once, in a takeover and at the end; and in each transaction.
ONCE = (
    "after claiming",
    "before initialising",
    "after initialising",
    "before barriers",
    "amid barriers",
    "after barriers",
    "before aborting",
    "after aborting",
    "before confirming",
    "after confirming",
)
IN_EACH = (
    "before beginning",
    "after beginning",
    "amid producing",
    "after producing",
    "before committing",
    AMID_COMMITTING,
    "after committing",
)


class _FaultyProducer:
    """A client that tells its steps."""

    def __init__(self, producer: Any, faults: Faults, delay_s: float) -> None:
        self._producer = producer
        self._faults = faults
        self._delay_s = delay_s

    def __len__(self) -> int:
        return len(self._producer)

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._producer, name)
        step = _CALLS.get(name)
        if step is None:
            return call

        def told(*arguments: Any) -> Any:
            self._faults(f"before {step}")
            if name == "commit_transaction":
                threading.Thread(target=self._late, daemon=True).start()
            done = call(*arguments)
            self._faults(f"after {step}")
            return done

        return told

    def _late(self) -> None:
        time.sleep(self._delay_s)
        self._faults(AMID_COMMITTING)


def _watch(faults: Faults, delay_s: float) -> None:
    """Have the calls of clients told."""
    module: Any = clients
    made = module.transactional_producer

    def watching(*arguments: Any, **more: Any) -> Any:
        return _FaultyProducer(made(*arguments, **more), faults, delay_s)

    module.transactional_producer = watching
    writer: Any = barriers
    write_all, send = writer.BarrierWriter.write_all, writer._send

    def writes(*arguments: Any) -> Any:
        faults("before barriers")
        written = write_all(*arguments)
        faults("after barriers")
        return written

    def sends(producer: Any, *more: Any) -> None:
        send(producer, *more)
        producer.flush(30)  # it is there, and the others are not
        faults("amid barriers")

    writer.BarrierWriter.write_all = writes
    writer._send = sends


def main(told: dict[str, Any]) -> None:
    faults = faults_of(told)
    _watch(faults, told["delay_s"])
    topic: str = told["topic"]
    config = {"bootstrap.servers": told["servers"], "log_level": 0}
    with Ledger(config, **told["names"]) as ledger:
        leadership = ledger.claim(told["scope"], holder="victim")
        faults("after claiming")
        with FencedTransactionalProducer(config, ledger, leadership) as producer:
            producer.take_over([topic])
            first: int = told["first"]
            for number in range(first, first + _TRANSACTIONS):
                producer.begin_transaction()
                _write(producer, topic, number, faults)
                producer.commit_transaction()
                print(number, flush=True)
            producer.begin_transaction()
            producer.produce(topic, b"aborted", partition=0, cursor="aborted")
            producer.flush(30)
            producer.abort_transaction()
            faults("before confirming")
            producer.confirm(30)
            faults("after confirming")


def _write(
    producer: FencedTransactionalProducer, topic: str, number: int, faults: Faults
) -> None:
    for partition in range(PARTITIONS):
        value = str(number)
        producer.produce(topic, value, partition=partition, cursor=value)
        producer.flush(30)
        faults("amid producing" if partition == 0 else "after producing")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
