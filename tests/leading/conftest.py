"""A database for candidates to meet at, and an office of this process."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from epochfence import lead
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.local_election import LocalElection, LocalOffice
from support.local_lead import SCOPE, NewLead
from support.postgres import Postgres


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture
def topic(memory_log: MemoryLog) -> str:
    return memory_log.create_topic("orders", partitions=2)


@pytest.fixture
def office() -> LocalOffice:
    return LocalOffice()


@pytest.fixture
def election(office: LocalOffice) -> LocalElection:
    return LocalElection(office)


@pytest.fixture
def new_lead(memory_ledger: MemoryLedger, election: LocalElection) -> NewLead:
    def make(**options: Any) -> lead:
        ledger = options.pop("ledger", memory_ledger)
        given: dict[str, Any] = {
            "election": election,
            "scope": SCOPE,
            "topics": ["orders"],
            "holder": "a",
            "longest_wait_s": 0.2,
            "new_producer": partial(MemoryProducer, ledger),
            **options,
        }
        return lead({}, ledger, **given)

    return make
