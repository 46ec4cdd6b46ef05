"""Kafka as a sink: what comes of the messages, and their offsets, in one transaction.

The positions are the group's commits, which the broker takes from a member of the
present generation only (KIP-447). Epoch starts are facts, and stand in the max-epoch
table before a message is handed over: were they in the transaction, an open one would
hold up whoever reads the table.

Measured with librdkafka 2.16 and Kafka 4.3: a transaction that the coordinator ended
because it lasted too long fails as one does whose `transactional.id` was taken by
another producer. How long it lasted tells them apart.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from secrets import token_hex
from types import TracebackType
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from epochfence.consumers.dead_letters import fitting, headers_of_letter
from epochfence.consumers.group_positions import (
    NOT_OF_THE_GENERATION,
    GroupMember,
    check_alone,
    commit_of,
    joined,
    stored_states,
)
from epochfence.consumers.kafka_output import Output
from epochfence.consumers.sink import SinkBatch, checked_apply
from epochfence.epochs.connection import (
    Config,
    LastError,
    connection_settings,
    transactional_producer,
)
from epochfence.epochs.deadlines import deadline_after, time_left
from epochfence.epochs.errors import MisconfiguredError, SinkUnavailable
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import SinkState, check_timeout

#: What does not pass by itself: whoever runs the sink has to see to it.
_LASTING = {
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

#: What an abort says of the messages that were still on their way.
_PURGED = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}

#: A function that makes a transaction last too long so many times in a row always does.
_TOO_LONG_TIMES = 3


#: Applies messages of one partition, in order: it calls `output.produce`.
Apply = Callable[[Output, Sequence[Message]], object]


class KafkaSink:
    """Produces what comes of the messages, of each admitted one once.

    It seems so to readers with `isolation.level=read_committed`, which is the default
    of librdkafka's consumers, and not of Java's. Its positions are the commits of the
    group that reads: where those are reset, messages are applied again.

    Args:
        config: As for confluent's `Producer`, for the cluster that is read from.
            `transaction.timeout.ms` is 10,000 unless given. `transactional.id` is a
            new one unless given, `epochfence-sink-` and 16 hex digits; where it is
            given, each instance needs its own, and one that is started again ends at
            once what its predecessor left open, instead of after that time.
        apply: What to do with messages of one partition, in order: a function of an
            object, whose `produce` is as that of confluent's `Producer` (but for
            `on_delivery`), and of the messages.
        dead_letters: The topic that rejected records go to, in the same transaction:
            see the command `epochfence deadletters`. It has to exist, with room for
            somewhat larger messages. None: they are not kept.
        timeout_s: How long to wait for the cluster.

    Raises:
        MisconfiguredError: A setting is wrong.
        SinkUnavailable, TopicUnavailable: The cluster does not answer.
    """

    def __init__(
        self,
        config: Config,
        apply: Apply,
        *,
        dead_letters: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._apply: Apply = checked_apply(apply)
        self.keeps_rejected = dead_letters is not None
        self._timeout_s = check_timeout(timeout_s)
        self._config, self._longest_s = _settings(config)
        self._dead_letters = dead_letters
        self._letter_bytes = 0
        if dead_letters is not None:
            self._letter_bytes = _letter_bytes(config, dead_letters, timeout_s)
            largest = max(1_000_000, self._letter_bytes)
            self._config.setdefault("message.max.bytes", largest)
            self._config.setdefault("batch.size", min(1_000_000, self._letter_bytes))
            told = int(self._config["message.max.bytes"])
            self._letter_bytes = min(self._letter_bytes, told)
        self._store = f"Kafka at {self._config.get('bootstrap.servers')}"
        self._lock = threading.Lock()
        self._last_error = LastError(config)
        self._member: GroupMember | None = None
        #: The life of the topic that is written to, where commits have to name it.
        self._copy_id: str | None = None
        self._is_open = False
        self._takes_epochs = True
        self._too_long = 0
        self._refusal: KafkaError | None = None
        self._begun_at = 0.0
        # None, too, while a transaction's outcome is not known: the next one that is
        # opened under the same id ends it, one way or the other.
        self._producer: Producer | None = None
        self._ready()

    def join(self, member: GroupMember) -> None:
        """Go by this member of the group that reads; a `SinkRunner` sees to it.

        Raises:
            MisconfiguredError: It goes by another one already.
        """
        check_alone(self, self._member)
        self._member = member

    # Reading and writing.

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The cluster does not answer now, or another instance's
                transaction is still open.
        """
        with self._lock:
            self._ready()
            return self._loaded([(topic, partition)])[0]

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Apply batches of different partitions, all in one transaction.

        Raises:
            SinkFenced: The group counts this instance no more as the one that has the
                partition, or another has written. Nothing has changed.
            SinkUnavailable: The cluster does not answer; or the transaction lasted too
                long, and was ended. Either all of it was stored, or nothing.
            MisconfiguredError: Another producer has taken the `transactional.id`.
            KafkaException: What was produced is refused. Nothing has changed.
            Exception: Whatever the function that applies messages raises: nothing has
                changed.
        """
        with self._lock:
            if self._takes_epochs:
                try:
                    self._write(batches)
                    return
                except _MetadataTooLarge:
                    self._takes_epochs = False
            self._write(batches)

    def ask(self, topic: str, partition: int) -> None:
        """Ask the group whether it would take a commit of its member. None is made.

        Raises:
            KafkaException: It would not.
            SinkUnavailable: It does not answer now.
        """
        with self._lock:
            producer = self._ready()
            try:
                generation = self._joined.consumer_group_metadata()
                self._begin(producer)
                producer.send_offsets_to_transaction(
                    [TopicPartition(topic, partition, 0)], generation, self._timeout_s
                )
            except KafkaException as error:
                if error.args[0].code() in NOT_OF_THE_GENERATION:
                    raise
                raise self._failure(error) from error
            finally:
                self._abort(producer)

    def _write(self, batches: Sequence[SinkBatch]) -> None:
        producer = self._ready()
        output = Output(producer, self._timeout_s)
        is_applying = False
        try:
            # First of all: should the partitions go to others from here on, it is of
            # a generation that has passed.
            generation = self._joined.consumer_group_metadata()
            self._begin(producer)
            is_applying = True
            for batch in batches:
                if batch.messages:
                    self._apply(output, batch.messages)
            is_applying = False
            self._bury(output, batches)
            # While the client sends what was produced.
            states = self._loaded([batch.place for batch in batches])
            for batch, state in zip(batches, states, strict=True):
                batch.check(state and state.position)
            epochs = self._takes_epochs
            offsets = [
                commit_of(batch, with_epochs=epochs, copy_id=self._copy_id)
                for batch in batches
            ]
            producer.send_offsets_to_transaction(offsets, generation, self._timeout_s)
            self._to_its_end(producer.commit_transaction)
            self._is_open = False
            self._too_long = 0
        except KafkaException as error:
            end = self._abort(producer)
            if is_applying and error is not output.failure:
                raise  # of another client, which the function uses
            code = error.args[0].code()
            if code == KafkaError.OFFSET_METADATA_TOO_LARGE and self._takes_epochs:
                raise _MetadataTooLarge from error
            if code in NOT_OF_THE_GENERATION:
                state = self._loaded([batches[0].place])[0]
                raise batches[0].fenced(state and state.position) from error
            if end is not None and end.args[0].code() == KafkaError._FENCED:
                error = end  # what came before only said that it has failed
            raise self._failure(error) from error
        except BaseException:
            self._abort(producer)
            raise

    def _bury(self, output: Output, batches: Sequence[SinkBatch]) -> None:
        if self._dead_letters is None:
            return
        for batch in batches:
            if batch.topic == self._dead_letters:
                raise MisconfiguredError(
                    "dead_letters", batch.topic, "it is read from: what is rejected of "
                    "it would come again, and be rejected, for ever",
                    "Name another topic.",
                )  # fmt: skip
            for letter in batch.rejected:
                kept = fitting(letter, self._letter_bytes)
                headers: Any = headers_of_letter(kept)
                output.produce(
                    self._dead_letters, kept.value, kept.key, headers=headers
                )

    @property
    def _joined(self) -> GroupMember:
        return joined(self, self._member)

    def _loaded(self, places: Sequence[tuple[str, int]]) -> list[SinkState | None]:
        return stored_states(self._joined, places, self._store, self._timeout_s)

    # The transaction.

    def _ready(self) -> Producer:
        """The producer; what an earlier one left open has ended.

        Raises:
            SinkUnavailable: The cluster does not answer.
            KafkaException: It refuses the transactional id, or the settings.
        """
        if self._producer is not None:
            return self._producer
        # What is said from here on is not of the last transaction.
        self._refusal, self._begun_at = None, time.monotonic()
        producer = transactional_producer(
            {**self._config, "on_delivery": self._delivered}, self._last_error
        )
        try:
            self._to_its_end(producer.init_transactions)
        except KafkaException as error:
            raise self._failure(error) from error
        self._last_error.clear()
        self._producer = producer
        return producer

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        """Keep why a message was refused: the transaction only says that one was."""
        if error is None or self._refusal is not None:
            return
        if error.code() not in _PURGED:
            self._refusal = error

    def _begin(self, producer: Producer) -> None:
        self._refusal = None
        try:
            producer.begin_transaction()
        except KafkaException:
            self._producer = None
            raise
        self._begun_at = time.monotonic()
        self._is_open = True

    def _to_its_end(self, call: Callable[[float], None]) -> None:
        """Make a call of the client that, made again, goes on where it was."""
        deadline = deadline_after(self._timeout_s)
        while True:
            try:
                return call(time_left(deadline))
            except KafkaException as error:
                if not error.args[0].retriable() or not time_left(deadline):
                    raise

    def _abort(self, producer: Producer) -> KafkaException | None:
        """End the transaction; where that fails, the next producer does it."""
        if not self._is_open:
            return None
        self._is_open = False
        try:
            producer.abort_transaction(self._timeout_s)
        except KafkaException as error:
            self._producer = None
            return error
        except BaseException:
            self._producer = None
            raise
        return None

    # Errors, by what the caller has to do.

    def _failure(
        self, error: KafkaException
    ) -> KafkaException | SinkUnavailable | MisconfiguredError:
        cause = self._refusal or error.args[0]
        if cause.code() in _LASTING:
            return KafkaException(cause)
        lasted_s = time.monotonic() - self._begun_at
        if cause.code() == KafkaError._FENCED and lasted_s < self._longest_s:
            return MisconfiguredError(
                "transactional.id", self._config["transactional.id"],
                f"another producer has taken it, {lasted_s:.1f} s after this "
                f"transaction began",
                "Give each instance an id of its own. Where another was started in "
                "place of this one, all is well: this one has changed nothing.",
            )  # fmt: skip
        if cause.code() != KafkaError._FENCED:
            return SinkUnavailable(self._store, self._last_error.or_else(cause.str()))
        reason = (
            f"the transaction lasted {lasted_s:.1f} s, and is ended after "
            f"{self._longest_s:g} s"
        )
        self._too_long += 1
        if self._too_long < _TOO_LONG_TIMES:
            return SinkUnavailable(self._store, f"{reason} (transaction.timeout.ms)")
        return MisconfiguredError(
            "transaction.timeout.ms", self._config["transaction.timeout.ms"],
            f"{reason}, {self._too_long} times in a row",
            "Raise it, or have the runner write less at a time (batch_size).",
        )  # fmt: skip

    # The end.

    def close(self) -> None:
        """Give the client back. May be called again."""
        with self._lock:
            self._producer = None

    def __enter__(self) -> KafkaSink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _letter_bytes(config: Config, topic: str, timeout_s: float) -> int:
    """How large a record a dead-letter topic takes; it must be there, and keep all."""
    if not isinstance(topic, str) or not topic:
        raise MisconfiguredError(
            "dead_letters", topic, "no name of a topic", "Name one."
        )
    keeper = TopicKeeper(connection_settings(config), timeout_s)
    problem, settings = "", {}
    if keeper.facts(topic) is None:
        problem = "there is no such topic"
    else:
        settings = keeper.settings(topic) or {}  # none, where they may not be read
    if "compact" in settings.get("cleanup.policy", ""):
        problem = "its cleanup.policy has compact, which takes letters away"
    if problem:
        raise MisconfiguredError(
            "dead_letters", topic, problem,
            "Name a topic with cleanup.policy=delete, and a retention.ms that leaves "
            "time to decide.",
        )  # fmt: skip
    return int(settings.get("max.message.bytes", 1_000_000))


class _MetadataTooLarge(Exception):
    """The broker takes no commit metadata of that size. Nothing has changed."""


def _settings(config: Config) -> tuple[dict[str, Any], float]:
    """The producer's settings, and how many seconds a transaction lasts at most."""
    if not isinstance(config, Mapping):
        raise MisconfiguredError(
            "config", config, "no settings of a client",
            "Give, for instance, {'bootstrap.servers': 'host:port'}.",
        )  # fmt: skip
    settings: dict[str, Any] = {
        "transactional.id": f"epochfence-sink-{token_hex(8)}",
        "transaction.timeout.ms": 10_000,
        "delivery.report.only.error": True,
        **config,
    }
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
