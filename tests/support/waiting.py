"""Waiting for a condition, never for a length of time.

A test that sleeps for "long enough" is slow on a fast machine and wrong on a
slow one. Every wait of the tests names what it waits for and until when.
"""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_INTERVAL_S = 0.05


def wait_until(
    condition: Callable[[], T],
    timeout_s: float,
    message: str,
    *,
    interval_s: float = POLL_INTERVAL_S,
) -> T:
    """Return the first true value of `condition`, or raise `TimeoutError`.

    An exception from `condition` ends the wait at once: a condition that expects
    failures on the way turns them into a false value itself. The condition is
    always tried once more after the deadline, so that a machine that stood still
    for the whole time is not mistaken for a condition that never held.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        expired = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if expired:
            raise TimeoutError(f"not within {timeout_s:g} s: {message}")
        time.sleep(interval_s)


async def holds(
    condition: Callable[[], object], timeout_s: float, message: str
) -> None:
    """Wait for a condition as `wait_until` does, and let the event loop go on."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"not within {timeout_s:g} s: {message}")
        await asyncio.sleep(POLL_INTERVAL_S)
