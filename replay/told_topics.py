"""Our own topics, read to the end that the broker tells. Nothing is written.

Who may write reads them to their end for sure (`Ledger`); an audit only tells.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from confluent_kafka import Message

from epochfence.epochs.claims import is_sync
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import (
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.grant_follower import warn_passed_over
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from epochfence.epochs.starts import decode_row_key, decode_row_value
from epochfence.epochs.topic_log import PARTITION
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import LedgerSource

_log = logging.getLogger(__name__)


def read_told_ledger(config: Config, topic: str, timeout_s: float) -> LedgerSource:
    """Read a coordination topic to the end that the broker tells. Writes nothing.

    Raises:
        LedgerUnavailable: It cannot be read.
        MisconfiguredError: There is no such topic, or a setting of it breaks the
            promise that claims are kept.
    """
    state = LedgerState()
    check_ledger_topic(
        config, topic, timeout_s, "An audit can also do without: --ledger FILE, or "
        "--authority max-seen.",
    )  # fmt: skip
    try:
        with _reader(config, topic) as reader:
            low, high = reader.bounds(timeout_s)
            for message in _records(reader, low, high, timeout_s):
                fold_claim(state, topic, message)
    except TopicUnavailable as error:
        raise LedgerUnavailable(topic, error.reason, error.offset) from error
    return LedgerSource(state, topic, is_topic=True, offset=high)


def check_ledger_topic(
    config: Config, topic: str, timeout_s: float, otherwise: str
) -> str:
    """See that a coordination topic is there and keeps what was claimed; give its id.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: Its name.
        timeout_s: How long the cluster may take.
        otherwise: How to do without it, for the error's message.

    Raises:
        LedgerUnavailable: The cluster does not answer.
        MisconfiguredError: There is no such topic, or a setting of it breaks the
            promise that claims are kept.
    """
    try:
        keeper = TopicKeeper(config, timeout_s)
        facts = keeper.facts(topic)
        if facts is None:
            raise MisconfiguredError(
                "coordination topic", topic, "there is no such topic on this cluster",
                f"Check the name and the cluster; the first claim creates the topic. "
                f"{otherwise}",
            )  # fmt: skip
        keeper.ensure(topic, create=False)
    except TopicUnavailable as error:
        raise LedgerUnavailable(topic, error.reason, error.offset) from error
    return facts.topic_id


def _reader(config: Config, topic: str) -> PartitionReader:
    # Never read_committed: an open transaction of anybody would hold it up.
    return PartitionReader(config, topic, PARTITION, isolation="read_uncommitted")


def _records(
    reader: PartitionReader, low: int, high: int, timeout_s: float
) -> Iterator[Message]:
    for batch in reader.read(low, high, stall_timeout_s=timeout_s):
        yield from batch


def fold_claim(state: LedgerState, topic: str, message: Message) -> None:
    """Fold in one record of a coordination topic.

    Raises:
        LedgerUnavailable: A newer version wrote it.
    """
    try:
        outcome = state.apply(message.key(), message.value())
    except UnknownFingerprint as error:
        raise LedgerUnavailable(topic, str(error), message.offset()) from error
    if outcome.fate == "passed-over":
        warn_passed_over(topic, message.offset(), outcome, state)


def read_told_table(
    config: Config, topic: str, timeout_s: float
) -> tuple[EpochStart, ...] | None:
    """Read a table topic to the end that the broker tells; None: there is none.

    Who compares it with the ledger reads the table first.

    Raises:
        TableUnavailable: It cannot be read.
    """
    rows: dict[EpochStart, None] = {}
    try:
        if TopicKeeper(config, timeout_s).facts(topic) is None:
            return None
        with _reader(config, topic) as reader:
            low, high = reader.bounds(timeout_s)
            for message in _records(reader, low, high, timeout_s):
                start = _row(topic, message)
                if start is not None:
                    rows[start] = None
    except TopicUnavailable as error:
        raise TableUnavailable(topic, error.reason, error.offset) from error
    return tuple(rows)


def _row(topic: str, message: Message) -> EpochStart | None:
    key, value = message.key(), message.value()
    if is_sync(key, value):
        return None
    try:
        decode_row_value(value)  # first: a newer version stops the reader
        return decode_row_key(key)
    except UnknownFingerprint as error:
        raise TableUnavailable(topic, str(error), message.offset()) from error
    except Undecodable as error:
        _log.warning("%s offset %s is no row: %s", topic, message.offset(), error)
        return None
