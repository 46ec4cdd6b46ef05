"""Leading, for asyncio: the same object, in a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext, suppress
from types import TracebackType

from epochfence.epochs.errors import Deposed, MisconfiguredError
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.values import Place
from epochfence.leading.lead import lead, stopped_by_signals
from epochfence.leading.recovery import Recovered
from epochfence.leading.tenure import State, Tenure
from epochfence.producers.async_producer import AsyncFencedProducer
from epochfence.producers.fenced_transactional_producer import (
    FencedTransactionalProducer,
)
from epochfence.producers.in_thread import in_thread, start_in_thread, to_the_end


class AsyncTenure:
    """A `Tenure`, for the event loop that it was made on.

    Attributes:
        over: Set once this process should stop, as `Tenure.over`.
        producer: Writes under the leadership.
    """

    def __init__(self, tenure: Tenure) -> None:
        if isinstance(tenure.producer, FencedTransactionalProducer):
            raise _has_no_transactions(tenure.producer)  # made by `new_producer`
        self._tenure = tenure
        self.over = asyncio.Event()
        self.producer = AsyncFencedProducer(tenure.producer)
        self._loop = asyncio.get_running_loop()
        threading.Thread(
            target=self._watch, name="epochfence-tenure-over", daemon=True
        ).start()

    def _watch(self) -> None:
        self._tenure.over.wait()
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            self._loop.call_soon_threadsafe(self.over.set)

    @property
    def leadership(self) -> Leadership:
        """What was granted."""
        return self._tenure.leadership

    @property
    def reason(self) -> str:
        """Why it is over, empty before."""
        return self._tenure.reason

    @property
    def deposed(self) -> Deposed | None:
        """The later leadership, if that is why."""
        return self._tenure.deposed

    @property
    def barriers(self) -> Mapping[Place, int]:
        """The offset of the own barrier on each partition."""
        return self._tenure.barriers

    @property
    def recovered(self) -> Recovered | None:
        """What was read up to the barriers, None where nothing was asked for."""
        return self._tenure.recovered

    @property
    def is_told_to_stop(self) -> bool:
        """Whether this process is to lead no more."""
        return self._tenure.is_told_to_stop

    async def verify(self, timeout_s: float | None = None) -> None:
        """Return if this is still the latest leadership: as `Tenure.verify`.

        Raises:
            Deposed, LedgerUnavailable, TableUnavailable, LedgerRegressed: As there.
        """
        await in_thread(lambda: self._tenure.verify(timeout_s))

    async def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; whether it is."""
        try:
            await asyncio.wait_for(self.over.wait(), timeout_s)
        except (TimeoutError, asyncio.TimeoutError):
            return False
        return True

    def end_soon(self) -> asyncio.Future[None]:
        """Begin to wait for what was handed over, unless nobody would admit it."""
        if self.deposed is not None and not self._tenure.producer.is_shared:
            self.producer.purge()
        return self.producer.close_soon()


def _has_no_transactions(leading: object) -> MisconfiguredError:
    return MisconfiguredError(
        "leading", leading, "it writes in transactions, and an AsyncFencedProducer has "
        "no calls for them",
        "Serve it in a thread (asyncio.to_thread), or have it make another producer.",
    )  # fmt: skip


class async_lead:
    """`lead`, for asyncio.

        leading = lead(kafka, ledger, election, "orders-writer", ["orders"],
                       holder="pod-7")
        async with async_lead(leading) as tenure:
            while not tenure.over.is_set():
                await tenure.producer.produce("orders", await next_order())

    Or, until SIGTERM:

        await async_lead(leading).serve(work)       # async def work(tenure)

    The functions that were given to `lead` are called in the thread that leads, not on
    the loop. Cancelled, it stops, resigns, and is used no more.

    Args:
        leading: What to lead, and how. Not used elsewhere.

    Raises:
        MisconfiguredError: It is none, or writes in transactions. (Where that is
            because of `new_producer`, it is told only when it leads, and resigns.)
    """

    def __init__(self, leading: lead) -> None:
        if not isinstance(leading, lead):
            raise MisconfiguredError(
                "leading", leading, "it is no `lead`",
                "Use async_lead(lead(kafka, ledger, election, scope, topics, ...)).",
            )  # fmt: skip
        if leading.is_transactional:
            raise _has_no_transactions(leading)
        self._lead = leading
        self._tenure: AsyncTenure | None = None

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._lead.state

    def stop(self) -> None:
        """Have the tenure end, and none begin. Safe in any thread, and in handlers."""
        self._lead.stop()

    # As a context.

    async def __aenter__(self) -> AsyncTenure:
        """Wait until this process leads.

        Raises:
            Exception: As entering a `lead` does.
        """
        entering = start_in_thread(self._lead.__enter__, lambda _: self._leave())
        try:
            tenure = await asyncio.shield(entering)
        except asyncio.CancelledError:
            self._lead.stop()
            with suppress(Exception, asyncio.CancelledError):
                await to_the_end(entering)
            if entering.exception() is None:
                # It led in the last moment.
                with suppress(asyncio.CancelledError):
                    await to_the_end(self._leaving())
            raise
        try:
            self._tenure = AsyncTenure(tenure)
        except MisconfiguredError:
            await to_the_end(self._leaving())
            raise
        return self._tenure

    def _leave(self) -> None:
        self._lead.__exit__(None, None, None)

    def _leaving(self) -> asyncio.Future[None]:
        # The process does not end before: others wait for the office.
        return start_in_thread(self._leave, is_daemon=False)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what was handed over, and resign: another is elected at once."""
        tenure, self._tenure = self._tenure, None
        try:
            if tenure is not None:
                await to_the_end(tenure.end_soon())
        finally:
            await to_the_end(self._leaving())

    # As a service.

    async def serve(
        self,
        work: Callable[[AsyncTenure], Awaitable[object]],
        *,
        handles_signals: bool = True,
    ) -> None:
        """Lead whenever it can: until `stop`, a signal, or the work is done.

        Args:
            work: Awaited with each tenure. It returns soon after `tenure.over` is set;
                what it raises of `Deposed` means just that. If it returns before, its
                work is done, and so is this.
            handles_signals: Whether SIGINT and SIGTERM end it, where the loop runs in
                the main thread.

        Raises:
            Exception: What `work` raises; and as entering it as a context does.
        """
        loop = asyncio.get_running_loop()
        at_work: list[asyncio.Task[None]] = []
        is_cancelled = False

        async def do(tenure: Tenure) -> None:
            if is_cancelled:
                return  # before it began
            task = asyncio.current_task()
            assert task is not None
            at_work.append(task)
            found = AsyncTenure(tenure)
            try:
                await work(found)
            finally:
                at_work.clear()
                await to_the_end(found.end_soon())

        def in_its_thread(tenure: Tenure) -> None:
            try:
                asyncio.run_coroutine_threadsafe(do(tenure), loop).result()
            except concurrent.futures.CancelledError as error:
                raise asyncio.CancelledError(*error.args) from None

        with stopped_by_signals(self._lead) if handles_signals else nullcontext():
            serving = start_in_thread(
                lambda: self._lead.serve(in_its_thread, handles_signals=False)
            )
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                is_cancelled = True
                self._lead.stop()
                for task in at_work:
                    task.cancel()
                with suppress(Exception, asyncio.CancelledError):
                    await to_the_end(serving)
                raise
