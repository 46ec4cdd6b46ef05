"""Writing and reading on the client's embedded broker: for demos and quick tests.

It knows neither admin calls nor topic ids, so nothing here is a claim about durability.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from epochfence import FencedConsumer, FencedProducer, Ledger
from support.stream import read_to, values_of


@pytest.fixture
def config() -> Iterator[dict[str, Any]]:
    owner = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 2}
    )
    brokers: Any = owner.list_topics(timeout=10).brokers
    (broker,) = brokers.values()
    yield {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 2}
    del owner


def test_a_takeover(config: dict[str, Any]) -> None:
    with Ledger(config, embedded=True) as ledger:
        first = ledger.claim("w", holder="pod-7")
        with FencedProducer({**config, "linger.ms": 5_000}, ledger, first) as zombie:
            zombie.take_over(["orders"])
            zombie.produce("orders", "in time", partition=1)
            zombie.flush()
            zombie.produce("orders", "too late", partition=1)
            second = ledger.claim("w", holder="pod-8")
            with FencedProducer(config, ledger, second) as leader:
                leader.take_over(["orders"])
                leader.produce("orders", "in order", partition=1)
                assert leader.confirm().are_all_admitted
            assert zombie.confirm().counts["fenced"] == 1
        group = {**config, "group.id": "billing", "auto.offset.reset": "earliest"}
        for _ in range(2):  # the second time by the table's rows
            with FencedConsumer(group, ledger, require={"orders": ["w"]}) as consumer:
                consumer.assign([TopicPartition("orders", 1, 0)])
                messages = read_to(consumer, {("orders", 1): 5})
                assert values_of(messages) == [b"in time", b"in order"]
                assert consumer.counts == {"ok": 2, "barrier": 2, "stale-epoch": 1}
                consumer.commit(asynchronous=False)
        with FencedConsumer(
            group, ledger, require={"orders": ["w"]}, rebuild=False
        ) as consumer:
            consumer.assign([TopicPartition("orders", 1)])  # where it was committed
            read_to(consumer, {("orders", 1): 5})
            assert consumer.counts == {}
