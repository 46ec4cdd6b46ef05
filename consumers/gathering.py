"""One call for messages, carried out in passes of the group's reader."""

from __future__ import annotations

import time

from confluent_kafka import Message

from epochfence.consumers.group_reader import GroupReader
from epochfence.epochs.errors import EpochfenceError

#: How long one pass waits for messages: then signal handlers and other threads run.
_SLICE_S = 0.2


class Gathering:
    """Gathers as many messages as a call asks for, as long as it has time.

    Args:
        reader: Where from.
        count: How many at most.
        timeout_s: How long to wait for so many; negative: for ever.
    """

    def __init__(self, reader: GroupReader, count: int, timeout_s: float) -> None:
        self._reader = reader
        self._count = count
        self._deadline = float("inf") if timeout_s < 0 else time.monotonic() + timeout_s
        self._has_tried = False

    def step(self) -> list[Message] | None:
        """One pass; the messages, once there are enough or the time is over."""
        reader = self._reader
        missing = self._count - reader.size
        left_s = self._deadline - time.monotonic()
        is_over = missing <= 0 or (left_s <= 0 and self._has_tried)
        if is_over and not reader.is_client_waiting:
            return reader.take(self._count)
        self._has_tried = True
        wait_s = 0.0 if is_over else min(_SLICE_S, max(left_s, 0.0))
        try:
            reader.fetch(missing, wait_s, self._count)
        except EpochfenceError:
            if not reader.size:
                raise
            return reader.take(self._count)  # the next call meets it again
        if is_over or reader.size >= self._count or reader.is_held_up:
            return reader.take(self._count)
        return None
