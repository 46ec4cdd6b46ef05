"""Threads take turns."""

from __future__ import annotations

import threading

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
