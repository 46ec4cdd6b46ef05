"""What the fence costs a reader: FencedConsumer beside loops written by hand.

Reads a topic of stamped messages of 100 bytes in batches of 1,000, each way from the
start with a client of its own:

- `raw`: confluent's consumer with `fetch.queue.backoff.ms=10`, nothing looked at
- `headers()`: the same, and a loop that calls `headers()` of each message, as every
  check of a header must
- `fenced`: FencedConsumer, whose calls do the same and judge

By the clock, and by the processor time of the reading thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.measuring import SCOPE, VALUE, Bench, Figure, compare, filler
from epochfence import FencedConsumer

MESSAGES = 300_000
BATCH = 1000

#: Microseconds a message: by the clock, on the processor.
Times = tuple[float, float]


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure all ways, in turns."""
    times: dict[str, list[Times]] = {"raw": [], "headers()": [], "fenced": []}
    with Bench(servers) as bench, bench.ledger() as ledger:
        topic = bench.topic
        stamp = ledger.claim(SCOPE, holder="benchmark").stamp_value
        fill(bench, stamp, MESSAGES)
        config = {
            **bench.config,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        tuned = {**config, "fetch.queue.backoff.ms": 10}
        for _ in range(repeats):
            times["raw"].append(_read(Consumer(tuned), topic, None))
            times["headers()"].append(_read(Consumer(tuned), topic, Message.headers))
            fenced = FencedConsumer(config, ledger, require={topic: [SCOPE]})
            times["fenced"].append(_read(fenced, topic, None))
            assert fenced.counts == {"ok": MESSAGES}
    return [
        compare(
            "consume",
            f"to {baseline}, by the {by}",
            [one[part] for one in times["fenced"]],
            [one[part] for one in times[baseline]],
            unit="µs",
        )
        for part, by in ((0, "clock"), (1, "processor"))
        for baseline in ("headers()", "raw")
    ]


def fill(
    bench: Bench,
    stamp: bytes,
    messages: int,
    value_of: Callable[[int], bytes] = lambda _: VALUE,
) -> None:
    """Write stamped messages to a benchmark's topic."""
    producer = filler(bench.config)
    headers: list[tuple[str, str | bytes | None]] = [("epochfence", stamp)]
    for number in range(messages):
        producer.produce(bench.topic, value_of(number), headers=headers)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush()


def _read(consumer: Any, topic: str, look: Callable[[Message], object] | None) -> Times:
    """Read them all once, from when the first are there."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    count = len(consumer.consume(1, 30))
    begun, begun_on_processor = time.perf_counter(), time.thread_time()
    while count < MESSAGES:
        batch: list[Message] = consumer.consume(BATCH, 1)
        count += len(batch)
        if look is not None:
            for message in batch:
                look(message)
    by_clock = time.perf_counter() - begun
    on_processor = time.thread_time() - begun_on_processor
    consumer.close()
    return by_clock / MESSAGES * 1e6, on_processor / MESSAGES * 1e6
