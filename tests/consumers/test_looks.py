"""Looks at topic ids: what changed is told, whatever else fails."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from epochfence import TopicUnavailable
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.epochs.topics import Answer, TopicFacts


class Cluster:
    """Answers as told: an id for each topic, None for one that is not there."""

    def __init__(self, **ids: str | None) -> None:
        self.ids: dict[str, str | None] = dict(ids)
        self.questions = 0

    def facts(self, topic: str, timeout_s: float) -> TopicFacts | None:
        return self.ask([topic])[topic](timeout_s)

    def ask(self, topics: Sequence[str]) -> dict[str, Answer]:
        """Answers with what was so when it was asked."""
        self.questions += 1

        def answer(topic_id: str | None, _: float) -> TopicFacts | None:
            return None if topic_id is None else TopicFacts(topic_id, [0])

        return {topic: partial(answer, self.ids[topic]) for topic in topics}


def looks_at(cluster: Cluster) -> TopicLooks:
    keeper: Any = cluster
    return TopicLooks(keeper, 1.0)


def test_a_change_is_told_though_another_topic_is_gone() -> None:
    cluster = Cluster(a="1", b="1", c="1")
    looks = looks_at(cluster)
    looks.look("abc")
    cluster.ids.update(a="2", b=None, c="2")
    with pytest.raises(TopicMadeAnew) as news:
        looks.look("abc")
    assert news.value.topics == {"a", "c"}
    assert looks.renewed == {"a", "c"}
    with pytest.raises(TopicUnavailable, match="no such topic"):
        looks.look("abc")
    assert looks.topic_id("a") == "2"
    cluster.ids["b"] = "2"
    with pytest.raises(TopicMadeAnew):
        looks.look("abc")
    looks.look("abc")


def test_what_was_not_seen_was_not_looked_at() -> None:
    cluster = Cluster(a="1", b=None)
    looks = looks_at(cluster)
    assert looks.is_due("ab")
    with pytest.raises(TopicUnavailable):
        looks.look("ab")
    assert not looks.is_due("a")
    assert looks.is_due("b")
    looks.doubt("a")
    assert looks.is_due("a")


def test_without_ids_there_is_nothing_to_see() -> None:
    looks = TopicLooks(None, 1.0)
    looks.look("a")
    assert looks.topic_id("a") is None
    assert not looks.is_due("a")
    looks.begin("a")
    looks.look_since("a", time.monotonic())
    assert looks.topic_id("a") is None


def test_a_look_that_was_begun_since_is_not_made_again() -> None:
    cluster = Cluster(a="1", b="1")
    looks = looks_at(cluster)
    received_at = time.monotonic()
    looks.begin("ab")
    begun_at = time.monotonic()
    looks.look_since("a", received_at)
    looks.look_since("b", received_at)
    looks.look_since("ab", received_at)
    assert cluster.questions == 1
    assert (looks.topic_id("a"), looks.topic_id("b")) == ("1", "1")
    # What it proves is what was so when it began, not when it was answered.
    assert not looks.began_since("a", begun_at)
    looks.begin("a")
    cluster.ids["a"] = "2"
    looks.look_since("a", received_at)
    with pytest.raises(TopicMadeAnew):
        looks.look_since("a", time.monotonic())


def test_a_look_that_began_before_the_last_record_came_does_not_do() -> None:
    cluster = Cluster(a="1")
    looks = looks_at(cluster)
    looks.look("a")
    looks.begin("a")
    cluster.ids["a"] = "2"
    with pytest.raises(TopicMadeAnew):
        looks.look_since("a", time.monotonic())
    assert looks.topic_id("a") == "2"


def test_an_answer_that_a_later_look_has_overtaken_is_not_taken() -> None:
    cluster = Cluster(a="1")
    looks = looks_at(cluster)
    received_at = time.monotonic()
    looks.begin("a")
    cluster.ids["a"] = None
    with pytest.raises(TopicUnavailable):
        looks.look("a")
    with pytest.raises(TopicUnavailable, match="no such topic"):
        looks.look_since("a", received_at)


def test_doubt_is_of_looks_that_have_begun_too() -> None:
    cluster = Cluster(a="1")
    looks = looks_at(cluster)
    received_at = time.monotonic()
    looks.begin("a")
    cluster.ids["a"] = None
    looks.doubt("a")
    with pytest.raises(TopicUnavailable, match="no such topic"):
        looks.look_since("a", received_at)
