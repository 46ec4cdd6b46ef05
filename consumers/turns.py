"""Threads that use one consumer take turns, in the order in which they come."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any


class Turns:
    """A lock that its holder may take again, and that lets others in when released.

    With an ordinary lock, a thread that consumes in a loop would take it again before
    one that waits to commit has woken up.
    """

    def __init__(self) -> None:
        self._gate = threading.Lock()
        self._lock: Any = threading.RLock()  # typeshed does not know `_is_owned`
        self._depth = 0

    def __enter__(self) -> None:
        if not self._lock._is_owned():
            try:
                with self._gate:  # who waits holds it: nobody overtakes
                    self._lock.acquire()
            except BaseException:
                # What a signal's handler raises may come when it is acquired already.
                if self._lock._is_owned():
                    self._lock.release()
                raise
            self._depth = 0
        self._depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._lock.release()
