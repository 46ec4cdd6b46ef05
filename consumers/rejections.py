"""What becomes of rejected records: counted, told to the log, handed to a callback."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from confluent_kafka import Message

from epochfence.consumers.sieve import Sifted
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.verdicts import Verdict

_log = logging.getLogger(__name__)

OnRejected = Callable[[Message, Verdict], None]

#: One line a partition and reason in this time, however many records are rejected.
TELL_EVERY_S = 10.0


@dataclass(slots=True)
class _Told:
    """What the log was told of one partition and reason."""

    at: float
    untold: int = 0
    last_offset: int | None = None


class Rejections:
    """Counts verdicts by reason, and tells of rejected records.

    Args:
        on_rejected: Called with each rejected message and its verdict.
        is_dry_run: Whether what is rejected is delivered all the same.
    """

    def __init__(self, on_rejected: OnRejected | None, *, is_dry_run: bool) -> None:
        self.counts: Counter[str] = Counter()
        self._on_rejected = on_rejected
        self._effect = "would be rejected" if is_dry_run else "rejected"
        self._told: dict[tuple[str, int, str], _Told] = {}
        self._waiting: deque[tuple[Message, Verdict]] = deque()

    def take(self, sifted: Sifted, ledger: LedgerState | None) -> None:
        """Count what was judged, and tell the log of what was rejected."""
        counts = self.counts
        for name, count in (
            ("ok", sifted.in_order),
            ("unstamped-admitted", sifted.unstamped),
            ("barrier", sifted.barriers),
        ):
            if count:
                counts[name] += count
        for message, verdict in sifted.rejected:
            counts[verdict.reason] += 1
            self._tell(message, verdict, ledger)
        if self._on_rejected is not None:
            self._waiting += sifted.rejected

    def call_back(self) -> None:
        """Hand what was rejected to the application's callback.

        What that raises goes to the caller; the rest is handed over at the next call.
        """
        while self._waiting and self._on_rejected is not None:
            message, verdict = self._waiting.popleft()
            self._on_rejected(message, verdict)

    def _tell(
        self, message: Message, verdict: Verdict, ledger: LedgerState | None
    ) -> None:
        topic, partition = message.topic() or "", message.partition() or 0
        key = (topic, partition, verdict.reason)
        told, now = self._told.get(key), time.monotonic()
        if told is not None and now - told.at < TELL_EVERY_S:
            told.untold += 1
            told.last_offset = message.offset()
            return
        self._told[key] = _Told(now)
        before = ""
        if told is not None and told.untold:
            before = (
                f" ({told.untold} more {self._effect} before it, the last at offset "
                f"{told.last_offset})"
            )
        _log.warning(
            "%s[%d] offset %s %s: %s, %s%s",
            topic,
            partition,
            message.offset(),
            self._effect,
            verdict.reason,
            _explained(verdict, ledger),
            before,
        )

    def tell_rest(self) -> None:
        """Tell the log of what was held back, once its time has come."""
        now = time.monotonic()
        for (topic, partition, reason), told in self._told.items():
            if told.untold and now - told.at >= TELL_EVERY_S:
                self._tell_held_back(topic, partition, reason, told)
                told.at, told.untold = now, 0

    def close(self) -> None:
        """Tell the log of everything that was held back."""
        for (topic, partition, reason), told in self._told.items():
            if told.untold:
                self._tell_held_back(topic, partition, reason, told)
                told.untold = 0

    def _tell_held_back(
        self, topic: str, partition: int, reason: str, told: _Told
    ) -> None:
        _log.warning(
            "%s[%d]: %d more %s, the last at offset %s: %s",
            topic,
            partition,
            told.untold,
            self._effect,
            told.last_offset,
            reason,
        )


def _explained(verdict: Verdict, ledger: LedgerState | None) -> str:
    """The stamp that decided, who held it, and what is current."""
    cause = verdict.cause
    if cause is None:
        carried = ", ".join(f"{s.scope} epoch {s.epoch}" for s in verdict.stamps)
        return f"it carries {carried or 'no stamp that can be read'}"
    claim = None
    if ledger is not None and cause.grant_id is not None:
        claim = ledger.find(cause.scope, cause.epoch, cause.grant_id)
    holder = f" held by {claim.holder!r}" if claim is not None else ""
    now = verdict.current_epoch
    current = "none is current" if now is None else f"epoch {now} is current"
    return f"scope {cause.scope!r} epoch {cause.epoch}{holder}, while {current}"
