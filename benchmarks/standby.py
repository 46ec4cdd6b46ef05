"""What a hot standby saves: `python -m benchmarks.standby`, a table in Markdown.

A leader has written so many records of state. Its successor is elected when the leader
resigns: once a process that has just started, and once a standby that has read along.
The time counts from the resignation to where the successor leads, all that was admitted
having been handed to it.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Message

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from epochfence import FencedProducer, Ledger, lead
from epochfence.elections import KafkaElection
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.plugin import open_broker

_WAIT_S = 3600
_VALUE = b"x" * 20
_PARTITIONS = 4


class State:
    """What is recovered: as many messages as there are, and no more memory for more."""

    def __init__(self, expected: int) -> None:
        self.messages = 0
        self.is_level = threading.Event()
        self._expected = expected

    def apply(self, messages: Sequence[Message]) -> None:
        self.messages += len(messages)
        if self.messages >= self._expected:
            self.is_level.set()

    def reset(self) -> None:
        self.messages = 0


def main() -> None:
    """Write, have two successors take over, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.standby",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument(
        "--records", type=int, default=10_000_000, help="how many records of state"
    )
    records: int = parser.parse_args().records
    with ExitStack() as stack:
        kafka = open_broker(stack)
        topic = kafka.create_topic("state", partitions=_PARTITIONS)
        ledger = stack.enter_context(unnamed_topics(kafka).open())
        _write(kafka, ledger, topic, records)
        print("| successor | records of state | after a resignation it leads in |")
        print("|---|---|---|")
        for name, is_standby in (("just started", False), ("hot standby", True)):
            took_s = _succeed(kafka, ledger, topic, records, is_standby=is_standby)
            print(f"| {name} | {records:,} | {took_s:.2f} s |", flush=True)


def _write(kafka: KafkaBroker, ledger: Ledger, topic: str, records: int) -> None:
    leadership = ledger.claim("state", holder="writer")
    config = {**kafka.config, "linger.ms": 20, "compression.type": "lz4"}
    with FencedProducer(config, ledger, leadership) as producer:
        producer.take_over([topic])
        for number in range(records):
            while True:
                try:
                    producer.produce(topic, _VALUE, b"%d" % number)
                    break
                except BufferError:
                    producer.poll(0.1)
            if number % 10_000 == 0:
                producer.poll(0)
        assert producer.confirm(_WAIT_S).are_all_admitted


def _succeed(
    kafka: KafkaBroker, ledger: Ledger, topic: str, records: int, *, is_standby: bool
) -> float:
    """How long nobody leads."""
    office, place = f"state-{secrets.token_hex(4)}", ledger.coordination_topic

    def leading(election: KafkaElection, **more: Any) -> lead:
        return lead(
            kafka.config, ledger, election, "state", [topic], holder="pod", **more
        )

    state, leads = State(records), threading.Event()

    with (
        KafkaElection(kafka.config, office, topic=place) as first,
        KafkaElection(kafka.config, office, topic=place) as second,
    ):
        successor = leading(
            second, recover=state.apply, reset=state.reset, standby=is_standby
        )

        def succeed() -> None:
            with successor as tenure:
                assert tenure.recovered is not None
                leads.set()

        following = threading.Thread(target=succeed)
        with leading(first):
            following.start()
            if is_standby:
                assert state.is_level.wait(_WAIT_S)
            begun = time.monotonic()
        assert leads.wait(_WAIT_S)
        took_s = time.monotonic() - begun
        following.join()
    assert state.messages == records, "not all that was admitted was recovered"
    return took_s


if __name__ == "__main__":
    main()
