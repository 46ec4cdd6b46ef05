"""Under which leaderships a producer writes, and when it no longer may."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest

from epochfence import (
    Deposed,
    EpochStart,
    FencedProducer,
    Leadership,
    LedgerClosed,
    LedgerRegressed,
    MisconfiguredError,
    Position,
)
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Depose
from support.producing import stamp_of


def test_several_leaderships(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, depose: Depose, topic: str
) -> None:
    pair = [memory_ledger.claim(scope, holder="a") for scope in ("s", "orders/3")]
    producer = MemoryProducer(memory_ledger, pair)
    assert producer.leaderships == tuple(pair)
    assert producer.take_over([topic]) == {(topic, number): 1 for number in range(3)}
    producer.produce(topic, b"v", partition=0, headers={"a": b"1"})
    assert producer.confirm().are_all_admitted
    stamps = [stamp_of(one) for one in pair]
    assert memory_log.records(topic, 0)[2].headers() == [*stamps, ("a", b"1")]
    # Deposed under one of them is deposed.
    depose(pair[1])
    with pytest.raises(Deposed, match="orders/3"):
        producer.produce(topic, b"v")


@pytest.mark.parametrize("wrong", [[], None, "s", [None]])
def test_no_leaderships(memory_ledger: MemoryLedger, wrong: Any) -> None:
    with pytest.raises(MisconfiguredError, match="leadership"):
        FencedProducer({}, memory_ledger, wrong)


def test_no_ledger(leadership: Leadership) -> None:
    no_ledger: Any = {}
    with pytest.raises(MisconfiguredError, match="it is no Ledger"):
        FencedProducer({}, no_ledger, leadership)


def test_one_scope_twice(memory_ledger: MemoryLedger) -> None:
    twice = [memory_ledger.claim("s", holder="a") for _ in range(2)]
    with pytest.raises(MisconfiguredError, match="one stamp of a scope"):
        FencedProducer({}, memory_ledger, twice)


def test_a_leadership_of_another_ledger(
    memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    """It has no grant here; raising the floor would depose whoever leads here."""
    with MemoryLedger() as other:
        elsewhere = other.claim("s", holder="a")
    mine = memory_ledger.claim("s", holder="a")
    # On one cluster, ledgers differ by their topics.
    topic, cluster = memory_ledger.coordination_topic, memory_log.cluster_id
    assert mine.origin == f"topic {topic!r} of cluster {cluster!r}"
    beside = dataclasses.replace(mine, origin=mine.origin.replace(topic, "another"))
    for foreign in (elsewhere, beside):
        with pytest.raises(MisconfiguredError, match="it was granted by"):
            FencedProducer({}, memory_ledger, foreign)
        with pytest.raises(MisconfiguredError, match="it was granted by"):
            memory_ledger.verify(foreign)
    wrong: Any = "s"
    with pytest.raises(MisconfiguredError, match=r"Ledger\.claim"):
        memory_ledger.verify(wrong)
    # Who has the same ledger open twice has one ledger.
    with MemoryLedger(memory_log) as again:
        again.verify(mine)
        MemoryProducer(again, mine).close()


def test_deposed_before_it_was_opened(
    memory_ledger: MemoryLedger, leadership: Leadership, depose: Depose, topic: str
) -> None:
    depose(leadership)
    producer = MemoryProducer(memory_ledger, leadership)
    with pytest.raises(Deposed):
        producer.produce(topic, b"v")
    with pytest.raises(Deposed):
        producer.take_over([topic])
    assert len(producer.confirm()) == 0


def test_a_ledger_that_is_closed(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    producer: MemoryProducer,
    topic: str,
) -> None:
    producer.take_over([topic])
    producer.produce(topic, b"v", partition=0)
    memory_ledger.close()
    # It would show no successor any more.
    calls: list[Callable[[], object]] = [
        lambda: producer.produce(topic, b"w", partition=0),
        lambda: producer.take_over([topic]),
        producer.confirm,
    ]
    for call in calls:
        for _ in range(2):
            with pytest.raises(LedgerClosed, match="Open another"):
                call()
    assert producer.flush() == 0
    with pytest.raises(LedgerClosed):
        MemoryProducer(memory_ledger, producer.leaderships)
    assert [record.value() for record in memory_log.records(topic, 0)] == [None, b"v"]


# Grants that the ledger has lost.


@pytest.mark.parametrize("has_other_grant", [False, True])
def test_a_table_that_knows_of_more_than_the_ledger(
    memory_ledger: MemoryLedger,
    leadership: Leadership,
    producer: MemoryProducer,
    topic: str,
    has_other_grant: bool,
) -> None:
    """Grants of a lost coordination topic were in use."""
    epoch = 1 if has_other_grant else 7
    row = EpochStart("elsewhere", None, 0, "s", epoch, "f" * 16, Position(0, 5))
    unaffected = row._replace(scope="another")
    own = row._replace(epoch=1, grant_id=leadership.grant_id)
    memory_ledger.table.write([unaffected, own], "digest")
    producer.take_over([topic])
    memory_ledger.table.write([row], "digest")
    with pytest.raises(LedgerRegressed) as regressed:
        producer.take_over([topic])
    assert (regressed.value.scope, regressed.value.seen_epoch) == ("s", epoch)


def test_a_grant_that_the_ledger_does_not_know(
    memory_ledger: MemoryLedger, topic: str
) -> None:
    with MemoryLedger() as elsewhere:
        claimed = elsewhere.claim("nowhere", holder="a")
    # As if this ledger had granted it, and lost it since.
    leadership = dataclasses.replace(claimed, origin=memory_ledger.origin)
    producer = MemoryProducer(memory_ledger, leadership)
    with pytest.raises(LedgerRegressed):
        producer.take_over([topic])
    with pytest.raises(LedgerRegressed):
        producer.confirm()
