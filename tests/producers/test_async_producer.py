"""The producer of an event loop, without a broker."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaException

from epochfence import (
    AsyncFencedProducer,
    Deposed,
    LedgerClosed,
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.producing import doing
from support.waiting import holds

LONG_S = 30.0


async def taken_over(
    producer: MemoryProducer, topic: str, **options: Any
) -> AsyncFencedProducer:
    """The producer of this loop, which may write to a topic."""
    opened = AsyncFencedProducer(producer, **options)
    await opened.take_over([topic])
    return opened


def test_delivered_and_confirmed(producer: MemoryProducer, topic: str) -> None:
    async def write() -> None:
        async with AsyncFencedProducer(producer) as opened:
            assert opened.leaderships == producer.leaderships
            with pytest.raises(MisconfiguredError, match="take_over"):
                await opened.produce(topic, b"v")
            assert set(await opened.take_over([topic])) == {
                (topic, n) for n in range(3)
            }
            message = await (await opened.produce(topic, b"v", b"k", 1))
            assert (message.partition(), message.offset()) == (1, 1)
            await opened.produce(
                topic, b"w", partition=1, headers={"h": b"1"}, cursor="7"
            )
            assert await opened.flush() == len(opened) == 0
            assert opened
            receipts = await opened.confirm()
            assert [receipt.offset for receipt in receipts] == [1, 2]
            assert receipts.are_all_admitted
            assert len(await opened.confirm()) == 0

    asyncio.run(write())


def test_receipts_of_single_messages(producer: MemoryProducer, topic: str) -> None:
    """Nobody has to confirm; and what was told so is not missing from the bulk."""

    async def write() -> None:
        opened = await taken_over(producer, topic, confirm_every_s=0.01)
        async with opened:
            for offset in (1, 2):
                waiting = [
                    await opened.produce_for_receipt(topic, b"v", partition=number)
                    for number in (0, 1)
                ]
                found = await asyncio.gather(*waiting)
                assert [r[:4] for r in found] == [
                    (topic, 0, offset, "admitted"),
                    (topic, 1, offset, "admitted"),
                ]
            await opened.produce(topic, b"v", partition=0)
            assert [r[1:3] for r in await opened.confirm()] == [
                (0, 1), (0, 2), (0, 3), (1, 1), (1, 2)
            ]  # fmt: skip

    asyncio.run(write())


def test_many_answers_that_nobody_asked_for(
    producer: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochfence.producers.async_producer._KEPT", 2)

    async def write() -> None:
        opened = await taken_over(producer, topic, confirm_every_s=0.001)
        async with opened:
            for _ in range(8):
                await (await opened.produce_for_receipt(topic, b"v", partition=0))
            assert [r.offset for r in await opened.confirm()] == list(range(1, 9))

    asyncio.run(write())


def test_what_was_fenced(
    memory_ledger: MemoryLedger, producer: MemoryProducer, topic: str
) -> None:
    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            producer.hold()
            late = await opened.produce_for_receipt(topic, b"v", partition=0)
            successor = memory_ledger.claim("s", holder="b")
            with MemoryProducer(memory_ledger, successor) as other:
                other.take_over([topic])
            producer.release()
            assert (await late).outcome == "fenced"
            with pytest.raises(Deposed):
                await opened.produce(topic, b"v")
            with pytest.raises(Deposed):
                await opened.take_over([topic])

    asyncio.run(write())


def test_what_was_not_delivered(producer: MemoryProducer, topic: str) -> None:
    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            producer.fail_deliveries(2)
            failed = await opened.produce(topic, b"v")
            told = await (await opened.produce_for_receipt(topic, b"v"))
            assert (told.outcome, told.error) == ("undelivered", "_MSG_TIMED_OUT")
            with pytest.raises(KafkaException, match="_MSG_TIMED_OUT"):
                await failed

    asyncio.run(write())


def test_cancelled_futures(producer: MemoryProducer, topic: str) -> None:
    """The messages go their way."""

    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            producer.hold()
            for produce in (opened.produce, opened.produce_for_receipt):
                waiting: asyncio.Future[Any] = await produce(topic, b"v", partition=0)
                waiting.cancel()
            producer.release()
            receipts = await opened.confirm()
            while len(receipts) < 2:
                receipts = await opened.confirm()
            assert receipts.are_all_admitted

    asyncio.run(write())


def test_a_confirm_that_is_cancelled(
    producer: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have told, the next one tells."""
    is_confirming, go_on, is_done = (threading.Event() for _ in range(3))
    confirm = MemoryProducer.confirm

    def slow(self: MemoryProducer, timeout_s: float) -> Any:
        is_confirming.set()
        assert go_on.wait(LONG_S)
        try:
            return confirm(self, timeout_s)
        finally:
            is_done.set()

    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            await opened.produce(topic, b"v", partition=0)
            monkeypatch.setattr(MemoryProducer, "confirm", slow)
            task = asyncio.create_task(opened.confirm())
            await holds(is_confirming.is_set, LONG_S, "it does not confirm")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()
            await holds(is_done.is_set, LONG_S, "it does not end")
            assert [r.offset for r in await opened.confirm()] == [1]

    asyncio.run(write())


class FullQueue:
    """A client's queue that takes so many messages, and then is full."""

    def __init__(
        self, producer: MemoryProducer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.room = 0
        self._produce = producer.produce
        monkeypatch.setattr(producer, "produce", self.produce)

    def produce(self, *arguments: Any, **options: Any) -> None:
        if not self.room:
            raise BufferError("full")
        self.room -= 1
        self._produce(*arguments, **options)


def test_a_full_queue(
    producer: MemoryProducer,
    topic: str,
    memory_log: MemoryLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever waits is served in turn; whoever is cancelled hands nothing over."""

    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            queue = FullQueue(producer, monkeypatch)

            async def produce(value: bytes) -> None:
                await (await opened.produce(topic, value, partition=0))

            tasks = [
                asyncio.create_task(produce(b"%d" % number)) for number in range(5)
            ]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            tasks[1].cancel()
            queue.room = 2
            await holds(lambda: tasks[2].done(), LONG_S, "the third has no room")
            assert [task.done() for task in tasks] == [True, True, True, False, False]
            queue.room = 9
            late = asyncio.create_task(produce(b"late"))
            await asyncio.wait_for(asyncio.gather(*tasks[2:], late), LONG_S)
            # There is room again: nobody has to wait.
            await produce(b"last")

    asyncio.run(write())
    found = [record.value() for record in memory_log.records(topic, 0)]
    assert found == [None, b"0", b"2", b"3", b"4", b"late", b"last"]


def test_closed_while_somebody_waits(
    producer: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        opened = await taken_over(producer, topic)
        FullQueue(producer, monkeypatch)
        tasks = [asyncio.create_task(opened.produce(topic, b"v")) for _ in range(2)]
        await asyncio.sleep(0)
        await opened.close()
        for task in tasks:
            with pytest.raises(RuntimeError, match="was closed"):
                await asyncio.wait_for(task, LONG_S)
        await opened.close()  # may be repeated

    asyncio.run(write())


def test_what_nobody_knows_at_the_end(
    producer: MemoryProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody waits for ever."""

    async def write() -> None:
        opened = await taken_over(producer, topic, timeout_s=0.2)
        producer.hold()
        delivered = await opened.produce(topic, b"v")
        confirmed = await opened.produce_for_receipt(topic, b"v")
        await opened.close()
        for waiting in (delivered, confirmed):
            with pytest.raises(TopicUnavailable, match="closed before it was known"):
                await waiting

    asyncio.run(write())
    assert "not everything is confirmed" in caplog.text


def test_the_ledger_is_away(
    producer: MemoryProducer, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def write() -> None:
        opened = await taken_over(producer, topic, confirm_every_s=0.01)
        async with opened:
            with monkeypatch.context() as patched:
                down = doing(LedgerUnavailable("c", "down"))
                patched.setattr(MemoryLedger, "refresh", down)
                confirmed = await opened.produce_for_receipt(topic, b"v")
                with pytest.raises(LedgerUnavailable):
                    await opened.confirm()
                assert not confirmed.done()
            assert (await asyncio.wait_for(confirmed, LONG_S)).outcome == "admitted"

    asyncio.run(write())


def test_the_ledger_is_closed(
    memory_ledger: MemoryLedger, producer: MemoryProducer, topic: str
) -> None:
    """Nothing will be confirmed any more: nobody waits for it."""

    async def write() -> None:
        opened = await taken_over(producer, topic, confirm_every_s=0.01)
        async with opened:
            producer.hold()
            confirmed = await opened.produce_for_receipt(topic, b"v")
            memory_ledger.close()
            producer.release()
            with pytest.raises(LedgerClosed):
                await asyncio.wait_for(confirmed, LONG_S)

    asyncio.run(write())


def test_failures_that_nobody_asks_about(
    producer: MemoryProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A future need not be awaited: `confirm` tells of the message."""

    async def write() -> None:
        opened = await taken_over(producer, topic)
        async with opened:
            producer.fail_deliveries(500)
            for _ in range(500):
                await opened.produce(topic, b"v")
            (failed,) = (await opened.confirm()).undelivered
            assert failed.messages == 500
        gc.collect()

    asyncio.run(write())
    assert "never retrieved" not in caplog.text


def test_others_have_their_turn(producer: MemoryProducer, topic: str) -> None:
    """While many messages are told of; and nothing is overtaken."""

    async def write() -> None:
        opened = await taken_over(producer, topic)
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        async with opened:
            beside = asyncio.create_task(other())
            futures = [
                await opened.produce(topic, b"%d" % number, partition=0)
                for number in range(1000)
            ]
            assert turns >= 4
            await asyncio.gather(*futures)
            beside.cancel()
            offsets = [future.result().offset() for future in futures]
            assert offsets == list(range(1, 1001))

    asyncio.run(write())


def test_wrong_arguments(producer: MemoryProducer, memory_ledger: MemoryLedger) -> None:
    async def make(wrong: Any, **options: Any) -> None:
        AsyncFencedProducer(wrong, **options)

    with pytest.raises(MisconfiguredError, match="no FencedProducer"):
        asyncio.run(make(memory_ledger))
    with pytest.raises(MisconfiguredError, match="confirm_every_s"):
        asyncio.run(make(producer, confirm_every_s=0))
    with pytest.raises(MisconfiguredError, match="confirm_every_messages"):
        asyncio.run(make(producer, confirm_every_messages=0))
    with pytest.raises(RuntimeError, match="event loop"):
        AsyncFencedProducer(producer)
