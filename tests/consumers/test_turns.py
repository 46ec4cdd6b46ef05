"""Threads take turns."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from epochfence.consumers.turns import Turns


def test_a_thread_that_waits_comes_before_one_that_comes_again() -> None:
    turns = Turns()
    got_in = threading.Event()
    rounds = 0

    def get_in() -> None:
        with turns:
            got_in.set()

    other = threading.Thread(target=get_in)
    with turns:
        other.start()
    # An ordinary lock would be taken again a great many times first.
    while not got_in.is_set():
        with turns, turns:  # its holder may take it again
            rounds += 1
    other.join()
    assert rounds < 10_000


def test_nobody_is_inside_with_another() -> None:
    turns = Turns()
    inside = 0
    highest = 0

    def work() -> None:
        nonlocal inside, highest
        for _ in range(300):
            with turns:
                inside += 1
                highest = max(highest, inside)
                inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert highest == 1


def test_an_exception_on_the_way_in_leaves_it_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What a signal's handler raises may come when the lock is taken already."""
    turns: Any = Turns()
    lock = turns._lock

    class Interrupted:
        def acquire(self) -> None:
            lock.acquire()
            raise KeyboardInterrupt

        def __getattr__(self, name: str) -> Any:
            return getattr(lock, name)

    with monkeypatch.context() as patched:
        patched.setattr(turns, "_lock", Interrupted())
        with pytest.raises(KeyboardInterrupt), turns:
            pass
    entered = threading.Event()

    def get_in() -> None:
        with turns:
            entered.set()

    threading.Thread(target=get_in, daemon=True).start()
    assert entered.wait(10)
