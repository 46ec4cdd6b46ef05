"""What the fence costs a reader: FencedConsumer beside loops written by hand.

    python -m benchmarks.consume [-b localhost:9092] [--messages 500000] [--repeats 7]

Reads a topic of stamped messages of 100 bytes in batches of 1,000, in these ways, in
turn, each from the start with a client of its own:

- `raw`: confluent's consumer with `fetch.queue.backoff.ms=10`, nothing looked at
- `headers`: the same, and a loop that calls `headers()` of each message, as every
  check of a header must
- `fenced`: FencedConsumer, whose calls do the same and judge

Prints one JSON object: messages a second (medians), and ratios of `fenced` to the
others (medians of the ratios within each turn), by the clock and by the time that the
reading thread spends on the processor. Needs a Kafka that lets it create topics;
leaves none behind.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import Consumer, Message, Producer, TopicPartition

from benchmarks.measuring import SCOPE, measuring_topic, ratio, run
from epochfence import FencedConsumer, Ledger

BATCH = 1000
VALUE = b"x" * 100


class Rates(NamedTuple):
    """Messages a second."""

    by_clock: float
    by_processor: float


def fill(servers: str, topic: str, ledger: Ledger, messages: int) -> None:
    """Write the messages that are read."""
    stamp = ledger.claim(SCOPE, holder="benchmark").stamp_value
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "linger.ms": 50,
            "queue.buffering.max.messages": 2_000_000,
        }
    )
    headers: list[tuple[str, str | bytes | None]] = [("epochfence", stamp)]
    for number in range(messages):
        producer.produce(topic, VALUE, headers=headers)
        if number % BATCH == 0:
            producer.poll(0)
    producer.flush()


def read(
    consumer: Any, topic: str, messages: int, look: Callable[[Message], object] | None
) -> Rates:
    """Read them all once, from when the first are there."""
    consumer.assign([TopicPartition(topic, 0, 0)])
    count = len(consumer.consume(1, 30))
    begun, begun_on_processor = time.perf_counter(), time.thread_time()
    while count < messages:
        batch: list[Message] = consumer.consume(BATCH, 1)
        count += len(batch)
        if look is not None:
            for message in batch:
                look(message)
    by_clock = time.perf_counter() - begun
    on_processor = time.thread_time() - begun_on_processor
    consumer.close()
    return Rates(messages / by_clock, messages / on_processor)


def measure(servers: str, messages: int, repeats: int) -> dict[str, object]:
    """Measure all ways, in turn."""
    rates: dict[str, list[Rates]] = {"raw": [], "headers": [], "fenced": []}
    with measuring_topic(servers) as (topic, ledger):
        fill(servers, topic, ledger, messages)
        config = {
            "bootstrap.servers": servers,
            "group.id": topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
        tuned = {**config, "fetch.queue.backoff.ms": 10}
        for _ in range(repeats):
            rates["raw"].append(read(Consumer(tuned), topic, messages, None))
            rates["headers"].append(
                read(Consumer(tuned), topic, messages, Message.headers)
            )
            fenced = FencedConsumer(config, ledger, require={topic: [SCOPE]})
            rates["fenced"].append(read(fenced, topic, messages, None))
            assert fenced.counts == {"ok": messages}
    return {
        part: {
            **{
                name: round(statistics.median(getattr(one, part) for one in those))
                for name, those in rates.items()
            },
            **{
                f"fenced_to_{name}": ratio(
                    [getattr(one, part) for one in rates["fenced"]],
                    [getattr(one, part) for one in rates[name]],
                )
                for name in ("raw", "headers")
            },
        }
        for part in Rates._fields
    }


if __name__ == "__main__":
    run("consume", __doc__, measure, messages=500_000, repeats=7)
