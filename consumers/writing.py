"""A sink's writes, one transaction at a time, the end of each in another thread.

What a transaction waits for at its end, a disk or a server, takes about as long as the
next messages take to be read and judged: so both happen at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from epochfence.consumers.sink import OverlappingSink, Sink, SinkBatch


class Writing:
    """Writes to a sink. Used by one thread, as is the sink but for what is told there.

    Args:
        sink: The sink.
    """

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._overlapping = sink if isinstance(sink, OverlappingSink) else None
        self._threads: ThreadPoolExecutor | None = None
        self._batches: Sequence[SinkBatch] = ()
        self._end: Future[None] | None = None

    @property
    def is_under_way(self) -> bool:
        """Whether a write was begun of which nobody has asked what became."""
        return self._end is not None

    @property
    def is_over(self) -> bool:
        """Whether nothing has to be waited for."""
        return self._end is None or self._end.done()

    @property
    def batches(self) -> Sequence[SinkBatch]:
        """What was written last."""
        return self._batches

    def begin(self, batches: Sequence[SinkBatch]) -> None:
        """Begin to write; `end` tells what became of it, errors included."""
        self._batches = batches
        self._end = None
        try:
            self._end = self._begun(batches)
        except Exception as error:
            self._end = Future()
            self._end.set_exception(error)

    def _begun(self, batches: Sequence[SinkBatch]) -> Future[None]:
        if self._overlapping is not None:
            end = self._overlapping.begin_write(batches)
            if self._threads is None:
                self._threads = ThreadPoolExecutor(1, "epochfence-sink")
            return self._threads.submit(end)
        self._sink.write(batches)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @property
    def has_succeeded(self) -> bool:
        """Wait for the end, if there is one to wait for: whether all is stored."""
        if self._end is None:
            return False
        wait([self._end])
        return self._end.exception() is None

    def end(self) -> Sequence[SinkBatch]:
        """Wait for the end; what was stored.

        Raises:
            Exception: Whatever the sink raised.
        """
        end, self._end = self._end, None
        assert end is not None
        end.result()
        return self._batches

    def close(self) -> None:
        """Wait for the end, whatever comes of it; the thread is gone then."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
