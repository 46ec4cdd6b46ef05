"""A call that blocks, for whoever must not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

Result = TypeVar("Result")


async def in_thread(function: Callable[[], Result]) -> Result:
    """Run it in a thread of its own, and wait for what it gives or raises.

    Not the event loop's threads: they are few, and what waits for an election for days
    would keep one of them, and the loop's end. Cancelled, it goes on all the same.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def settle(set_it: Callable[..., None], outcome: object) -> None:
        if not done.done():
            set_it(outcome)

    def run() -> None:
        told: tuple[Callable[..., None], object]
        try:
            told = done.set_result, function()
        except BaseException as error:
            told = done.set_exception, error
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, *told)

    threading.Thread(target=run, name="epochfence-call", daemon=True).start()
    return await done
