"""Calls that block, away from the event loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

Result = TypeVar("Result")

#: How soon it is noticed that a loop was closed.
_LOOK_EVERY_S = 0.1


async def in_thread(function: Callable[[], Result]) -> Result:
    """Run it in a thread of its own, and wait for what it gives or raises.

    Cancelled, it goes on all the same.
    """
    return await start_in_thread(function)


def start_in_thread(
    function: Callable[[], Result],
    undo: Callable[[Result], object] | None = None,
    *,
    is_daemon: bool = True,
) -> asyncio.Future[Result]:
    """Run it in a thread of its own; what it gives or raises, to be awaited.

    Not in one of the loop's threads: they are few, and what waits for an election for
    days would keep one of them, and the loop's end. Not as a task: those that are there
    at the loop's end are cancelled, and whoever waits would take it for done.

    Args:
        function: What to run.
        undo: Called in the thread with what it gave, if nobody was there to take it:
            the future was cancelled, or the loop closed.
        is_daemon: Whether the process may end before it has.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()
    is_settled = threading.Event()
    taken: list[bool] = []

    def settle(set_it: Callable[..., None], outcome: object) -> None:
        taken.append(not done.done())
        if taken[-1]:
            set_it(outcome)
        is_settled.set()

    def hand_back(set_it: Callable[..., None], outcome: object) -> bool:
        try:
            loop.call_soon_threadsafe(settle, set_it, outcome)
        except RuntimeError:
            return False  # it is closed
        while not is_settled.wait(_LOOK_EVERY_S):
            if loop.is_closed():
                return False
        return taken[-1]

    def run() -> None:
        try:
            result = function()
        except StopIteration as error:
            # No future takes that one.
            failure = RuntimeError(f"{error!r} was raised")
            failure.__cause__ = error
            hand_back(done.set_exception, failure)
        except BaseException as error:
            hand_back(done.set_exception, error)
        else:
            if not hand_back(done.set_result, result) and undo is not None:
                undo(result)

    thread = threading.Thread(target=run, name="epochfence-call", daemon=is_daemon)
    thread.start()
    return done


async def to_the_end(future: asyncio.Future[Result]) -> Result:
    """Wait for it, and only then be cancelled: for what must not be left half done."""
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        if not future.cancelled():
            future.exception()  # looked at: nobody else does
        raise cancelled
    return future.result()
