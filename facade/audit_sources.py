"""Where an audit's records come from: a record file, or a topic."""

from __future__ import annotations

import logging
from collections.abc import Callable

from confluent_kafka import Message

from epochfence.audit import Audit, LedgerSource, OutOfOrderError
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import (
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.grant_follower import warn_passed_over
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.schemas import UnknownFingerprint
from epochfence.epochs.topic_log import PARTITION
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from epochfence.files import InvalidFileError, VerdictFile, read_records

_log = logging.getLogger(__name__)

#: Told now and then how many records were judged so far.
Progress = Callable[[int], None]

_RECORDS_PER_TICK = 1 << 15


def audit_file(
    audit: Audit,
    path: str,
    verdicts: VerdictFile | None = None,
    progress: Progress | None = None,
) -> None:
    """Judge the records of a file.

    Raises:
        InvalidFileError: The file or a line of it is bad, or out of order.
    """
    partitions = audit.partitions
    for judged, (number, record) in enumerate(read_records(path), 1):
        partition = partitions.get((record.topic, record.partition))
        if partition is None:
            partition = audit.partition(record.topic, record.partition)
        try:
            verdict = partition.judge(
                record.topic_id,
                record.leader_epoch,
                record.offset,
                record.headers,
                record.value,
            )
        except OutOfOrderError as error:
            raise InvalidFileError(path, number, str(error)) from error
        if verdicts is not None:
            verdicts.write(record.topic, record.partition, record.offset, verdict)
        if progress is not None and judged % _RECORDS_PER_TICK == 0:
            progress(judged)
    audit.finish()


def read_told_ledger(config: Config, topic: str, timeout_s: float) -> LedgerSource:
    """Read a coordination topic to the end that the broker tells. Writes nothing.

    Raises:
        LedgerUnavailable: It cannot be read.
        MisconfiguredError: There is no such topic, or a setting of it breaks the
            promise that claims are kept.
    """
    state = LedgerState()
    try:
        keeper = TopicKeeper(config, timeout_s)
        if keeper.facts(topic) is None:
            raise MisconfiguredError(
                "coordination topic", topic, "there is no such topic on this cluster",
                "Check the name and the cluster; the first claim creates the topic. An "
                "audit can also do without: --ledger FILE, or --authority max-seen.",
            )  # fmt: skip
        keeper.ensure(topic, create=False)
        # Never read_committed: an open transaction of anybody would hold it up.
        with PartitionReader(
            config, topic, PARTITION, isolation="read_uncommitted"
        ) as reader:
            low, high = reader.bounds(timeout_s)
            for batch in reader.read(low, high, stall_timeout_s=timeout_s):
                for message in batch:
                    _fold(state, topic, message)
    except TopicUnavailable as error:
        raise LedgerUnavailable(topic, error.reason, error.offset) from error
    return LedgerSource(state, topic, is_topic=True, offset=high)


def _fold(state: LedgerState, topic: str, message: Message) -> None:
    try:
        outcome = state.apply(message.key(), message.value())
    except UnknownFingerprint as error:
        raise LedgerUnavailable(topic, str(error), message.offset()) from error
    if outcome.fate == "passed-over":
        warn_passed_over(topic, message.offset(), outcome, state)


class TopicSource:
    """The partitions of a topic, from their start to an end captured now.

    The ends are captured before a ledger is read: a record below them was written
    under a grant that was in the ledger by then.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        partitions: Only these; None: all.
        timeout_s: How long the cluster may take where nothing comes.

    Raises:
        MisconfiguredError: There is no such topic or partition.
        TopicUnavailable: The cluster does not answer, or a partition has no leader.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        partitions: list[int] | None,
        timeout_s: float,
    ) -> None:
        self.config = config
        self.topic = topic
        self.timeout_s = timeout_s
        self._keeper = TopicKeeper(config, timeout_s)
        facts = _facts_of(self._keeper, topic)
        there = facts.partitions
        absent = sorted(set(partitions or ()) - set(there))
        if absent:
            raise MisconfiguredError(
                "--partition", absent, f"topic {topic} has partitions 0 to {there[-1]}",
                "Name partitions that exist.",
            )  # fmt: skip
        self.topic_id = facts.topic_id
        self.bounds: dict[int, tuple[int, int]] = {}
        for partition in sorted(set(partitions or there)):
            # To a committed reader the log ends before the first open transaction;
            # what lies behind it shall be missed, not overlooked.
            with PartitionReader(
                config, topic, partition, isolation="read_uncommitted"
            ) as reader:
                self.bounds[partition] = reader.bounds(timeout_s)

    def check_same_life(self) -> None:
        """See that the topic was not made anew since.

        Raises:
            TopicUnavailable: It was, or the cluster does not answer.
        """
        facts = self._keeper.facts(self.topic)
        if facts is None or facts.topic_id != self.topic_id:
            raise TopicUnavailable(
                self.topic, "it was deleted or made anew meanwhile; run the audit again"
            )


def _facts_of(keeper: TopicKeeper, topic: str) -> TopicFacts:
    facts = keeper.facts(topic)
    if facts is None:
        raise MisconfiguredError(
            "topic", topic, "there is no such topic on this cluster",
            "Check the name, and the cluster given with -b.",
        )  # fmt: skip
    return facts


def audit_topic(
    audit: Audit,
    source: TopicSource,
    verdicts: VerdictFile | None = None,
    progress: Progress | None = None,
) -> None:
    """Judge the records of a topic, one partition after the other.

    Raises:
        TopicUnavailable: A partition could not be read.
    """
    judged = 0
    for number, (low, high) in source.bounds.items():
        partition = audit.partition(source.topic, number)
        if low > 0:
            _log.warning(
                "%s[%d] begins at offset %d: epochs that began before it are known "
                "only from a table file (--table)",
                source.topic,
                number,
                low,
            )
        with PartitionReader(source.config, source.topic, number) as reader:
            for batch in reader.read(low, high, stall_timeout_s=source.timeout_s):
                for message in batch:
                    offset = message.offset()
                    assert offset is not None
                    try:
                        verdict = partition.judge(
                            source.topic_id,
                            message.leader_epoch(),
                            offset,
                            headers_of(message),
                            message.value(),
                        )
                    except OutOfOrderError as error:
                        raise TopicUnavailable(
                            source.topic,
                            f"its log changed while it was read: {error}",
                            number,
                            offset,
                        ) from error
                    if verdicts is not None:
                        verdicts.write(source.topic, number, offset, verdict)
                judged += len(batch)
                if progress is not None:
                    progress(judged)
            if reader.position is not None and reader.position < high:
                _log.warning(
                    "%s[%d] offsets %d to %d lie behind an open transaction and "
                    "were not judged",
                    source.topic,
                    number,
                    reader.position,
                    high - 1,
                )
    source.check_same_life()
    audit.finish()
