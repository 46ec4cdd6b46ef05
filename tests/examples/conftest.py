"""A ledger on topics of its own, and a database, for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics, unnamed_topics
from support.postgres import Postgres


@pytest.fixture
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo
