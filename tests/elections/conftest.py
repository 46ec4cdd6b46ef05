"""A database, and a topic, for candidates to meet at."""

from collections.abc import Iterator

import pytest

from support.brokers import KafkaBroker
from support.postgres import Postgres


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture(scope="session")
def meeting_topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("elections")
