"""A leadership, a topic in memory, and a producer that has yet to take it over."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochfence import Leadership
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer


@pytest.fixture
def leadership(memory_ledger: MemoryLedger) -> Leadership:
    return memory_ledger.claim("s", holder="a")


@pytest.fixture
def topic(memory_log: MemoryLog) -> str:
    return memory_log.create_topic("t", partitions=3)


@pytest.fixture
def producer(
    memory_ledger: MemoryLedger, leadership: Leadership, topic: str
) -> Iterator[MemoryProducer]:
    with MemoryProducer(memory_ledger, leadership) as opened:
        yield opened
