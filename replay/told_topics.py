"""Our own topics, read to the end that the broker tells. Nothing is written.

Who may write reads them to their end for sure (`Ledger`); an audit only tells.
"""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Message

from epochfence.epochs.claim_identity import ClaimIdentity, plain_identity
from epochfence.epochs.claims import decode_claim, is_sync
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import (
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.grant_follower import warn_passed_over
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.messages import timestamp_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from epochfence.epochs.starts import decode_row_key, decode_row_value
from epochfence.epochs.topic_log import PARTITION
from epochfence.epochs.topics import TopicFacts, TopicKeeper
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import LedgerSource
from epochfence.replay.places import RecordPlace
from epochfence.replay.told_records import (
    KEPT_PASSED_OVER,
    PassedOver,
    ToldLedger,
    ToldRow,
    ToldTable,
)


class LedgerReading:
    """Folds the records of a coordination topic, and notes where they stand.

    Args:
        topic: The topic.
        topic_id: Its life.
        tells: Whether the log is told of records that are no claims.
    """

    def __init__(
        self, topic: str, topic_id: str | None = None, *, tells: bool = True
    ) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._tells = tells
        self._state = LedgerState()
        self._places: dict[ClaimIdentity, RecordPlace] = {}
        self._passed_over: list[PassedOver] = []

    def take(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
        """Fold in one record.

        Raises:
            LedgerUnavailable: A newer version wrote it.
        """
        try:
            outcome = self._state.apply(key, value)
        except UnknownFingerprint as error:
            raise LedgerUnavailable(self._topic, str(error), place.offset) from error
        if outcome.fate in ("granted", "lost"):
            identity = plain_identity(key, value)
            if identity is None:
                claim = decode_claim(key, value)
                identity = (claim.scope, claim.epoch, claim.grant_id)
            self._places[identity] = place
        elif outcome.fate == "passed-over":
            if self._tells:
                warn_passed_over(self._topic, place.offset, outcome, self._state)
            if len(self._passed_over) < KEPT_PASSED_OVER:
                self._passed_over.append(PassedOver(place, outcome.problem))

    def source(
        self, end: int, problems: list[MisconfiguredError] | None = None
    ) -> LedgerSource:
        """What was read up to an offset."""
        told = ToldLedger(
            self._topic_id, self._places, tuple(self._passed_over), problems or ()
        )
        return LedgerSource(
            self._state, self._topic, is_topic=True, offset=end, told=told
        )


def read_told_ledger(
    config: Config, topic: str, timeout_s: float, *, must_keep: bool = True
) -> LedgerSource:
    """Read a coordination topic to the end that the broker tells. Writes nothing.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        timeout_s: How long the cluster may take.
        must_keep: Refuse settings that break the promise that claims are kept; False:
            read all the same, and tell of them.

    Raises:
        LedgerUnavailable: It cannot be read.
        MisconfiguredError: There is no such topic, or a setting of it breaks the
            promise.
    """
    try:
        keeper = TopicKeeper(config, timeout_s)
        facts = _facts(
            keeper, topic, "An audit can also do without: --ledger FILE, or "
            "--authority max-seen.",
        )  # fmt: skip
        problems: list[MisconfiguredError] = []
        if must_keep:
            keeper.ensure(topic, create=False)
        else:
            problems = keeper.problems(topic, facts)
        reading = LedgerReading(topic, facts.topic_id, tells=must_keep)
        with _reader(config, topic) as reader:
            low, high = reader.bounds(timeout_s)
            for message in _records(reader, low, high, timeout_s):
                reading.take(place_of(message), message.key(), message.value())
    except TopicUnavailable as error:
        raise LedgerUnavailable(topic, error.reason, error.offset) from error
    return reading.source(high, problems)


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
        facts = _facts(keeper, topic, otherwise)
        keeper.ensure(topic, create=False)
    except TopicUnavailable as error:
        raise LedgerUnavailable(topic, error.reason, error.offset) from error
    return facts.topic_id


def _facts(keeper: TopicKeeper, topic: str, otherwise: str) -> TopicFacts:
    facts = keeper.facts(topic)
    if facts is None:
        raise MisconfiguredError(
            "coordination topic", topic, "there is no such topic on this cluster",
            f"Check the name and the cluster; the first claim creates the topic. "
            f"{otherwise}",
        )  # fmt: skip
    return facts


def _reader(config: Config, topic: str) -> PartitionReader:
    # Never read_committed: an open transaction of anybody would hold it up.
    return PartitionReader(config, topic, PARTITION, isolation="read_uncommitted")


def _records(
    reader: PartitionReader, low: int, high: int, timeout_s: float
) -> Iterator[Message]:
    for batch in reader.read(low, high, stall_timeout_s=timeout_s):
        yield from batch


def place_of(message: Message) -> RecordPlace:
    """Where a message stands."""
    return RecordPlace(
        message.offset() or 0, message.leader_epoch(), timestamp_of(message)
    )


class TableReading:
    """Folds the records of a table topic, and notes where they stand.

    Args:
        topic: The topic.
        topic_id: Its life.
    """

    def __init__(self, topic: str, topic_id: str | None = None) -> None:
        self._topic = topic
        self._topic_id = topic_id
        self._rows: dict[EpochStart, ToldRow] = {}
        self._passed_over: list[PassedOver] = []
        self._passed_over_total = 0

    def take(self, place: RecordPlace, key: bytes | None, value: bytes | None) -> None:
        """Fold in one record.

        Raises:
            TableUnavailable: A newer version wrote it.
        """
        if is_sync(key, value):
            return
        try:
            info = decode_row_value(value)  # first: a newer version stops the reader
            start = decode_row_key(key)
        except UnknownFingerprint as error:
            raise TableUnavailable(self._topic, str(error), place.offset) from error
        except Undecodable as error:
            self._passed_over_total += 1
            if len(self._passed_over) < KEPT_PASSED_OVER:
                self._passed_over.append(PassedOver(place, str(error)))
            return
        self._rows.setdefault(start, ToldRow(place, info))

    def table(
        self, end: int, problems: list[MisconfiguredError] | None = None
    ) -> ToldTable:
        """What was read up to an offset."""
        return ToldTable(
            self._topic, self._topic_id, end, self._rows, tuple(self._passed_over),
            self._passed_over_total, problems or (),
        )  # fmt: skip


def read_told_table(config: Config, topic: str, timeout_s: float) -> ToldTable | None:
    """Read a table topic to the end that the broker tells; None: there is none.

    Who compares it with the ledger reads the table first.

    Raises:
        TableUnavailable: It cannot be read.
    """
    try:
        keeper = TopicKeeper(config, timeout_s)
        facts: TopicFacts | None = keeper.facts(topic)
        if facts is None:
            return None
        problems = keeper.problems(topic, facts)
        reading = TableReading(topic, facts.topic_id)
        with _reader(config, topic) as reader:
            low, high = reader.bounds(timeout_s)
            for message in _records(reader, low, high, timeout_s):
                reading.take(place_of(message), message.key(), message.value())
    except TopicUnavailable as error:
        raise TableUnavailable(topic, error.reason, error.offset) from error
    return reading.table(high, problems)
