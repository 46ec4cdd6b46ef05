"""Transactional ids, and settings that a transactional producer refuses."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import Producer

from epochfence import (
    FencedProducer,
    FencedTransactionalProducer,
    Leadership,
    MisconfiguredError,
)
from epochfence.producers.shared_client import SharedClient
from epochfence.testing import MemoryLedger
from support.unreached import NOBODY_THERE, with_real_clients


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "1"}, "acks"),
        ({"enable.idempotence": "false"}, "idempotence"),
        ({"delivery.report.only.error": True}, "only.error"),
        ({"transactional.id": "x"}, "say so with transactional_id="),
        ({"transaction.timeout.ms": "soon"}, "no time"),
        ({"lingre.ms": 5}, "lingre.ms"),
        ({"on_delivery": 5}, "on_delivery = 5"),
    ],
)
def test_settings_that_contradict(
    memory_ledger: MemoryLedger,
    leadership: Leadership,
    settings: dict[str, Any],
    words: str,
) -> None:
    ledger = with_real_clients(memory_ledger)
    with pytest.raises(MisconfiguredError, match=words):
        FencedTransactionalProducer({**NOBODY_THERE, **settings}, ledger, leadership)


def test_a_client_that_is_given(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    """It could not be replaced when it is fenced."""
    given: Any = Producer(NOBODY_THERE)
    with pytest.raises(MisconfiguredError, match="replaced"):
        FencedTransactionalProducer(given, memory_ledger, leadership)


def test_a_client_that_is_shared(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    shared: Any = SharedClient({}, memory_ledger)
    with pytest.raises(MisconfiguredError, match="cannot be shared"):
        FencedTransactionalProducer(shared, memory_ledger, leadership)
    shared.close()


def test_it_takes_over_by_itself(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    """It has to take its id first, which ends what a predecessor left open."""
    ledger = with_real_clients(memory_ledger)
    with (
        FencedTransactionalProducer(NOBODY_THERE, ledger, leadership) as producer,
        pytest.raises(MisconfiguredError, match="take_over"),
    ):
        FencedProducer.take_over_all({producer: ["t"]}, timeout_s=0.1)


def test_no_settings(memory_ledger: MemoryLedger, leadership: Leadership) -> None:
    wrong: Any = "localhost:9092"
    with pytest.raises(MisconfiguredError, match="no settings of a client"):
        FencedTransactionalProducer(wrong, memory_ledger, leadership)


def test_a_log_in_memory_has_no_transactions(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    with pytest.raises(MisconfiguredError, match="no transactions"):
        FencedTransactionalProducer(NOBODY_THERE, memory_ledger, leadership)


def test_the_embedded_broker_does_not_fence(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    memory_ledger.is_embedded = True
    with pytest.raises(MisconfiguredError, match="embedded"):
        FencedTransactionalProducer(NOBODY_THERE, memory_ledger, leadership)


def test_whoever_leads_the_same_has_the_same_id(memory_ledger: MemoryLedger) -> None:
    ledger = with_real_clients(memory_ledger)

    def id_of(*scopes: str, **more: Any) -> str:
        held = [ledger.claim(scope, holder="a") for scope in scopes]
        with FencedTransactionalProducer(
            NOBODY_THERE, ledger, held, **more
        ) as producer:
            return producer.transactional_id

    topic = ledger.coordination_topic
    assert id_of("s") == id_of("s") == f"{topic}/s"
    assert id_of("o/3", "o/0") == id_of("o/0", "o/3") == f"{topic}/o/0+o/3"
    many = [f"orders/{number}" for number in range(500)]
    assert id_of(*many) == id_of(*reversed(many)) != id_of(*many[1:])
    assert len(id_of(*many)) < 200
    assert id_of("s", transactional_id="mine") == "mine"


@pytest.mark.parametrize("name", ["", 5])
def test_an_id_that_is_none(
    memory_ledger: MemoryLedger, leadership: Leadership, name: Any
) -> None:
    with pytest.raises(MisconfiguredError, match="it is no name"):
        FencedTransactionalProducer(
            NOBODY_THERE, memory_ledger, leadership, transactional_id=name
        )


def test_an_id_that_is_said_twice(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    ledger = with_real_clients(memory_ledger)
    config = {**NOBODY_THERE, "transactional.id": "mine"}
    with FencedTransactionalProducer(
        config, ledger, leadership, transactional_id="mine"
    ) as producer:
        assert producer.transactional_id == "mine"
