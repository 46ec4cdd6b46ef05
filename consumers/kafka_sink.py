"""Kafka as a sink: what comes of the messages, and their offsets, in one transaction.

The positions are the group's commits, which the broker takes from a member of the
present generation only (KIP-447). Epoch starts are facts, and stand in the max-epoch
table before a message is handed over: were they in the transaction, an open one would
hold up whoever reads the table.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
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
from epochfence.epochs.clients import KAFKA
from epochfence.epochs.connection import (
    Config,
    LastError,
    connection_settings,
)
from epochfence.epochs.deadlines import deadline_after
from epochfence.epochs.errors import MisconfiguredError, SinkUnavailable
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.transactions import (
    LASTING,
    PURGED,
    TransactionalClient,
    transaction_settings,
)
from epochfence.epochs.values import SinkState, check_timeout

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
        self._config, longest_s = transaction_settings(
            config,
            {
                "transactional.id": f"epochfence-sink-{token_hex(8)}",
                "transaction.timeout.ms": 10_000,
                "delivery.report.only.error": True,
            },
        )
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
        self._takes_epochs = True
        self._refusal: KafkaError | None = None
        self._client = TransactionalClient(
            KAFKA.transactional_producer,
            {**self._config, "on_delivery": self._delivered},
            longest_s,
            self._last_error,
        )
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
                self._begin()
                producer.send_offsets_to_transaction(
                    [TopicPartition(topic, partition, 0)], generation, self._timeout_s
                )
            except KafkaException as error:
                if error.args[0].code() in NOT_OF_THE_GENERATION:
                    raise
                raise self._failure(error) from error
            finally:
                self._abort()

    def _write(self, batches: Sequence[SinkBatch]) -> None:
        producer = self._ready()
        output = Output(producer, self._timeout_s)
        is_applying = False
        try:
            # First of all: should the partitions go to others from here on, it is of
            # a generation that has passed.
            generation = self._joined.consumer_group_metadata()
            self._begin()
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
            self._client.commit(self._deadline())
        except KafkaException as error:
            end = self._abort()
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
            self._abort()
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
        if not self._client.is_ready:
            self._refusal = None  # what is said from here on is not of the last one
        try:
            return self._client.ready(self._deadline())
        except KafkaException as error:
            raise self._failure(error) from error

    def _deadline(self) -> float:
        return deadline_after(self._timeout_s)

    def _delivered(self, error: KafkaError | None, _: Message) -> None:
        """Keep why a message was refused: the transaction only says that one was."""
        if error is None or self._refusal is not None:
            return
        if error.code() not in PURGED:
            self._refusal = error

    def _begin(self) -> None:
        self._refusal = None
        self._client.begin()

    def _abort(self) -> KafkaException | None:
        """End the transaction; where that fails, the next producer does it."""
        return self._client.abort(self._deadline())

    # Errors, by what the caller has to do.

    def _failure(
        self, error: KafkaException
    ) -> KafkaException | SinkUnavailable | MisconfiguredError:
        cause = self._refusal or error.args[0]
        if cause.code() in LASTING:
            return KafkaException(cause)
        if cause.code() != KafkaError._FENCED:
            return SinkUnavailable(self._store, self._last_error.or_else(cause.str()))
        if self._client.has_lost_id():
            return MisconfiguredError(
                "transactional.id", self._config["transactional.id"],
                f"another producer has taken it, {self._client.lasted_s:.1f} s after "
                f"this transaction began",
                "Give each instance an id of its own. Where another was started in "
                "place of this one, all is well: this one has changed nothing.",
            )  # fmt: skip
        try:
            reason = self._client.too_long(
                "Raise it, or have the runner write less at a time (batch_size)."
            )
        except MisconfiguredError as lasting:
            return lasting
        return SinkUnavailable(self._store, reason)

    # The end.

    def close(self) -> None:
        """Give the client back. May be called again."""
        with self._lock:
            self._client.drop()

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
