"""How long it takes to lead many partitions: each has a claim, and a barrier.

Claims together, beside the same claims one by one; and the whole (claims, barriers on
the partitions of an output, the proof that all are still the latest), beside a plain
idempotent producer that writes one message to each partition of it.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import count

from confluent_kafka import Producer

from benchmarks.measuring import VALUE, Bench, Figure, compare, in_turns
from epochfence import Ledger, PartitionLeaderships

PARTITIONS = (1, 100, 500)

_TIMEOUT_S = 60
_turns = count()


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure each number of partitions, in turns."""
    figures: list[Figure] = []
    for partitions in PARTITIONS:
        # The ledger first: making hundreds of partitions keeps a broker busy.
        with Bench(servers) as bench, bench.ledger() as ledger:
            output = bench.new_topic(partitions)
            ways = {
                "one by one": partial(_claimed_one_by_one, ledger, partitions),
                "together": partial(_claimed_together, ledger, partitions),
                "plain": partial(_written, bench, output, partitions),
                "led": partial(_led, bench, ledger, output, partitions),
            }
            in_turns(ways, 1)  # connected, and the topic's files are there
            found = in_turns(ways, repeats)
        for figure, own, baseline in (
            (f"{partitions} claims together, to one by one", "together", "one by one"),
            (f"{partitions} claims and barriers, to plain writes", "led", "plain"),
        ):
            figures.append(
                compare(
                    "partition_leaderships",
                    figure,
                    found[own],
                    found[baseline],
                    unit="ms",
                )
            )
    return figures


def _scopes(partitions: int) -> list[str]:
    """Scopes that nobody has led."""
    turn = next(_turns)
    return [f"turn-{turn}/{number}" for number in range(partitions)]


def _claimed_one_by_one(ledger: Ledger, partitions: int) -> float:
    scopes = _scopes(partitions)
    start = time.perf_counter()
    for scope in scopes:
        ledger.claim(scope, holder="benchmark")
    return (time.perf_counter() - start) * 1e3


def _claimed_together(ledger: Ledger, partitions: int) -> float:
    scopes = _scopes(partitions)
    start = time.perf_counter()
    claimed = ledger.claim_all(scopes, holder="benchmark", timeout_s=_TIMEOUT_S)
    assert not claimed.failed
    return (time.perf_counter() - start) * 1e3


def _written(bench: Bench, output: str, partitions: int) -> float:
    start = time.perf_counter()
    producer = Producer({**bench.config, "enable.idempotence": True})
    for partition in range(partitions):
        producer.produce(output, value=VALUE, partition=partition)
    assert not producer.flush(_TIMEOUT_S)
    return (time.perf_counter() - start) * 1e3


def _led(bench: Bench, ledger: Ledger, output: str, partitions: int) -> float:
    start = time.perf_counter()
    with PartitionLeaderships(
        bench.config,
        ledger,
        "orders",
        holder="benchmark",
        scope=f"turn-{next(_turns)}/{{partition}}",
        outputs=[output],
        timeout_s=_TIMEOUT_S,
    ) as led:
        assert not led.assigned(range(partitions))
        return (time.perf_counter() - start) * 1e3
