"""A coordination topic, followed without writing to it.

`Ledger` reads to the end for sure, by a record of its own; this one, to the end that a
broker tells, so that whatever is judged by it is *unsynced*.
"""

from __future__ import annotations

import time

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from epochfence.epochs.connection import Config, LastError, reading_consumer
from epochfence.epochs.errors import LedgerUnavailable
from epochfence.epochs.partition_reader import next_batch
from epochfence.epochs.topic_log import PARTITION
from epochfence.replay.audit import LedgerSource
from epochfence.replay.told_topics import LedgerReading, check_ledger_topic, place_of

_POLL_S = 0.05
_MAX_BATCH = 1_000


class LedgerNotReached(Exception):
    """No broker told the ledger's end, or gave what lies before it, in time."""


class LiveLedger:
    """Follows a coordination topic.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        timeout_s: How long the cluster may take.

    Attributes:
        state: What it says; it grows in place.
        topic_id: The life of the topic.

    Raises:
        LedgerUnavailable: It cannot be read.
        MisconfiguredError: There is no such topic, or a setting of it breaks the
            promise that claims are kept.
    """

    def __init__(self, config: Config, topic: str, timeout_s: float) -> None:
        self.topic = topic
        self.topic_id = check_ledger_topic(
            config, topic, timeout_s, "A watch can also do without: --authority "
            "max-seen.",
        )  # fmt: skip
        self._reading = LedgerReading(topic, self.topic_id)
        self.state = self._reading.source(0).state
        self._position = 0
        self._last_error = LastError(config)
        # Never read_committed: an open transaction of anybody would hold it up.
        self._consumer = reading_consumer(
            config, self._last_error, isolation="read_uncommitted"
        )
        try:
            low, _ = self._bounds(timeout_s)
            self._position = low
            self._consumer.assign([TopicPartition(topic, PARTITION, low)])
            self.read_to_told_end(timeout_s)
        except LedgerNotReached as error:
            self.close()
            raise LedgerUnavailable(topic, str(error)) from error
        except BaseException:
            self.close()
            raise

    def source(self) -> LedgerSource:
        """What was read so far, and how far that is."""
        return self._reading.source(self._position)

    def follow(self) -> None:
        """Take in what is at hand.

        Raises:
            LedgerUnavailable: It cannot be read on.
        """
        self._take(self._consumer.consume(_MAX_BATCH, 0))

    def read_to_told_end(self, timeout_s: float) -> None:
        """Read up to what a broker calls the end now.

        Raises:
            LedgerNotReached: That took too long.
            LedgerUnavailable: It cannot be read on.
        """
        deadline = time.monotonic() + timeout_s
        _, high = self._bounds(timeout_s)
        while self._position < high:
            self._take(next_batch(self._consumer, _POLL_S))
            if self._position < high and time.monotonic() >= deadline:
                reason = f"not read to its end within {timeout_s:g} s"
                raise LedgerNotReached(self._last_error.or_else(reason))

    def _bounds(self, timeout_s: float) -> tuple[int, int]:
        place = TopicPartition(self.topic, PARTITION)
        try:
            return self._consumer.get_watermark_offsets(place, timeout=timeout_s)
        except KafkaException as error:
            reason = self._last_error.or_else(error.args[0].str())
            raise LedgerNotReached(reason) from error

    def _take(self, batch: list[Message]) -> None:
        for message in batch:
            error, offset = message.error(), message.offset()
            if error is None:
                place = place_of(message)
                self._reading.take(place, message.key(), message.value())
                self._position = (offset or 0) + 1
                self._last_error.clear()
            elif error.code() == KafkaError._PARTITION_EOF:
                self._position = max(self._position, offset or 0)
            elif _is_final(error):
                raise LedgerUnavailable(self.topic, error.str(), self._position)
            else:
                self._last_error(error)

    def close(self) -> None:
        """Give up the connection."""
        self._consumer.close()


def _is_final(error: KafkaError) -> bool:
    """Whether waiting does not help: nobody may read that, or it is gone."""
    return error.fatal() or error.code() in (
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError._UNKNOWN_TOPIC,
    )
