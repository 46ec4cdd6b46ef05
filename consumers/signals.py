"""Signals that end what runs, for as long as it runs."""

from __future__ import annotations

import signal
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], object]


@contextmanager
def handled(
    numbers: Iterable[int], handler: Handler, *, once: bool = False
) -> Generator[None, None, None]:
    """Have a function handle signals. Only in the main thread.

    Args:
        numbers: Which signals.
        handler: The function.
        once: Whether the former handlers are back after the first signal.
    """
    # Of a handler that is not Python's, nothing is known.
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in numbers}

    def restore() -> None:
        for number, former in before.items():
            signal.signal(number, former)

    def handle(number: int, frame: FrameType | None) -> None:
        handler(number, frame)
        if once:
            restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
