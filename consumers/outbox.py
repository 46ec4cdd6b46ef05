"""Judged messages on their way to the application, and how far it has come."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from confluent_kafka import Message

from epochfence.consumers.partition import AssignedPartition
from epochfence.epochs.values import Place


def place_of(message: Message) -> Place:
    """The partition that a message is of."""
    return message.topic() or "", message.partition() or 0


class Outbox:
    """Messages whose epoch starts are acknowledged, in order."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        self._handed = 0
        # Where each partition stands once all its messages were handed over.
        self._ends: dict[Place, tuple[AssignedPartition, int]] = {}

    def __len__(self) -> int:
        return len(self._messages) - self._handed

    def add(
        self, messages: list[Message], ends: Mapping[AssignedPartition, int]
    ) -> None:
        """Add what is to be handed over, and where its partitions then stand."""
        if not self:
            self._settle_all()
            self._messages, self._handed = messages, 0
        else:
            self._messages = self._messages[self._handed :] + messages
            self._handed = 0
        for partition, end in ends.items():
            self._ends[partition.place] = partition, end
        if not self:
            self._settle_all()

    def holds(self, place: Place) -> bool:
        """Whether something of a partition is still to be handed over."""
        return place in self._ends

    def take(self, count: int) -> list[Message]:
        """Hand over at most `count` messages."""
        if self._handed == 0 and count >= len(self._messages):
            taken, self._messages = self._messages, []
            self._settle_all()
            return taken
        begin, self._handed = (
            self._handed,
            min(self._handed + count, len(self._messages)),
        )
        taken = self._messages[begin : self._handed]
        for message in taken:
            self._note(message)
        if not self:
            self._settle_all()
        return taken

    def drop(self, places: Collection[Place]) -> None:
        """Drop what was not handed over of these partitions."""
        self._messages = [
            message
            for message in self._messages[self._handed :]
            if place_of(message) not in places
        ]
        self._handed = 0
        for place in places:
            self._ends.pop(place, None)
        if not self:
            self._settle_all()

    def _note(self, message: Message) -> None:
        offset = message.offset()
        if message.error() is None and offset is not None:
            partition, _ = self._ends[place_of(message)]
            partition.next_offset = offset + 1

    def _settle_all(self) -> None:
        for partition, end in self._ends.values():
            partition.next_offset = end
        self._ends.clear()
        self._messages, self._handed = [], 0
