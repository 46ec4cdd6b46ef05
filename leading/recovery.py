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
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.messages import headers_of
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
            begin at 0, or its topic is compacted.
    """

    messages: int
    cursors: Mapping[Place, bytes | None] = field(
        default_factory=dict[Place, "bytes | None"]
    )
    unknown: frozenset[Place] = frozenset()


class Recovery:
    """Reads what is admitted of topics, from their start, as a consumer would.

    Args:
        config: Connection settings, as for confluent-kafka.
        ledger: The ledger.
        topics: Topics, and single partitions.
        scope: What their records must carry.
        apply: Gets the admitted messages.
        on_progress: Told how far it is.
        timeout_s: How long a call may wait for the cluster.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        topics: Sequence[str | At],
        scope: str,
        apply: Apply | None,
        on_progress: OnProgress | None,
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._topics = topics
        self._keeper: TopicKeeper | None = None
        if not ledger.is_embedded:  # that broker tells nothing
            self._keeper = ledger.clients.topic_keeper(config, timeout_s)
        self._next_look = 0.0
        self._connection = dict(config)
        self._timeout_s = timeout_s
        self._apply = apply
        self._on_progress = on_progress
        # Of no group: nothing is committed. The client wants a name all the same.
        self._consumer = FencedConsumer(
            {
                **config,
                "group.id": "epochfence-recovery",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
            },
            ledger,
            require={_name_of(topic): [scope] for topic in topics},
            unstamped="quarantine",
            timeout_s=timeout_s,
        )
        self._assigned: set[Place] = set()
        self._cursors: dict[Place, bytes] = {}
        self._messages = 0

    def follow(self, wait_s: float) -> None:
        """Read on for a moment, new partitions too.

        Raises:
            LedgerUnavailable, TableUnavailable, TopicUnavailable: For now.
            KafkaException: The client cannot go on.
        """
        if time.monotonic() >= self._next_look:
            self._assign(self._places())
            self._next_look = time.monotonic() + _LOOK_EVERY_S
        self._take(self._consumer.consume(_BATCH, wait_s))

    def _places(self) -> list[Place]:
        places: list[Place] = []
        for topic in self._topics:
            if isinstance(topic, At):
                places.append((topic.topic, topic.partition))
            elif self._keeper is not None:
                facts = self._keeper.facts(topic)
                places += [(topic, n) for n in (facts.partitions if facts else ())]
        return places

    def read_to(
        self, barriers: Mapping[Place, int], is_over: Callable[[], bool]
    ) -> Recovered | None:
        """Read up to the barriers; None where the leadership is over before.

        Raises:
            As `follow`.
        """
        self._assign(barriers)
        asked = [At(*place) for place in barriers]
        while not is_over():
            found = self._consumer.position(asked)
            at = {(tp.topic, tp.partition): max(tp.offset, 0) for tp in found}
            if self._on_progress is not None:
                self._on_progress(
                    {place: (at[place], end + 1) for place, end in barriers.items()}
                )
            if all(at[place] > end for place, end in barriers.items()):
                return self._recovered(barriers)
            self._take(self._consumer.consume(_BATCH, _SLICE_S), barriers)
        return None

    def _assign(self, places: Iterable[Place]) -> None:
        new = [place for place in places if place not in self._assigned]
        if new:
            self._consumer.incremental_assign(
                [At(*place, OFFSET_BEGINNING) for place in new]
            )
            self._assigned.update(new)

    def _take(
        self, messages: Sequence[Message], barriers: Mapping[Place, int] | None = None
    ) -> None:
        admitted: list[Message] = []
        for message in messages:
            error = message.error()
            if error is not None:
                if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                    raise KafkaException(error)
                if error.code() != KafkaError._PARTITION_EOF:
                    _log.warning("%s[%s]: %s", *place_of(message), error.str())
                continue
            place = place_of(message)
            if barriers is not None and (message.offset() or 0) > barriers[place]:
                continue  # not of a predecessor
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
            if place in self._cursors:
                cursors[place] = self._cursors[place]
            elif self._may_have_lost(place):
                unknown.add(place)
            else:
                cursors[place] = None
        return Recovered(self._messages, cursors, frozenset(unknown))

    def _may_have_lost(self, place: Place) -> bool:
        clients = self._ledger.clients
        if self._keeper is not None and self._keeper.is_compacted(place[0]):
            return True
        with clients.partition_reader(self._connection, *place) as reader:
            return reader.bounds(self._timeout_s)[0] > 0

    def close(self) -> None:
        """Give the client back."""
        self._consumer.close()


def _name_of(topic: str | At) -> str:
    return topic.topic if isinstance(topic, At) else topic
