"""Looks at topic ids: what changed is told, whatever else fails."""

from __future__ import annotations

from typing import Any

import pytest

from epochfence import TopicUnavailable
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.epochs.topics import TopicFacts


class Cluster:
    """Answers as told: an id for each topic, None for one that is not there."""

    def __init__(self, **ids: str | None) -> None:
        self.ids: dict[str, str | None] = dict(ids)

    def facts(self, topic: str, timeout_s: float) -> TopicFacts | None:
        topic_id = self.ids[topic]
        return None if topic_id is None else TopicFacts(topic_id, [0])


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
