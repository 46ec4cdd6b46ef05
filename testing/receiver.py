"""What stands in for confluent-kafka's `Consumer`."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from epochfence.epochs.values import Place
from epochfence.testing.log import MemoryLog
from epochfence.testing.metadata import metadata_of

OnPartitions = Callable[["MemoryReceiver", list[TopicPartition]], None]

#: At most so many messages are given at once where a batch is asked for.
_MOST = 1_000_000


class _Fetch:
    """One assigned partition: where it is read.

    Attributes:
        topic_id: The life of the topic that it was assigned in.
        position: The next offset.
        known_epoch: The leader epoch of the record before it, None: unknown.
        checked_epoch: The partition's leader epoch when the position was last checked.
        is_paused: Whether nothing is delivered.
        is_stopped: Whether the application has to seek first.
        is_end_told: Whether the end was reported.
    """

    def __init__(self, topic_id: str | None, position: int) -> None:
        self.topic_id = topic_id
        self.position = position
        self.known_epoch: int | None = None
        self.checked_epoch: int | None = None
        self.is_paused = False
        self.is_stopped = False
        self.is_end_told = False


class MemoryReceiver:
    """Reads from a `MemoryLog`, as the only member of its group.

    Args:
        log: Where from.
        config: As for confluent's `Consumer`; of its settings, `group.id`,
            `enable.partition.eof` and `on_commit` matter.
    """

    def __init__(self, log: MemoryLog, config: Mapping[str, Any]) -> None:
        self._log = log
        self.group = str(config["group.id"])
        tells_end = str(config.get("enable.partition.eof", False)).lower()
        self._tells_end = tells_end in ("true", "1")
        self._on_commit: Callable[..., object] | None = config.get("on_commit")
        self._fetches: dict[Place, _Fetch] = {}
        self._topics: list[str] = []
        self._member_of: set[Place] = set()
        self._on_assign: OnPartitions | None = None
        self._on_revoke: OnPartitions | None = None
        # What the client does when it is called next.
        self._due: deque[Callable[[], object]] = deque()
        self._is_closed = False
        log.join(self)

    @property
    def is_at_rest(self) -> bool:
        """Whether a call would give nothing, and change nothing."""
        return not self._due and not any(
            self._has_something(place, fetch) for place, fetch in self._fetches.items()
        )

    # The group.

    def subscribe(
        self,
        topics: list[str],
        on_assign: OnPartitions | None = None,
        on_revoke: OnPartitions | None = None,
        on_lost: OnPartitions | None = None,
    ) -> None:
        """Join: the partitions are assigned when the client is called next."""
        self._topics = list(topics)
        if self._member_of:
            self._due.append(self._revoke)
        self._on_assign = on_assign
        self._due.append(partial(self._assign_all, on_revoke))

    def _assign_all(self, on_revoke: OnPartitions | None) -> None:
        self._on_revoke = on_revoke
        self._member_of = {
            (topic, number)
            for topic, numbers in self._log.topics().items()
            if any(_names(wanted, topic) for wanted in self._topics)
            for number in numbers
        }
        places = [TopicPartition(*place) for place in sorted(self._member_of)]
        if self._on_assign is None:
            self.assign(places)
        else:
            self._on_assign(self, places)

    def rebalance(self) -> None:
        """Have its partitions revoked and assigned when it is called next."""
        if self._topics and not self._is_closed:
            self._due.append(self._revoke)
            self._due.append(lambda: self._assign_all(self._on_revoke))

    def unsubscribe(self) -> None:
        """Leave: the partitions are revoked when the client is called next."""
        self._topics = []
        self._due.append(self._revoke)

    def _revoke(self) -> None:
        places = [TopicPartition(*place) for place in sorted(self._member_of)]
        self._member_of = set()
        if places and self._on_revoke is not None:
            self._on_revoke(self, places)
        self._fetches.clear()

    def close(self) -> None:
        """Leave for good."""
        if not self._is_closed:
            self._revoke()
            self._serve_answers()
            self._is_closed = True

    def memberid(self) -> str:
        """This member's id."""
        return f"{self.group}-in-memory"

    # Partitions.

    def assign(self, partitions: list[TopicPartition]) -> None:
        """Read these."""
        self._fetches.clear()
        self.incremental_assign(partitions)

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        """Read these too."""
        for tp in partitions:
            life = self._log.topic_id(tp.topic)
            self._fetches[tp.topic, tp.partition] = _Fetch(life, max(tp.offset, 0))

    def unassign(self) -> None:
        """Read none."""
        self._fetches.clear()

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        """Read these no more."""
        for tp in partitions:
            self._fetches.pop((tp.topic, tp.partition), None)

    def assignment(self) -> list[TopicPartition]:
        """What is read."""
        return [TopicPartition(*place) for place in sorted(self._fetches)]

    def pause(self, partitions: list[TopicPartition]) -> None:
        """Deliver nothing of these."""
        for fetch in self._known(partitions):
            fetch.is_paused = True

    def resume(self, partitions: list[TopicPartition]) -> None:
        """Deliver from these again."""
        for fetch in self._known(partitions):
            fetch.is_paused = False

    def seek(self, partition: TopicPartition) -> None:
        """Go on at another offset, compared with the log by its leader epoch."""
        (fetch,) = self._known([partition])
        epoch: int | None = partition.leader_epoch
        fetch.position = partition.offset
        fetch.known_epoch = epoch if (epoch or 0) >= 0 else None
        fetch.checked_epoch = None
        fetch.is_stopped = fetch.is_end_told = False

    def _known(self, partitions: Iterable[TopicPartition]) -> list[_Fetch]:
        found = [self._fetches.get((tp.topic, tp.partition)) for tp in partitions]
        if None in found:
            raise KafkaException(KafkaError(KafkaError._STATE, "it is not assigned"))
        return [fetch for fetch in found if fetch is not None]

    # Messages.

    def poll(self, timeout: float | None = None) -> Message | None:
        """The next message, or an event."""
        messages = self.consume(1, -1 if timeout is None else timeout)
        return messages[0] if messages else None

    def consume(self, num_messages: int = 1, timeout: float = -1) -> list[Message]:
        """Messages and events; a call waits only where there are none at all."""
        if self._is_closed:
            raise RuntimeError("Consumer closed")
        until = float("inf") if timeout < 0 else time.monotonic() + timeout
        while True:
            self._serve()
            with self._log.changed:
                messages = self._take(min(num_messages, _MOST))
                left_s = until - time.monotonic()
                if messages or left_s <= 0 or num_messages == 0:
                    return messages
                # Woken up by what is written; signals and other threads run between.
                self._log.changed.wait(min(left_s, 0.2))

    def _serve(self) -> None:
        for _ in range(len(self._due)):
            self._due.popleft()()

    def _take(self, count: int) -> list[Message]:
        messages: list[Message] = []
        for place, fetch in list(self._fetches.items()):
            while len(messages) < count and self._has_something(place, fetch):
                messages.append(self._next(place, fetch))
        return messages

    def _has_something(self, place: Place, fetch: _Fetch) -> bool:
        if fetch.is_paused or fetch.is_stopped or not self._log.has(*place):
            return False
        if fetch.topic_id != self._log.topic_id(place[0]):
            return False  # as the client: it goes on silently, and gets nothing
        partition = self._log.partition(*place)
        is_at_end = fetch.position == len(partition.records)
        return (
            not is_at_end
            or self._truncated_to(place, fetch) is not None
            or (self._tells_end and not fetch.is_end_told)
        )

    def _truncated_to(self, place: Place, fetch: _Fetch) -> int | None:
        """Where the log was cut below a position, None where it was not."""
        partition = self._log.partition(*place)
        is_checked = fetch.checked_epoch == partition.leader_epoch
        if is_checked or fetch.known_epoch is None:
            return None
        end = partition.end_of(fetch.known_epoch)
        return end if end < fetch.position else None

    def _next(self, place: Place, fetch: _Fetch) -> Message:
        partition = self._log.partition(*place)
        cut = self._truncated_to(place, fetch)
        if cut is not None:
            return self._reset(
                place, fetch, f"log truncation: broker end offset is {cut}"
            )
        fetch.checked_epoch = partition.leader_epoch
        if fetch.position > len(partition.records):
            return self._reset(place, fetch, "the offset is out of range")
        if fetch.position == len(partition.records):
            fetch.is_end_told = True
            return _event(place, fetch, KafkaError(KafkaError._PARTITION_EOF))
        record = partition.records[fetch.position]
        fetch.position += 1
        fetch.known_epoch = record.leader_epoch()
        fetch.is_end_told = False
        return _copy_of(record)

    @staticmethod
    def _reset(place: Place, fetch: _Fetch, reason: str) -> Message:
        fetch.is_stopped = True
        return _event(place, fetch, KafkaError(KafkaError._AUTO_OFFSET_RESET, reason))

    # Offsets.

    def get_watermark_offsets(
        self, partition: TopicPartition, *_: Any, **__: Any
    ) -> tuple[int, int]:
        """The log's first offset, and the one behind its last."""
        if not self._log.has(partition.topic, partition.partition):
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
        records = self._log.partition(partition.topic, partition.partition).records
        return 0, len(records)

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        """What the group has committed."""
        return [
            self._log.committed(self.group, tp.topic, tp.partition) for tp in partitions
        ]

    def commit(
        self, *, offsets: list[TopicPartition], asynchronous: bool = True
    ) -> list[TopicPartition] | None:
        """Commit; the answer of an asynchronous commit comes with the next call."""
        for tp in offsets:
            self._log.commit(self.group, tp)
        if not asynchronous:
            return offsets
        if self._on_commit is not None:
            self._due.append(partial(self._on_commit, None, offsets))
        return None

    def _serve_answers(self) -> None:
        for due in list(self._due):
            if isinstance(due, partial) and due.func is self._on_commit:
                due()
        self._due.clear()

    # The rest.

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Tell metadata."""
        return metadata_of(self._log, topic)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(
            f"the testing kit's consumer has no {name!r}: see the simplifications in "
            f"epochfence.testing"
        )


def _names(wanted: str, topic: str) -> bool:
    """Whether a subscription, a pattern perhaps, names a topic."""
    if wanted.startswith("^"):
        return re.match(wanted, topic) is not None
    return wanted == topic


def _event(place: Place, fetch: _Fetch, error: KafkaError) -> Message:
    return Message(
        topic=place[0], partition=place[1], offset=fetch.position, error=error
    )


def _copy_of(record: Message) -> Message:
    """Another object: what an application makes of a message is not in the log."""
    return Message(
        topic=record.topic(),
        partition=record.partition(),
        offset=record.offset(),
        key=record.key(),
        value=record.value(),
        headers=record.headers(),
        timestamp=record.timestamp(),
        leader_epoch=record.leader_epoch(),
    )
