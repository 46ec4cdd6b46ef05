"""A gate: what is admitted of a topic, copied to another for those who cannot fence.

The copy has the same partitions, keys, values, timestamps and headers; our own headers
are left out, and so are barriers and what was rejected. Each record says where it comes
from, in a header of its own.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    KafkaError,
    KafkaException,
    Message,
)

from epochfence.consumers.copied_topic import (
    SOURCE_BYTES,
    SOURCE_HEADER,
    last_source,
)
from epochfence.consumers.kafka_output import Output
from epochfence.consumers.kafka_sink import KafkaSink
from epochfence.consumers.looks import LOOK_EVERY_S
from epochfence.consumers.sink import SinkBatch
from epochfence.epochs.connection import Config, connection_settings
from epochfence.epochs.errors import (
    MisconfiguredError,
    SinkUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.messages import timestamp_of
from epochfence.epochs.stamps import without_ours
from epochfence.epochs.starts import CommitMetadata
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import Place, SinkPosition, SinkState

_log = logging.getLogger(__name__)

_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class GateSink(KafkaSink):
    """Copies the admitted messages of one topic to another, each of them once.

    Args:
        config: As for `KafkaSink`.
        source: The topic to be copied.
        destination: Where to, in the same cluster: see `open_destination`.
        largest_bytes: The size of the source's largest batches.
        dead_letters: As for `KafkaSink`.
        timeout_s: How long to wait for the cluster.

    Raises:
        MisconfiguredError: A setting is wrong.
        SinkUnavailable: The cluster does not answer.
    """

    def __init__(
        self,
        config: Config,
        source: str,
        destination: str,
        *,
        largest_bytes: int,
        dead_letters: str | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self._source = source
        self._destination = destination
        self._largest_bytes = largest_bytes + SOURCE_BYTES
        self._connection = connection_settings(config)
        self._keeper = TopicKeeper(self._connection, timeout_s)
        if dead_letters in (source, destination):
            raise MisconfiguredError(
                "--dead-letters", dead_letters, "it is read from, or is the copy",
                "Name another topic.",
            )  # fmt: skip
        self._looked_at = 0.0
        # Of each partition that is being written, its life; and where the copy ends
        # of those of which the group knows nothing.
        self._lives: dict[Place, str | None] = {}
        self._ends: dict[int, SinkState | None] = {}
        # A batch must fit, too.
        sized = {
            "message.max.bytes": max(1_000_000, self._largest_bytes),
            "batch.size": min(1_000_000, self._largest_bytes),
        }
        super().__init__(
            {**sized, **config},
            self._copy,
            dead_letters=dead_letters,
            timeout_s=timeout_s,
        )
        copy = self._keeper.facts(destination)
        self._copy_id = None if copy is None else copy.topic_id

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The cluster does not answer now, or another instance's
                transaction is still open.
            MisconfiguredError: The copy has no such partition.
        """
        try:
            self._check_copy(partition)
            self._have_producer_look()
            state = super().load(topic, partition)
        except TopicUnavailable as error:
            raise SinkUnavailable(self._store, str(error)) from error
        if state is not None and state.said and state.said.copy_id is None:
            self._warn_of_foreign_commit(topic, partition, state.position.next_offset)
        return state

    def _warn_of_foreign_commit(self, topic: str, partition: int, offset: int) -> None:
        if partition in self._ends or not offset:
            return  # where the copy ends, that is known
        _log.warning(
            "the group's commit of %s[%d], at offset %d, was not made by this gate: "
            "what is admitted below it may be missing in %s. To copy from the start, "
            "end every instance and delete the group (kafka-consumer-groups.sh "
            "--delete), or use another one (--group)",
            topic,
            partition,
            offset,
            self._destination,
        )

    def _check_copy(self, partition: int) -> None:
        """See that the copy is the one that it was, and has as many partitions."""
        copy = self._keeper.facts(self._destination)
        self._looked_at = time.monotonic()
        if copy is None or copy.topic_id != self._copy_id:
            what = "is gone" if copy is None else "was deleted and made anew"
            raise MisconfiguredError(
                "DST", self._destination, f"it {what} while it was written to",
                "Delete it, if it is there: it may lack records. Then start again, and "
                "all is copied anew.",
            )  # fmt: skip
        if partition not in copy.partitions:
            raise MisconfiguredError(
                "DST", self._destination,
                f"it has {len(copy.partitions)} partitions, and {self._source} has at "
                f"least {partition + 1} now",
                "Give it as many (kafka-topics.sh --alter --partitions), and start "
                "again.",
            )  # fmt: skip

    def _have_producer_look(self) -> None:
        """By itself, the client looks for new partitions every five minutes."""
        producer = self._client.producer
        if producer is not None:
            with suppress(KafkaException):  # an old view does, mostly
                producer.list_topics(self._destination, self._timeout_s)

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Copy batches of different partitions, all in one transaction."""
        self._lives = {batch.place: batch.position.topic_id for batch in batches}
        try:
            if time.monotonic() > self._looked_at + LOOK_EVERY_S:
                self._check_copy(batches[0].partition)
            super().write(batches)
        except TopicUnavailable as error:
            raise SinkUnavailable(self._store, str(error)) from error
        except KafkaException as error:
            if error.args[0].code() in _TOO_LARGE:
                raise self._too_large(batches) from error
            raise
        for batch in batches:
            self._ends.pop(batch.partition, None)

    def _too_large(self, batches: Sequence[SinkBatch]) -> MisconfiguredError:
        places = ", ".join(
            f"{batch.topic}[{batch.partition}] from offset {batch.messages[0].offset()}"
            for batch in batches
            if batch.messages
        )
        return MisconfiguredError(
            "DST", self._destination, f"a record of {places} on is too large for it",
            f"See that its max.message.bytes is {self._largest_bytes} at least. Where "
            f"it is, the records were compressed, and have to be here: -X "
            f"compression.type=zstd -X message.max.bytes=N, with N above the size of "
            f"the largest one before that.",
        )  # fmt: skip

    def _copy(self, output: Output, messages: Sequence[Message]) -> None:
        partition = messages[0].partition() or 0
        life = self._lives[self._source, partition]
        produce, topic = output.produce, self._destination
        prefix = f"{life}:{partition}"
        before: object = None
        kept: list[Any] = []
        for message in messages:
            headers: Any = message.headers()
            if headers != before:  # those of one leader are mostly alike
                before = headers
                kept = without_ours(headers or ())
            leader_epoch = message.leader_epoch()
            known = -1 if leader_epoch is None else leader_epoch
            source = f"{prefix}:{known}:{message.offset()}"
            produce(
                topic,
                message.value(),
                message.key(),
                partition,
                headers=[*kept, (SOURCE_HEADER, source)],
                timestamp=timestamp_of(message) or 0,
            )

    def _loaded(self, places: Sequence[Place]) -> list[SinkState | None]:
        """The group's commits; where it has none, where the copy ends.

        A broker forgets the commits of a group that nobody is a member of for long.
        A commit that tells of another life of the copy counts for nothing in this one.
        """
        states: list[SinkState | None] = []
        stored = super()._loaded(places)
        for state, (_, partition) in zip(stored, places, strict=True):
            said = None if state is None else state.said
            if said is not None and said.copy_id not in (None, self._copy_id):
                self._check_empty(partition)
                states.append(None)
            else:
                states.append(state or self._end(partition))
        return states

    def _check_empty(self, partition: int) -> None:
        """See that a copy that was made anew holds nothing yet."""
        if self._last_source(partition) is None:
            return
        raise MisconfiguredError(
            "DST", self._destination, "it was deleted and made anew, and written to "
            "before that was noticed: it lacks records",
            "Delete it once more, and start again: all is copied anew.",
        )  # fmt: skip

    def _last_source(self, partition: int) -> SinkPosition | None:
        try:
            return last_source(
                self._connection, self._destination, partition, self._timeout_s
            )
        except TopicUnavailable as error:
            raise SinkUnavailable(self._store, str(error)) from error

    def _end(self, partition: int) -> SinkState | None:
        if partition not in self._ends:
            source = self._last_source(partition)
            if source is not None:
                _log.warning(
                    "the group has no commit of %s[%d]: it goes on behind the last "
                    "record of %s, copied from offset %d",
                    self._source,
                    partition,
                    self._destination,
                    source.next_offset - 1,
                )
            self._ends[partition] = (
                None
                if source is None
                else SinkState(source, said=CommitMetadata(source.topic_id))
            )
        return self._ends[partition]
