"""Rebuilding epoch starts: reading a partition from its start up to a position."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

from confluent_kafka import Message

from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.sieve import Sifted
from epochfence.epochs.clients import Clients
from epochfence.epochs.connection import Config
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.values import EpochStart

_log = logging.getLogger(__name__)

#: How often the log is told how far a rebuild has come.
_TELL_EVERY_S = 5.0


class Rebuild:
    """Judges the records of a partition between two offsets, for their epoch starts.

    Args:
        config: Connection settings, as for confluent-kafka.
        fence: The partition's fence, with every start that is known.
        view: The ledger.
        start: Where to begin: at the log's start, or where all is known up to.
        end: The offset to stop at.
        stall_timeout_s: How long to wait where nothing comes.
        clients: Opens the reader.
    """

    def __init__(
        self,
        config: Config,
        fence: PartitionFence,
        view: LedgerView,
        start: int,
        end: int,
        stall_timeout_s: float,
        clients: Clients,
    ) -> None:
        self.fence = fence
        self.start = start
        self.end = end
        self.starts: list[EpochStart] = []
        self.leader_epoch: int | None = None
        self._view = view
        self._reader = clients.partition_reader(config, fence.topic, fence.partition)
        # With the bounds asked for, the client starts nearly a second sooner.
        self._reader.bounds(stall_timeout_s)
        self._batches: Iterator[list[Message]] = self._reader.read(
            start, end, stall_timeout_s=stall_timeout_s
        )
        self._rest: list[Message] = []
        self._told_at = time.monotonic()
        _log.info(
            "%s[%d] is read from offset %d to %d, for the epochs that began there",
            fence.topic,
            fence.partition,
            start,
            end,
        )

    @property
    def position(self) -> int:
        """How far it has come."""
        position = self._reader.position
        return self.start if position is None else position

    def advance(self, budget_s: float) -> bool:
        """Read on for a while; whether everything there is has been read.

        Raises:
            TopicUnavailable: Nothing came in time. This reading is at its end.
            LedgerUnavailable, LedgerRegressed, MisconfiguredError: No verdict. Call
                again to go on.
        """
        until = time.monotonic() + budget_s
        while time.monotonic() < until:
            if not self._rest:
                batch = next(self._batches, None)
                if batch is None:
                    return True
                self._rest = batch
            if self._rest:
                self._judge()
            self._tell()
        return False

    def _judge(self) -> None:
        sifted = Sifted()
        self.leader_epoch = self._rest[-1].leader_epoch()
        try:
            self._view.sift(self.fence, self._rest, sifted, is_complete=False)
        finally:
            self.starts += sifted.starts
            self._rest = self._rest[sifted.judged :]

    def _tell(self) -> None:
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._told_at = now
            _log.info(
                "%s[%d]: %d of %d offsets read for the epochs that began there",
                self.fence.topic,
                self.fence.partition,
                self.position - self.start,
                self.end - self.start,
            )

    def close(self) -> None:
        """Give up the connection. May be called again."""
        self._reader.close()
