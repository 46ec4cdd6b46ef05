"""The producer of an event loop, on real Kafka: a full queue, a zombie, cancelling."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator

import pytest

from epochfence import AsyncFencedProducer, Deposed, FencedProducer, Ledger
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.producing import doing, records

MESSAGES = 3000


@pytest.fixture
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as opened:
        yield opened


def test_many_messages_through_a_short_queue(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    """Nothing overtakes what waits for room; what is cancelled there is not sent."""
    topic = kafka.create_topic("t", partitions=2)
    leadership = ledger.claim("s", holder="a")
    config = {**kafka.config, "queue.buffering.max.messages": 20, "linger.ms": 5}
    chance = random.Random(1)
    cancelled: set[bytes] = set()

    async def write() -> None:
        async with AsyncFencedProducer(
            FencedProducer(config, ledger, leadership)
        ) as producer:
            await producer.take_over([topic])

            async def send(value: bytes) -> None:
                try:
                    delivered = await producer.produce(
                        topic, value, partition=int(value) % 2
                    )
                except asyncio.CancelledError:
                    cancelled.add(value)
                    raise
                await delivered

            tasks = [asyncio.create_task(send(b"%d" % n)) for n in range(MESSAGES)]
            await asyncio.sleep(0)
            for task in chance.sample(tasks[1000:], 100):
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            receipts = await producer.confirm()
            assert receipts.are_all_admitted
            assert len(receipts) == MESSAGES - len(cancelled)

    asyncio.run(write())
    assert cancelled
    found = [record for record in records(kafka, topic) if record.value is not None]
    for number in range(2):
        expected = [b"%d" % n for n in range(number, MESSAGES, 2)]
        expected = [value for value in expected if value not in cancelled]
        assert [r.value for r in found if r.partition == number] == expected


def test_a_zombie_is_told(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It is not told of grants, and so goes on writing.
    monkeypatch.setattr(FencedProducer, "_on_grant", doing(None))
    topic = kafka.create_topic("t")
    leadership = ledger.claim("s", holder="a")

    async def write() -> None:
        async with AsyncFencedProducer(
            FencedProducer(kafka.config, ledger, leadership)
        ) as producer:
            await producer.take_over([topic])
            early = [await producer.produce_for_receipt(topic, b"v") for _ in range(5)]
            for told in await asyncio.gather(*early):
                assert told.outcome == "admitted"
            successor = ledger.claim("s", holder="b")
            with FencedProducer(kafka.config, ledger, successor) as other:
                other.take_over([topic])
            late = [await producer.produce_for_receipt(topic, b"v") for _ in range(5)]
            for told in await asyncio.gather(*late):
                assert told.outcome == "fenced"
            with pytest.raises(Deposed):
                await producer.produce(topic, b"v")

    asyncio.run(write())
