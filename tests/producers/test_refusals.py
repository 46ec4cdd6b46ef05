"""Configurations, headers and callbacks that a producer refuses, and says so."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.serialization import StringSerializer
from confluent_kafka.serializing_producer import SerializingProducer

from epochfence import FencedProducer, Leadership, MisconfiguredError
from epochfence.testing import MemoryLedger, MemoryProducer
from support.unreached import NOBODY_THERE, with_real_clients


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"acks": "1"}, "acks"),
        ({"request.required.acks": 1}, "request.required.acks"),
        ({"enable.idempotence": "false"}, "idempotence"),
        ({"default.topic.config": {"acks": 1}}, "acks"),
        ({"delivery.report.only.error": True}, "only.error"),
        ({"transactional.id": "x"}, "transactional"),
        ({"lingre.ms": 5}, "lingre.ms"),
        ({"bootstrap.servers": ""}, "bootstrap.servers"),
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
        FencedProducer({**NOBODY_THERE, **settings}, ledger, leadership)


@pytest.mark.parametrize("config", [None, "localhost:9092"])
def test_no_settings(
    memory_ledger: MemoryLedger, leadership: Leadership, config: Any
) -> None:
    with pytest.raises(MisconfiguredError, match=r"bootstrap\.servers"):
        FencedProducer(config, memory_ledger, leadership)


def test_a_producer_whose_arguments_stand_otherwise(
    memory_ledger: MemoryLedger, leadership: Leadership
) -> None:
    """A SerializingProducer takes the key before the value."""
    settings: Any = {**NOBODY_THERE, "value.serializer": StringSerializer()}
    with pytest.raises(MisconfiguredError, match="plain"):
        FencedProducer(SerializingProducer(settings), memory_ledger, leadership)


class Odd:
    """The client turns every name into a string."""

    def __str__(self) -> str:
        return "epochfence"


RESERVED: list[Any] = [
    [("a", b"1"), ("epochfence", b"x")],
    [("epochfence-barrier", b"x")],
    [("epochfence-cursor", b"x")],
    [("epochfenceX", None)],
    [(b"epochfence", b"x")],
    [(bytearray(b"epochfence-barrier"), b"x")],
    [(Odd(), b"x")],
    {"epochfence": b"x"},
    {b"epochfence": b"x"},
    {Odd(): b"x"},
]


def test_header_names_that_are_ours(producer: MemoryProducer, topic: str) -> None:
    producer.take_over([topic])
    for headers in RESERVED:
        with pytest.raises(MisconfiguredError, match="epochfence"):
            producer.produce(topic, b"v", headers=headers)
    assert len(producer) == 0


def test_a_delivery_callback_that_is_none(
    memory_ledger: MemoryLedger, producer: MemoryProducer, topic: str
) -> None:
    """Inside the client it would break every later call."""
    wrong: Any = 5
    with pytest.raises(MisconfiguredError, match="on_delivery = 5"):
        FencedProducer({"on_delivery": wrong}, memory_ledger, producer.leaderships)
    producer.take_over([topic])
    for name in ("on_delivery", "callback"):
        with pytest.raises(MisconfiguredError, match="cannot be called"):
            producer.produce(topic, b"v", **{name: wrong})
    assert len(producer.confirm()) == 0
