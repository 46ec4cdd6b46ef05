"""A gate: what is admitted of a topic, copied to another for those who cannot fence.

The copy has the same partitions, keys, values, timestamps and headers; our own headers
are left out, and so are barriers and what was rejected. Each record says where it comes
from, in a header of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    TIMESTAMP_NOT_AVAILABLE,
    KafkaError,
    KafkaException,
    Message,
)

from epochfence.consumers.copied_topic import (
    SOURCE_BYTES,
    SOURCE_HEADER,
    last_source,
    was_written,
)
from epochfence.consumers.kafka_sink import KafkaSink, Output
from epochfence.consumers.sink import SinkBatch
from epochfence.epochs.connection import Config, connection_settings
from epochfence.epochs.errors import (
    MisconfiguredError,
    SinkUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.starts import CommitMetadata
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import Place, SinkState

_log = logging.getLogger(__name__)

#: No header of the source that begins so is copied.
_OURS = "epochfence"

_TOO_LARGE = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class GateSink(KafkaSink):
    """Copies the admitted messages of one topic to another, each of them once.

    Args:
        config: As for `KafkaSink`.
        source: The topic to be copied.
        destination: Where to, in the same cluster: see `open_destination`.
        largest_bytes: The size of the source's largest batches.
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
        timeout_s: float = 10.0,
    ) -> None:
        self._source = source
        self._destination = destination
        self._largest_bytes = largest_bytes + SOURCE_BYTES
        self._connection = connection_settings(config)
        self._keeper = TopicKeeper(self._connection, timeout_s)
        # Of each partition that is being written, its life; and where the copy ends
        # of those of which the group knows nothing.
        self._lives: dict[Place, str | None] = {}
        self._ends: dict[int, SinkState | None] = {}
        sized = {"message.max.bytes": self._largest_bytes}
        super().__init__({**sized, **config}, self._copy, timeout_s=timeout_s)

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The cluster does not answer now, or another instance's
                transaction is still open.
            MisconfiguredError: The copy has no such partition.
        """
        try:
            self._check_partition(partition)
            state = super().load(topic, partition)
            if state is not None and state.position.next_offset:
                self._check_completeness(partition, state)
        except TopicUnavailable as error:
            raise SinkUnavailable(self._store, str(error)) from error
        return state

    def _check_completeness(self, partition: int, state: SinkState) -> None:
        """Warn where the group has passed what the copy lacks, for all one can see."""
        if was_written(self._connection, self._destination, partition, self._timeout_s):
            return
        _log.warning(
            "%s[%d] never had a record, and the group has come to offset %d of %s[%d]. "
            "Where something below that is admitted, it is missing in the copy, for "
            "good: the topic was made anew, or the group is not the gate's alone, or "
            "its settings were others. To copy from the start, end every instance and "
            "delete the group (kafka-consumer-groups.sh --delete), or use another one",
            self._destination,
            partition,
            state.position.next_offset,
            self._source,
            partition,
        )

    def _check_partition(self, partition: int) -> None:
        """See that the copy has a partition: the source may have grown, alone."""
        copy = self._keeper.facts(self._destination)
        if copy is None:
            raise MisconfiguredError(
                "DST", self._destination, "there is no such topic any more",
                "Start again, and it is created; what was copied before is not copied "
                "again, unless the group is deleted too.",
            )  # fmt: skip
        if partition not in copy.partitions:
            raise MisconfiguredError(
                "DST", self._destination,
                f"it has {len(copy.partitions)} partitions, and {self._source} has at "
                f"least {partition + 1} now",
                "Give it as many (kafka-topics.sh --alter --partitions), and start "
                "again.",
            )  # fmt: skip
        self._have_producer_look()

    def _have_producer_look(self) -> None:
        """By itself, the client looks for new partitions every five minutes."""
        if self._producer is not None:
            with suppress(KafkaException):  # an old view does, mostly
                self._producer.list_topics(self._destination, self._timeout_s)

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Copy batches of different partitions, all in one transaction."""
        self._lives = {batch.place: batch.position.topic_id for batch in batches}
        try:
            super().write(batches)
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
            headers = message.headers()
            if headers != before:  # those of one leader are mostly alike
                before = headers
                kept = [one for one in headers or () if not one[0].startswith(_OURS)]
            leader_epoch = message.leader_epoch()
            known = -1 if leader_epoch is None else leader_epoch
            source = f"{prefix}:{known}:{message.offset()}"
            kind, at = message.timestamp()
            produce(
                topic,
                message.value(),
                message.key(),
                partition,
                headers=[*kept, (SOURCE_HEADER, source)],
                timestamp=0 if kind == TIMESTAMP_NOT_AVAILABLE else at,
            )

    def _loaded(self, places: Sequence[Place]) -> list[SinkState | None]:
        """The group's commits; where it has none, where the copy ends.

        A broker forgets the commits of a group that nobody is a member of for long.
        """
        return [
            state or self._end(partition)
            for state, (_, partition) in zip(
                super()._loaded(places), places, strict=True
            )
        ]

    def _end(self, partition: int) -> SinkState | None:
        if partition not in self._ends:
            try:
                source = last_source(
                    self._connection, self._destination, partition, self._timeout_s
                )
            except TopicUnavailable as error:
                raise SinkUnavailable(self._store, str(error)) from error
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
