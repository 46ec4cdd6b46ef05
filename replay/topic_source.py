"""What there is to read of a topic: partitions, with ends that are captured first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from epochfence.epochs.connection import Config
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from epochfence.epochs.values import EpochStart


@dataclass(frozen=True)
class Range:
    """Which part of each partition to read. What is None has no limit.

    Attributes:
        from_offset: The first offset.
        to_offset: The offset to stop at, and without which.
        since_ms: The first record with such a timestamp or a later one; ms since 1970.
        until_ms: Stop at the first record with such a timestamp or a later one.

    Raises:
        MisconfiguredError: It ends before it begins, or where it begins.
    """

    from_offset: int | None = None
    to_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def __post_init__(self) -> None:
        _check_rising("--from-offset", self.from_offset, "--to-offset", self.to_offset)
        _check_rising("--since", self.since_ms, "--until", self.until_ms)


def _check_rising(name: str, begin: int | None, end_name: str, end: int | None) -> None:
    if begin is not None and end is not None and begin >= end:
        raise MisconfiguredError(
            name, begin, f"nothing lies between it and {end_name}, which is {end}",
            f"Give {end_name} something behind it, or leave it out.",
        )  # fmt: skip


@dataclass(frozen=True)
class Slice:
    """What to read of one partition.

    Attributes:
        topic: The topic.
        topic_id: Its id when the ends were captured, None where it has none.
        partition: The partition.
        log_start: Where its log began then.
        start: The offset to begin at.
        end: The offset to stop at, and without which.
    """

    topic: str
    topic_id: str | None
    partition: int
    log_start: int
    start: int
    end: int

    def floor_of(self, rows: Sequence[EpochStart]) -> list[EpochStart]:
        """The rows that reading this slice cannot find itself: they are taken as known.

        Those of earlier lives, and those below where the reading begins.
        """
        return [
            row
            for row in rows
            if (row.topic, row.partition) == (self.topic, self.partition)
            and (row.topic_id != self.topic_id or row.position.offset < self.start)
        ]


class TopicSource:
    """The partitions of a topic, with ends that are captured now.

    They are captured before a ledger is read: a record below them was written under a
    grant that was in the ledger by then.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        timeout_s: How long the cluster may take where nothing comes.
        partitions: Only these; None: all.
        limits: Which part of each.

    Raises:
        MisconfiguredError: There is no such topic or partition.
        TopicUnavailable: The cluster does not answer, or a partition has no leader.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        timeout_s: float,
        partitions: Sequence[int] | None = None,
        limits: Range | None = None,
    ) -> None:
        self.config = config
        self.topic = topic
        self.timeout_s = timeout_s
        self._keeper = TopicKeeper(config, timeout_s)
        self._is_whole = not partitions
        facts = self._facts()
        there = facts.partitions
        absent = sorted(set(partitions or ()) - set(there))
        if absent:
            raise MisconfiguredError(
                "--partition", absent, f"topic {topic} has partitions 0 to {there[-1]}",
                "Name partitions that exist.",
            )  # fmt: skip
        self.topic_id = facts.topic_id
        self.is_compacted = self._keeper.is_compacted(topic)
        self.slices = [
            self._slice(partition, limits or Range())
            for partition in sorted(set(partitions or there))
        ]

    def _facts(self) -> TopicFacts:
        facts = self._keeper.facts(self.topic)
        if facts is None:
            raise MisconfiguredError(
                "topic", self.topic, "there is no such topic on this cluster",
                "Check the name, and the cluster given with -b.",
            )  # fmt: skip
        return facts

    def _slice(self, partition: int, limits: Range) -> Slice:
        # To a committed reader the log ends before the first open transaction; what
        # lies behind it shall be missed, not overlooked.
        with PartitionReader(
            self.config, self.topic, partition, isolation="read_uncommitted"
        ) as reader:
            low, high = reader.bounds(self.timeout_s)
            start, end = low, high
            if limits.from_offset is not None:
                start = max(start, limits.from_offset)
            if limits.to_offset is not None:
                end = min(end, limits.to_offset)
            if limits.since_ms is not None:
                found = reader.at_time(limits.since_ms, high, self.timeout_s)
                start = max(start, found)
            if limits.until_ms is not None:
                found = reader.at_time(limits.until_ms, high, self.timeout_s)
                end = min(end, found)
        return Slice(self.topic, self.topic_id, partition, low, start, max(start, end))

    def problem(self) -> str | None:
        """What has become of the topic meanwhile that casts doubt on what was read.

        Raises:
            TopicUnavailable: The cluster does not answer.
        """
        facts = self._keeper.facts(self.topic)
        if facts is None or facts.topic_id != self.topic_id:
            return "it was deleted or made anew meanwhile; run the audit again"
        return None

    def partitions_added(self, slices: Iterable[Slice]) -> list[int]:
        """Partitions that came after the ends of `slices` were captured.

        None where certain partitions were asked for.

        Raises:
            TopicUnavailable: The cluster does not answer.
        """
        if not self._is_whole:
            return []
        facts = self._keeper.facts(self.topic)
        known = {one.partition for one in slices}
        there = () if facts is None else facts.partitions
        return [number for number in there if number not in known]

    def end_now(self, partition: int) -> int:
        """Where the log of a partition ends now, open transactions included.

        Raises:
            TopicUnavailable: The cluster does not answer.
        """
        with PartitionReader(
            self.config, self.topic, partition, isolation="read_uncommitted"
        ) as reader:
            return reader.bounds(self.timeout_s)[1]
