"""The life of a leader on an event loop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from typing import Any

import pytest

from epochfence import AsyncTenure, Deposed, MisconfiguredError, async_lead
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.local_election import LocalElection, LocalOffice
from support.local_lead import SCOPE, NewLead
from support.waiting import holds, wait_until

pytestmark = pytest.mark.usefixtures("topic")

#: Longer than anything takes.
LONG_S = 30.0


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
        await holds(lambda: len(office.line) == 2, LONG_S, "it does not stand")
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
        await holds(is_leading.is_set, LONG_S, "it does not lead")
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


def test_the_loop_ends_while_it_is_elected(
    new_lead: NewLead, office: LocalOffice
) -> None:
    """In a task that nobody awaits: what is left at the end is cancelled."""
    is_leading, go_on = threading.Event(), threading.Event()

    def note(state: str, _: str) -> None:
        if state == "leading":
            is_leading.set()
            assert go_on.wait(LONG_S)

    async def service() -> None:
        tasks.append(asyncio.create_task(enter()))
        await holds(is_leading.is_set, LONG_S, "it does not lead")
        threading.Timer(0.2, go_on.set).start()

    async def enter() -> None:
        async with async_lead(new_lead(on_state=note)):
            raise AssertionError("it leads after its end")

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(service())
    assert tasks[0].cancelled()
    assert office.line == []


def test_the_loop_is_closed_while_it_waits(
    new_lead: NewLead, office: LocalOffice
) -> None:
    """Nobody waits any more when it is elected: it resigns by itself."""
    first = LocalElection(office)
    assert first.campaign(0)
    loop = asyncio.new_event_loop()
    task = loop.create_task(async_lead(new_lead()).__aenter__())
    loop.run_until_complete(asyncio.sleep(0))
    wait_until(lambda: len(office.line) == 2, LONG_S, "it does not stand")
    loop.close()
    first.resign()
    wait_until(lambda: office.line == [], LONG_S, "it leads for nobody")
    inside: Any = task
    inside._log_destroy_pending = False  # it was never told of its end


def test_serving_ends_before_the_loop_does(
    new_lead: NewLead, office: LocalOffice, election: LocalElection
) -> None:
    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            leads.set()
            await tenure.wait()

        leads = asyncio.Event()
        tasks.append(asyncio.create_task(async_lead(new_lead()).serve(work)))
        await asyncio.wait_for(leads.wait(), LONG_S)
        slow = election.resign

        def resign() -> None:
            time.sleep(0.3)
            slow()

        election.resign = resign  # type: ignore[method-assign]

    tasks: list[asyncio.Task[None]] = []
    asyncio.run(service())
    assert office.line == []


def test_cancelled_before_work_begins(new_lead: NewLead, office: LocalOffice) -> None:
    is_leading, go_on = threading.Event(), threading.Event()
    begun: list[AsyncTenure] = []

    def note(state: str, _: str) -> None:
        if state == "leading":
            is_leading.set()
            assert go_on.wait(LONG_S)

    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            begun.append(tenure)
            await asyncio.Event().wait()

        task = asyncio.create_task(async_lead(new_lead(on_state=note)).serve(work))
        await holds(is_leading.is_set, LONG_S, "it does not lead")
        task.cancel()
        await asyncio.sleep(0)
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await asyncio.wait_for(asyncio.shield(task), LONG_S)

    asyncio.run(service())
    assert begun == []
    assert office.line == []


def test_a_function_that_has_no_more_to_give(
    new_lead: NewLead, office: LocalOffice
) -> None:
    """No future takes a StopIteration."""

    def note(*_: object) -> None:
        next(iter(()))

    async def service() -> None:
        with pytest.raises(RuntimeError, match="StopIteration"):
            await asyncio.wait_for(
                async_lead(new_lead(on_state=note)).__aenter__(), LONG_S
            )

    asyncio.run(service())
    assert office.line == []


def test_a_signal_ends_all_that_are_served(
    new_lead: NewLead, office: LocalOffice
) -> None:
    """Whichever ends first; and then signals are what they were."""
    ended: list[str] = []

    async def service() -> None:
        async def work(tenure: AsyncTenure) -> None:
            leads.set()
            assert await tenure.wait(LONG_S)
            ended.append("work")

        leads = asyncio.Event()
        other = LocalOffice()
        first = asyncio.create_task(
            async_lead(new_lead(election=LocalElection(other))).serve(work)
        )
        await asyncio.wait_for(leads.wait(), LONG_S)
        leads.clear()
        second = asyncio.create_task(async_lead(new_lead(scope="v")).serve(work))
        await asyncio.wait_for(leads.wait(), LONG_S)
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asyncio.gather(first, second), LONG_S)

    before = signal.getsignal(signal.SIGTERM)
    asyncio.run(service())
    assert ended == ["work", "work"]
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_loop_that_writes_all_the_time(new_lead: NewLead) -> None:
    """It hears that it is over, and others have their turn."""

    async def service() -> None:
        turns = 0

        async def other() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(other())
        leading = async_lead(new_lead())
        async with leading as tenure:
            before = turns
            while not tenure.over.is_set():
                await tenure.producer.produce("orders", b"v")
                if turns > before + 3:
                    leading.stop()
        beside.cancel()

    asyncio.run(asyncio.wait_for(service(), LONG_S))


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
