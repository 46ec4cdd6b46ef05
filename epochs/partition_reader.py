"""Read this partition from a to b."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import TracebackType

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence.epochs.connection import Config, LastError, reading_consumer
from epochfence.epochs.errors import TopicUnavailable

_MAX_BATCH = 1000
_POLL_S = 0.1


def next_batch(consumer: Consumer, timeout_s: float) -> list[Message]:
    """The messages at hand, having waited for the first of them at most `timeout_s`.

    `Consumer.consume` alone waits until the batch is full or the time is over.
    """
    first = consumer.poll(timeout_s)
    if first is None:
        return []
    return [first, *consumer.consume(_MAX_BATCH - 1, 0)]


class PartitionReader:
    """Reads one partition between two offsets, outside of any group.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        partition: The partition's number.
        isolation: `read_committed` (records of aborted transactions are not seen)
            or `read_uncommitted`.

    Raises:
        MisconfiguredError: A setting is unknown or contradicts the reading.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partition: int,
        *,
        isolation: str = "read_committed",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.position: int | None = None
        self._is_committed_only = isolation == "read_committed"
        self._last_error = LastError(config)
        self._consumer = reading_consumer(config, self._last_error, isolation=isolation)

    def bounds(self, timeout_s: float) -> tuple[int, int]:
        """The log's first offset, and the one behind its last.

        Raises:
            TopicUnavailable: No broker answered in time.
        """
        try:
            return self._consumer.get_watermark_offsets(
                TopicPartition(self.topic, self.partition), timeout=timeout_s
            )
        except KafkaException as error:
            reason = self._last_error.or_else(error.args[0].str())
            raise self._unavailable(None, reason) from error

    def at_time(self, timestamp: int, otherwise: int, timeout_s: float) -> int:
        """The offset of the first record with a timestamp, or a later one.

        Args:
            timestamp: Milliseconds since 1970.
            otherwise: What to answer where there is no such record.
            timeout_s: How long the broker may take.

        Raises:
            TopicUnavailable: No broker answered in time.
        """
        asked = TopicPartition(self.topic, self.partition, timestamp)
        try:
            (found,) = self._consumer.offsets_for_times([asked], timeout=timeout_s)
        except KafkaException as error:
            reason = self._last_error.or_else(error.args[0].str())
            raise self._unavailable(None, reason) from error
        if found.error is not None:
            raise self._unavailable(None, found.error.str())
        return otherwise if found.offset < 0 else found.offset

    def read(
        self, start: int, end: int, *, stall_timeout_s: float = 30.0
    ) -> Iterator[list[Message]]:
        """Yield the records from `start` up to, and without, `end`, in batches.

        An empty batch comes where nothing has come for a moment: its caller may have
        other things to do. Offsets have gaps, so fewer records may come than the
        offsets suggest. With `read_committed`, the reading also stops at the first
        record of an open transaction; `position` then stays below `end`.

        Args:
            start: The first offset to read.
            end: The offset to stop at.
            stall_timeout_s: How long to wait where nothing comes.

        Raises:
            TopicUnavailable: Nothing came in time, or `start` is outside the
                log.
        """
        self.position = start
        if start >= end:
            return
        self._consumer.assign([TopicPartition(self.topic, self.partition, start)])
        deadline = time.monotonic() + stall_timeout_s
        while self.position < end:
            batch = next_batch(self._consumer, _POLL_S)
            records, is_at_end = self._sorted_out(batch, end)
            if records or not batch:
                yield records
            if is_at_end and self._is_committed_only:
                return
            if batch:
                deadline = time.monotonic() + stall_timeout_s
            elif time.monotonic() >= deadline:
                reason = f"nothing came for {stall_timeout_s:g} s"
                raise self._unavailable(self.position, self._last_error.or_else(reason))

    def _sorted_out(self, batch: list[Message], end: int) -> tuple[list[Message], bool]:
        """The records of a batch below `end`, and whether the log's end was met."""
        if batch and not any(map(Message.error, batch)):
            # Nearly always: nothing happens for each message in Python.
            last = batch[-1].offset()
            assert last is not None
            self.position = last + 1
            if last < end:
                return batch, False
            return [one for one in batch if (one.offset() or 0) < end], False
        records: list[Message] = []
        is_at_end = False
        for message in batch:
            error = message.error()
            offset = message.offset()
            if error is None:
                assert offset is not None
                self.position = offset + 1
                if offset < end:
                    records.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                # Behind control records, which are never handed over.
                self.position = max(self.position or 0, offset or 0)
                is_at_end = True
            elif error.code() == KafkaError._AUTO_OFFSET_RESET or error.fatal():
                raise self._unavailable(self.position, error.str())
            else:
                self._last_error(error)
        return records, is_at_end

    def _unavailable(self, offset: int | None, reason: str) -> TopicUnavailable:
        return TopicUnavailable(self.topic, reason, self.partition, offset)

    def close(self) -> None:
        """Give up the connection. May be called again."""
        self._consumer.close()

    def __enter__(self) -> PartitionReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
