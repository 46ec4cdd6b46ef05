"""How long nobody leads: `python -m benchmarks.succession`, a table in Markdown.

Two candidates, in processes of their own. The leader is told to end (SIGTERM), or is
killed (SIGKILL); the time counts from that to when the first message of its successor
has arrived: elected, granted, taken over, and the predecessors' cursors read. The
elections' times are the tests', short ones, which the table tells: a crash is noticed
no sooner.
"""

from __future__ import annotations

import argparse
import secrets
import signal
import statistics
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from epochfence.epochs.messages import headers_of
from epochfence.epochs.stamps import STAMP_HEADER
from support.brokers import KafkaBroker
from support.election_servers import start_etcd, start_zookeeper
from support.elections import SOON
from support.leaders_storm import Door, Storm
from support.ledgers import unnamed_topics
from support.plugin import open_broker
from support.postgres import open_postgres

_WAIT_S = 60


def main() -> None:
    """Measure each kind of election, and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.succession",
        description=(__doc__ or "").partition("\n")[0],
    )
    parser.add_argument("--repeats", type=int, default=5, help="how often, each")
    repeats: int = parser.parse_args().repeats
    with ExitStack() as stack:
        kafka = open_broker(stack)
        database = stack.enter_context(open_postgres(stack).database())
        places: Mapping[str, dict[str, Any]] = {
            "kafka": {},
            "postgres": {"conninfo": database},
            "etcd": {"server": f"127.0.0.1:{start_etcd(stack).port}"},
            "zookeeper": {"server": f"127.0.0.1:{start_zookeeper(stack).port}"},
        }
        print("| election | its times | after SIGTERM | after SIGKILL |")
        print("|---|---|---|---|")
        for kind, place in places.items():
            told = {
                "kind": kind,
                "times": dict(SOON[kind]),
                "scope": f"counter-{secrets.token_hex(6)}",
                **place,
            }
            cells = [
                _cell(_measured(kafka, told, number, repeats))
                for number in (signal.SIGTERM, signal.SIGKILL)
            ]
            times = ", ".join(f"{name} {value}" for name, value in SOON[kind].items())
            print(f"| {kind} | {times} | {' | '.join(cells)} |", flush=True)


def _cell(times_s: list[float]) -> str:
    median = statistics.median(times_s)
    return f"{median:.2f} s ({min(times_s):.2f} to {max(times_s):.2f})"


def _measured(
    kafka: KafkaBroker, told: dict[str, Any], number: signal.Signals, repeats: int
) -> list[float]:
    times_s: list[float] = []
    doors = [Door(kafka.bootstrap_servers) for _ in range(2)]
    with closing(Storm(kafka, unnamed_topics(kafka), told, doors)) as storm:
        consumer = Consumer({**kafka.config, "group.id": "succession"})
        with closing(consumer):
            consumer.assign([TopicPartition(storm.topic, 0, 0)])
            epoch = 0
            for _ in range(repeats):
                leader = storm.wait_for_leader(epoch)
                epoch = leader.epoch
                _wait_for_message_of(consumer, epoch)
                # Whoever waits has joined by then.
                storm.wait_for_numbers(100)
                begun = time.monotonic()
                leader.tell(number)
                _wait_for_message_of(consumer, epoch + 1)
                times_s.append(time.monotonic() - begun)
                storm.replace(leader)
    return times_s


def _wait_for_message_of(consumer: Consumer, epoch: int) -> None:
    """Read on to the first message of an epoch, or of a later one."""
    deadline = time.monotonic() + _WAIT_S
    while time.monotonic() < deadline:
        message = consumer.poll(1)
        if message is None or message.error() is not None:
            continue
        for name, value in headers_of(message):
            if name == STAMP_HEADER and int((value or b"0").split(b":")[0]) >= epoch:
                return
    raise TimeoutError(f"no message of epoch {epoch} within {_WAIT_S} s")


if __name__ == "__main__":
    main()
