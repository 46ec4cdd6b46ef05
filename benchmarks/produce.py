"""What a stamp and a receipt cost: FencedProducer beside loops written by hand.

    python -m benchmarks.produce [-b localhost:9092] [--messages 100000] [--repeats 9]

Hands messages of 100 bytes over and waits for all of them, in these ways, in turn:

- `keywords`: the loop that one writes by hand, keyword arguments and a stamp in a new
  headers list; it never learns what became of a message
- `reported`: the same with an `on_delivery` that counts what failed
- `raw`: keyword arguments, no headers
- `fenced`: FencedProducer, receipts included

Prints one JSON object: microseconds a message (medians) and the ratios to `keywords`
and to `reported` (medians of the ratios within each turn), for the hand-over alone (the
calls of `produce`) and for the whole (`flush` included), by the time that the thread
spends on the processor. Needs a Kafka that lets it create topics; leaves none behind.
"""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any, NamedTuple

from confluent_kafka import Producer, libversion
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import Ledger
from epochfence.producers.fenced_producer import FencedProducer

VALUE = b"x" * 100
#: What the ratios are to.
BASELINES = ("keywords", "reported")

CLIENT = {
    "acks": "all",
    "enable.idempotence": True,
    "queue.buffering.max.messages": 2_000_000,
    "linger.ms": 5,
}


class Run(NamedTuple):
    """What one run took, in seconds of processor time of the thread."""

    hand_over: float
    whole: float


class Way(NamedTuple):
    """A way to hand messages over, and to wait for them."""

    hand_over: Callable[[int], None]
    flush: Callable[[], int]


def ways(
    config: dict[str, Any], topic: str, producer: FencedProducer
) -> dict[str, Way]:
    """The ways, each of which sends the same values to the same topic."""
    stamp = ("epochfence", b"1:9f3a1c22d4e5b6a7:orders-writer")
    client = Producer({**config, **CLIENT})
    failures: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failures.append(message)

    def keywords(messages: int) -> None:
        for _ in range(messages):
            client.produce(topic, value=VALUE, headers=[stamp])

    def reported(messages: int) -> None:
        for _ in range(messages):
            client.produce(topic, value=VALUE, headers=[stamp], on_delivery=on_delivery)

    def raw(messages: int) -> None:
        for _ in range(messages):
            client.produce(topic, value=VALUE)

    def fenced(messages: int) -> None:
        for _ in range(messages):
            producer.produce(topic, value=VALUE)

    return {
        "keywords": Way(keywords, client.flush),
        "reported": Way(reported, client.flush),
        "raw": Way(raw, client.flush),
        "fenced": Way(fenced, producer.flush),
    }


def timed(way: Way, messages: int) -> Run:
    """Run one way once."""
    start = time.thread_time()
    way.hand_over(messages)
    handed_over = time.thread_time()
    way.flush()
    return Run(handed_over - start, time.thread_time() - start)


def summed_up(runs: dict[str, list[Run]], messages: int) -> dict[str, object]:
    """Medians of the times, and of the ratios to the baselines."""
    return {
        part: {
            name: {
                "us_per_message": round(_median(those, part) / messages * 1e6, 3),
                **{
                    f"ratio_to_{baseline}": _ratio(runs[baseline], those, part)
                    for baseline in BASELINES
                },
            }
            for name, those in runs.items()
        }
        for part in Run._fields
    }


def _median(runs: list[Run], part: str) -> float:
    return statistics.median(getattr(run, part) for run in runs)


def _ratio(baseline: list[Run], own: list[Run], part: str) -> float:
    pairs = zip(baseline, own, strict=True)
    ratios = [getattr(base, part) / getattr(mine, part) for base, mine in pairs]
    return round(statistics.median(ratios), 2)


def measure(servers: str, messages: int, repeats: int) -> dict[str, object]:
    """Measure all ways, in turn, on a topic made for that."""
    config: dict[str, Any] = {"bootstrap.servers": servers}
    suffix = secrets.token_hex(6)
    topic, coordination, table = (
        f"{name}-{suffix}" for name in ("benchmark", "coordination", "starts")
    )
    admin: Any = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    runs: dict[str, list[Run]] = {}
    try:
        with Ledger(
            config, coordination_topic=coordination, table_topic=table
        ) as ledger:
            leadership = ledger.claim("orders-writer", holder="benchmark")
            with FencedProducer({**config, **CLIENT}, ledger, leadership) as producer:
                producer.take_over([topic])
                found = ways(config, topic, producer)
                for name, way in found.items():
                    timed(way, messages // 10)  # warm: connected, code specialised
                    runs[name] = []
                for _ in range(repeats):
                    for name, way in found.items():
                        runs[name].append(timed(way, messages))
    finally:
        for done in admin.delete_topics([topic, coordination, table]).values():
            done.result(30)
    return {
        "benchmark": "produce",
        "messages": messages,
        "repeats": repeats,
        **summed_up(runs, messages),
        "versions": {
            "python": platform.python_version(),
            "epochfence": version("epochfence"),
            "confluent-kafka": version("confluent-kafka"),
            "librdkafka": libversion()[0],
        },
    }


def main() -> None:
    """Parse the arguments and print the figures."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        prog="python -m benchmarks.produce",
    )
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    if options.messages < 10 or options.repeats < 1:
        parser.error("at least 10 messages and 1 repeat")
    print(
        json.dumps(measure(options.bootstrap_server, options.messages, options.repeats))
    )


if __name__ == "__main__":
    main()
