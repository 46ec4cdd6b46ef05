"""A compacted topic of ours as one log: appended to, followed, read to its end.

One thread owns the consumer and follows the log; whoever has to know more than
that thread has read appends a sync record and waits until it has been passed.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from secrets import token_hex
from typing import Protocol

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from epochfence.epochs.claims import sync_key
from epochfence.epochs.connection import (
    Config,
    LastError,
    appending_producer,
    reading_consumer,
)
from epochfence.epochs.partition_reader import next_batch

_log = logging.getLogger(__name__)

#: Only this partition is used.
PARTITION = 0

# How long the following thread waits for a message before it looks whether it
# should stop, and a sender before it looks at its deadline.
_FOLLOW_S = 0.2
_SEND_S = 0.05

# How long to wait for the log's bounds, which only make the start faster.
_BOUNDS_S = 5.0
_FAR = 2**63

# The record was certainly not stored: it was not sent, or the broker said no before
# it wrote.
_NOT_STORED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_RECORD,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._PURGE_QUEUE,
}


class AppendRefusedError(Exception):
    """The record was certainly not stored."""


class AppendUnknownError(Exception):
    """Nobody knows whether the record was stored."""


#: A record's offset, or why it has none.
Appended = int | AppendRefusedError | AppendUnknownError


class ReadingStoppedError(Exception):
    """The log could not be read on, or not in time."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


class Follower(Protocol):
    """Takes in the records of a log, in order, on the thread that follows it."""

    def restart(self) -> None:
        """The log is read from its start (again)."""
        ...

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Take in one record. A `ReadingStoppedError` stops the reading there."""
        ...

    def caught_up(self) -> None:
        """What was there is read, for the first time since the (re)start."""
        ...


class TopicLog:
    """Partition 0 of a topic, followed from its start.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic, which exists.
        follower: Takes in its records.

    Raises:
        MisconfiguredError: A setting is unknown or contradicts what is needed.
    """

    def __init__(self, config: Config, topic: str, follower: Follower) -> None:
        self._config = config
        self._topic = topic
        self._follower = follower
        self._reader_id = token_hex(8)
        self._last_error = LastError(config)
        self._producer: Producer | None = appending_producer(config, self._last_error)
        self._changed = threading.Condition()
        self._position = 0
        self._is_caught_up = False
        self._end_at_start = 0
        # A life of the reading: each has a client of its own, and begins at 0.
        self._wanted_life = 0
        self._life = -1
        self._failure: ReadingStoppedError | None = None
        self._is_closing = False
        self._process_id = os.getpid()
        # A wrong setting is raised to whoever gave it, not on the thread.
        self._new_consumer().close()
        self._thread = threading.Thread(
            target=self._follow, name=f"epochfence-{topic}", daemon=True
        )
        self._thread.start()

    # Appending.

    def append(
        self,
        key: bytes,
        value: bytes | None,
        deadline: float,
        *,
        discard: bool = False,
    ) -> int:
        """Append a record, acknowledged by all in-sync replicas; give its offset.

        Args:
            key: The record's key.
            value: The record's value.
            deadline: By `time.monotonic()`.
            discard: Whether the record, once the time is over, should better not be
                sent later.

        Raises:
            AppendRefusedError: It was certainly not stored.
            AppendUnknownError: It may have been stored, or may still be.
        """
        outcome = self.append_all([(key, value)], deadline, discard=discard)[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def append_all(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        deadline: float,
        *,
        discard: bool = False,
    ) -> list[Appended]:
        """Append records, none of which waits for the answer to another.

        They are sent one by one all the same, in this order. What becomes of one says
        nothing of the others.

        Args:
            records: Keys and values.
            deadline: By `time.monotonic()`.
            discard: As for `append`.

        Returns:
            For each, its offset, or the error that `append` would raise.
        """
        producer = self._producer
        if producer is None:
            return [AppendRefusedError("it was closed") for _ in records]
        reports: dict[int, tuple[KafkaError | None, int | None]] = {}

        def report(number: int, error: KafkaError | None, message: Message) -> None:
            reports[number] = error, message.offset()

        unsent: dict[int, AppendRefusedError] = {}
        for number, (key, value) in enumerate(records):
            try:
                producer.produce(
                    self._topic,
                    value,
                    key,
                    PARTITION,
                    on_delivery=partial(report, number),
                )
            except (KafkaException, BufferError) as error:
                self._replace_if_fatal(producer, error.args[0])
                unsent[number] = AppendRefusedError(str(error))
                unsent[number].__cause__ = error
        while len(reports) + len(unsent) < len(records):
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                if discard:
                    # Others may wait for records of theirs: nothing is purged. The
                    # client goes, with what it still holds, when nobody uses it.
                    self._replace_producer(producer)
                break
            producer.poll(min(_SEND_S, remaining))
        # A copy: reports go on coming, in whichever thread polls.
        reported = dict(reports)
        return [
            unsent[number]
            if number in unsent
            else self._outcome(producer, reported.get(number))
            for number in range(len(records))
        ]

    def _outcome(
        self, producer: Producer, reported: tuple[KafkaError | None, int | None] | None
    ) -> Appended:
        if reported is None:
            reason = self._last_error.or_else("no acknowledgement in time")
            return AppendUnknownError(reason)
        failure, offset = reported
        if failure is not None:
            self._replace_if_fatal(producer, failure)
            is_refused = failure.code() in _NOT_STORED
            kind = AppendRefusedError if is_refused else AppendUnknownError
            return kind(failure.str())
        self._last_error.clear()
        assert offset is not None
        return offset

    def _replace_if_fatal(self, producer: Producer, error: object) -> None:
        if isinstance(error, KafkaError) and error.fatal():
            self._replace_producer(producer)

    def _replace_producer(self, producer: Producer | None) -> None:
        with self._changed:
            if producer is self._producer and not self._is_closing:
                self._producer = appending_producer(self._config, self._last_error)

    def append_sync(self, deadline: float) -> int:
        """Append a sync record; give its offset.

        Raises:
            ReadingStoppedError: It was not acknowledged in time.
        """
        try:
            return self.append(sync_key(self._reader_id), None, deadline)
        except (AppendRefusedError, AppendUnknownError) as error:
            raise ReadingStoppedError(
                f"a sync was not acknowledged: {error}"
            ) from error

    # Reading.

    @property
    def failure(self) -> ReadingStoppedError | None:
        """What the reading stopped at, None while it goes on."""
        if os.getpid() != self._process_id:
            return ReadingStoppedError(
                "it was opened before a fork, and nobody reads on in this process: "
                "open one in each process"
            )
        if self._is_closing:
            return ReadingStoppedError("it was closed")
        failure = self._failure
        return failure and ReadingStoppedError(failure.reason, failure.offset)

    @property
    def is_on_its_thread(self) -> bool:
        """Whether the caller is the thread that reads: it must not wait for itself."""
        return threading.current_thread() is self._thread

    def read_past(self, offset: int, deadline: float) -> None:
        """Wait until the record at `offset` has been taken in (or cleaned away).

        Raises:
            ReadingStoppedError: The log could not be read on, or not in time.
        """
        self._wait(lambda: self._position > offset, deadline)

    def read_to_told_end(self, deadline: float) -> None:
        """Wait until what a broker calls the end was met.

        A deposed broker may know an old end only: this is no synchronised read.

        Raises:
            ReadingStoppedError: The log could not be read on, or not in time.
        """
        self._wait(lambda: True, deadline)

    def resume(self) -> None:
        """Try again where the reading has stopped at a failure; else do nothing."""
        if self._failure is not None:
            self.restart()

    def restart(self) -> None:
        """Read the log from its start again, with new clients.

        The old ones ignore a leader whose broker epoch is below the one they know.
        """
        with self._changed:
            self._failure = None
            self._wanted_life += 1
            self._changed.notify_all()
        self._replace_producer(self._producer)

    def _wait(self, condition: Callable[[], bool], deadline: float) -> None:
        with self._changed:
            while True:
                failure = self.failure
                if failure is not None:
                    raise failure
                is_current = self._life == self._wanted_life and self._is_caught_up
                if is_current and condition():
                    return
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    reason = self._last_error.or_else("not read to its end in time")
                    raise ReadingStoppedError(reason, self._position)
                self._changed.wait(remaining)

    # The thread that follows.

    def _new_consumer(self) -> Consumer:
        # Never read_committed: an open transaction of anybody would hold up all.
        return reading_consumer(
            self._config, self._last_error, isolation="read_uncommitted"
        )

    def _follow(self) -> None:
        consumer: Consumer | None = None
        while self._may_go_on():
            life = self._wanted_life
            try:
                if consumer is None or self._life != life:
                    if consumer is not None:
                        consumer.close()
                        consumer = None
                    consumer = self._begin_life(life)
                batch = next_batch(consumer, _FOLLOW_S)
                if batch:
                    self._take(batch)
            except ReadingStoppedError as failure:
                self._fail(life, failure)
            except Exception as error:
                _log.exception("the reading of topic %s stopped", self._topic)
                self._fail(life, ReadingStoppedError(f"its reader failed: {error!r}"))
        if consumer is not None:
            consumer.close()

    def _may_go_on(self) -> bool:
        """Whether to read on; waits while the reading is stopped by a failure."""
        with self._changed:
            while self._failure is not None and not self._is_closing:
                self._changed.wait()
            return not self._is_closing

    def _begin_life(self, life: int) -> Consumer:
        # `life` was read before the client is made: a restart asked for meanwhile
        # gets another client, younger than the asking.
        consumer = self._new_consumer()
        # With numbers at hand the client starts half a second sooner, and the end is
        # known without waiting for a fetch that brings nothing.
        start, end = OFFSET_BEGINNING, _FAR
        try:
            place = TopicPartition(self._topic, PARTITION)
            start, end = consumer.get_watermark_offsets(place, timeout=_BOUNDS_S)
        except KafkaException as error:
            self._last_error(error.args[0])
        with self._changed:
            self._life = life
            self._position = max(start, 0)
            self._is_caught_up = False
            self._end_at_start = end
            self._follower.restart()
        consumer.assign([TopicPartition(self._topic, PARTITION, start)])
        self._take([])
        return consumer

    def _take(self, batch: list[Message]) -> None:
        position = self._position
        is_at_end = False
        for message in batch:
            error = message.error()
            offset = message.offset()
            if error is None:
                assert offset is not None
                self._follower.take(offset, message.key(), message.value())
                position = offset + 1
            elif error.code() == KafkaError._PARTITION_EOF:
                position = max(position, offset or 0)
                is_at_end = True
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                _log.warning("topic %s is read anew: %s", self._topic, error.str())
                self.restart()
                return
            else:
                self._last_error(error)
        with self._changed:
            self._position = position
            has_met_end = is_at_end or position >= self._end_at_start
            if has_met_end and not self._is_caught_up:
                self._is_caught_up = True
                self._follower.caught_up()
            self._changed.notify_all()

    def _fail(self, life: int, failure: ReadingStoppedError) -> None:
        with self._changed:
            if life == self._wanted_life:
                self._failure = failure
            self._changed.notify_all()

    def close(self) -> None:
        """Stop following. May be called again."""
        with self._changed:
            self._is_closing = True
            self._producer = None
            self._changed.notify_all()
        if self._thread is not threading.current_thread():
            self._thread.join()
