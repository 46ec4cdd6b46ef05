"""A topic that is a copy of another: where its records come from; how it is made."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable

from confluent_kafka import Message

from epochfence.epochs.connection import Config
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.table import Table
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from epochfence.epochs.values import SinkPosition

_log = logging.getLogger(__name__)

#: Where a copied record comes from: `topic id:partition:leader epoch:offset`.
SOURCE_HEADER = "epochfence-source"

_SOURCE = re.compile(rb"([A-Za-z0-9_-]{22}):(\d{1,10}):(-1|\d{1,10}):(\d{1,19})\Z")

#: How much larger a record is than the one it was copied from, at the most.
SOURCE_BYTES = 128

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
    "message.timestamp.after.max.ms",
)

#: What it has whatever the brokers' defaults are: it keeps the source's timestamps,
#: old ones too.
_SET_SETTINGS = {
    "message.timestamp.type": "CreateTime",
    "message.timestamp.before.max.ms": str(2**63 - 1),
}


def source_of(message: Message) -> tuple[int, SinkPosition] | None:
    """Where a copied record comes from: the partition, and the position behind it.

    None: it is no copy.
    """
    for name, value in headers_of(message):
        if name != SOURCE_HEADER:
            continue
        found = _SOURCE.match(value or b"")
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
    with _reader(config, destination, partition) as reader:
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


def _reader(config: Config, destination: str, partition: int) -> PartitionReader:
    # A partition ends with control records: the client is told so once the broker has
    # waited in vain for more.
    return PartitionReader({**config, "fetch.wait.max.ms": 10}, destination, partition)


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
            "SRC", source, "there is no such topic", "Check the name, and the cluster."
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
        # Not all brokers know each of them.
        copied |= {n: to for n, to in _SET_SETTINGS.items() if n in settings}
        copied["max.message.bytes"] = str(largest_bytes + SOURCE_BYTES)
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
        first = _first(config, destination, partition, timeout_s)
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


def _first(
    config: Config, destination: str, partition: int, timeout_s: float
) -> Message | None:
    with _reader(config, destination, partition) as reader:
        low, high = reader.bounds(timeout_s)
        for records in reader.read(low, high, stall_timeout_s=timeout_s):
            if records:
                return records[0]
    return None
