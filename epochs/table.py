"""The Kafka shell of the max-epoch table: rows go out, rows come back."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterable
from datetime import datetime, timezone

from epochfence.epochs.claims import is_sync
from epochfence.epochs.clients import KAFKA, Clients
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import deadline_after
from epochfence.epochs.errors import (
    EpochfenceError,
    LedgerClosed,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.starts import (
    RowInfo,
    decode_row_key,
    decode_row_value,
    row_key,
    row_value,
)
from epochfence.epochs.topic_log import (
    AppendRefusedError,
    AppendUnknownError,
    ReadingStoppedError,
)
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import EpochStart

_log = logging.getLogger(__name__)

#: So many records that are no rows are told of one by one.
_TOLD_PASSED_OVER = 5

# The rows of each partition, and what was said with each.
_Rows = dict[tuple[str, int], dict[EpochStart, RowInfo]]


class _RowFollower:
    """Folds the table topic into rows.

    While the log is read again from its start, `rows` stays what it was before.
    """

    def __init__(self, topic: str) -> None:
        self.rows: _Rows = {}
        self._topic = topic
        self._loading: _Rows | None = None
        self._passed_over = 0

    def restart(self) -> None:
        self._loading = {}

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        if is_sync(key, value):
            return
        try:
            info = decode_row_value(value)  # first: a newer version stops the reader
            start = decode_row_key(key)
        except UnknownFingerprint as error:
            raise ReadingStoppedError(str(error), offset) from error
        except Undecodable as error:
            self._pass_over(offset, error)
            return
        rows = self.rows if self._loading is None else self._loading
        of_partition = rows.setdefault((start.topic, start.partition), {})
        of_partition[start] = info

    def _pass_over(self, offset: int, problem: Undecodable) -> None:
        self._passed_over += 1
        if self._passed_over <= _TOLD_PASSED_OVER:
            _log.warning("%s offset %d is no row: %s", self._topic, offset, problem)
        if self._passed_over == _TOLD_PASSED_OVER:
            _log.warning("more such records of %s are not told of", self._topic)

    def caught_up(self) -> None:
        if self._loading is not None:
            self.rows, self._loading = self._loading, None


def _as_time(milliseconds: int) -> str:
    """A row's time for people; rows are anybody's, and it may be no time at all."""
    try:
        when = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return f"at {milliseconds} ms"
    return f"at {when:%Y-%m-%d %H:%M:%S} UTC"


class Table:
    """The max-epoch table of a cluster: where each epoch began on each partition.

    Safe to use from several threads. A thread of its own follows the topic.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The table's topic, which exists.
        keeper: Tells the topic's id; None for the embedded broker, which knows none.
        timeout_s: How long to wait where it is not said.
        clients: Opens the clients.

    Raises:
        TableUnavailable: The cluster does not answer.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        keeper: TopicKeeper | None,
        timeout_s: float,
        clients: Clients = KAFKA,
    ) -> None:
        self.topic = topic
        self._keeper = keeper
        self._timeout_s = timeout_s
        self._written_by = f"{socket.gethostname()}:{os.getpid()}"
        self._is_closed = False
        self._follower = _RowFollower(topic)
        self._told_settings: set[tuple[str, str, str]] = set()
        try:
            self._log = clients.synced_log(
                config,
                topic,
                self._follower,
                keeper,
                before_reload=self._before_reload,
                unavailable=self._unavailable,
            )
        except TopicUnavailable as error:
            raise self._unavailable(error.reason, error.offset) from error

    def _before_reload(self, deadline: float) -> None:
        # Its rows are gone. Whoever starts from a commit made before finds that rows
        # are missing, and rebuilds them.
        assert self._keeper is not None
        self._keeper.ensure(self.topic, create=False)

    def _unavailable(self, reason: str, offset: int | None) -> EpochfenceError:
        if self._is_closed:
            return LedgerClosed(self.topic)  # trying again is no use
        return TableUnavailable(self.topic, reason, offset)

    def refresh(self, timeout_s: float | None = None) -> None:
        """Read the table to its end, by a sync: no row acknowledged before is missing.

        Raises:
            TableUnavailable: It could not be read to its end in time.
            LedgerClosed: The ledger that opened it was closed.
            MisconfiguredError: It was made anew with settings that break the promise.
        """
        self._log.read_to_end(self._deadline(timeout_s))

    def starts(self, topic: str, partition: int) -> list[EpochStart]:
        """The rows of one partition, those of earlier lives of its topic included."""
        return list(self._follower.rows.get((topic, partition), ()))

    def all_starts(self) -> list[EpochStart]:
        """Every row."""
        partitions = list(self._follower.rows.values())
        return [start for of_partition in partitions for start in list(of_partition)]

    def digests(self, topic: str, partition: int) -> set[str]:
        """The digests of the settings under which rows of a partition were written."""
        rows = self._follower.rows.get((topic, partition), {})
        return {info.settings_digest for info in list(rows.values())}

    def compare_settings(
        self, topic: str, partition: int, settings: FenceSettings
    ) -> None:
        """Warn, once, of rows of a partition that were written under other settings."""
        mine = settings.digest()
        rows = self._follower.rows.get((topic, partition), {})
        for info in list(rows.values()):
            told = (topic, info.settings_digest, mine)
            if info.settings_digest == mine or told in self._told_settings:
                continue
            self._told_settings.add(told)
            _log.warning(
                "rows of topic %s were written under other settings (digest %s, by "
                "%s, %s) than those in use here: %r (digest %s). Whoever goes by one "
                "finds other epochs, and may reject what the other admits. All "
                "consumers of the topic, and each FencedProducer by settings=, need "
                "equal FenceSettings: require, unstamped, authority, stamps and "
                "max_jump",
                topic,
                info.settings_digest,
                info.written_by,
                _as_time(info.written_at),
                settings,
                mine,
            )

    def write(
        self,
        starts: Iterable[EpochStart],
        settings_digest: str,
        timeout_s: float | None = None,
    ) -> None:
        """Write rows, each acknowledged by all in-sync replicas.

        What was written before an error stays: it can be repeated at will.

        Args:
            starts: The facts. Those that are known to stand there are passed over.
            settings_digest: `FenceSettings.digest()` of the fence that found them.
            timeout_s: How long to wait for all of them.

        Raises:
            TableUnavailable: A row was not acknowledged in time, or refused.
            LedgerClosed: The ledger that opened it was closed.
        """
        deadline = self._deadline(timeout_s)
        for start in starts:
            known = self._follower.rows.get((start.topic, start.partition), {})
            if start in known:
                continue
            info = RowInfo(
                self._written_by, time.time_ns() // 1_000_000, settings_digest
            )
            try:
                self._log.append(row_key(start), row_value(info), deadline)
            except (AppendRefusedError, AppendUnknownError) as error:
                reason = f"a row was not acknowledged: {error}"
                raise self._unavailable(reason, None) from error

    def _deadline(self, timeout_s: float | None) -> float:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)

    def close(self) -> None:
        """Stop following the topic. May be called again."""
        self._is_closed = True
        self._log.close()
