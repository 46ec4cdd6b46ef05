"""A gate: what is admitted of a topic, copied to another for those who cannot fence.

The copy has the same partitions, keys, values, timestamps and headers; our own headers
are left out, and so are barriers and what was rejected. Each record says where it comes
from, in a header of its own.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from epochfence.consumers.kafka_sink import KafkaSink, Output
from epochfence.consumers.sink import SinkBatch
from epochfence.epochs.connection import Config, connection_settings
from epochfence.epochs.errors import (
    MisconfiguredError,
    SinkUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.starts import CommitMetadata
from epochfence.epochs.table import Table
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from epochfence.epochs.values import Place, SinkPosition, SinkState

_log = logging.getLogger(__name__)

#: Where a copied record comes from: `topic id:partition:leader epoch:offset`.
SOURCE_HEADER = "epochfence-source"

#: No header of the source that begins so is copied.
_OURS = "epochfence"

_SOURCE = re.compile(rb"([A-Za-z0-9_-]{22}):(\d{1,10}):(-1|\d{1,10}):(\d{1,19})\Z")

#: How much larger a record is than the one it was copied from, at the most.
_SOURCE_BYTES = 128

#: So many of a partition's last records are looked at first for one that is no
#: control record.
_TAIL = 1000

#: What a topic that is made for the copy has of the source's settings.
_COPIED_SETTINGS = (
    "cleanup.policy",
    "retention.ms",
    "retention.bytes",
    "delete.retention.ms",
    "min.compaction.lag.ms",
    "max.compaction.lag.ms",
    "min.insync.replicas",
)


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
        self._connection = connection_settings(config)
        # Of each partition that is being written, its life; and where the copy ends
        # of those of which the group knows nothing.
        self._lives: dict[Place, str | None] = {}
        self._ends: dict[int, SinkState | None] = {}
        sized = {"message.max.bytes": largest_bytes + _SOURCE_BYTES}
        super().__init__(
            {**sized, **config},
            self._copy,
            dead_letters=dead_letters,
            timeout_s=timeout_s,
        )

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Copy batches of different partitions, all in one transaction."""
        self._lives = {batch.place: batch.position.topic_id for batch in batches}
        super().write(batches)
        for batch in batches:
            self._ends.pop(batch.partition, None)

    def _copy(self, output: Output, messages: Sequence[Message]) -> None:
        partition = messages[0].partition() or 0
        life = self._lives[self._source, partition]
        produce, topic, prefix = (
            output.produce,
            self._destination,
            f"{life}:{partition}",
        )
        for message in messages:
            headers = [
                header
                for header in message.headers() or ()
                if not header[0].startswith(_OURS)
            ]
            leader_epoch = message.leader_epoch()
            known = -1 if leader_epoch is None else leader_epoch
            headers.append((SOURCE_HEADER, f"{prefix}:{known}:{message.offset()}"))
            kind, at = message.timestamp()
            produce(
                topic,
                message.value(),
                message.key(),
                partition,
                headers=headers,
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


def source_of(message: Message) -> tuple[int, SinkPosition] | None:
    """Where a copied record comes from: the partition, and the position behind it.

    None: it is no copy.
    """
    for name, value in headers_of(message) or ():
        if name != SOURCE_HEADER:
            continue
        raw = value.encode() if isinstance(value, str) else value
        found = _SOURCE.match(raw or b"")
        if found is None:
            return None
        topic_id, partition, leader_epoch, offset = (
            part.decode() for part in found.groups()
        )
        known = None if leader_epoch == "-1" else int(leader_epoch)
        return int(partition), SinkPosition(topic_id, known, int(offset) + 1)
    return None


def last_source(
    config: Config, destination: str, partition: int, timeout_s: float
) -> SinkPosition | None:
    """Behind what the last record of a copy's partition was copied from.

    None: there is no record.

    Raises:
        TopicUnavailable: It cannot be read now.
        MisconfiguredError: It was not copied.
    """
    with PartitionReader(config, destination, partition) as reader:
        low, high = reader.bounds(timeout_s)
        length = _TAIL
        while True:
            start = max(low, high - length)
            last: Message | None = None
            for records in reader.read(start, high, stall_timeout_s=timeout_s):
                last = records[-1] if records else last
            if last is not None:
                return _own(destination, last)
            if start == low:
                return None
            length *= 10


def _own(destination: str, record: Message) -> SinkPosition:
    """Where a record of a copy comes from, which must be by a gate."""
    found = source_of(record)
    if found is not None and found[0] == record.partition():
        return found[1]
    raise MisconfiguredError(
        "DST", destination,
        f"its record at {record.partition()}:{record.offset()} was written by "
        f"something else (it has no header {SOURCE_HEADER} of its partition)",
        "Name a topic that does not exist, or is empty.",
    )  # fmt: skip


def open_destination(
    config: Config,
    table: Table,
    source: str,
    destination: str,
    *,
    create: bool,
    timeout_s: float,
) -> int:
    """See that a topic can be the copy of another; create it where it is missing.

    Args:
        config: Connection settings.
        table: Tells former lives of the source, which may have been copied.
        source: The topic to be copied.
        destination: The copy.
        create: Whether it may be created.
        timeout_s: How long to wait for the cluster.

    Returns:
        The size of the source's largest batches, in bytes.

    Raises:
        MisconfiguredError: One of the two is missing, they have not as many
            partitions, or the copy holds something else.
        TopicUnavailable: The cluster does not answer.
    """
    if source == destination:
        raise MisconfiguredError(
            "DST", destination, "it is the source itself", "Name another topic."
        )
    keeper = TopicKeeper(config, timeout_s)
    of_source = keeper.facts(source)
    if of_source is None:
        raise MisconfiguredError(
            "SRC", source, "there is no such topic", "See the name, and the cluster."
        )
    settings = keeper.settings(source) or {}
    largest_bytes = int(settings.get("max.message.bytes", 1_048_588))
    copy = keeper.facts(destination)
    if copy is None and not create:
        raise MisconfiguredError(
            "DST", destination, "there is no such topic, and --no-create is given",
            f"Create it with {len(of_source.partitions)} partitions.",
        )  # fmt: skip
    if copy is None:
        copied = {name: settings[name] for name in _COPIED_SETTINGS if name in settings}
        copied["max.message.bytes"] = str(largest_bytes + _SOURCE_BYTES)
        copy = keeper.create(
            destination, len(of_source.partitions), of_source.replicas, copied
        )
        _check_partitions(source, of_source, destination, copy)
        return largest_bytes
    _check_partitions(source, of_source, destination, copy)
    times = (keeper.settings(destination) or {}).get("message.timestamp.type")
    if times == "LogAppendTime":
        _log.warning(
            "topic %s has message.timestamp.type=LogAppendTime: it keeps no timestamps",
            destination,
        )
    lives = {of_source.topic_id}
    for partition in of_source.partitions:
        lives.update(
            start.topic_id
            for start in table.starts(source, partition)
            if start.topic_id is not None
        )
    _check_origin(config, source, lives, destination, copy.partitions, timeout_s)
    return largest_bytes


def _check_partitions(
    source: str, of_source: TopicFacts, destination: str, copy: TopicFacts
) -> None:
    if copy.partitions == of_source.partitions:
        return
    raise MisconfiguredError(
        "DST", destination,
        f"it has {len(copy.partitions)} partitions, and {source} has "
        f"{len(of_source.partitions)}",
        "Give it as many (kafka-topics.sh --alter --partitions), or name another "
        "topic.",
    )  # fmt: skip


def _check_origin(
    config: Config,
    source: str,
    lives: set[str],
    destination: str,
    partitions: Iterable[int],
    timeout_s: float,
) -> None:
    """See that what a topic holds was copied from the source."""
    for partition in partitions:
        with PartitionReader(config, destination, partition) as reader:
            low, high = reader.bounds(timeout_s)
            first: Message | None = None
            for records in reader.read(low, high, stall_timeout_s=timeout_s):
                if records:
                    first = records[0]
                    break
        if first is None:
            continue
        life = _own(destination, first).topic_id
        if life not in lives:
            raise MisconfiguredError(
                "DST", destination,
                f"its record at {partition}:{first.offset()} was copied from a topic "
                f"of another id ({life}; {source} has {', '.join(sorted(lives))})",
                "Name a topic that does not exist, or is empty.",
            )  # fmt: skip
