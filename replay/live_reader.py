"""What goes on in topics, read as it happens. Writes nothing, and joins no group.

One thread reads, judges, and asks the cluster; whoever shows the picture is not held up
where that does not answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType

from confluent_kafka import KafkaError, Message, TopicPartition

from epochfence.epochs.connection import Config, LastError, reading_consumer
from epochfence.epochs.errors import (
    EpochfenceError,
    LedgerUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.messages import headers_of, timestamp_of
from epochfence.epochs.partition_reader import next_batch
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.topics import (
    COORDINATION_TOPIC,
    TABLE_TOPIC,
    TopicFacts,
    TopicKeeper,
)
from epochfence.epochs.values import Place
from epochfence.replay.audit import Audit
from epochfence.replay.live_ledger import LedgerNotReached, LiveLedger
from epochfence.replay.often import Often
from epochfence.replay.summing_up import ledger_report, settings_report
from epochfence.replay.told_topics import read_told_table
from epochfence.replay.topic_source import Range, Slice, TopicSource
from epochfence.replay.watch_picture import Picture
from epochfence.replay.watching import Arrived, PartitionWatch, WatchState

_POLL_S = 0.1

#: How often the cluster is asked for the topics' ids and partitions.
_LOOK_EVERY_S = 2.0

#: How long it may take for that, and for the ledger's end, while the watch goes on.
_LOOK_TIMEOUT_S = 3.0

#: The last remarks that are kept.
_MOST_REMARKS = 5

#: After what the client complained about, it is asked at once, but not all the time.
_LOOK_AGAIN_S = 0.5


@dataclass(frozen=True)
class Beginning:
    """Where a watch begins on each partition; with nothing said, at its end.

    Attributes:
        is_log_start: At the start of the log.
        since_ms: At the first record with such a timestamp or a later one; ms since
            1970.
    """

    is_log_start: bool = False
    since_ms: int | None = None


class LiveReader:
    """Watches topics while the block lasts.

    Args:
        config: Connection settings, as for confluent-kafka.
        topics: The topics.
        settings: What their records must carry.
        beginning: Where to begin.
        coordination_topic: The topic that holds the ledger.
        table_topic: The topic of the max-epoch table, which may be missing.
        timeout_s: How long the cluster may take at the start.

    Raises:
        MisconfiguredError: There is no such topic; a setting is unknown.
        TopicUnavailable: The cluster does not answer, or a partition has no leader.
        LedgerUnavailable: The ledger cannot be read.
        LedgerRegressed: The ledger is below the table.
        TableUnavailable: The table cannot be read.
    """

    def __init__(
        self,
        config: Config,
        topics: Sequence[str],
        settings: FenceSettings,
        beginning: Beginning,
        *,
        coordination_topic: str = COORDINATION_TOPIC,
        table_topic: str = TABLE_TOPIC,
        timeout_s: float = 30.0,
    ) -> None:
        self._config = config
        self._topics = list(dict.fromkeys(topics))
        self._settings = settings
        self._timeout_s = timeout_s
        # Ends first, then the table, then the ledger: each is at least as old as what
        # is compared with it.
        pieces = [
            piece
            for topic in self._topics
            for piece in _pieces(config, topic, beginning, timeout_s)
        ]
        told = read_told_table(config, table_topic, timeout_s)
        rows = () if told is None else tuple(told.rows)
        self._remarks: list[str] = []
        if told is None:
            self._remarks.append(f"there is no table topic {table_topic}")
        self._ledger: LiveLedger | None = None
        if settings.authority == "ledger":
            self._ledger = LiveLedger(config, coordination_topic, timeout_s)
            watched = [row for row in rows if row.topic in self._topics]
            Audit(settings, self._ledger.source(), watched)  # compares both
        self._state = WatchState(
            settings, None if self._ledger is None else self._ledger.state, rows
        )
        self._ids = {piece.topic: piece.topic_id for piece in pieces}
        for piece in pieces:
            self._state.begin(piece)
        self._keeper = TopicKeeper(config, _LOOK_TIMEOUT_S)
        self._is_time_to_look = Often(_LOOK_EVERY_S)
        self._may_look_again = Often(_LOOK_AGAIN_S)
        self._last_error = LastError(config)
        self._consumer = reading_consumer(
            config, self._last_error, isolation="read_committed"
        )
        self._waiting: list[Message] = []  # received, not judged yet
        self._lost: set[Place] = set()  # nothing stands where they were to be read
        self._gone: set[str] = set()
        self._problem: str | None = None
        self._failure: EpochfenceError | None = None
        self._lock = threading.Lock()
        self._is_ending = False
        self._thread = threading.Thread(
            target=self._watch, name="epochfence-watch", daemon=True
        )

    # For whoever shows the picture.

    def picture(self) -> Picture:
        """What is to be seen now.

        Raises:
            TopicUnavailable: A topic cannot be read, and waiting does not help.
            LedgerUnavailable: So it is with the ledger.
        """
        with self._lock:
            if self._failure is not None:
                raise self._failure
            now_s = time.monotonic()
            rejected = self._state.rejected(now_s)
            return Picture(
                at=int(time.time() * 1000),
                topics=self._topics,
                settings=settings_report(self._settings),
                ledger=None
                if self._ledger is None
                else ledger_report(self._ledger.source()),
                problem=self._problem,
                verdicts=self._state.counts(),
                scopes=self._state.scopes(),
                partitions=[one.picture(now_s) for one in self._state.partitions],
                rejected=rejected,
                last_rejected=self._state.last_rejected(),
                attention=[str(one) for one in rejected if one.last_minute],
                notes=[*self._remarks, *self._state.notes()],
            )

    def wait_for_ends(self, is_stopped: Callable[[], bool]) -> None:
        """Wait until all that was there when the watch began was read.

        Args:
            is_stopped: Asked every moment whether to give that up.

        Raises:
            TopicUnavailable: Nothing came in time, or a topic cannot be read.
            LedgerUnavailable: The ledger cannot be read.
        """
        reached, deadline = -1, 0.0
        while not is_stopped():
            picture = self.picture()
            left = [one for one in picture.partitions if one.is_catching_up]
            if not left:
                return
            so_far = sum(one.next_offset for one in picture.partitions)
            if so_far != reached:
                reached, deadline = so_far, time.monotonic() + self._timeout_s
            elif time.monotonic() >= deadline:
                reason = picture.problem or f"nothing came for {self._timeout_s:g} s"
                raise TopicUnavailable(
                    left[0].topic, reason, left[0].partition, left[0].next_offset
                )
            time.sleep(_POLL_S)

    def __enter__(self) -> LiveReader:
        self._assign()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._is_ending = True
        self._thread.join()
        self._consumer.close()
        if self._ledger is not None:
            self._ledger.close()

    # The thread.

    def _watch(self) -> None:
        while not self._is_ending:
            try:
                self._turn()
            except LedgerNotReached as error:
                self._have_problem(f"the ledger cannot be read now: {error}")
            except EpochfenceError as error:
                with self._lock:
                    self._failure = error
                return

    def _turn(self) -> None:
        if not self._waiting:
            is_uneasy = self._lost or self._last_error.text
            if self._is_time_to_look() or (is_uneasy and self._may_look_again()):
                self._look()
            self._waiting = next_batch(self._consumer, _POLL_S)
        if self._ledger is not None:
            self._ledger.follow()
        self._judge()

    def _judge(self) -> None:
        """Judge what waits, and deal with what the client has to say besides."""
        batch, is_complete = self._waiting, False
        now_s = time.monotonic()
        for number, message in enumerate(batch):
            there = self._state.find(message.topic() or "", message.partition() or 0)
            error = message.error()
            if error is not None:
                self._hear(there, error, message.offset())
                continue
            assert there is not None
            record = self._arrived(message)
            while not self._take(there, record, now_s, is_complete):
                assert self._ledger is not None
                self._waiting = batch[number:]  # where the ledger cannot be read
                self._ledger.read_to_told_end(_LOOK_TIMEOUT_S)
                is_complete = True
        self._waiting = []

    def _take(
        self, there: PartitionWatch, record: Arrived, now_s: float, is_complete: bool
    ) -> bool:
        with self._lock:
            return self._state.take(
                there, record, now_s, is_ledger_complete=is_complete
            )

    def _arrived(self, message: Message) -> Arrived:
        offset = message.offset()
        assert offset is not None
        return Arrived(
            message.leader_epoch(),
            offset,
            timestamp_of(message),
            headers_of(message),
            message.value() if self._settings.stamps.is_foreign else None,
        )

    def _hear(
        self, there: PartitionWatch | None, error: KafkaError, offset: int | None
    ) -> None:
        code = error.code()
        if there is None:
            self._last_error(error)
        elif code == KafkaError._PARTITION_EOF:
            with self._lock:
                there.has_read_to(offset or 0, is_end=True)
        elif code == KafkaError.TOPIC_AUTHORIZATION_FAILED or error.fatal():
            raise TopicUnavailable(there.topic, error.str(), there.partition)
        elif code == KafkaError._AUTO_OFFSET_RESET:
            self._lost.add((there.topic, there.partition))
        else:
            self._last_error(error)

    # Looking at the topics: what came, what went.

    def _look(self) -> None:
        names = list(self._topics)
        if self._ledger is not None:
            names.append(self._ledger.topic)
        try:
            answers = self._keeper.ask(names)
            facts = {name: answers[name](_LOOK_TIMEOUT_S) for name in names}
            if self._ledger is not None:
                self._check_ledger(self._ledger, facts[self._ledger.topic])
            self._follow_changes(facts)
        except TopicUnavailable as error:
            self._have_problem(f"the cluster does not answer: {error.reason}")
            return
        self._last_error.clear()
        gone = [topic for topic in self._topics if facts[topic] is None]
        self._have_problem(
            f"there is no topic {', '.join(gone)} any more" if gone else None
        )

    def _check_ledger(self, ledger: LiveLedger, facts: TopicFacts | None) -> None:
        if facts is None or facts.topic_id != ledger.topic_id:
            raise LedgerUnavailable(
                ledger.topic,
                "it was deleted, or made anew, meanwhile: what it granted is lost",
            )

    def _follow_changes(self, facts: Mapping[str, TopicFacts | None]) -> None:
        is_changed = False
        for topic in self._topics:
            found = facts[topic]
            is_there = found is not None
            is_changed |= is_there is (topic in self._gone)
            if found is None:
                self._gone.add(topic)
                continue
            self._gone.discard(topic)
            wanted = [
                number
                for number in found.partitions
                if found.topic_id != self._ids[topic]
                or self._state.find(topic, number) is None
                or (topic, number) in self._lost
            ]
            if wanted:
                self._begin(topic, found.topic_id, wanted)
                is_changed = True
        if is_changed:
            self._assign()

    def _begin(self, topic: str, topic_id: str, numbers: Sequence[int]) -> None:
        """Read partitions that came, or whose log is not what it was."""
        source = TopicSource(self._config, topic, _LOOK_TIMEOUT_S, numbers)
        with self._lock:
            if topic_id != self._ids[topic]:
                self._remark(f"{topic} was made anew: its records are read from 0")
            for piece in source.slices:
                there = self._state.find(topic, piece.partition)
                begin = piece.log_start
                if there is not None and topic_id == self._ids[topic]:
                    begin = self._next_of(there, piece)
                self._state.begin(replace(piece, start=begin, end=begin))
                self._lost.discard((topic, piece.partition))
            self._ids[topic] = topic_id

    def _next_of(self, there: PartitionWatch, piece: Slice) -> int:
        """Where to read on after the client has found nothing at its place."""
        where, at = f"{there.topic}[{there.partition}]", there.next_offset
        if at < piece.log_start:
            self._remark(
                f"{where}: offsets {at} to {piece.log_start - 1} were deleted before "
                f"they were read"
            )
            return piece.log_start
        if at > piece.end:
            self._remark(f"{where}: the log was cut off at offset {piece.end}")
            return piece.end
        return at

    def _assign(self) -> None:
        self._consumer.assign(
            [
                TopicPartition(one.topic, one.partition, one.next_offset)
                for one in self._state.partitions
                if one.topic not in self._gone
            ]
        )

    def _have_problem(self, text: str | None) -> None:
        with self._lock:
            self._problem = text

    def _remark(self, text: str) -> None:
        if text not in self._remarks:
            self._remarks.append(text)
            del self._remarks[:-_MOST_REMARKS]


def _pieces(
    config: Config, topic: str, beginning: Beginning, timeout_s: float
) -> Iterator[Slice]:
    limits = Range(since_ms=beginning.since_ms)
    for piece in TopicSource(config, topic, timeout_s, limits=limits).slices:
        is_end = not beginning.is_log_start and beginning.since_ms is None
        yield replace(piece, start=piece.end) if is_end else piece
