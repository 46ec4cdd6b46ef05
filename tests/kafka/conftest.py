"""A ledger on topics of its own, and a topic with a fenced consumer, for each test.

A module that shares its ledger among its tests has fixtures of its own by these names.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.fenced_topic import Rebuilds
from support.ledgers import LedgerTopics, unnamed_topics


@pytest.fixture
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("faults")


@pytest.fixture
def rebuilds(caplog: pytest.LogCaptureFixture) -> Rebuilds:
    caplog.set_level(logging.INFO, logger=Rebuilds.LOGGER)
    return Rebuilds(caplog)
