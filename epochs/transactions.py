"""A client that writes in transactions, one after the other.

Measured with librdkafka 2.16 and Kafka 4.3: a transaction that the coordinator ended
because it lasted too long fails as one does whose `transactional.id` was taken by
another producer. How long it lasted tells them apart.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence.epochs.connection import Config, LastError
from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import MisconfiguredError

#: What does not pass by itself: somebody has to see to it.
LASTING = frozenset(
    {
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_RECORD,
        KafkaError.INVALID_TIMESTAMP,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
        KafkaError.POLICY_VIOLATION,
        KafkaError.UNSUPPORTED_VERSION,
    }
)

#: What an abort says of the messages that were still on their way.
PURGED = frozenset({KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT})

#: Who makes a transaction last too long so many times in a row always does.
_TOO_LONG_TIMES = 3


def to_its_end(call: Callable[[float], None], deadline: float) -> None:
    """Make a call of the client that, made again, goes on where it was.

    Raises:
        KafkaException: It failed, or did not come to its end in time.
    """
    while True:
        try:
            return call(time_left(deadline))
        except KafkaException as error:
            if not error.args[0].retriable() or not time_left(deadline):
                raise


def transaction_settings(
    config: Config, defaults: Mapping[str, Any]
) -> tuple[dict[str, Any], float]:
    """A client's settings, and how many seconds a transaction lasts at most.

    Args:
        config: As the user gave it.
        defaults: What holds where it says nothing; `transaction.timeout.ms` is there.

    Raises:
        MisconfiguredError: That is no time, or these are no settings.
    """
    if not isinstance(config, Mapping):
        raise MisconfiguredError(
            "config", config, "no settings of a client",
            "Give, for instance, {'bootstrap.servers': 'host:port'}.",
        )  # fmt: skip
    settings: dict[str, Any] = {**defaults, **config}
    longest_ms = settings["transaction.timeout.ms"]
    if isinstance(longest_ms, bool) or not str(longest_ms).strip().isdecimal():
        raise MisconfiguredError(
            "transaction.timeout.ms", longest_ms, "no time", "Use milliseconds."
        )
    # The client wants no request to outlast the transaction.
    settings.setdefault("socket.timeout.ms", min(10_000, int(longest_ms)))
    # Else it waits for a topic that is not there for as long as the transaction lasts.
    propagation_ms = min(5_000, int(longest_ms) // 2)
    settings.setdefault("topic.metadata.propagation.max.ms", propagation_ms)
    return settings, int(longest_ms) / 1000


class TransactionalClient:
    """A client under one `transactional.id`, made anew where it is of no more use.

    Args:
        make: Makes a client.
        settings: Its settings, as `transaction_settings` gives them.
        longest_s: How long a transaction lasts at most, in seconds.
        last_error: Remembers what the client complains about.

    Attributes:
        producer: The client. None, too, while a transaction's outcome is not known: the
            next one that is opened under the same id ends it, one way or the other.
        is_open: Whether a transaction is.
    """

    def __init__(
        self,
        make: Callable[[Config, LastError], Producer],
        settings: Mapping[str, Any],
        longest_s: float,
        last_error: LastError,
    ) -> None:
        self._make = make
        self._settings = settings
        self._longest_s = longest_s
        self._last_error = last_error
        self.producer: Producer | None = None
        self.is_open = False
        self._is_ready = False
        self._begun_at = 0.0
        self._too_long = 0

    @property
    def is_ready(self) -> bool:
        """Whether a transaction can be begun."""
        return self._is_ready

    @property
    def lasted_s(self) -> float:
        """How long ago the last transaction began, or the client was opened."""
        return time.monotonic() - self._begun_at

    def open(self) -> Producer:
        """Make a client, which takes the id only when it is made ready.

        Raises:
            MisconfiguredError: A setting contradicts what is needed, or is unknown.
        """
        self.drop()
        self.producer = self._make(self._settings, self._last_error)
        return self.producer

    def ready(self, deadline: float) -> Producer:
        """The client; what an earlier one left open under its id has ended.

        Raises:
            KafkaException: The cluster does not answer, or refuses the id or a setting.
            MisconfiguredError: As `open`.
        """
        producer = self.open() if self.producer is None else self.producer
        if self._is_ready:
            return producer
        # What is said from here on is not of the last transaction.
        self._begun_at = time.monotonic()
        try:
            to_its_end(producer.init_transactions, deadline)
        except BaseException:
            self.drop()
            raise
        self._last_error.clear()
        self._is_ready = True
        return producer

    def drop(self) -> None:
        """Give the client up: `ready` makes another."""
        self.producer, self._is_ready, self.is_open = None, False, False

    def begin(self) -> None:
        """Begin a transaction, with a client that is ready.

        Raises:
            KafkaException: The client is of no more use, and was given up.
        """
        assert self.producer is not None
        try:
            self.producer.begin_transaction()
        except KafkaException:
            self.drop()
            raise
        self._begun_at = time.monotonic()
        self.is_open = True

    def commit(self, deadline: float) -> None:
        """Commit the open transaction. Where that fails, it is still open.

        Raises:
            KafkaException: It was not committed, or nobody knows.
        """
        assert self.producer is not None
        to_its_end(self.producer.commit_transaction, deadline)
        self.is_open = False
        self._too_long = 0

    def abort(self, deadline: float) -> KafkaException | None:
        """Abort the transaction, if one is open.

        Where that fails, the client is given up, and the next one does it.
        """
        if not self.is_open:
            return None
        self.is_open = False
        assert self.producer is not None
        try:
            to_its_end(self.producer.abort_transaction, deadline)
        except KafkaException as error:
            self.drop()
            return error
        except BaseException:
            self.drop()
            raise
        return None

    def has_lost_id(self) -> bool:
        """Whether a fence, just met, is another producer's: or else time was over."""
        return self.lasted_s < self._longest_s

    def too_long(self, remedy: str) -> str:
        """Say that the transaction, just fenced, has lasted too long.

        Raises:
            MisconfiguredError: That was so time and again; it names the remedy.
        """
        reason = (
            f"the transaction lasted {self.lasted_s:.1f} s, and is ended after "
            f"{self._longest_s:g} s"
        )
        self._too_long += 1
        if self._too_long < _TOO_LONG_TIMES:
            return f"{reason} (transaction.timeout.ms)"
        raise MisconfiguredError(
            "transaction.timeout.ms", self._settings["transaction.timeout.ms"],
            f"{reason}, {self._too_long} times in a row",
            remedy,
        )  # fmt: skip
