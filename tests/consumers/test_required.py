"""What each topic's records must carry, as the application says it."""

from __future__ import annotations

import re

import pytest
from confluent_kafka import TopicPartition

from epochfence import FenceSettings, MisconfiguredError
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Depose

REQUIRE = {"orders": ["w"]}


def test_a_misspelt_scope_is_called_so(
    leader: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    """Whoever took it for history without stamps would switch the fence off."""
    leader.produce("orders", b"v")
    consumer = MemoryConsumer(memory_ledger, require={"orders": ["ordres"]})
    consumer.subscribe(["orders"])
    told = r"stamped by w, not by ordres.*misspelt"
    with pytest.raises(MisconfiguredError, match=told):
        consumer.consume(1)


def test_producers_and_consumers_agree_unless_told_otherwise(
    leader: MemoryProducer,
    memory_ledger: MemoryLedger,
    depose: Depose,
    caplog: pytest.LogCaptureFixture,
) -> None:
    leader.produce("orders", b"v")
    assert leader.confirm().are_all_admitted
    MemoryProducer(memory_ledger, depose(*leader.leaderships)).take_over(["orders"])
    warning = r"other settings .* here: FenceSettings\(\['w'\]"
    with MemoryConsumer(memory_ledger, require=REQUIRE) as consumer:
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer] == [b"v"]
    assert not re.search(warning, caplog.text)
    with MemoryConsumer(memory_ledger, require=REQUIRE, unstamped="admit") as consumer:
        consumer.subscribe(["orders"])
        assert list(consumer) == []
    assert re.search(warning, caplog.text)
    # A leader that takes another scope for the one that is required is told so.
    caplog.clear()
    misspelt = memory_ledger.claim("w-x", holder="pod")
    MemoryProducer(memory_ledger, misspelt).take_over(["orders"])
    assert re.search(r"here: FenceSettings\(\['w-x'", caplog.text)


def test_scopes_per_partition(
    memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    memory_log.create_topic("orders", partitions=2)
    for number in (0, 1):
        leadership = memory_ledger.claim(f"w/{number}", holder="pod")
        leader = MemoryProducer(memory_ledger, leadership)
        leader.take_over([TopicPartition("orders", number)])
        for value in ("a", "b"):
            leader.produce("orders", f"{value}{number}", partition=number)
    for record in memory_log.records("orders", 0)[1:]:
        memory_log.append("orders", "v", partition=1, headers=record.headers())
    consumer = MemoryConsumer(memory_ledger, require={"orders": ["w/{partition}"]})
    consumer.subscribe(["orders"])
    values = [message.value() or b"" for message in consumer]
    assert sorted(values) == [b"a0", b"a1", b"b0", b"b1"]
    assert consumer.counts == {"ok": 4, "barrier": 2, "unstamped": 2}


def test_settings_may_be_given_topic_by_topic(
    memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    for topic in ("orders", "history"):
        memory_log.create_topic(topic)
        memory_log.append(topic, topic)
    lenient = FenceSettings(["w"], unstamped="admit")
    consumer = MemoryConsumer(
        memory_ledger,
        require={"history": lenient, "orders": ["w"]},
        unstamped="quarantine",
    )
    consumer.subscribe(["history", "orders"])
    assert [message.value() for message in consumer] == [b"history"]
    assert consumer.counts == {"unstamped-admitted": 1, "unstamped": 1}
