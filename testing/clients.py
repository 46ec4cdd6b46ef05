"""What a ledger in memory gets in place of Kafka's clients."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from confluent_kafka import Consumer, Message, Producer

from epochfence.epochs.clients import Clients
from epochfence.epochs.connection import Config, LastError
from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.synced_log import BeforeReload, SyncedLog, Unavailable
from epochfence.epochs.topic_log import Appended, AppendUnknownError, Follower
from epochfence.epochs.topics import Answer, TopicFacts, TopicKeeper
from epochfence.testing.log import Faults, MemoryLog
from epochfence.testing.receiver import MemoryReceiver
from epochfence.testing.sender import MemorySender


class MemoryKeeper(TopicKeeper):
    """Tells of topics of a `MemoryLog`; those of the ledger are simply there."""

    def __init__(self, log: MemoryLog) -> None:
        self._log = log

    def ensure(self, topic: str, *, create: bool) -> bool:
        """Nothing has to be done."""
        return False

    def facts(self, topic: str, timeout_s: float | None = None) -> TopicFacts | None:
        """What a topic is now, None where there is none."""
        self._log.faults.check()
        topic_id = self._log.topic_id(topic)
        if topic_id is None:
            return None
        return TopicFacts(topic_id, self._log.topics()[topic])

    def ask(self, topics: Sequence[str]) -> dict[str, Answer]:
        """What gives the facts of topics, as they are then."""
        return {topic: partial(self.facts, topic) for topic in topics}

    def is_compacted(self, topic: str, timeout_s: float | None = None) -> bool:
        """None is."""
        return False

    def cluster_id(self, topic: str) -> str:
        """The id of the log."""
        return self._log.cluster_id


class MemoryPartitionReader(PartitionReader):
    """Reads a partition of a `MemoryLog`."""

    def __init__(self, log: MemoryLog, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.position: int | None = None
        self._log = log

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """The log's first offset, and the one behind its last."""
        if not self._log.has(self.topic, self.partition):
            raise TopicUnavailable(self.topic, "there is none", self.partition)
        return 0, len(self._log.records(self.topic, self.partition))

    def read(
        self, start: int, end: int, *, stall_timeout_s: float = 30.0
    ) -> Iterator[list[Message]]:
        """Yield the records from `start` up to, and without, `end`, at once."""
        self.position = start
        if start < end:
            _, log_end = self.bounds(stall_timeout_s)
            self.position = min(end, log_end)
            yield self._log.records(self.topic, self.partition)[start:end]

    def close(self) -> None:
        """Nothing has to be done."""


class MemorySyncedLog(SyncedLog):
    """A topic of the ledger: whoever follows it is always in step.

    Attributes:
        faults: What the next readings to the end meet.
        lost_outcomes: For each of the next appended records whose outcome gets lost:
            whether it is stored all the same.
    """

    def __init__(
        self, log: MemoryLog, topic: str, follower: Follower, unavailable: Unavailable
    ) -> None:
        self.faults = Faults()
        self.lost_outcomes: list[bool] = []
        self._memory = log
        self._topic = topic
        self._follower = follower
        self._unavailable = unavailable
        self._telling: int | None = None
        log.follow(topic, follower)

    def append(
        self,
        key: bytes,
        value: bytes | None,
        deadline: float,
        *,
        discard: bool = False,
    ) -> None:
        """Append a record."""
        outcome = self.append_all([(key, value)], deadline)[0]
        if isinstance(outcome, Exception):
            raise outcome

    def append_all(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        deadline: float,
        *,
        discard: bool = False,
    ) -> list[Appended]:
        """Append records."""
        return [self._append(key, value) for key, value in records]

    def _append(self, key: bytes, value: bytes | None) -> Appended:
        lost = self.lost_outcomes[:1]
        del self.lost_outcomes[:1]
        offset = 0
        if lost != [False]:
            self._telling = threading.get_ident()
            try:
                offset = self._memory.append_shared(self._topic, key, value)
            finally:
                self._telling = None
        return AppendUnknownError("no acknowledgement came") if lost else offset

    def check_reading(self) -> None:
        """It is always read."""

    def read_to_told_end(self, deadline: float) -> None:
        """It is always read."""

    def read_to_end(self, deadline: float) -> None:
        """It is always read, if no fault is to be met."""
        if self._telling == threading.get_ident():
            reason = "a watcher must not wait for what it holds up"
            raise self._unavailable(reason, None)
        self.faults.check()

    def lose_all(self) -> None:
        """Lose every record."""
        self._memory.lose_shared(self._topic)

    def close(self) -> None:
        """Stop following. May be called again."""
        self._memory.unfollow(self._topic, self._follower)


class MemoryClients(Clients):
    """Opens clients of a `MemoryLog`.

    Args:
        log: The log.

    Attributes:
        synced_logs: The topics of the ledger that were opened, by name.
    """

    can_add_partitions = False

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.synced_logs: dict[str, MemorySyncedLog] = {}

    # The stand-ins have the methods that are used of the real ones, and no others:
    # a subclass of a client would reach into memory that nobody has set up.

    def appending_producer(self, config: Config, last_error: LastError) -> Producer:
        """A producer that writes at once."""
        return cast("Producer", MemorySender(self._log))

    def writing_producer(self, config: Config, last_error: LastError) -> Producer:
        """A producer that writes at once, or holds back what it is told to."""
        return cast("Producer", MemorySender(self._log))

    def transactional_producer(
        self, config: Config, last_error: LastError, *, with_reports: bool = False
    ) -> Producer:
        """None: a log in memory has no transactions."""
        raise MisconfiguredError(
            "ledger", "MemoryLedger", "a log in memory has no transactions",
            "Use MemoryProducer, or a real broker.",
        )  # fmt: skip

    def group_consumer(self, config: Config, last_error: LastError) -> Consumer:
        """A consumer that is alone in its group."""
        settings: Mapping[str, Any] = config
        return cast("Consumer", MemoryReceiver(self._log, settings))

    def partition_reader(
        self,
        config: Config,
        topic: str,
        partition: int,
        *,
        isolation: str = "read_committed",
    ) -> PartitionReader:
        """A reader of one partition."""
        return MemoryPartitionReader(self._log, topic, partition)

    def topic_keeper(self, config: Config, timeout_s: float) -> TopicKeeper:
        """What tells of topics."""
        return MemoryKeeper(self._log)

    def has_member_with(
        self, config: Config, group: str, topic: str, partition: int, timeout_s: float
    ) -> bool:
        """Members come and go by themselves here."""
        return False

    def has_member(
        self, config: Config, group: str, member_id: str, timeout_s: float
    ) -> bool:
        """Nobody is ever put out of a group here."""
        return True

    def synced_log(
        self,
        config: Config,
        topic: str,
        follower: Follower,
        keeper: TopicKeeper | None,
        *,
        before_reload: BeforeReload,
        unavailable: Unavailable,
    ) -> SyncedLog:
        """A topic of the ledger."""
        opened = MemorySyncedLog(self._log, topic, follower, unavailable)
        self.synced_logs[topic] = opened
        return opened
