"""One run of a costly call serves every caller that was there before it began."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from epochfence.epochs.errors import EpochfenceError


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
        self._queue: deque[object] = deque()

    def __call__(self, deadline: float) -> None:
        """Return once a run that began after this call has succeeded.

        Raises:
            EpochfenceError: What this caller's own run raised. A run that failed
                for another caller (whose time may have been shorter) is tried again.
        """
        run = self._join(deadline)
        if run is None:
            return
        try:
            self._function(deadline)
        except BaseException:
            self._end(run, has_failed=True)
            raise
        self._end(run, has_failed=False)

    def _join(self, deadline: float) -> int | None:
        """The number of the run to perform, None if another's has served."""
        ticket = object()
        with self._changed:
            wanted = self._started + 1
            # First come, first to run: callers with little time, whose runs fail and
            # who come again at once, must not keep the others from theirs.
            self._queue.append(ticket)
            try:
                while True:
                    if self._finished >= wanted:
                        if not self._has_failed:
                            return None
                        wanted = self._started + 1  # it failed for another: try again
                    if not self._is_running and self._queue[0] is ticket:
                        self._is_running = True
                        self._started += 1
                        return self._started
                    if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                        raise self._overdue()
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()

    def _end(self, run: int, *, has_failed: bool) -> None:
        with self._changed:
            self._is_running = False
            self._finished = run
            self._has_failed = has_failed
            self._changed.notify_all()
