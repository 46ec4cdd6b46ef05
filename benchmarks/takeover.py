"""How long a takeover takes: from the claim to the first write known as admitted.

Beside what a leader without fencing would do: open an idempotent producer, and have
one message acknowledged by each partition. (Half a second of that is the client's: so
long an idempotent producer waits before it asks for its id a second time, and the first
time it is not connected yet. The client of barriers mostly is: it has asked for the
topics.)
"""

from __future__ import annotations

import time
from functools import partial

from confluent_kafka import Producer

from benchmarks.measuring import SCOPE, VALUE, Bench, Figure, compare, in_turns
from epochfence import FencedProducer, Ledger

PARTITIONS = (1, 10, 100)


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure each number of partitions, in turns."""
    figures: list[Figure] = []
    for partitions in PARTITIONS:
        with Bench(servers, partitions) as bench, bench.ledger() as ledger:
            ways = {
                "plain": partial(_written, bench, partitions),
                "takeover": partial(_taken_over, bench, ledger),
            }
            in_turns(ways, 1)  # connected
            found = in_turns(ways, repeats)
        figures.append(
            compare(
                "takeover",
                f"{partitions} partitions, to a plain producer",
                found["takeover"],
                found["plain"],
                unit="ms",
            )
        )
    return figures


def _written(bench: Bench, partitions: int) -> float:
    start = time.perf_counter()
    producer = Producer({**bench.config, "enable.idempotence": True})
    for partition in range(partitions):
        producer.produce(bench.topic, value=VALUE, partition=partition)
    producer.flush(30)
    return (time.perf_counter() - start) * 1e3


def _taken_over(bench: Bench, ledger: Ledger) -> float:
    start = time.perf_counter()
    leadership = ledger.claim(SCOPE, holder="benchmark")
    with FencedProducer(bench.config, ledger, leadership) as producer:
        producer.take_over([bench.topic])
        producer.produce(bench.topic, value=VALUE)
        assert producer.confirm().are_all_admitted
        return (time.perf_counter() - start) * 1e3
