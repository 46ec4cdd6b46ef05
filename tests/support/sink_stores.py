"""Stores that instances of an application with a sink write to, by name.

Each is known by its address alone, which is told to the instances: they open a sink on
it, the tests look into it.
"""

from __future__ import annotations

import secrets
import sqlite3
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import psycopg
from confluent_kafka import Consumer, IsolationLevel, Message, TopicPartition
from confluent_kafka.admin import OffsetSpec
from psycopg import errors

from epochfence import Ledger, Sink
from epochfence.consumers.copied_topic import source_of
from epochfence.consumers.dead_letters import letter_of_message
from support.brokers import KafkaBroker
from support.postgres import Postgres
from support.reading import read_all
from support.sink_faults import (
    KAFKA_STEPS,
    POSTGRES_STEPS,
    SQLITE_STEPS,
    Faults,
    faulty_gate,
    faulty_postgres,
    faulty_sqlite,
)
from support.sinks import APPLIED, APPLIED_IN_POSTGRES, applied_in
from support.waiting import wait_until

#: Partition, offset and value of a message that was applied.
Applied = tuple[int, int, bytes]


@dataclass(frozen=True)
class Source:
    """What is read, and who reads it."""

    topic: str
    group: str
    ledger: Ledger
    partitions: ClassVar[int] = 2


class Store(ABC):
    """One store, in which nothing is to begin with.

    Args:
        address: Where it is.
    """

    #: What it is called.
    name: ClassVar[str]
    #: The steps of a run in order, at which an instance can meet a fault.
    steps: ClassVar[tuple[str, ...]]
    #: Whether who is stopped in a transaction keeps others out for as long.
    keeps_its_locks: ClassVar[bool]
    #: Whether positions are those of one group, of which all instances are members.
    is_of_one_group: ClassVar[bool] = False
    #: The step at which all is done but to say so.
    commit: ClassVar[str] = "COMMIT"

    def __init__(self, address: str) -> None:
        self.address = address

    def look_at(self, kafka: KafkaBroker, source: Source) -> None:
        """Get to know what is read; it matters to a store in Kafka itself."""
        self._kafka = kafka
        self._source = source

    @abstractmethod
    def open(
        self, faults: Faults, timeout_s: float, told: Mapping[str, Any]
    ) -> AbstractContextManager[Sink]:
        """The sink of an instance, which tells its steps to `faults`.

        Args:
            faults: What happens at a step.
            timeout_s: How long the sink waits.
            told: All that the instance is told.
        """

    @abstractmethod
    def next_offsets(self) -> dict[int, int]:
        """How far each partition has come; none, where no sink was there yet."""

    @abstractmethod
    def applied(self) -> list[Applied]:
        """What was applied, in order."""

    @abstractmethod
    def rejected(self) -> list[tuple[int, int]]:
        """Partition and offset of each dead letter, in order."""

    @abstractmethod
    def starts(self) -> list[tuple[int, int, int]]:
        """Partition, epoch and offset of each epoch start, in order."""


class SqliteStore(Store):
    """A file of SQLite."""

    name = "sqlite"
    steps = SQLITE_STEPS
    keeps_its_locks = True

    def open(
        self, faults: Faults, timeout_s: float, told: Mapping[str, Any]
    ) -> AbstractContextManager[Sink]:
        return faulty_sqlite(self.address, faults, timeout_s)

    def next_offsets(self) -> dict[int, int]:
        with closing(sqlite3.connect(self.address)) as database:
            statement = "SELECT partition, next_offset FROM epochfence_positions"
            try:
                return dict(database.execute(statement).fetchall())
            except sqlite3.OperationalError as error:
                assert "no such table" in str(error)  # noqa: PT017
                return {}

    def applied(self) -> list[Applied]:
        return [(row[1], row[3], row[4]) for row in applied_in(Path(self.address))]

    def rejected(self) -> list[tuple[int, int]]:
        with closing(sqlite3.connect(self.address)) as database:
            statement = "SELECT partition, record_offset FROM epochfence_dead_letters"
            return sorted(database.execute(statement).fetchall())

    def starts(self) -> list[tuple[int, int, int]]:
        with closing(sqlite3.connect(self.address)) as database:
            statement = "SELECT partition, epoch, start_offset FROM epochfence_starts"
            return sorted(database.execute(statement).fetchall())


class PostgresStore(Store):
    """A database of PostgreSQL."""

    name = "postgres"
    steps = POSTGRES_STEPS
    keeps_its_locks = False

    def open(
        self, faults: Faults, timeout_s: float, told: Mapping[str, Any]
    ) -> AbstractContextManager[Sink]:
        return faulty_postgres(self.address, faults, timeout_s)

    def next_offsets(self) -> dict[int, int]:
        with psycopg.connect(self.address) as connection:
            try:
                return dict(
                    connection.execute(
                        "SELECT partition, next_offset FROM epochfence.positions "
                        "WHERE next_offset IS NOT NULL"
                    ).fetchall()
                )
            except errors.UndefinedTable:
                return {}

    def applied(self) -> list[Applied]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(
                "SELECT partition, position, value FROM applied ORDER BY 1, 2"
            ).fetchall()

    def rejected(self) -> list[tuple[int, int]]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(
                "SELECT partition, record_offset FROM epochfence.dead_letters "
                "ORDER BY 1, 2"
            ).fetchall()

    def starts(self) -> list[tuple[int, int, int]]:
        with psycopg.connect(self.address) as connection:
            return connection.execute(
                "SELECT partition, epoch, start_offset FROM epochfence.starts "
                "ORDER BY 1, 2, 3"
            ).fetchall()


class KafkaStore(Store):
    """A topic, to which the source is copied, and one for what was rejected."""

    name = "kafka"
    steps = KAFKA_STEPS
    keeps_its_locks = False
    is_of_one_group = True
    commit = "before committing"

    def open(
        self, faults: Faults, timeout_s: float, told: Mapping[str, Any]
    ) -> AbstractContextManager[Sink]:
        config = {
            "bootstrap.servers": told["servers"],
            # Who is killed leaves an open transaction, for which others wait.
            "transaction.timeout.ms": 2000,
        }
        copy, dead_letters = self.address.split()
        return faulty_gate(config, told["topic"], copy, dead_letters, faults, timeout_s)

    def next_offsets(self) -> dict[int, int]:
        partitions = [
            TopicPartition(self._source.topic, number)
            for number in range(self._source.partitions)
        ]
        config = {**self._kafka.config, "group.id": self._source.group}
        consumer = Consumer({**config, "isolation.level": "read_committed"})
        try:
            # What is in an open transaction is waited for.
            found = consumer.committed(partitions, timeout=60)
        finally:
            consumer.close()
        for tp in found:
            assert tp.error is None, tp.error
        return {tp.partition: tp.offset for tp in found if tp.offset >= 0}

    def applied(self) -> list[Applied]:
        found: list[Applied] = []
        for record in self._records(self.address.split()[0]):
            source = source_of(record)
            assert source is not None
            assert source[0] == record.partition()
            found.append((source[0], source[1].next_offset - 1, record.value() or b""))
        return sorted(found)

    def rejected(self) -> list[tuple[int, int]]:
        letters = map(letter_of_message, self._records(self.address.split()[1]))
        return sorted((one.partition, one.offset) for one in letters if one is not None)

    def _records(self, topic: str) -> list[Message]:
        """What is committed, once it shows: that is when its markers are written."""

        def end(level: IsolationLevel) -> list[int]:
            admin: Any = self._kafka.admin
            asked = {
                TopicPartition(topic, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
                for number in range(self._source.partitions)
            }
            answers = admin.list_offsets(asked, isolation_level=level)
            return [answers[tp].result(30).offset for tp in asked]

        def is_stable() -> bool:
            # In this order: what is added meanwhile is not taken for a stable end.
            stable = end(IsolationLevel.READ_COMMITTED)
            return stable == end(IsolationLevel.READ_UNCOMMITTED)

        wait_until(is_stable, 60, "no transaction is open")
        return read_all(self._kafka, topic, isolation_level="read_committed")

    def starts(self) -> list[tuple[int, int, int]]:
        below = self.next_offsets()
        table = self._source.ledger.table
        table.refresh()
        return sorted(
            (number, start.epoch, start.position.offset)
            for number in range(self._source.partitions)
            for start in table.starts(self._source.topic, number)
            if start.position.offset < below.get(number, 0)
        )


#: By name.
STORES: Mapping[str, type[Store]] = {
    store.name: store for store in (SqliteStore, PostgresStore, KafkaStore)
}


@contextmanager
def new_store(
    name: str, folder: Path, postgres: Callable[[], Postgres], kafka: KafkaBroker
) -> Generator[Store, None, None]:
    """A new store, which is there as long as the block lasts.

    Args:
        name: Of what kind.
        folder: Where files go.
        postgres: Gives the server where one is needed.
        kafka: The broker, where topics go.
    """
    if name == KafkaStore.name:
        names = [kafka.create_topic(n, Source.partitions) for n in ("copy", "dead")]
        yield KafkaStore(" ".join(names))
        return
    if name == PostgresStore.name:
        with postgres().database() as conninfo:
            with psycopg.connect(conninfo) as connection:
                connection.execute(APPLIED_IN_POSTGRES)
            yield PostgresStore(conninfo)
        return
    path = folder / f"{secrets.token_hex(4)}.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute(APPLIED)
    yield SqliteStore(str(path))
