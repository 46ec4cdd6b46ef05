"""Taking over: barriers first, then the table, then the ledger."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from confluent_kafka import TopicPartition

from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import Deposed, MisconfiguredError, TopicUnavailable
from epochfence.epochs.holding import check_granted, check_rows, deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import Place
from epochfence.producers.barriers import BarrierOffsets, BarrierWriter
from epochfence.producers.lives import Life, Lives
from epochfence.producers.territory import Territory

#: Even where no time is left, a call needs some to be sent.
_SHORTEST_S = 0.2


class TakingOver:
    """Takes topics over, and partitions that are added to them later.

    Args:
        ledger: Says which grants are the latest; its table, which epochs began.
        leaderships: Under which to take over.
        territory: Keeps what was taken over.
        writer: Writes the barriers.
        lives: Looks at topics.
        admit: Called with a topic and its partitions: raises where messages of this
            producer could never be admitted.
        settings_of: Tells how the consumers of a topic judge.
    """

    def __init__(
        self,
        ledger: Ledger,
        leaderships: Sequence[Leadership],
        territory: Territory,
        writer: BarrierWriter,
        lives: Lives,
        admit: Callable[[str, Iterable[int]], None],
        settings_of: Callable[[str], FenceSettings],
    ) -> None:
        self._ledger = ledger
        self._leaderships = leaderships
        self._territory = territory
        self._writer = writer
        self._lives = lives
        self._admit = admit
        self._settings_of = settings_of
        self._unproved: list[tuple[BarrierOffsets, dict[str, str | None]]] = []

    def take(
        self, topics: Iterable[str | TopicPartition], deadline: float
    ) -> BarrierOffsets:
        """Take topics and single partitions over; `FencedProducer.take_over` tells."""
        whole, places = self._named(topics)
        lives: dict[str, str | None] = {}
        barred = set(places)
        for topic in sorted({*whole, *(topic for topic, _ in places)}):
            life = self._look(topic, deadline)
            lives[topic] = life.topic_id
            if topic in whole:
                barred |= {(topic, number) for number in life.partitions}
            of_topic = sorted(number for name, number in barred if name == topic)
            _check_there(topic, of_topic, life)
            self._admit(topic, of_topic)
        written = self._writer.write(barred, deadline)
        self._territory.add_barriers(written, lives)
        self._check(written, deadline)
        self._territory.add_proof(written, lives)
        self._territory.open_up(whole, places)
        return written

    def _named(
        self, topics: Iterable[str | TopicPartition]
    ) -> tuple[set[str], set[Place]]:
        if isinstance(topics, str | TopicPartition) or not isinstance(topics, Iterable):
            example = topics if isinstance(topics, str | TopicPartition) else "orders"
            raise MisconfiguredError(
                "topics", topics, "a list of topics is expected", f"Use [{example!r}]."
            )
        whole: set[str] = set()
        places: set[Place] = set()
        for one in topics:
            if isinstance(one, TopicPartition):
                places.add((one.topic, one.partition))
                topic = one.topic
            elif isinstance(one, str):
                whole.add(one)
                topic = one
            else:
                raise MisconfiguredError(
                    "topics", one, "neither a topic nor a partition",
                    "Give names, or confluent_kafka.TopicPartition for single ones.",
                )  # fmt: skip
            if topic in (self._ledger.coordination_topic, self._ledger.table_topic):
                raise MisconfiguredError(
                    "topics", topic, "it belongs to the ledger",
                    "Take over the topics that the messages go to.",
                )  # fmt: skip
        if not whole and not places:
            raise MisconfiguredError(
                "topics", [], "no topic is named",
                "Name the topics that this leadership writes to: ['orders'].",
            )  # fmt: skip
        return whole, places

    def _look(self, topic: str, deadline: float) -> Life:
        life = self._lives.look(topic, deadline)
        if life is None:
            raise MisconfiguredError(
                "topics", topic, "there is no such topic on this cluster",
                "Check the name and the cluster, or create the topic first.",
            )  # fmt: skip
        return life

    def _check(self, places: Iterable[Place], deadline: float) -> None:
        """See that every own grant is the latest, and the table below them all."""
        table = self._ledger.table
        # The table before the ledger: the other way round, a new leader looks like
        # a loss.
        table.refresh(max(_SHORTEST_S, time_left(deadline)))
        rows = table.all_starts()
        for topic, number in sorted(places):
            table.compare_settings(topic, number, self._settings_of(topic))
        self.check_latest(deadline)
        check_rows(self._leaderships, rows)

    def check_latest(self, deadline: float) -> None:
        """See that every own grant is the latest, by a ledger read to its end.

        Raises:
            Deposed: There is a later one.
            LedgerUnavailable: The ledger could not be read to its end in time.
            LedgerRegressed: It has lost an own grant.
        """
        state = self._ledger.refresh(max(_SHORTEST_S, time_left(deadline)))
        check_granted(self._leaderships, state)
        deposed = deposed_by(self._leaderships, state)
        if deposed is not None:
            raise deposed

    # What the watch does, on its thread.

    def add_partitions(self, topic: str, deadline: float) -> bool:
        """Write barriers to the partitions of a topic that have none; give if any.

        Raises:
            TopicUnavailable: The topic cannot be reached, or is not there.
            MisconfiguredError: No barrier can be written, or none helps.
        """
        life = self._lives.look(topic, deadline)
        if life is None:
            raise TopicUnavailable(topic, "there is no such topic any more")
        places = self._territory.without_barrier(topic, life)
        if not places:
            return False
        self._admit(topic, [number for _, number in places])
        lives = {topic: life.topic_id}
        written = self._writer.write(places, deadline)
        self._territory.add_barriers(written, lives)
        self._unproved.append((written, lives))
        return True

    def prove_added(self, deadline: float) -> None:
        """See that the barriers added since came before any successor.

        Raises:
            Deposed: There is a successor. They may have come too late.
            LedgerUnavailable: Nothing is known yet.
            LedgerRegressed: The ledger has lost an own grant.
        """
        if not self._unproved:
            return
        try:
            self.check_latest(deadline)
        except Deposed:
            self._unproved.clear()  # it cannot be proved any more
            raise
        for written, lives in self._unproved:
            self._territory.add_proof(written, lives)
        self._unproved.clear()


def _check_there(topic: str, partitions: Sequence[int], life: Life) -> None:
    absent = [number for number in partitions if number not in life.partitions]
    if absent:
        raise MisconfiguredError(
            "topics", f"{topic}[{absent[0]}]",
            f"topic {topic} has partitions 0 to {life.partitions[-1]}",
            "Name partitions that exist, or the topic as a whole.",
        )  # fmt: skip
