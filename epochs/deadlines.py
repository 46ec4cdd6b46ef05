"""Deadlines by the monotonic clock, for calls that are made of several waits."""

from __future__ import annotations

import time

from epochfence.epochs.values import check_timeout

#: Even where no time is left, a call needs some to be sent.
_SHORTEST_S = 0.2


def deadline_after(timeout_s: float) -> float:
    """The moment in `timeout_s` seconds; `MisconfiguredError` if one cannot wait so."""
    return time.monotonic() + check_timeout(timeout_s)


def time_left(deadline: float) -> float:
    """The seconds until a deadline, 0 when it is over."""
    return max(0.0, deadline - time.monotonic())


def some_time(deadline: float) -> float:
    """The seconds until a deadline; where it is over, so many that a call is sent."""
    return max(_SHORTEST_S, time_left(deadline))
