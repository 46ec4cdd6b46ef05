"""What a stamp and a receipt cost: FencedProducer beside loops written by hand.

- `keywords`: `produce(topic, value=..., headers=[stamp])`, as one writes it by hand; it
  never learns what became of a message
- `reported`: the same with an `on_delivery` that counts what failed
- `fenced`: FencedProducer, receipts included

*Handing over* is the calls of `produce`; *delivered* has the waiting for all of them in
it. By the processor time of the thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks.measuring import SCOPE, STAMP, VALUE, Bench, Figure, compare
from epochfence import FencedProducer

MESSAGES = 100_000

CLIENT = {
    "acks": "all",
    "enable.idempotence": True,
    "queue.buffering.max.messages": 2_000_000,
    "linger.ms": 5,
}

HandOver = Callable[[int], None]
#: How long it took to hand over, and until all was delivered.
Times = tuple[float, float]


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure all ways, in turns."""
    with Bench(servers) as bench, bench.ledger() as ledger:
        client = Producer({**bench.config, **CLIENT})
        leadership = ledger.claim(SCOPE, holder="benchmark")
        with FencedProducer({**bench.config, **CLIENT}, ledger, leadership) as fenced:
            fenced.take_over([bench.topic])
            ways = _ways(bench.topic, client, fenced)
            for hand_over, flush in ways.values():
                _timed(hand_over, flush, MESSAGES // 10)  # connected, specialised
            times: dict[str, list[Times]] = {name: [] for name in ways}
            for _ in range(repeats):
                for name, (hand_over, flush) in ways.items():
                    times[name].append(_timed(hand_over, flush, MESSAGES))
                fenced.confirm()
    return [
        _figure("handing over, to keywords", times, 0, "keywords"),
        _figure("delivered, to keywords", times, 1, "keywords"),
        _figure("delivered, to keywords with on_delivery", times, 1, "reported"),
    ]


def _ways(
    topic: str, client: Producer, fenced: FencedProducer
) -> dict[str, tuple[HandOver, Callable[[], int]]]:
    failures: list[object] = []

    def on_delivery(error: object, message: object) -> None:
        if error is not None:
            failures.append(message)

    def keywords(messages: int) -> None:
        for _ in range(messages):
            client.produce(topic, value=VALUE, headers=[STAMP])

    def reported(messages: int) -> None:
        for _ in range(messages):
            client.produce(topic, value=VALUE, headers=[STAMP], on_delivery=on_delivery)

    def own(messages: int) -> None:
        for _ in range(messages):
            fenced.produce(topic, value=VALUE)

    return {
        "keywords": (keywords, client.flush),
        "reported": (reported, client.flush),
        "fenced": (own, fenced.flush),
    }


def _timed(hand_over: HandOver, flush: Callable[[], int], messages: int) -> Times:
    start = time.thread_time()
    hand_over(messages)
    handed_over = time.thread_time()
    flush()
    return handed_over - start, time.thread_time() - start


def _figure(
    name: str, times: dict[str, list[Times]], part: int, baseline: str
) -> Figure:
    us_a_message = {
        way: [one[part] / MESSAGES * 1e6 for one in those]
        for way, those in times.items()
    }
    return compare(
        "produce", name, us_a_message["fenced"], us_a_message[baseline], unit="µs"
    )
