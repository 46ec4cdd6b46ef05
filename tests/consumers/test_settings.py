"""Settings and topics that a consumer refuses, and says so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from epochfence import FencedConsumer, MisconfiguredError
from epochfence.testing import MemoryConsumer, MemoryLedger
from support.unreached import NOBODY_THERE, with_real_clients

CONFIG = {**NOBODY_THERE, "group.id": "g"}


@pytest.mark.parametrize(
    ("config", "options", "named"),
    [
        ({"group.id": None}, {}, "group.id"),
        ({"group.id": ""}, {}, "group.id"),
        ({"group.protocol": "share"}, {}, "KIP-932"),
        ({"share.acknowledgement.mode": "explicit"}, {}, "KIP-932"),
        ({"isolation.level": "read_uncommitted"}, {}, "isolation.level"),
        ({"auto.offset.reset": "sometime"}, {}, "auto.offset.reset"),
        ({"enable.auto.commit": "maybe"}, {}, "enable.auto.commit"),
        ({"auto.commit.interval.ms": "5s"}, {}, "auto.commit.interval.ms"),
        ({"on_commit": "me"}, {}, "on_commit"),
        ({"no.such.setting": 1}, {}, "no.such.setting"),
        ({"bootstrap.servers": "a b"}, {}, "no address"),
        ({}, {"require": ["orders"]}, "require"),
        ({}, {"require": {"orders": "w"}}, "a list of scopes"),
        ({}, {"require": {"orders": None}}, "any stamp satisfies"),
        ({}, {"require": {"orders": ["a b"]}}, "no scope name"),
        ({}, {"require": {"": []}}, "no topic"),
        ({}, {"require": {"^orders.*": []}}, "each in full"),
        ({}, {"require": {}}, "lists no topic"),
        ({}, {"rebuild": "no"}, "rebuild"),
        ({}, {"stamps": "generation:decimal"}, "ForeignHeader"),
        ({}, {"mode": "off"}, "dry-run"),
        ({}, {"unstamped": "let in"}, "unstamped"),
        ({}, {"authority": "me"}, "authority"),
        ({}, {"max_jump": 3}, "max_jump"),
        ({}, {"on_rejected": 3}, "on_rejected"),
        ({}, {"timeout_s": 0}, "timeout_s"),
    ],
)
def test_settings_that_make_no_sense(
    memory_ledger: MemoryLedger,
    config: dict[str, Any],
    options: dict[str, Any],
    named: str,
) -> None:
    options = {"require": {"orders": ["w"]}, **options}
    ledger = with_real_clients(memory_ledger)
    with pytest.raises(MisconfiguredError, match=named):
        FencedConsumer({**CONFIG, **config}, ledger, **options).close()


def test_a_config_that_is_none(memory_ledger: MemoryLedger) -> None:
    for config, ledger in (("localhost:9092", memory_ledger), (CONFIG, {})):
        wrong: Any = config
        with pytest.raises(MisconfiguredError):
            FencedConsumer(wrong, ledger, require={"orders": []})  # type: ignore[arg-type]


def test_topics_of_which_nobody_said_what_they_carry(
    memory_ledger: MemoryLedger,
) -> None:
    consumer = MemoryConsumer(memory_ledger, require={"others": []})
    calls: list[Callable[[], None]] = [
        lambda: consumer.subscribe(["orders"]),
        lambda: consumer.assign([TopicPartition("orders", 0, 0)]),
    ]
    for call in calls:
        with pytest.raises(MisconfiguredError, match="listed: others"):
            call()
    for wrong in ("orders", None, [3]):
        topics: Any = wrong
        with pytest.raises(MisconfiguredError, match="a list of names"):
            consumer.subscribe(topics)
    for wrong in ("x", None, [3]):
        partitions: Any = wrong
        with pytest.raises(MisconfiguredError, match="a list of TopicPartition"):
            consumer.assign(partitions)
