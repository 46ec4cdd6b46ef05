"""Topics in memory: what was written, where it stands, and what befell it."""

from __future__ import annotations

import base64
import threading
import zlib
from collections.abc import Iterable
from copy import copy
from itertools import count
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

from confluent_kafka import (
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_NOT_AVAILABLE,
    Message,
    TopicPartition,
)

from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.topic_log import Follower

#: Headers as a producer takes them: text is written as UTF-8.
Headers = dict[str, Any] | Iterable[tuple[str, Any]]

T = TypeVar("T")

_clusters = count(1)
_lives = count(1)


class Member(Protocol):
    """A client that is a member of a group."""

    group: str

    def rebalance(self) -> None:
        """Have its partitions revoked and assigned when it is called next."""
        ...


class Faults:
    """Errors that the next calls are to meet, first in, first out."""

    def __init__(self) -> None:
        self._errors: list[EpochfenceError] = []

    def add(self, error: EpochfenceError, times: int) -> None:
        """Have the next `times` calls meet an error."""
        if not isinstance(error, EpochfenceError):
            raise MisconfiguredError(
                "error", error, "no error that the library raises",
                "Give one of this package's, such as LedgerUnavailable(...).",
            )  # fmt: skip
        self._errors += [error] * check_times(times)

    def check(self) -> None:
        """Raise what comes next, if anything does."""
        if self._errors:
            # Another object each time: a traceback would grow.
            raise copy(self._errors.pop(0))


def check_times(times: int) -> int:
    """Give `times` back if something can be done so often."""
    if isinstance(times, bool) or not isinstance(times, int) or times < 1:
        raise MisconfiguredError(
            "times", times, "nothing can be done so often", "Use 1 or more."
        )
    return times


class _Partition:
    """The records of one partition; a record's offset is its index.

    Attributes:
        records: What can be read.
        leader_epoch: The broker's leader epoch of what is written now.
    """

    def __init__(self) -> None:
        self.records: list[Message] = []
        self.leader_epoch = 0

    def end_of(self, leader_epoch: int) -> int:
        """The offset behind the last record of this leader epoch or an earlier one."""
        for record in reversed(self.records):
            if (record.leader_epoch() or 0) <= leader_epoch:
                return (record.offset() or 0) + 1
        return 0


class _Topic:
    """One life of a topic."""

    def __init__(self, partitions: int) -> None:
        number = next(_lives)
        identity = base64.urlsafe_b64encode(number.to_bytes(16, "big"))
        self.topic_id = identity.decode("ascii").rstrip("=")
        self.partitions = [_Partition() for _ in range(partitions)]


class _Shared:
    """A topic of the ledger: its records, and who follows them."""

    def __init__(self) -> None:
        self.records: list[tuple[bytes | None, bytes | None]] = []
        self.followers: list[Follower] = []


class MemoryLog:
    """Topics, their records, and the offsets that groups have committed.

    Records are `confluent_kafka.Message`s. Whoever goes by one log is on one cluster.
    May be used from several threads.
    """

    def __init__(self) -> None:
        self.cluster_id = f"memory-{next(_clusters)}"
        self.changed = threading.Condition(threading.RLock())
        self.faults = Faults()
        self._topics: dict[str, _Topic] = {}
        self._shared: dict[str, _Shared] = {}
        self._members: WeakSet[Member] = WeakSet()
        self._committed: dict[tuple[str, str, int], TopicPartition] = {}
        self._round_robin = count()

    # Topics.

    def create_topic(self, topic: str, partitions: int = 1) -> str:
        """Create a topic; give its name.

        Raises:
            MisconfiguredError: It exists, or cannot.
        """
        if topic in self._topics:
            raise MisconfiguredError(
                "topic", topic, "it exists already",
                "Use recreate() for another life of it, or another name.",
            )  # fmt: skip
        self._topics[topic] = _Topic(_checked_partitions(partitions))
        return topic

    def recreate(self, topic: str, partitions: int | None = None) -> None:
        """Delete a topic and create it again: another topic id, offsets begin at 0.

        Args:
            topic: A topic.
            partitions: How many it has from now on; None: as many as before.
        """
        before = len(self._topic(topic).partitions)
        with self.changed:
            number = before if partitions is None else _checked_partitions(partitions)
            self._topics[topic] = _Topic(number)
            self.changed.notify_all()

    def topics(self) -> dict[str, list[int]]:
        """The numbers of the partitions of each topic."""
        return {
            name: list(range(len(topic.partitions)))
            for name, topic in self._topics.items()
        }

    def topic_id(self, topic: str) -> str | None:
        """The id of a topic's present life, None where there is no such topic."""
        found = self._topics.get(topic)
        return None if found is None else found.topic_id

    def fail(self, error: EpochfenceError, times: int = 1) -> None:
        """Have the next looks at a topic meet an error.

        `take_over`, `poll`, `consume` and `commit` look, and so does the `confirm` of
        a deposed leader: `TopicUnavailable("orders", "no broker answers")`.
        """
        self.faults.add(error, times)

    # Groups.

    def join(self, member: Member) -> None:
        """Have a client told of rebalances."""
        self._members.add(member)

    def rebalance(self, group: str) -> None:
        """Take all partitions from a group's members, and give them back.

        As when another member comes and goes: it happens when they are called next.
        """
        for member in list(self._members):
            if member.group == group:
                member.rebalance()

    # Records.

    def append(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        headers: Headers | None = None,
        timestamp: int = 0,
    ) -> Message:
        """Write a record as any client could: unstamped, or with made-up headers.

        Args:
            topic: A topic.
            value: The record's value.
            key: Its key.
            partition: Its partition; -1: chosen by the key as librdkafka does, or, if
                there is none, in turn.
            headers: Its headers.
            timestamp: Milliseconds since 1970; 0: none.

        Raises:
            MisconfiguredError: There is no such topic or partition.
        """
        name, content = as_bytes(key), as_bytes(value)
        with self.changed:
            number = partition
            if partition < 0:
                partitions = len(self._topic(topic).partitions)
                chosen = zlib.crc32(name) if name else next(self._round_robin)
                number = chosen % partitions
            to = self.partition(topic, number)
            kind = TIMESTAMP_CREATE_TIME if timestamp else TIMESTAMP_NOT_AVAILABLE
            record = Message(
                topic=topic,
                partition=number,
                offset=len(to.records),
                key=name,
                value=content,
                headers=_spelt(headers) or None,  # type: ignore[arg-type]
                timestamp=(kind, timestamp),
                leader_epoch=to.leader_epoch,
            )
            to.records.append(record)
            self.changed.notify_all()
        return record

    def repeat(self, record: Message) -> Message:
        """Write a copy of a record behind the others: a retry that was stored twice."""
        return self.append(
            record.topic() or "",
            record.value(),
            record.key(),
            record.partition() or 0,
            headers=record.headers(),
            timestamp=record.timestamp()[1],
        )

    def records(self, topic: str, partition: int | None = None) -> list[Message]:
        """Everything in a topic, or in one partition, barriers and zombies included."""
        numbers = self.topics()[topic] if partition is None else [partition]
        return [
            record
            for number in numbers
            for record in self.partition(topic, number).records
        ]

    def change_leader(self, topic: str, partition: int = 0) -> None:
        """Have another broker lead a partition: its leader epoch rises by one."""
        with self.changed:
            self.partition(topic, partition).leader_epoch += 1

    def truncate(self, topic: str, partition: int, to: int) -> None:
        """Cut a partition: an unclean election took what lies from `to` on.

        Raises:
            MisconfiguredError: It does not reach so far.
        """
        with self.changed:
            records = self.partition(topic, partition).records
            if not 0 <= to <= len(records):
                raise MisconfiguredError(
                    "to", to, f"{topic}[{partition}] ends at offset {len(records)}",
                    "Give an offset within the log.",
                )  # fmt: skip
            del records[to:]
            self.change_leader(topic, partition)
            self.changed.notify_all()

    # For the clients.

    def _topic(self, topic: str) -> _Topic:
        found = self._topics.get(topic)
        if found is None:
            raise MisconfiguredError(
                "topic", topic, f"there is none (there are: {sorted(self._topics)})",
                f"Call create_topic({topic!r}) before.",
            )  # fmt: skip
        return found

    def partition(self, topic: str, number: int) -> _Partition:
        """A partition.

        Raises:
            MisconfiguredError: There is none.
        """
        partitions = self._topic(topic).partitions
        if not 0 <= number < len(partitions):
            raise MisconfiguredError(
                "partition", number, f"{topic} has {len(partitions)} of them",
                f"Use a number from 0 to {len(partitions) - 1}.",
            )  # fmt: skip
        return partitions[number]

    def has(self, topic: str, number: int) -> bool:
        """Whether there is such a partition."""
        return number in self.topics().get(topic, ())

    def commit(self, group: str, offset: TopicPartition) -> None:
        """Keep what a group commits."""
        self._committed[group, offset.topic, offset.partition] = offset

    def committed(self, group: str, topic: str, partition: int) -> TopicPartition:
        """What a group has committed; without an offset where it has not."""
        found = self._committed.get((group, topic, partition))
        return TopicPartition(topic, partition) if found is None else found

    # The topics of the ledger.

    def follow(self, topic: str, follower: Follower) -> None:
        """Have a follower told of all that is there, and of all that comes."""
        with self.changed:
            shared = self._shared.setdefault(topic, _Shared())
            self._tell_all(shared, follower)
            shared.followers.append(follower)

    @staticmethod
    def _tell_all(shared: _Shared, follower: Follower) -> None:
        follower.restart()
        for offset, (key, value) in enumerate(shared.records):
            follower.take(offset, key, value)
        follower.caught_up()

    def unfollow(self, topic: str, follower: Follower) -> None:
        """Tell a follower nothing more."""
        with self.changed:
            shared = self._shared[topic]
            shared.followers = [one for one in shared.followers if one is not follower]

    def append_shared(self, topic: str, key: bytes, value: bytes | None) -> int:
        """Write to a topic of the ledger; give the offset."""
        with self.changed:
            shared = self._shared[topic]
            shared.records.append((key, value))
            offset = len(shared.records) - 1
            for follower in list(shared.followers):
                follower.take(offset, key, value)
            return offset

    def lose_shared(self, topic: str) -> None:
        """Lose what is in a topic of the ledger."""
        with self.changed:
            shared = self._shared[topic]
            shared.records.clear()
            for follower in list(shared.followers):
                self._tell_all(shared, follower)


def as_bytes(content: str | bytes | None) -> bytes | None:
    """Text as the client writes it."""
    return content.encode("utf-8") if isinstance(content, str) else content


def _spelt(headers: Headers | None) -> list[tuple[str, bytes | None]]:
    pairs: Any = headers.items() if isinstance(headers, dict) else headers or ()
    return [(name, as_bytes(value)) for name, value in pairs]


def _checked_partitions(partitions: int) -> int:
    if isinstance(partitions, bool) or not isinstance(partitions, int):
        partitions = 0
    if partitions < 1:
        raise MisconfiguredError(
            "partitions", partitions, "no topic has so many", "Use 1 or more."
        )
    return partitions
