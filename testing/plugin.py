"""Fixtures for pytest: `pytest_plugins = ["epochfence.testing.plugin"]`.

`memory_log`     a `MemoryLog`
`memory_ledger`  a `MemoryLedger` on it
`depose`         call it with a leadership: a later claim wins; gives the new leadership
`zombie`         call it with a `MemoryProducer` that holds messages back: they arrive
                 behind its successor's barriers; gives the records
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from confluent_kafka import Message

from epochfence.epochs.leadership import Leadership
from epochfence.testing import scenes
from epochfence.testing.ledger import MemoryLedger
from epochfence.testing.log import MemoryLog
from epochfence.testing.producer import MemoryProducer

Depose = Callable[..., Leadership]
Zombie = Callable[[MemoryProducer], list[Message]]


@pytest.fixture
def memory_log() -> MemoryLog:
    """Topics in memory: create them before they are used."""
    return MemoryLog()


@pytest.fixture
def memory_ledger(memory_log: MemoryLog) -> Iterator[MemoryLedger]:
    """A ledger on `memory_log`."""
    with MemoryLedger(memory_log) as ledger:
        yield ledger


@pytest.fixture
def depose(memory_ledger: MemoryLedger) -> Depose:
    """`MemoryLedger.depose`."""
    return memory_ledger.depose


@pytest.fixture
def zombie() -> Zombie:
    """`epochfence.testing.zombie`."""
    return scenes.zombie
