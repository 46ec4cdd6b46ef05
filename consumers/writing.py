"""A sink's writes, one transaction at a time, the end of each in another thread.

What a transaction waits for at its end, a disk or a server, takes about as long as the
next messages take to be read and judged: so both happen at once.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from epochfence.consumers.sink import OverlappingSink, Sink, SinkBatch

_log = logging.getLogger(__name__)


class Writing:
    """Writes to a sink. Used by one thread, as is the sink but for what is told there.

    Args:
        sink: The sink.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._overlapping: OverlappingSink | None = None
        if isinstance(sink, OverlappingSink) and _overlaps(sink):
            self._overlapping = sink
        # A thread of its own, no executor: that one ends with the main thread, while
        # a runner in another thread may go on.
        self._thread: threading.Thread | None = None
        self._ends: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._outcomes: SimpleQueue[Exception | None] = SimpleQueue()
        self._batches: Sequence[SinkBatch] = ()
        self._is_in_thread = False
        # What became of a write: nothing known, nothing wrong, or an error.
        self._known: list[Exception | None] = []

    @property
    def is_under_way(self) -> bool:
        """Whether a write was begun of which nobody has asked what became."""
        return self._is_in_thread or bool(self._known)

    @property
    def is_over(self) -> bool:
        """Whether nothing has to be waited for."""
        return not self._is_in_thread or not self._outcomes.empty()

    @property
    def batches(self) -> Sequence[SinkBatch]:
        """What was written last."""
        return self._batches

    def begin(self, batches: Sequence[SinkBatch]) -> None:
        """Begin to write; `end` tells what became of it, errors included."""
        self._batches = batches
        try:
            if self._overlapping is None or not self._has_thread():
                self._sink.write(batches)
            else:
                self._ends.put(self._overlapping.begin_write(batches))
                self._is_in_thread = True
                return
        except Exception as error:
            self._known.append(error)
        else:
            self._known.append(None)

    def _has_thread(self) -> bool:
        """Whether there is one, before there is something for it to do."""
        if self._thread is None:
            thread = threading.Thread(
                target=self._work, name="epochfence-sink", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # no more threads are to be had
                return False
            self._thread = thread
        return True

    def _work(self) -> None:
        for end in iter(self._ends.get, None):
            try:
                end()
            except Exception as error:
                self._outcomes.put(error)
            else:
                self._outcomes.put(None)

    @property
    def has_succeeded(self) -> bool:
        """Wait for the end, if there is one to wait for: whether all is stored."""
        self._wait()
        return self._known == [None]

    def _wait(self) -> None:
        if self._is_in_thread:
            self._known.append(self._outcomes.get())
            self._is_in_thread = False

    def end(self) -> Sequence[SinkBatch]:
        """Wait for the end; what was stored.

        Raises:
            Exception: Whatever the sink raised.
        """
        self._wait()
        error = self._known.pop()
        if error is not None:
            raise error
        return self._batches

    def close(self, *, waits: bool) -> None:
        """Have the thread end.

        Args:
            waits: Whether to wait for what it is doing. If it fails, that is logged.
        """
        if waits:
            self._wait()
        self._is_in_thread = False
        if self._thread is not None:
            self._ends.put(None)
        for error in filter(None, self._known):
            _log.error("the last write of the run has failed: %s", error)
        self._known.clear()


def _overlaps(sink: Sink) -> bool:
    """Whether a sink's class has `begin_write`, and no heir of it a `write` alone.

    Who puts something around `write` wants it to be called.
    """
    for kind in type(sink).__mro__:
        if "begin_write" in vars(kind):
            return True
        if "write" in vars(kind):
            return False
    return False
