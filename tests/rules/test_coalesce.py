"""One run serves all who were there before it began, and nobody is left out."""

from __future__ import annotations

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from epochfence import LedgerUnavailable
from epochfence.epochs.coalesce import Coalesced
from support.waiting import wait_until


def overdue() -> LedgerUnavailable:
    return LedgerUnavailable("c", "overdue")


def test_who_comes_during_a_run_is_served_by_the_next() -> None:
    runs: list[float] = []
    may_end = threading.Event()

    def run(deadline: float) -> None:
        runs.append(deadline)
        assert may_end.wait(30)

    shared = Coalesced(run, overdue)
    far = time.monotonic() + 60
    with ThreadPoolExecutor(max_workers=20) as pool:
        first = pool.submit(shared, far)
        wait_until(lambda: len(runs) == 1, 10, "the first run has begun")
        later = [pool.submit(shared, far) for _ in range(19)]
        assert not any(one.done() for one in later)
        may_end.set()
        for one in (first, *later):
            one.result(30)
    # The second run may have begun before all of the others had come.
    assert 2 <= len(runs) <= 20


def test_callers_whose_runs_fail_keep_nobody_from_theirs() -> None:
    runs: list[float] = []

    def run(deadline: float) -> None:
        runs.append(deadline)
        is_hasty = deadline - time.monotonic() < 10
        time.sleep(0.001)  # as long as it takes
        if is_hasty:
            raise LedgerUnavailable("c", "no time")

    shared = Coalesced(run, overdue)
    is_over = threading.Event()

    def hasty() -> None:
        while not is_over.is_set():
            with contextlib.suppress(LedgerUnavailable):
                shared(time.monotonic() + 0.001)

    threads = [threading.Thread(target=hasty) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(100):
            runs_before = len(runs)
            shared(time.monotonic() + 60)
            # Its own turn comes after those who were there before: three at most,
            # each with a run, beside the run that was going on.
            assert len(runs) - runs_before <= 5
    finally:
        is_over.set()
        for thread in threads:
            thread.join()


def test_who_runs_out_of_time_is_told() -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def run(_: float) -> None:
        has_begun.set()
        assert may_end.wait(30)

    shared = Coalesced(run, overdue)
    with ThreadPoolExecutor(max_workers=1) as pool:
        first = pool.submit(shared, time.monotonic() + 60)
        assert has_begun.wait(10)
        with pytest.raises(LedgerUnavailable, match="overdue"):
            shared(time.monotonic() + 0.05)
        may_end.set()
        first.result(30)
    shared(time.monotonic() + 60)


def test_an_exception_between_two_steps_blocks_nobody() -> None:
    """Such as what a signal's handler raises."""
    runs: list[float] = []
    shared: Any = Coalesced(runs.append, overdue)
    has_to_run = shared._has_to_run

    def interrupted(*arguments: Any) -> bool:
        has_to_run(*arguments)
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shared, "_has_to_run", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shared(time.monotonic() + 5)
    shared(time.monotonic() + 5)
    assert len(runs) == 1
