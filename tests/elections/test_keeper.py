"""A place is over when it could not be confirmed for its time."""

from __future__ import annotations

import threading

from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.elections.keeper import Keeper, now_s

_WAIT_S = 60


def test_the_clock_of_this_very_moment_counts() -> None:
    """Whoever wakes from a stop need not wait for a thread to look."""
    ends: list[bool] = []
    keeper = Keeper(lambda: True, 10, now_s() - 11, lambda: ends.append(True))
    assert keeper.is_over()
    assert keeper.is_over()
    assert ends == [True]


def test_what_counts_is_when_a_question_was_sent() -> None:
    keeper = Keeper(lambda: True, 10, now_s(), lambda: None)
    assert not keeper.is_over()
    keeper.confirmed(now_s() - 11)  # answered now
    assert keeper.is_over()
    keeper.confirmed(now_s())  # too late
    assert keeper.is_over()


def test_an_answer_is_not_waited_for_longer_than_the_place_lasts() -> None:
    is_answered, is_over = threading.Event(), threading.Event()
    keeper = Keeper(lambda: is_answered.wait(_WAIT_S), 0.2, now_s(), is_over.set)
    keeper.start()
    assert is_over.wait(_WAIT_S)
    assert not is_answered.is_set()
    is_answered.set()
    keeper.stop()
    assert keeper.is_over()


def test_no_answer_is_not_yet_an_end_but_no_is() -> None:
    answers = [NoAnswerError(), NoAnswerError(), None, PlaceLostError()]
    is_over = threading.Event()

    def confirm() -> bool:
        error = answers.pop(0)
        if error is not None:
            raise error
        return True

    keeper = Keeper(confirm, _WAIT_S, now_s(), is_over.set)
    keeper.start()
    while not is_over.wait(0.01):
        assert not keeper.is_over()
        keeper.hurry()
    assert answers == []
    keeper.stop()


def test_who_gives_up_hears_of_no_end() -> None:
    ends: list[bool] = []
    keeper = Keeper(lambda: True, _WAIT_S, now_s(), lambda: ends.append(True))
    keeper.start()
    keeper.stop()
    keeper.end()
    assert keeper.ended.is_set()
    assert ends == []
