"""A database of PostgreSQL, empty again for each test."""

from collections.abc import Iterator

import psycopg
import pytest

from support.postgres import Postgres
from support.sinks import APPLIED_IN_POSTGRES

_EMPTY = b"""
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT nspname FROM pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema'
    LOOP EXECUTE format('DROP SCHEMA %I CASCADE', name); END LOOP;
END $$;
CREATE SCHEMA public;
GRANT USAGE ON SCHEMA public TO PUBLIC;
"""


@pytest.fixture(scope="session")
def one_database(postgres: Postgres) -> Iterator[str]:
    with postgres.database() as conninfo:
        yield conninfo


@pytest.fixture
def database(one_database: str) -> str:
    """A database with a table for what is applied, by its conninfo."""
    with psycopg.connect(one_database) as connection:
        connection.execute(_EMPTY)
        connection.execute(APPLIED_IN_POSTGRES)
    return one_database
