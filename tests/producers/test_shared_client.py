"""Many producers over one client: what they share, and what they do not."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from epochfence import (
    Deposed,
    FencedProducer,
    LedgerClosed,
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.producers.confirmation import Confirmation
from epochfence.producers.shared_client import SharedClient
from epochfence.testing import MemoryLedger, MemoryLog

SCOPES = ["s/0", "s/1", "s/2"]


@pytest.fixture
def client(memory_ledger: MemoryLedger) -> Iterator[SharedClient]:
    opened = SharedClient({}, memory_ledger)
    yield opened
    opened.close()
    opened.close()


@pytest.fixture
def producers(
    memory_ledger: MemoryLedger, client: SharedClient, topic: str
) -> list[FencedProducer]:
    claimed = memory_ledger.claim_all(SCOPES, holder="a")
    return [
        FencedProducer(client, memory_ledger, claimed.won[scope]) for scope in SCOPES
    ]


def test_each_has_a_leadership_and_receipts_of_its_own(
    memory_ledger: MemoryLedger, producers: list[FencedProducer], topic: str
) -> None:
    everything = {one: [topic] for one in producers}
    assert FencedProducer.take_over_all(everything, timeout_s=5) == {}
    for one in producers:
        assert one.is_shared
        one.produce(topic, b"v", partition=0)
    memory_ledger.depose(producers[1].leaderships[0])
    deposed = producers[1].deposed
    assert deposed is not None
    assert (deposed.scope, deposed.seen_epoch) == ("s/1", 2)
    assert producers[0].deposed is producers[2].deposed is None
    with pytest.raises(Deposed):
        producers[1].produce(topic, b"late", partition=0)
    producers[0].produce(topic, b"v", partition=0)
    assert len(producers[0].confirm()) == 2
    receipts = FencedProducer.confirm_all(producers, memory_ledger, 5)
    assert receipts.counts["admitted"] == len(receipts) == 2
    assert [(one.partition, one.offset) for one in receipts] == [(0, 4), (0, 5)]
    assert len(FencedProducer.confirm_all(producers, memory_ledger, 5)) == 0


def test_what_is_wrong_with_one_is_no_matter_of_the_others(
    memory_ledger: MemoryLedger, producers: list[FencedProducer], topic: str
) -> None:
    memory_ledger.depose(producers[1].leaderships[0])
    failed = FencedProducer.take_over_all(
        {
            producers[0]: [TopicPartition(topic, 0)],
            producers[1]: [TopicPartition(topic, 1)],
            producers[2]: [TopicPartition(topic, 7)],
        },
        timeout_s=5,
    )
    assert {one: type(error) for one, error in failed.items()} == {
        producers[1]: Deposed,
        producers[2]: MisconfiguredError,
    }
    producers[0].produce(topic, b"v", partition=0)
    assert FencedProducer.confirm_all(producers[:1], memory_ledger, 5).are_all_admitted


def test_an_error_forgets_nothing(
    memory_ledger: MemoryLedger, producers: list[FencedProducer], topic: str
) -> None:
    FencedProducer.take_over_all({one: [topic] for one in producers}, timeout_s=5)
    for one in producers:
        one.produce(topic, b"v", partition=0)
    error = LedgerUnavailable(memory_ledger.coordination_topic, "no broker answers")
    memory_ledger.fail(error)
    with pytest.raises(LedgerUnavailable):
        FencedProducer.confirm_all(producers, memory_ledger, 5)
    assert len(producers[0].confirm()) == 1
    assert len(FencedProducer.confirm_all(producers, memory_ledger, 5)) == 2


def test_two_threads_confirm_the_same(
    memory_ledger: MemoryLedger,
    producers: list[FencedProducer],
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the order they name the producers in, none waits for the other."""
    first, second, _ = producers
    # Both are at their first lock, before one asks for its second.
    alone, both = Confirmation.alone, threading.Barrier(2)

    @contextmanager
    def slow(confirmation: Confirmation, deadline: float) -> Generator[None]:
        with alone(confirmation, deadline):
            with suppress(threading.BrokenBarrierError):
                both.wait(1)
            yield

    monkeypatch.setattr(Confirmation, "alone", slow)
    told: list[object] = []

    def confirm(those: list[FencedProducer]) -> None:
        try:
            told.append(FencedProducer.confirm_all(those, memory_ledger, 5).counts)
        except TopicUnavailable as error:
            told.append(error)

    threads = [
        threading.Thread(target=confirm, args=(those,))
        for those in ([first, second], [second, first])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one for one in told if isinstance(one, Exception)] == []


def test_letting_go(
    memory_log: MemoryLog, producers: list[FencedProducer], topic: str
) -> None:
    first = producers[0]
    first.take_over([topic])
    first.produce(topic, b"v", partition=0)
    first.let_go()
    with pytest.raises(MisconfiguredError, match="not taken over"):
        first.produce(topic, b"v", partition=0)
    assert first.confirm().counts["admitted"] == 1
    again = FencedProducer.take_over_all(
        {first: [topic]}, keeps_barriers=True, timeout_s=5
    )
    assert again == {}
    first.produce(topic, b"v", partition=0)
    assert len(memory_log.records(topic, 0)) == 3
    first.take_over([topic])
    assert len(memory_log.records(topic, 0)) == 4


def test_one_that_is_closed_leaves_the_others_alone(
    memory_ledger: MemoryLedger,
    client: SharedClient,
    producers: list[FencedProducer],
    topic: str,
) -> None:
    leadership = producers[0].leaderships[0]
    twin = FencedProducer(client, memory_ledger, leadership)
    for one in (*producers, twin):
        one.take_over([topic])
    producers[0].close()
    producers[0].close()
    twin.produce(topic, b"v", partition=0)
    producers[1].produce(topic, b"v", partition=0)
    memory_ledger.depose(leadership)
    assert twin.deposed is not None
    assert producers[0].deposed is None
    memory_ledger.close()
    with pytest.raises(LedgerClosed):
        producers[1].produce(topic, b"v", partition=0)


def test_one_with_a_client_of_its_own_is_not_taken_over_for(
    memory_log: MemoryLog, producers: list[FencedProducer], topic: str
) -> None:
    ledger = MemoryLedger(memory_log)
    own = FencedProducer({}, ledger, ledger.claim("own", holder="a"))
    with pytest.raises(MisconfiguredError, match="a client of its own"):
        FencedProducer.take_over_all({producers[0]: [topic], own: [topic]}, timeout_s=5)
    assert memory_log.records(topic) == []


def test_a_client_of_another_ledger(
    memory_ledger: MemoryLedger, client: SharedClient
) -> None:
    leadership = memory_ledger.claim("s", holder="a")
    with (
        MemoryLedger(memory_ledger.log) as other,
        pytest.raises(MisconfiguredError, match="goes by another"),
    ):
        FencedProducer(client, other, leadership)
    options: list[dict[str, Any]] = [{"barrier_key": bytes}, {"barrier_value": b"v"}]
    for option in options:
        with pytest.raises(MisconfiguredError, match="Give it to the SharedClient"):
            FencedProducer(client, memory_ledger, leadership, **option)
    with pytest.raises(MisconfiguredError, match="no Ledger"):
        SharedClient({}, 7)  # type: ignore[arg-type]
    with pytest.raises(MisconfiguredError, match="timeout_s"):
        SharedClient({}, memory_ledger, timeout_s=-1)
