"""The life of a leader on an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

from epochfence import AsyncTenure, Deposed, MisconfiguredError, async_lead
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.local_election import LocalElection, LocalOffice
from support.local_lead import SCOPE, NewLead

pytestmark = pytest.mark.usefixtures("topic")

#: Longer than anything takes.
LONG_S = 30.0


async def holds(condition: Callable[[], object], message: str) -> None:
    """Wait until a condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LONG_S
    while not condition():
        assert loop.time() < deadline, message
        await asyncio.sleep(0.01)


def values(memory_log: MemoryLog) -> list[bytes]:
    """What was written, but for barriers."""
    found = [message.value() for message in memory_log.records("orders")]
    return [value for value in found if value is not None]


def test_elected_writes_and_resigns(
    new_lead: NewLead, election: LocalElection, memory_ledger: MemoryLedger
) -> None:
    async def service() -> None:
        async with async_lead(new_lead()) as tenure:
            assert memory_ledger.state.epoch_of(SCOPE) == tenure.leadership.epoch == 1
            assert set(tenure.barriers) == {("orders", 0), ("orders", 1)}
            await tenure.verify()
            assert not await tenure.wait(0.01)
            message = await (await tenure.producer.produce("orders", b"v", partition=1))
            assert (message.partition(), message.offset()) == (1, 1)
        assert tenure.over.is_set()
        with pytest.raises(RuntimeError, match="was closed"):
            await tenure.producer.produce("orders", b"late")

    asyncio.run(service())
    assert election.lost.is_set()


def test_the_loop_goes_on_while_it_waits(
    new_lead: NewLead, office: LocalOffice
) -> None:
    first = LocalElection(office)
    assert first.campaign(0)

    async def service() -> None:
        ticks = 0
        leading = async_lead(new_lead())

        async def enter() -> None:
            async with leading as tenure:
                assert tenure.leadership.epoch == 1

        task = asyncio.create_task(enter())
        while ticks < 20:
            await asyncio.sleep(0.01)
            ticks += 1
            assert not task.done()
        assert leading.state == "waiting"
        first.resign()
        await asyncio.wait_for(task, LONG_S)

    asyncio.run(service())


def test_cancelled_while_it_waits(
    new_lead: NewLead, office: LocalOffice, election: LocalElection
) -> None:
    first = LocalElection(office)
    assert first.campaign(0)

    async def service() -> None:
        leading = async_lead(new_lead())
        task = asyncio.create_task(leading.__aenter__())
        await holds(lambda: len(office.line) == 2, "it does not stand")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert leading.state == "ended"

    asyncio.run(service())
    assert office.line == [first]


def test_cancelled_as_it_is_elected(
    new_lead: NewLead, office: LocalOffice, election: LocalElection
) -> None:
    """Nobody is left in office that nobody knows of."""

    async def service() -> None:
        leading = async_lead(new_lead(on_state=note))
        task = asyncio.create_task(leading.__aenter__())
        await holds(is_leading.is_set, "it does not lead")
        task.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    is_leading, go_on = threading.Event(), threading.Event()

    def note(state: str, _: str) -> None:
        if state == "leading":
            is_leading.set()
            assert go_on.wait(LONG_S)

    asyncio.run(service())
    assert office.line == []
    assert election.lost.is_set()


def test_cancelled_while_it_leads(
    new_lead: NewLead, office: LocalOffice, memory_log: MemoryLog
) -> None:
    async def service() -> None:
        async def work() -> None:
            async with async_lead(new_lead()) as tenure:
                await tenure.producer.produce("orders", b"v")
                leads.set()
                await asyncio.Event().wait()

        leads = asyncio.Event()
        task = asyncio.create_task(work())
        await asyncio.wait_for(leads.wait(), LONG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(service())
    assert office.line == []
    assert values(memory_log) == [b"v"]


def test_serves_until_it_is_told_to_stop(
    new_lead: NewLead, office: LocalOffice, memory_ledger: MemoryLedger
) -> None:
    """Deposed, it stands for election again."""
    epochs: list[int] = []

    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            epochs.append(tenure.leadership.epoch)
            await tenure.producer.produce("orders", b"%d" % epochs[-1])
            if len(epochs) == 3:
                leading.stop()
            elif len(epochs) == 2:
                raise Deposed(SCOPE, epochs[-1], epochs[-1] + 1, "b")
            else:
                memory_ledger.claim(SCOPE, holder="b")
            assert await tenure.wait(LONG_S)

        leading = async_lead(new_lead())
        await asyncio.wait_for(leading.serve(work), LONG_S)

    asyncio.run(service())
    assert epochs == [1, 3, 4]
    assert office.line == []


def test_work_that_is_done_or_fails(new_lead: NewLead, office: LocalOffice) -> None:
    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            pass

        async def fail(tenure: AsyncTenure) -> None:
            raise ValueError("mine")

        await async_lead(new_lead()).serve(work)
        with pytest.raises(ValueError, match="mine"):
            await async_lead(new_lead()).serve(fail)

    asyncio.run(service())
    assert office.line == []


def test_serving_is_cancelled(new_lead: NewLead, office: LocalOffice) -> None:
    ended: list[str] = []

    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            leads.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.append("work")

        leads = asyncio.Event()
        task = asyncio.create_task(async_lead(new_lead()).serve(work))
        await asyncio.wait_for(leads.wait(), LONG_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(service())
    assert ended == ["work"]
    assert office.line == []


def test_a_signal_ends_it(new_lead: NewLead, office: LocalOffice) -> None:
    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            os.kill(os.getpid(), signal.SIGTERM)
            assert await tenure.wait(LONG_S)
            assert tenure.is_told_to_stop

        await async_lead(new_lead()).serve(work)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(service())
    assert signal.getsignal(signal.SIGTERM) is before
    assert office.line == []


def test_a_deposed_leader_does_not_wait_for_what_nobody_admits(
    new_lead: NewLead, memory_ledger: MemoryLedger, memory_log: MemoryLog
) -> None:
    made: list[MemoryProducer] = []

    def make(leadership: Any) -> MemoryProducer:
        made.append(MemoryProducer(memory_ledger, leadership))
        return made[-1]

    async def service() -> None:
        async with async_lead(new_lead(new_producer=make)) as tenure:
            made[-1].hold()
            delivered = await tenure.producer.produce("orders", b"v")
            memory_ledger.claim(SCOPE, holder="b")
            assert await tenure.wait(LONG_S)
            assert tenure.deposed is not None
            assert "epoch 2" in tenure.reason
        assert "PURGE" in str(delivered.exception())

    asyncio.run(service())
    assert values(memory_log) == []


def test_what_is_no_lead(memory_ledger: MemoryLedger) -> None:
    wrong: Any = memory_ledger
    with pytest.raises(MisconfiguredError, match="no `lead`"):
        async_lead(wrong)


def test_an_error_on_the_way(new_lead: NewLead, office: LocalOffice) -> None:
    def fail(*_: object) -> None:
        raise ValueError("mine")

    async def service() -> None:
        leading = async_lead(new_lead(on_state=fail))
        with pytest.raises(ValueError, match="mine"):
            async with leading:
                raise AssertionError("it leads without its state")

    asyncio.run(service())
    assert office.line == []
