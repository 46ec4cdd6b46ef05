"""Barriers: what opens an epoch on a partition before anything is written there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from epochfence.epochs.clients import KAFKA, Clients
from epochfence.epochs.connection import Config, LastError
from epochfence.epochs.deadlines import some_time, time_left
from epochfence.epochs.errors import (
    EpochfenceError,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.full_queue import when_there_is_room
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.stamps import BARRIER_HEADER
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import Place

#: Makes the key of a barrier from scope, epoch, grant id and a number that never comes
#: twice.
BarrierKey = Callable[[str, int, str, int], bytes]
#: The value of every barrier, or what makes it from the same.
BarrierValue = bytes | Callable[[str, int, str, int], bytes]

#: Where the barriers of each partition stand: one for each leadership.
BarrierOffsets = dict[Place, list[int]]

_POLL_S = 0.05
_SHORTEST_MS = 1_000
#: So long, at most, a client that knows no topic yet waits for what it is told of them.
_LEARN_S = 1.0

_MAY_NOT_WRITE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}

# A grant belongs to the process that claimed it, so no other sends a key with it.
_attempts = count(1)


class _Barrier(NamedTuple):
    """One barrier on its way: what it tells, and the key it got."""

    place: Place
    leadership: Leadership
    key: bytes | None


def default_key(scope: str, epoch: int, grant_id: str, attempt: int) -> bytes:
    """The key of a barrier on a topic that is compacted."""
    return f"epochfence-barrier/{scope}/{epoch}/{grant_id}/{attempt}".encode("ascii")


class BarrierWriter:
    """Writes barriers, with clients of its own.

    Args:
        connection: Connection settings, as for confluent-kafka.
        keeper: Tells which topics are compacted; None for the embedded broker, on
            which none is.
        key: Makes the keys on compacted topics; None: the default ones.
        value: The values there; None: empty ones.
        clients: Opens the clients.
    """

    def __init__(
        self,
        connection: Config,
        keeper: TopicKeeper | None,
        key: BarrierKey | None = None,
        value: BarrierValue | None = None,
        clients: Clients = KAFKA,
    ) -> None:
        self._clients = clients
        self._connection = connection
        self._keeper = keeper
        self._key = default_key if key is None else key
        self._value = b"" if value is None else value
        self._last_key: bytes | None = None

    def write(
        self,
        places: Iterable[Place],
        leaderships: Sequence[Leadership],
        deadline: float,
    ) -> BarrierOffsets:
        """Write a barrier of each leadership to each partition, acknowledged.

        Raises:
            TopicUnavailable: One was not acknowledged in time, or refused. It may have
                been written all the same, which does no harm.
            MisconfiguredError: This client may not write there, or the barriers' keys
                or values cannot be used.
        """
        wanted = [
            (place, held) for place in sorted(set(places)) for held in leaderships
        ]
        written: BarrierOffsets = {place: [] for place, _ in wanted}
        outcomes = self.write_all(wanted, deadline)
        for (place, _), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, EpochfenceError):
                raise outcome
            written[place].append(outcome)
        return written

    def write_all(
        self, wanted: Sequence[tuple[Place, Leadership]], deadline: float
    ) -> list[int | EpochfenceError]:
        """Write many barriers with one client; what fails of one stops no other.

        Returns:
            For each, its offset, or the error that `write` would raise.

        Raises:
            TopicUnavailable: Nothing was written, the cluster does not answer.
            MisconfiguredError: The barriers' keys or values cannot be used.
        """
        if not wanted:
            return []
        compacted = {
            topic: self._is_compacted(topic, deadline)
            for topic in sorted({topic for (topic, _), _ in wanted})
        }
        # A new client each time: what an earlier one could not send delays nothing.
        last_error = LastError(self._connection)
        timeout_ms = max(_SHORTEST_MS, int(time_left(deadline) * 1000))
        producer = self._clients.appending_producer(
            {**self._connection, "message.timeout.ms": timeout_ms}, last_error
        )
        self._learn(producer, compacted, deadline)
        outcomes: dict[int, int | EpochfenceError] = {}
        refused: list[int] = []

        def send(number: int, is_keyed: bool) -> None:
            place, leadership = wanted[number]
            key, value = self._key_and_value(leadership) if is_keyed else (None, None)
            barrier = _Barrier(place, leadership, key)

            def report(error: KafkaError | None, message: Message) -> None:
                if error is None:
                    offset = message.offset()
                    assert offset is not None
                    outcomes[number] = offset
                elif key is None and error.code() == KafkaError.INVALID_RECORD:
                    refused.append(number)
                else:
                    outcomes[number] = _failure(barrier, error)

            try:
                _send(producer, barrier, value, report, deadline)
            except TopicUnavailable as error:
                outcomes[number] = error

        for number, ((topic, _), _) in enumerate(wanted):
            send(number, compacted[topic])
        while len(outcomes) < len(wanted) and time.monotonic() < deadline:
            while refused:
                # Without a key: the topic was made a compacted one just now.
                send(refused.pop(), is_keyed=True)
            producer.poll(min(_POLL_S, time_left(deadline)))
        # A copy: the client is gone in a moment, and its reports with it.
        told = dict(outcomes)
        late = len(wanted) - len(told)
        return [
            told[number] if number in told else _overdue(place, late, last_error)
            for number, (place, _) in enumerate(wanted)
        ]

    def _learn(
        self, producer: Producer, topics: Iterable[str], deadline: float
    ) -> None:
        """Have a new client know topics: else what it sends first waits for 0.5 s.

        What it is not told in time, it finds out by itself.
        """
        if self._keeper is None:
            return  # the embedded broker
        learn_by = min(deadline, time.monotonic() + _LEARN_S)
        with suppress(KafkaException):
            for topic in topics:
                producer.list_topics(topic, some_time(learn_by))

    def _is_compacted(self, topic: str, deadline: float) -> bool:
        keeper = self._keeper
        return keeper is not None and keeper.is_compacted(topic, time_left(deadline))

    def _key_and_value(self, leadership: Leadership) -> tuple[bytes, bytes]:
        facts = (
            leadership.scope,
            leadership.epoch,
            leadership.grant_id,
            next(_attempts),
        )
        key = self._key(*facts)
        if not isinstance(key, bytes) or not key or key == self._last_key:
            raise MisconfiguredError(
                "barrier_key", key,
                "the cleaner would remove barriers that share a key, or have none",
                "Give a function whose bytes differ for every number it gets.",
            )  # fmt: skip
        self._last_key = key
        value = self._value if isinstance(self._value, bytes) else self._value(*facts)
        if not isinstance(value, bytes):
            raise MisconfiguredError(
                "barrier_value", value,
                "the cleaner would remove a barrier whose value is null",
                "Give bytes, or a function that does.",
            )  # fmt: skip
        return key, value


def _send(
    producer: Producer,
    barrier: _Barrier,
    value: bytes | None,
    report: Callable[[KafkaError | None, Message], None],
    deadline: float,
) -> None:
    topic, partition = barrier.place
    try:
        when_there_is_room(
            lambda: producer.produce(
                topic,
                value,
                barrier.key,
                partition,
                on_delivery=report,
                headers=[(BARRIER_HEADER, barrier.leadership.stamp_value)],
            ),
            producer.poll,
            some_time(deadline),
        )
    except (KafkaException, BufferError) as error:
        reason = f"a barrier could not be sent: {error}"
        raise TopicUnavailable(topic, reason, partition) from error


def _failure(
    barrier: _Barrier, error: KafkaError
) -> TopicUnavailable | MisconfiguredError:
    topic, partition = barrier.place
    if error.code() in _MAY_NOT_WRITE:
        return MisconfiguredError(
            "topic", topic, "this client may not write to it",
            "Allow its user to write (an ACL for WRITE on the topic).",
        )  # fmt: skip
    if error.code() == KafkaError.INVALID_RECORD:
        return MisconfiguredError(
            "barrier_key", barrier.key,
            f"topic {topic} refuses such a barrier: {error.str()}",
            "Give a barrier_key and a barrier_value that the topic takes.",
        )  # fmt: skip
    reason = f"a barrier was not acknowledged: {error.str()}"
    return TopicUnavailable(topic, reason, partition)


def _overdue(place: Place, late: int, last_error: LastError) -> TopicUnavailable:
    topic, partition = place
    more = f", nor {late - 1} more" if late > 1 else ""
    reason = last_error.or_else(f"a barrier was not acknowledged in time{more}")
    return TopicUnavailable(topic, reason, partition)
