"""Transactions under leaderships: zombies, and what became of their messages."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka import Producer, TopicPartition

from epochfence import (
    Deposed,
    FencedProducer,
    FencedTransactionalProducer,
    Leadership,
    Ledger,
    Receipts,
)
from epochfence.epochs.transactions import TransactionalClient
from support.brokers import KafkaBroker
from support.producing import doing
from support.reading import read_all
from support.waiting import wait_until

SCOPE = "w"


def open_producer(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership, **settings: Any
) -> FencedTransactionalProducer:
    """A producer whose client says nothing on stderr."""
    config = {**kafka.config, "log_level": 0, **settings}
    return FencedTransactionalProducer(config, ledger, leadership, timeout_s=30)


def open_zombie(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> FencedTransactionalProducer:
    """One that is not told of grants, and so goes on when it is deposed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FencedProducer, "_on_grant", doing(None))
        return open_producer(kafka, ledger, leadership)


def committed_values(kafka: KafkaBroker, topic: str) -> list[bytes | None]:
    """What a plain consumer has, with isolation.level=read_committed."""
    found = read_all(kafka, topic, isolation_level="read_committed")
    return [message.value() for message in found if message.value() is not None]


def outcomes(receipts: Receipts) -> list[str]:
    """The outcomes, in order of partition and offset."""
    ordered = sorted(receipts, key=lambda one: (one.partition, one.offset or 0))
    return [receipt.outcome for receipt in ordered]


def take_id(kafka: KafkaBroker, transactional_id: str) -> Producer:
    """Initialise under an id, as anybody could."""
    config = {**kafka.config, "transactional.id": transactional_id, "log_level": 0}
    rogue = Producer(config)
    rogue.init_transactions(30)
    return rogue


class Sleeper:
    """A leader that falls asleep just before it takes its transactional id.

    Args:
        producer: The leader; it is the latest one now.
        topic: What it is about to take over.
        patch: Undoes what is done to it.
    """

    def __init__(
        self,
        producer: FencedTransactionalProducer,
        topic: str,
        patch: pytest.MonkeyPatch,
    ) -> None:
        self.producer = producer
        self.error: BaseException | None = None
        self._topic = topic
        asleep, self._wake = threading.Event(), threading.Event()
        ready = TransactionalClient.ready
        thread = self._thread = threading.Thread(target=self._take_over)

        def sleep_first(client: TransactionalClient, deadline: float) -> Producer:
            if threading.current_thread() is thread:
                asleep.set()
                assert self._wake.wait(120)
            return ready(client, deadline)

        patch.setattr(TransactionalClient, "ready", sleep_first)
        thread.start()
        wait_until(asleep.is_set, 30, "it is about to take its id")

    def _take_over(self) -> None:
        try:
            self.producer.take_over([self._topic], timeout_s=120)
        except BaseException as error:
            self.error = error

    def wake(self) -> None:
        """Let it go on, and hear that it is deposed."""
        self._wake.set()
        self._thread.join(120)
        assert isinstance(self.error, Deposed), self.error


@contextmanager
def after_commit(
    patch: pytest.MonkeyPatch, then: Callable[[float], None]
) -> Generator[None, None, None]:
    """Have something happen when a transaction is committed, before that is told."""
    commit = TransactionalClient.commit

    def commit_first(client: TransactionalClient, deadline: float) -> None:
        commit(client, deadline)
        client.is_open = True
        then(deadline)

    with patch.context() as patched:
        patched.setattr(TransactionalClient, "commit", commit_first)
        yield


def at(topic: str, offset: int) -> TopicPartition:
    """Where partition 0 is read on."""
    return TopicPartition(topic, 0, offset)
