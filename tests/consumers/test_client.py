"""A partition is placed although the client is slow to take an assignment."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from epochfence.consumers import client as module
from epochfence.consumers.client import GroupClient
from epochfence.consumers.partition import AssignedPartition
from epochfence.epochs.settings import FenceSettings

SETTINGS = FenceSettings(["w"])


class SlowClient:
    """Stands for the client: each assignment takes effect only some seeks later."""

    def __init__(self, seeks_until_attached: list[int]) -> None:
        self.seeks_until_attached = seeks_until_attached
        self.is_outside = True
        self.sought: dict[int, int] = {}
        self.resumed: list[int] = []
        self.assignments = 0
        self.left = 0

    def assign(self, places: list[TopicPartition]) -> None:
        self.assignments += 1
        self.is_outside = False
        self.sought.clear()
        self.resumed.clear()
        self.left = self.seeks_until_attached.pop(0)

    def pause(self, places: list[TopicPartition]) -> None:
        pass

    def resume(self, places: list[TopicPartition]) -> None:
        self.resumed += [tp.partition for tp in places]

    def seek(self, target: TopicPartition) -> None:
        self.left -= 1
        if self.is_outside or self.left >= 0:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.sought[target.partition] = target.offset

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        return 0, 0


def ready(number: int, read_to: int) -> AssignedPartition:
    partition = AssignedPartition("t", number, SETTINGS, None)
    partition.phase, partition.read_to = "ready", read_to
    return partition


def eager_client(fake: SlowClient) -> GroupClient:
    client = GroupClient(
        {"bootstrap.servers": "127.0.0.1:1", "group.id": "g"}, is_incremental=False
    )
    client.raw.close()
    client.is_subscribed = True
    client.raw = fake  # type: ignore[assignment]
    return client


def test_an_assignment_may_take_its_time() -> None:
    fake = SlowClient([7])
    moved, other = AssignedPartition("t", 0, SETTINGS, None), ready(1, 9)
    eager_client(fake).place(moved, 12, 0, [moved, other])
    assert fake.sought == {0: 12, 1: 9}
    assert sorted(fake.resumed) == [0, 1]
    assert fake.assignments == 1


def test_what_never_takes_effect_is_attached_once_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_ATTACHED_S", 0.02)
    fake = SlowClient([10_000, 0])
    moved, other = AssignedPartition("t", 0, SETTINGS, None), ready(1, 9)
    eager_client(fake).place(moved, 12, 0, [moved, other])
    assert fake.sought == {0: 12, 1: 9}
    assert fake.assignments == 2


def test_where_nothing_helps_the_next_call_attaches_all_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else the other partition would stay held back for good."""
    monkeypatch.setattr(module, "_ATTACHED_S", 0.02)
    fake = SlowClient([10_000, 10_000, 10_000, 0])
    moved, other = AssignedPartition("t", 0, SETTINGS, None), ready(1, 9)
    client = eager_client(fake)
    with pytest.raises(KafkaException, match="does not go to offset 12"):
        client.place(moved, 12, 0, [moved, other])
    fake.left = 0
    client.place(moved, 12, 0, [moved, other])
    assert fake.sought == {0: 12, 1: 9}
    assert sorted(fake.resumed) == [0, 1]
