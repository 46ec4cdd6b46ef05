"""The checks beyond the fence: what an audit of a topic is compared with, and when.

What others have made of the topic (a sink, a group) is read first, before the ends of
the partitions are captured: so it is not ahead of them. Then the table, then the
ledger: in the other order, a new leader would look like a loss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from epochfence.epochs.connection import Config, LastError, reading_consumer
from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import Audit
from epochfence.replay.check_group import GroupCommit, GroupCommits, check_group
from epochfence.replay.check_ledger import check_ledger
from epochfence.replay.check_sink import check_sink, check_sink_rows
from epochfence.replay.check_table import check_table
from epochfence.replay.checked_parts import PartRead, Records
from epochfence.replay.report import Finding
from epochfence.replay.sink_rows import SinkRows
from epochfence.replay.stored_sinks import SinkAddress, SinkSnapshot, SinkTable
from epochfence.replay.texts import counted
from epochfence.replay.told_records import ToldTable
from epochfence.replay.told_topics import read_told_table
from epochfence.replay.topic_source import Slice


@dataclass(frozen=True)
class Wanted:
    """What to compare a topic with.

    Attributes:
        table_topic: The table topic; None: none.
        is_table_named: Whether it was asked for by name, and is missed if missing.
        sink: Where a sink of it is; None: none.
        sink_table: The table that the sink keeps; None: its rows are not compared.
        group: A consumer group; None: none.
    """

    table_topic: str | None = None
    is_table_named: bool = False
    sink: SinkAddress | None = None
    sink_table: SinkTable | None = None
    group: str | None = None


@dataclass
class Checks:
    """What a topic is compared with, once it was judged.

    Attributes:
        records: The topic's records.
        table: The max-epoch table.
        sink: What a sink had stored.
        sink_rows: Its rows.
        group: What a group had committed.
        settings: The topic's settings that matter.
        missing_table: The table topic that was asked for, and is not there.
    """

    records: Records
    table: ToldTable | None = None
    sink: SinkSnapshot | None = None
    sink_rows: SinkRows | None = None
    group: GroupCommits | None = None
    settings: dict[str, str] = field(default_factory=dict[str, str])
    missing_table: str | None = None

    @property
    def is_compacted(self) -> bool:
        """Whether the cleaner may have taken records."""
        return "compact" in self.settings.get("cleanup.policy", "compact")

    def floor(self, slices: Sequence[Slice]) -> list[EpochStart]:
        """The rows of the table that reading these slices cannot find itself."""
        if self.table is None:
            return []
        rows = tuple(self.table.rows)
        return [row for piece in slices for row in piece.floor_of(rows)]

    def compared_with(self) -> list[str]:
        """What the topic was compared with, for people."""
        found: list[str] = []
        if self.table is not None:
            found.append(str(self.table))
        if self.sink is not None:
            found.append(
                f"Sink: {self.sink.name}, read before the topic: positions of "
                f"{counted(len(self.sink.partitions), 'partition')}"
                + (
                    "."
                    if self.sink_rows is None
                    else f", rows of {self.sink_rows.name}."
                )
            )
        if self.group is not None:
            found.append(
                f"Group: {self.group.name}, read before the topic: commits of "
                f"{counted(len(self.group.partitions), 'partition')}."
            )
        return found

    def findings(self, audit: Audit, parts: Sequence[PartRead]) -> Iterator[Finding]:
        """What the comparison found.

        Args:
            audit: What the topic was judged by.
            parts: What was read of its partitions.

        Raises:
            TopicUnavailable: A record could not be looked at again.
        """
        source = audit.source
        if source is not None and audit.settings.authority == "ledger":
            yield from check_ledger(source, parts, audit.settings, self.table)
        if self.table is not None:
            yield from check_table(
                self.table, parts, audit.settings, source, self.records,
                is_compacted=self.is_compacted,
            )  # fmt: skip
        yield from self._topic(parts)
        if self.sink is not None:
            yield from check_sink(self.sink, audit, parts, self.records)
            if self.sink_rows is not None:
                yield from check_sink_rows(
                    self.sink_rows, self.sink, audit, parts, self.records,
                    is_compacted=self.is_compacted,
                )  # fmt: skip
        if self.group is not None:
            yield from check_group(self.group, audit, parts, self.records)

    def _topic(self, parts: Sequence[PartRead]) -> Iterator[Finding]:
        if self.missing_table is not None:
            yield Finding(
                severity="notice",
                code="table-missing",
                text=f"There is no topic {self.missing_table}: the data was compared "
                f"with no table.",
                topic=self.missing_table,
                remedy="See that --table-topic is the one of the consumers; the first "
                "ledger that is opened creates it.",
            )
        if self.settings.get("unclean.leader.election.enable", "false") != "false":
            topic = parts[0].piece.topic if parts else None
            yield Finding(
                severity="warning",
                code="unclean-election",
                text=f"{topic} allows unclean leader elections: a broker that missed a "
                f"barrier could become the leader and drop it, and a lost barrier "
                f"fences nobody.",
                topic=topic,
                remedy=f"kafka-configs.sh --alter --topic {topic} --add-config "
                f"unclean.leader.election.enable=false",
            )

    def close(self) -> None:
        """Remove what was kept for the comparison. May be called again."""
        if self.sink_rows is not None:
            self.sink_rows.close()

    def __enter__(self) -> Checks:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def begin_checks(
    config: Config, topic: str, wanted: Wanted, timeout_s: float
) -> Checks:
    """Read what others have made of a topic; to be called before its ends are captured.

    Raises:
        MisconfiguredError: There is no such sink, or its rows cannot be compared.
        TopicUnavailable: The cluster does not answer.
    """
    checks = Checks(TopicRecords(config, topic, timeout_s))
    with ExitStack() as on_error:
        on_error.callback(checks.close)
        if wanted.sink is not None:
            take = None
            if wanted.sink_table is not None:
                checks.sink_rows = SinkRows(wanted.sink_table.name)
                take = checks.sink_rows.take_stored
            checks.sink = wanted.sink.read(topic, timeout_s, wanted.sink_table, take)
        keeper = TopicKeeper(config, timeout_s)
        facts = keeper.facts(topic)
        if facts is not None:  # else the audit says so
            checks.settings = keeper.settings(topic) or {}
            if wanted.group is not None:
                checks.group = read_commits(
                    config, wanted.group, topic, facts.partitions, timeout_s
                )
        on_error.pop_all()
    return checks


def read_table(
    checks: Checks, config: Config, wanted: Wanted, timeout_s: float
) -> None:
    """Read the table, after the ends were captured, and before the ledger is read.

    Raises:
        TableUnavailable: It cannot be read.
    """
    if wanted.table_topic is not None:
        checks.table = read_told_table(config, wanted.table_topic, timeout_s)
        if checks.table is None and wanted.is_table_named:
            checks.missing_table = wanted.table_topic


def read_commits(
    config: Config, group: str, topic: str, partitions: Sequence[int], timeout_s: float
) -> GroupCommits:
    """What a group has committed. Nothing joins it, and nothing is committed.

    Raises:
        MisconfiguredError: There can be no such group.
        TopicUnavailable: The group's coordinator does not answer.
    """
    if not group:
        raise MisconfiguredError(
            "--group", group, "no name of a group", "Name a consumer group."
        )
    last_error = LastError(config)
    consumer: Consumer = reading_consumer(config, last_error, group=group)
    try:
        places = [TopicPartition(topic, number) for number in partitions]
        found = consumer.committed(places, timeout=timeout_s)
    except KafkaException as error:
        reason = last_error.or_else(error.args[0].str())
        raise TopicUnavailable(
            topic, f"the commits of group {group} are not to be had: {reason}"
        ) from error
    finally:
        consumer.close()
    for one in found:
        if one.error is not None:
            raise TopicUnavailable(
                topic,
                f"the commits of group {group} are not to be had: {one.error.str()}",
                one.partition,
            )
    return GroupCommits(
        group,
        {
            one.partition: GroupCommit(one.offset, one.metadata)
            for one in found
            if one.offset >= 0
        },
    )


class TopicRecords:
    """The records of a topic of Kafka, committed ones only.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        timeout_s: How long the cluster may take where nothing comes.
    """

    def __init__(self, config: Config, topic: str, timeout_s: float) -> None:
        self._config = config
        self._topic = topic
        self._timeout_s = timeout_s

    def read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        """The records from one offset up to another, and without it."""
        with PartitionReader(self._config, self._topic, partition) as reader:
            for batch in reader.read(start, end, stall_timeout_s=self._timeout_s):
                yield from batch

    def at(self, partition: int, offset: int) -> Message | None:
        """The record at an offset; None: there is none."""
        return next(self.read(partition, offset, offset + 1), None)

    def end(self, partition: int) -> int:
        """The offset behind the last record now."""
        with PartitionReader(self._config, self._topic, partition) as reader:
            return reader.bounds(self._timeout_s)[1]
