"""A client's queue that is full: its client is served until there is room."""

from __future__ import annotations

import time
from collections.abc import Callable

from epochfence.epochs.values import check_timeout

#: How long the client is served at a time.
_SERVE_S = 0.1


def when_there_is_room(
    produce: Callable[[], None], poll: Callable[[float], object], timeout_s: float
) -> None:
    """Call `produce`, again and again while the client's queue is full.

    Args:
        produce: Hands one message over; it raises `BufferError` while there is no room.
        poll: Serves the client.
        timeout_s: How long to wait.

    Raises:
        BufferError: There was no room in time.
    """
    deadline = time.monotonic() + check_timeout(timeout_s)
    while True:
        try:
            return produce()
        except BufferError:
            if time.monotonic() >= deadline:
                raise
        poll(_SERVE_S)
