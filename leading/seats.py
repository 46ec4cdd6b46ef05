"""What is known of each partition that was ever assigned, and where it writes to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition

from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.settings import PARTITION_FIELD, FenceSettings
from epochfence.epochs.values import check_scope
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.judging import Settings

#: The highest number that a partition may have.
_HIGHEST = 2**31 - 1


@dataclass(eq=False, slots=True)
class Seat:
    """One partition, and what this process has led of it.

    Attributes:
        partition: Its number.
        scope: What its leader leads.
        is_assigned: Whether it is assigned to this process now.
        failure: Why it is not led; None while it is.
        producer: Writes under the last leadership that this process was granted; None
            where there was none. It may have been deposed since.
        former: Those before it, until what they have written is answered for.
    """

    partition: int
    scope: str
    is_assigned: bool = False
    failure: EpochfenceError | None = None
    producer: FencedProducer | None = None
    former: list[FencedProducer] = field(default_factory=list)

    @property
    def leadership(self) -> Leadership | None:
        """The last leadership that this process was granted."""
        return None if self.producer is None else self.producer.leaderships[0]

    def begin(self, producer: FencedProducer) -> None:
        """Go on under a new leadership."""
        if self.producer is not None:
            self.producer.let_go()
            self.former.append(self.producer)
        self.producer = producer

    def outlived(self) -> list[FencedProducer]:
        """The producers that write no more: what they have written is all there is."""
        if self.producer is None or self.producer.deposed is None:
            return list(self.former)
        return [*self.former, self.producer]

    def part_with(self, answered: Collection[FencedProducer]) -> None:
        """Forget producers that were outlived, and have been answered for.

        Not while another thread confirms what they have written.
        """
        # What a thread handed over just before the end is for the next answer.
        gone = [one for one in self.outlived() if one in answered and _is_told(one)]
        for producer in gone:
            producer.close()
        self.former = [one for one in self.former if one not in gone]
        if self.producer in gone:
            self.producer = None

    def part_with_idle(self) -> None:
        """The same of those before the last, where all was told of, or nothing was."""
        self.part_with(list(self.former))

    def close(self) -> None:
        """Have nothing written any more."""
        for producer in (self.producer, *self.former):
            if producer is not None:
                producer.close()


def _is_told(producer: FencedProducer) -> bool:
    return producer.unconfirmed == 0


class Seats:
    """The seats of a topic's partitions.

    Args:
        topic: The topic.
        scope: What is led, with a field for the partition; None: `<topic>/<partition>`.

    Attributes:
        scope: What is led, with that field.

    Raises:
        MisconfiguredError: A scope cannot be made of it.
    """

    def __init__(self, topic: str, scope: str | None) -> None:
        if not isinstance(topic, str) or not topic:
            raise MisconfiguredError(
                "topic", topic, "it names no topic",
                "Give the topic whose partitions are assigned.",
            )  # fmt: skip
        self.scope = f"{topic}/{PARTITION_FIELD}" if scope is None else scope
        if not isinstance(self.scope, str) or PARTITION_FIELD not in self.scope:
            raise MisconfiguredError(
                "scope", self.scope, "all partitions would have one leader",
                f"Put {PARTITION_FIELD} into it: 'pricing/{PARTITION_FIELD}'.",
            )  # fmt: skip
        check_scope(self.scope.replace(PARTITION_FIELD, str(_HIGHEST)))
        self._seats: dict[int, Seat] = {}
        self._of_scope: dict[str, Seat] = {}

    def at(self, partition: int) -> Seat:
        """The seat of a partition.

        Raises:
            MisconfiguredError: There can be no such partition.
        """
        is_number = isinstance(partition, int) and not isinstance(partition, bool)
        seat = self._seats.get(partition) if is_number else None
        if seat is not None:
            return seat
        if not is_number or not 0 <= partition <= _HIGHEST:
            raise MisconfiguredError(
                "partition", partition, "it is no partition's number",
                "Give numbers, such as message.partition().",
            )  # fmt: skip
        scope = self.scope.replace(PARTITION_FIELD, str(partition))
        seat = self._seats[partition] = self._of_scope[scope] = Seat(partition, scope)
        return seat

    def at_all(self, partitions: Iterable[int]) -> list[Seat]:
        """The seats of partitions, each once.

        Raises:
            MisconfiguredError: One is none, or they are no list.
        """
        if isinstance(partitions, str) or not isinstance(partitions, Iterable):
            raise MisconfiguredError(
                "partitions", partitions, "a list of numbers is expected",
                "Use [3], or [tp.partition for tp in partitions].",
            )  # fmt: skip
        return list(dict.fromkeys(self.at(number) for number in partitions))

    def of_scope(self, scope: str) -> Seat | None:
        """The seat of a scope; None: it is of no partition that was ever assigned."""
        return self._of_scope.get(scope)

    def all(self) -> list[Seat]:
        """Every one there is."""
        return list(self._seats.values())


class Outputs:
    """Where the leaders of partitions write to, and how that is judged.

    Args:
        outputs: Topics written to by the number of the led partition.
        shared_outputs: Topics written to by all leaders.
        scope: What is led, with a field for the partition.
        settings: How the topics' consumers judge; None: they require that scope on the
            first, and any stamp on the second.

    Raises:
        MisconfiguredError: They are no lists of topics, or one is in both.
    """

    def __init__(
        self,
        outputs: Iterable[str],
        shared_outputs: Iterable[str],
        scope: str,
        settings: Settings | None,
    ) -> None:
        self._own = _checked("outputs", outputs)
        self._shared = _checked("shared_outputs", shared_outputs)
        both = [topic for topic in self._own if topic in self._shared]
        if both:
            raise MisconfiguredError(
                "shared_outputs", both[0], "it is among the outputs, too",
                "Name it once: in shared_outputs, if a leader writes to any partition.",
            )  # fmt: skip
        if settings is None:
            settings = {
                **dict.fromkeys(self._own, FenceSettings([scope])),
                **dict.fromkeys(self._shared, FenceSettings([])),
            }
        self.settings: Settings = settings

    def __bool__(self) -> bool:
        return bool(self._own or self._shared)

    def named(self) -> str:
        """Their names, for messages."""
        return ", ".join([*self._own, *self._shared])

    def of(self, partition: int) -> list[str | TopicPartition]:
        """What the leader of a partition is to take over."""
        own = [TopicPartition(topic, partition) for topic in self._own]
        return [*own, *self._shared]


def _checked(setting: str, topics: Iterable[str]) -> list[str]:
    found = list(topics) if isinstance(topics, Iterable) else [None]
    is_list = not isinstance(topics, str | Mapping)
    if not is_list or not all(isinstance(topic, str) and topic for topic in found):
        raise MisconfiguredError(
            setting, topics, "a list of topics is expected", "Use ['prices']."
        )
    return list(dict.fromkeys(str(topic) for topic in found))
