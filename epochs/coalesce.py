"""One run of a costly call serves every caller that was there before it began."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from epochfence.epochs.errors import EpochfenceError


class _Ticket:
    """One caller's."""

    __slots__ = ("is_running",)

    def __init__(self) -> None:
        self.is_running = False


class Coalesced:
    """Shares the runs of `function` among concurrent callers.

    A caller is served only by a run that began after its call: what the run finds
    is no older than the question.

    Args:
        function: Called with a deadline by `time.monotonic()`; never twice at once.
        overdue: Makes the error for a caller whose time is over.
    """

    def __init__(
        self,
        function: Callable[[float], None],
        overdue: Callable[[], EpochfenceError],
    ) -> None:
        self._function = function
        self._overdue = overdue
        self._changed = threading.Condition()
        self._started = 0
        self._finished = 0
        self._is_running = False
        self._has_failed = False
        self._queue: deque[_Ticket] = deque()

    def __call__(self, deadline: float) -> None:
        """Return once a run that began after this call has succeeded.

        Raises:
            EpochfenceError: What this caller's own run raised. A run that failed
                for another caller (whose time may have been shorter) is tried again.
        """
        ticket = _Ticket()
        try:
            if self._has_to_run(ticket, deadline):
                self._function(deadline)
                self._end(ticket, has_failed=False)
        finally:
            # Also where what a signal's handler raises comes between two steps.
            if ticket.is_running:
                self._end(ticket, has_failed=True)

    def _has_to_run(self, ticket: _Ticket, deadline: float) -> bool:
        """Whether the run is this caller's; if not, another's has served."""
        with self._changed:
            wanted = self._started + 1
            # First come, first to run: callers with little time, whose runs fail and
            # who come again at once, must not keep the others from theirs.
            self._queue.append(ticket)
            try:
                while True:
                    if self._finished >= wanted:
                        if not self._has_failed:
                            return False
                        wanted = self._started + 1  # it failed for another: try again
                    if not self._is_running and self._queue[0] is ticket:
                        self._is_running = ticket.is_running = True
                        self._started += 1
                        return True
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise self._overdue()
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _end(self, ticket: _Ticket, *, has_failed: bool) -> None:
        with self._changed:
            self._is_running = ticket.is_running = False
            self._finished = self._started
            self._has_failed = has_failed
            self._changed.notify_all()
