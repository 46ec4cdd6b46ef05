"""SIGKILL at each step of a leader that writes in transactions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics, unnamed_topics
from support.transaction_crashes import Crashes
from support.transaction_victim import IN_EACH, ONCE


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture(scope="module")
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.mark.parametrize(
    ("steps", "times"), [(ONCE, 1), (IN_EACH, 2)], ids=["once", "in each"]
)
def test_each_transaction_is_whole_or_not_there(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    steps: tuple[str, ...],
    times: int,
) -> None:
    crashes = Crashes(kafka, topics, ledger)
    with crashes.zombie():
        for step in steps:
            crashes.die(step, times)
            crashes.succeed()
    crashes.check()
