"""A database for candidates to meet at."""

from collections.abc import Iterator

import pytest

from support.postgres import Postgres


@pytest.fixture(scope="session")
def database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo
