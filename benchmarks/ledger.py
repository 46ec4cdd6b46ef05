"""How long it takes to load a ledger: by its number of grants.

Beside a plain consumer that reads the same records and looks at nothing.
"""

from __future__ import annotations

import time
from functools import partial

from confluent_kafka import Consumer, TopicPartition

from benchmarks.measuring import Bench, Figure, compare, filler, in_turns
from epochfence import Claim
from epochfence.epochs.claims import claim_key, claim_value

GRANTS = (1_000, 10_000, 100_000)
SCOPES = 100


def measure(servers: str, repeats: int) -> list[Figure]:
    """Measure each number of grants, in turns."""
    figures: list[Figure] = []
    for grants in GRANTS:
        with Bench(servers) as bench:
            _fill(bench, grants)
            found = in_turns(
                {
                    "plain": partial(_read, bench, grants),
                    "ledger": partial(_loaded, bench, grants),
                },
                repeats,
            )
        figures.append(
            compare(
                "ledger",
                f"load of {grants:,} grants, to plain reading",
                found["ledger"],
                found["plain"],
                unit="s",
            )
        )
    return figures


def _fill(bench: Bench, grants: int) -> None:
    producer = filler(bench.config)
    for number in range(grants):
        epoch = number // SCOPES + 1
        claim = Claim(
            scope=f"orders/{number % SCOPES}",
            epoch=epoch,
            previous=epoch - 1,
            grant_id=f"{number:016x}",
            holder=f"pod-{number % 7}",
            claimed_at=1_700_000_000_000 + number,
            attributes={"url": f"http://pod-{number % 7}:8080"},
        )
        topic = bench.coordination_topic
        producer.produce(topic, claim_value(claim), claim_key(claim), 0)
    producer.flush()


def _read(bench: Bench, records: int) -> float:
    start = time.perf_counter()
    consumer = Consumer({**bench.config, "group.id": bench.topic})
    consumer.assign([TopicPartition(bench.coordination_topic, 0, 0)])
    count = 0
    while count < records:
        count += len(consumer.consume(1000, 0.5))
    taken = time.perf_counter() - start
    consumer.close()
    return taken


def _loaded(bench: Bench, grants: int) -> float:
    start = time.perf_counter()
    with bench.ledger() as ledger:
        taken = time.perf_counter() - start
        assert ledger.state.epoch_of("orders/0") == grants // SCOPES
        return taken
