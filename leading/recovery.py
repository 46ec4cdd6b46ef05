"""What a new leader has to know: everything that was admitted before it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import OFFSET_BEGINNING, KafkaError, KafkaException, Message
from confluent_kafka import TopicPartition as At

from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.consumers.outbox import place_of
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.messages import headers_of
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import CURSOR_HEADER
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import Place

_log = logging.getLogger(__name__)

#: Applies admitted messages, in the order of each partition.
Apply = Callable[[Sequence[Message]], object]

#: Told how far it is: for each partition the next offset, and that to be reached.
OnProgress = Callable[[Mapping[Place, tuple[int, int]]], object]

_BATCH = 1000
_SLICE_S = 0.2
#: How often new partitions are looked for.
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True)
class Recovered:
    """What was read up to the barriers.

    Attributes:
        messages: How many admitted messages there were.
        cursors: The cursor of the last admitted message that has one, None where none
            has, of each partition of which it is known.
        unknown: Partitions of which it is not: none was found, and the log does not
            begin at 0; or their topic is compacted.
    """

    messages: int
    cursors: Mapping[Place, bytes | None] = field(
        default_factory=dict[Place, "bytes | None"]
    )
    unknown: frozenset[Place] = frozenset()


class _WentBackError(Exception):
    """What was read is not there any more, or not any more what it was."""


class Recovery:
    """Reads what is admitted of topics, from their start, as a consumer would.

    Where a topic was made anew, or its log was cut, what was read does not count any
    more: then all is read once more.

    Args:
        config: Connection settings, as for confluent-kafka.
        ledger: The ledger.
        require: How the records of each topic are judged.
        topics: Topics, and single partitions.
        reset: Called before reading begins at the topics' start.
        apply: Gets the admitted messages.
        on_progress: Told how far it is.
        timeout_s: How long a call may wait for the cluster.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        require: Mapping[str, FenceSettings],
        topics: Sequence[str | At],
        *,
        reset: Callable[[], object] | None,
        apply: Apply | None,
        on_progress: OnProgress | None,
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._require = require
        self._topics = topics
        self._keeper: TopicKeeper | None = None
        if not ledger.is_embedded:  # that broker tells nothing
            self._keeper = ledger.clients.topic_keeper(config, timeout_s)
        self._connection = dict(config)
        self._timeout_s = timeout_s
        self._reset = reset
        self._apply = apply
        self._on_progress = on_progress
        self._consumer: FencedConsumer | None = None
        self._begin()

    def _begin(self) -> None:
        """Begin at the topics' start."""
        self.close()
        if self._reset is not None:
            self._reset()
        self._next_look = 0.0
        self._ids: dict[str, str] = {}
        self._next: dict[Place, int] = {}
        self._cursors: dict[Place, bytes] = {}
        self._messages = 0
        # Of no group: nothing is committed. The client wants a name all the same.
        self._consumer = FencedConsumer(
            {
                **self._connection,
                "group.id": "epochfence-recovery",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            },
            self._ledger,
            require=self._require,
            timeout_s=self._timeout_s,
        )

    @property
    def _reader(self) -> FencedConsumer:
        if self._consumer is None:
            raise RuntimeError("the recovery was closed")
        return self._consumer

    def follow(self, wait_s: float) -> None:
        """Read on for a moment, new partitions too.

        Raises:
            LedgerUnavailable, TableUnavailable, TopicUnavailable: For now.
            KafkaException: The client cannot go on.
        """
        try:
            if time.monotonic() >= self._next_look:
                self._assign(self._places())
                self._next_look = time.monotonic() + _LOOK_EVERY_S
            self._take(self._reader.consume(_BATCH, wait_s))
        except _WentBackError:
            self._begin()

    def _places(self) -> list[Place]:
        places: list[Place] = []
        for topic in self._topics:
            if isinstance(topic, At):
                places.append((topic.topic, topic.partition))
            elif self._keeper is not None:
                facts = self._keeper.facts(topic)
                places += [(topic, n) for n in (facts.partitions if facts else ())]
        return list(dict.fromkeys(places))

    def read_to(
        self, barriers: Mapping[Place, int], is_over: Callable[[], bool]
    ) -> Recovered | None:
        """Read up to the barriers; None where the leadership is over before.

        Raises:
            TopicUnavailable: A partition does not get on, by an open transaction, or
                as its barrier is gone.
            Exception: As `follow`.
        """
        try:
            # After the barriers: an id that is the same now was so all the time.
            self._check_ids(barriers)
            self._assign(barriers)
            self._check_positions(barriers)
        except _WentBackError:
            self._begin()
            self._check_ids(barriers)
            self._assign(barriers)
        at = self._positions(barriers)
        moved_at = time.monotonic()
        while not is_over():
            if self._on_progress is not None:
                self._on_progress(
                    {place: (at[place], end + 1) for place, end in barriers.items()}
                )
            if all(at[place] > end for place, end in barriers.items()):
                return self._recovered(barriers)
            try:
                self._take(self._reader.consume(_BATCH, _SLICE_S))
            except _WentBackError:
                self._begin()
                self._assign(barriers)
            before, at = at, self._positions(barriers)
            if at != before or self._reader.progress:
                moved_at = time.monotonic()
            elif time.monotonic() > moved_at + self._timeout_s:
                raise self._stuck(at, barriers)
        return None

    def _stuck(
        self, at: Mapping[Place, int], barriers: Mapping[Place, int]
    ) -> TopicUnavailable:
        place = next(place for place, end in barriers.items() if at[place] <= end)
        reason = (
            f"nothing more came for {self._timeout_s:g} s below the barrier at offset "
            f"{barriers[place]}: an open transaction hides it, or it is gone"
        )
        return TopicUnavailable(place[0], reason, place[1], at[place])

    def _positions(self, places: Iterable[Place]) -> dict[Place, int]:
        found = self._reader.position([At(*place) for place in places])
        return {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}

    def _check_ids(self, places: Iterable[Place]) -> None:
        """See that topics are in the life in which they were read.

        Raises:
            _WentBackError: One was made anew.
        """
        if self._keeper is None:
            return
        for topic in {topic for topic, _ in places}:
            facts = self._keeper.facts(topic)
            topic_id = "" if facts is None else facts.topic_id
            if self._ids.setdefault(topic, topic_id) != topic_id:
                raise _WentBackError

    def _check_positions(self, barriers: Mapping[Place, int]) -> None:
        """See that nothing was read that lies behind what was the end by then.

        Raises:
            _WentBackError: A log was cut.
        """
        at = self._positions(barriers)
        for place, end in barriers.items():
            if at[place] > end or at[place] < self._next.get(place, 0):
                raise _WentBackError

    def _assign(self, places: Iterable[Place]) -> None:
        new = [place for place in places if place not in self._next]
        if new:
            self._check_ids(new)
            self._reader.incremental_assign(
                [At(*place, OFFSET_BEGINNING) for place in new]
            )
            self._next.update(dict.fromkeys(new, 0))

    def _take(self, messages: Sequence[Message]) -> None:
        admitted: list[Message] = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                if error.code() != KafkaError._PARTITION_EOF:
                    _log.warning("%s[%s]: %s", *place_of(message), error.str())
                continue
            place, offset = place_of(message), message.offset() or 0
            if offset < self._next[place]:
                raise _WentBackError
            self._next[place] = offset + 1
            admitted.append(message)
            for name, value in headers_of(message):
                if name == CURSOR_HEADER and value is not None:
                    self._cursors[place] = value
        if admitted and self._apply is not None:
            self._apply(admitted)
        self._messages += len(admitted)

    def _recovered(self, places: Iterable[Place]) -> Recovered:
        cursors: dict[Place, bytes | None] = {}
        unknown: set[Place] = set()
        for place in places:
            keeper = self._keeper
            if keeper is not None and keeper.is_compacted(place[0]):
                unknown.add(place)  # the last one may be gone, and one before it not
            elif place in self._cursors:
                cursors[place] = self._cursors[place]
            elif self._log_start(place) > 0:
                unknown.add(place)
            else:
                cursors[place] = None
        return Recovered(self._messages, cursors, frozenset(unknown))

    def _log_start(self, place: Place) -> int:
        clients = self._ledger.clients
        with clients.partition_reader(self._connection, *place) as reader:
            return reader.bounds(self._timeout_s)[0]

    def close(self) -> None:
        """Give the client back."""
        consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()
