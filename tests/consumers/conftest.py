"""A topic in memory with a takeover on it."""

from __future__ import annotations

import pytest

from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Depose, Zombie


@pytest.fixture
def leader(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    """Leads `orders` by scope `w`, and has taken it over at offset 0."""
    memory_log.create_topic("orders")
    opened = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="pod"))
    opened.take_over(["orders"])
    return opened


@pytest.fixture
def takeover(
    leader: MemoryProducer, memory_ledger: MemoryLedger, depose: Depose, zombie: Zombie
) -> list[bytes]:
    """A deposed leader in its successor's midst; what may be delivered.

    Barriers lie at 0 and 5, the zombie's records at 9, 10 and 11, the last at 13;
    values rise.
    """
    values = [b"%02d" % number for number in range(12)]
    for value in values[:4]:
        leader.produce("orders", value)
    leader.hold()
    for value in values[7:10]:
        leader.produce("orders", value)
    successor = MemoryProducer(memory_ledger, depose(*leader.leaderships))
    successor.take_over(["orders"])
    for value in values[4:7]:
        successor.produce("orders", value)
    zombie(leader)
    for value in values[10:]:
        successor.produce("orders", value)
    return values[:7] + values[10:]
