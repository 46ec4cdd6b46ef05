"""Transactions under a leadership while three nodes stand still."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from epochfence import (
    FencedTransactionalProducer,
    Ledger,
    LedgerUnavailable,
    TopicUnavailable,
    TransactionAborted,
    TransactionUnknown,
)
from support.brokers import IMPATIENT
from support.kafka_local import KafkaCluster
from support.ledgers import unnamed_topics
from support.transactions import SCOPE, committed_values, open_producer, outcomes


@pytest.fixture
def topic(healing_cluster: KafkaCluster) -> str:
    return healing_cluster.create_topic("t")


@pytest.fixture
def producer(
    healing_cluster: KafkaCluster, topic: str
) -> Iterator[FencedTransactionalProducer]:
    config: dict[str, Any] = {**healing_cluster.config, **IMPATIENT}
    with (
        Ledger(config, **unnamed_topics(healing_cluster).names) as ledger,
        open_producer(
            healing_cluster,
            ledger,
            ledger.claim(SCOPE, holder="a", timeout_s=60),
            **IMPATIENT,
        ) as opened,
    ):
        opened.take_over([topic], timeout_s=60)
        yield opened


def test_a_cluster_that_stands_still_during_a_commit(
    healing_cluster: KafkaCluster, topic: str, producer: FencedTransactionalProducer
) -> None:
    """Nobody knows then; afterwards, `confirm` and readers say the same."""
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    assert producer.flush(60) == 0
    for node in healing_cluster.nodes.values():
        node.pause()
    with pytest.raises(TransactionUnknown):
        producer.commit_transaction(timeout_s=2)
    with pytest.raises((LedgerUnavailable, TopicUnavailable)):
        producer.confirm(timeout_s=2)
    healing_cluster.heal()
    (outcome,) = outcomes(producer.confirm(60))
    is_there = committed_values(healing_cluster, topic) == [b"1"]
    assert outcome == ("admitted" if is_there else "aborted")
    with producer.transaction(timeout_s=60):
        producer.produce(topic, b"2", partition=0)
    assert outcomes(producer.confirm(60)) == ["admitted"]
    assert committed_values(healing_cluster, topic)[-1] == b"2"


def test_what_was_not_acknowledged_is_not_committed(
    healing_cluster: KafkaCluster, topic: str, producer: FencedTransactionalProducer
) -> None:
    """Then the answer is known at once: no commit was asked for."""
    producer.begin_transaction()
    producer.produce(topic, b"1", partition=0)
    assert producer.flush(60) == 0
    for node in healing_cluster.nodes.values():
        node.pause()
    producer.produce(topic, b"2", partition=0)
    with pytest.raises(TransactionAborted):
        producer.commit_transaction(timeout_s=2)
    healing_cluster.heal()
    with producer.transaction(timeout_s=60):
        producer.produce(topic, b"3", partition=0)
    assert outcomes(producer.confirm(60)) == ["aborted", "admitted"]
    assert committed_values(healing_cluster, topic) == [b"3"]
