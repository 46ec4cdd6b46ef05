"""What the rule alone costs: `Fence.filter` on messages that are there already.

Beside a loop that calls `headers()` of each message, as every check of a header must.
In process, on messages prefetched from Kafka, in batches of 1,000:

- `one leader`: all of one epoch, as nearly always
- `a takeover in each batch`: an epoch begins and a deposed leader writes among it
"""

from __future__ import annotations

import time
from functools import partial

from confluent_kafka import Consumer, Message, TopicPartition

from benchmarks.measuring import (
    SCOPE,
    VALUE,
    Bench,
    Figure,
    compare,
    filler,
    in_turns,
)
from epochfence import Fence, Leadership, Ledger

MESSAGES = 100_000
BATCH = 1000


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure both topics, in turns."""
    figures: list[Figure] = []
    for name, takeovers in (("one leader", 1), ("a takeover in each batch", None)):
        with Bench(servers) as bench, bench.ledger() as ledger:
            count = takeovers or MESSAGES // BATCH
            leaders = [ledger.claim(SCOPE, holder=f"pod-{n}") for n in range(count)]
            _fill(bench, leaders)
            found = in_turns(
                {
                    "headers()": partial(_looked_at, bench),
                    "fence": partial(_judged, bench, ledger),
                },
                repeats,
            )
        figures.append(
            compare(
                "fence",
                f"{name}, to headers()",
                found["fence"],
                found["headers()"],
                unit="µs",
            )
        )
    return figures


def _fill(bench: Bench, leaders: list[Leadership]) -> None:
    producer = filler(bench.config)
    for number in range(MESSAGES):
        turn = min(number // BATCH, len(leaders) - 1)
        is_zombie = turn > 0 and number % 20 == 7
        stamp = leaders[turn - 1 if is_zombie else turn].stamp_value
        headers: list[tuple[str, str | bytes | None]] = [("epochfence", stamp)]
        producer.produce(bench.topic, VALUE, headers=headers)
    producer.flush()


def _prefetched(bench: Bench) -> list[list[Message]]:
    """Messages that nobody has looked at: the client keeps what it has decoded."""
    consumer = Consumer({**bench.config, "group.id": bench.topic})
    consumer.assign([TopicPartition(bench.topic, 0, 0)])
    batches: list[list[Message]] = []
    while sum(map(len, batches)) < MESSAGES:
        batches.append(consumer.consume(BATCH, 10))
    consumer.close()
    return batches


def _looked_at(bench: Bench) -> float:
    batches = _prefetched(bench)
    start = time.thread_time()
    for batch in batches:
        for message in batch:
            message.headers()
    return (time.thread_time() - start) / MESSAGES * 1e6


def _judged(bench: Bench, ledger: Ledger) -> float:
    batches = _prefetched(bench)
    fence = Fence(ledger, require={bench.topic: [SCOPE]})
    start = time.thread_time()
    for batch in batches:
        fence.filter(batch)
    taken = (time.thread_time() - start) / MESSAGES * 1e6
    assert sum(fence.counts.values()) == MESSAGES
    return taken
