"""Leading with a producer that writes in transactions, on a real broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer

from epochfence import (
    AsyncTenure,
    Deposed,
    FencedProducer,
    FencedTransactionalProducer,
    Leadership,
    Ledger,
    MisconfiguredError,
    Tenure,
    async_lead,
    lead,
)
from epochfence.epochs.transactions import TransactionalClient
from epochfence.producers.barriers import BarrierWriter
from support.brokers import KafkaBroker
from support.fenced_topic import fenced
from support.ledgers import unnamed_topics
from support.local_election import LocalElection, LocalOffice
from support.local_lead import NewLead
from support.producing import doing
from support.stream import read_until
from support.transactions import SCOPE, committed_values, open_producer


@pytest.fixture(scope="module")
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as opened:
        yield opened


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("t")


def leading(
    kafka: KafkaBroker, ledger: Ledger, topic: str, office: LocalOffice
) -> lead[FencedTransactionalProducer]:
    config = {**kafka.config, "log_level": 0}
    election = LocalElection(office)
    return lead(
        config, ledger, election, SCOPE, [topic], holder="a",
        producer=FencedTransactionalProducer, timeout_s=30,
    )  # fmt: skip


def test_a_successor_aborts_what_a_zombie_left_open(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    offices = [LocalOffice(), LocalOffice()]  # an election with two winners
    with monkeypatch.context() as patch:
        patch.setattr(FencedProducer, "_on_grant", doing(None))
        zombie = leading(kafka, ledger, topic, offices[0])
        old = zombie.__enter__()
    try:
        with old.producer.transaction():
            old.producer.produce(topic, b"first", partition=0)
        old.producer.begin_transaction()
        old.producer.produce(topic, b"zombie", partition=0)
        assert old.producer.flush(30) == 0
        with leading(kafka, ledger, topic, offices[1]) as tenure:
            with tenure.producer.transaction():
                tenure.producer.produce(topic, b"second", partition=0)
            assert tenure.producer.confirm(30).are_all_admitted
        with pytest.raises(Deposed):
            old.producer.commit_transaction()
        assert old.deposed is not None
        counts = old.producer.confirm(30).counts
        assert (counts["admitted"], counts["aborted"]) == (1, 1)
    finally:
        zombie.__exit__(None, None, None)
    assert committed_values(kafka, topic) == [b"first", b"second"]
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        seen = read_until(consumer, lambda got: len(got) == 2)
    assert [message.value() for message in seen] == [b"first", b"second"]


def test_the_order_of_a_takeover(
    kafka: KafkaBroker, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []

    def note(owner: type, name: str) -> None:
        call = getattr(owner, name)

        def told(*arguments: Any, **more: Any) -> Any:
            done = call(*arguments, **more)
            steps.append(name)
            return done

        monkeypatch.setattr(owner, name, told)

    note(Ledger, "claim")
    note(TransactionalClient, "ready")
    note(Ledger, "refresh")
    note(BarrierWriter, "write_all")
    with leading(kafka, ledger, topic, LocalOffice()):
        pass
    assert steps == ["claim", "refresh", "ready", "refresh", "write_all", "refresh"]


def test_a_service_that_was_deposed_leads_and_writes_again(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    led: list[int] = []
    service = leading(kafka, ledger, topic, LocalOffice())

    def work(tenure: Tenure[FencedTransactionalProducer]) -> None:
        with tenure.producer.transaction():
            tenure.producer.produce(topic, b"%d" % len(led), partition=0)
        led.append(tenure.leadership.epoch)
        if len(led) == 1:
            ledger.claim(SCOPE, holder="b")
            assert tenure.wait(30)

    service.serve(work)
    assert led[1] == led[0] + 2
    assert committed_values(kafka, topic) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"producer": "transactional"}, "producer = 'transactional'"),
        ({"producer": FencedTransactionalProducer}, "Give only one"),
    ],
)
def test_what_makes_no_producer(
    new_lead: NewLead, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        new_lead(**options)
    assert told in str(wrong.value)


def test_a_client_that_cannot_be_replaced_is_refused_before_a_claim(
    ledger: Ledger,
) -> None:
    with pytest.raises(MisconfiguredError, match="replaced by another"):
        lead(
            Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}),
            ledger, LocalElection(LocalOffice()), SCOPE, [], holder="a",
            producer=FencedTransactionalProducer,
        )  # fmt: skip


def test_an_event_loop_has_no_calls_for_transactions(ledger: Ledger) -> None:
    serving = lead(
        {}, ledger, LocalElection(LocalOffice()), SCOPE, [], holder="a",
        producer=FencedTransactionalProducer,
    )  # fmt: skip
    with pytest.raises(MisconfiguredError, match="in transactions"):
        async_lead(serving)


@pytest.mark.parametrize("is_served", [True, False])
def test_nor_where_its_producer_is_made_by_the_application(
    kafka: KafkaBroker, ledger: Ledger, topic: str, is_served: bool
) -> None:
    election = LocalElection(LocalOffice())

    def make(leadership: Leadership) -> FencedTransactionalProducer:
        return open_producer(kafka, ledger, leadership)

    async def work(_: AsyncTenure) -> None:
        pytest.fail("it has no calls for transactions")

    async def service() -> None:
        leading = async_lead(
            lead({}, ledger, election, SCOPE, [topic], holder="a", new_producer=make)
        )
        if is_served:
            await leading.serve(work)
        async with leading as tenure:
            await work(tenure)

    with pytest.raises(MisconfiguredError, match="in transactions"):
        asyncio.run(service())
    assert not election.is_elected
    assert election.resignations
