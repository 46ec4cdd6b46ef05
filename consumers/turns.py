"""Threads that use one consumer take turns, in the order in which they come."""

from __future__ import annotations

import threading
from types import TracebackType


class Turns:
    """A lock that its holder may take again, and that lets others in when released.

    With an ordinary lock, a thread that consumes in a loop would take it again before
    one that waits to commit has woken up.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._lock = threading.Lock()
        self._owner: int | None = None
        self._depth = 0

    def __enter__(self) -> None:
        me = threading.get_ident()
        if self._owner != me:
            with self._gate:  # who waits holds it: nobody overtakes
                self._lock.acquire()
            self._owner = me
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._lock.release()
