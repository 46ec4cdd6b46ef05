"""What a producer has taken over: which partitions, and what its barriers prove."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass

from epochfence.epochs.values import Place
from epochfence.producers.barriers import BarrierOffsets
from epochfence.producers.lives import Life

#: In place of a set of partitions: the whole topic.
WHOLE_TOPIC = True


@dataclass(frozen=True, slots=True)
class Ground:
    """What the barriers of one partition prove.

    Attributes:
        topic_id: The life of the topic in which the partition was first taken over,
            None on the embedded broker.
        barrier: The offset of the own barrier there, if a ledger read after its
            acknowledgement found every own grant the latest; else None. (Of several
            leaderships, that of the first.)
    """

    topic_id: str | None
    barrier: int | None = None


class Territory:
    """The topics and partitions that were taken over. Safe to use from several threads.

    Attributes:
        open: For each topic that may be written to, `WHOLE_TOPIC` or the partitions.
            It is read for each message, without a lock.
    """

    def __init__(self) -> None:
        self.open: dict[str, bool | frozenset[int]] = {}
        self._grounds: dict[Place, Ground] = {}
        # The last own barriers of each partition, and the life they are in.
        self._barriers: dict[Place, tuple[str | None, list[int]]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def add_barriers(
        self, written: BarrierOffsets, lives: dict[str, str | None]
    ) -> None:
        """Note barriers that were acknowledged, and the lives they were meant for."""
        with self._lock:
            for place, offsets in written.items():
                life = lives[place[0]]
                self._barriers[place] = life, offsets
                self._grounds.setdefault(place, Ground(life))

    def add_proof(self, written: BarrierOffsets, lives: dict[str, str | None]) -> None:
        """Note that the ledger, read after these barriers, had no later grant."""
        with self._lock:
            for place, offsets in written.items():
                life = lives[place[0]]
                # In another life of the topic, a barrier proves nothing about messages
                # of the earlier one, which may be waiting for their answer.
                if self._grounds[place].topic_id == life:
                    self._grounds[place] = Ground(life, min(offsets))

    def open_up(self, topics: Iterable[str], places: Iterable[Place]) -> None:
        """Let messages be written to whole topics and to partitions."""
        with self._lock:
            if self._is_closed:
                return
            for topic, partition in places:
                before = self.open.get(topic, frozenset())
                if not isinstance(before, bool):
                    self.open[topic] = before | {partition}
            for topic in topics:
                self.open[topic] = WHOLE_TOPIC

    def shut(self) -> None:
        """Let nothing be written until it is opened up again."""
        with self._lock:
            self.open.clear()

    def close(self) -> None:
        """Let nothing be written any more."""
        with self._lock:
            self._is_closed = True
            self.open.clear()

    def close_in_child(self) -> None:
        """The same after a fork, where a thread that is gone may hold the lock."""
        self._lock = threading.Lock()
        self.close()

    def ground(self, place: Place) -> Ground | None:
        """What is known of a partition, None where it was never taken over."""
        return self._grounds.get(place)

    def named(self) -> list[str]:
        """Every topic that a barrier was written to."""
        return sorted({topic for topic, _ in list(self._grounds)})

    def whole_topics(self) -> list[str]:
        """The topics that were taken over as a whole."""
        opened = list(self.open.items())
        return [topic for topic, part in opened if part is WHOLE_TOPIC]

    def barriers(
        self, places: Iterable[Place], lives: dict[str, str | None]
    ) -> BarrierOffsets:
        """The own barriers that stand on partitions, in these lives of their topics."""
        with self._lock:
            standing = {
                place: self._barriers[place]
                for place in places
                if place in self._barriers
            }
        return {
            place: offsets
            for place, (life, offsets) in standing.items()
            if life == lives[place[0]]
        }

    def without_barrier(self, topic: str, life: Life) -> list[Place]:
        """The partitions of a topic that have no barrier in its present life."""
        places = [(topic, number) for number in life.partitions]
        standing = self.barriers(places, {topic: life.topic_id})
        return [place for place in places if place not in standing]
