"""The time in which this process leads, and how it hears that it is over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

from epochfence.elections.election import Election
from epochfence.epochs.errors import Deposed
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.values import Claim, Place
from epochfence.leading.recovery import Recovered
from epochfence.producers.fenced_producer import FencedProducer

if TYPE_CHECKING:
    from typing_extensions import TypeVar as _TypeVar

    #: The kind of producer. `Tenure`, without more, has a `FencedProducer`.
    P = _TypeVar("P", bound=FencedProducer, default=FencedProducer, covariant=True)
else:  # type variables have no defaults before Python 3.13
    P = TypeVar("P")

#: What a candidate is doing. `over`: it leads no more, and has not left yet.
State = Literal["waiting", "taking-over", "leading", "over", "ended"]

#: How soon the end of the election is noticed; the ledger's is told at once.
_LOOK_EVERY_S = 0.1


class Tenure(Generic[P]):
    """One leadership at work: from the takeover until it is over.

    Attributes:
        leadership: What was granted.
        producer: Writes under it, to the topics that were taken over.
        over: Set once this process should stop: another leads, the election is lost,
            or it was told to. Messages that are produced later are harmless, and
            mostly in vain.
        reason: Why it is over, empty before.
        deposed: The later leadership, if that is why.
        barriers: The offset of the own barrier on each partition. What lies before it
            is all that predecessors wrote.
        recovered: What was read up to the barriers, None where nothing was asked for.
    """

    def __init__(
        self,
        leadership: Leadership,
        producer: P,
        ledger: Ledger,
        election: Election,
        is_stopping: Callable[[], bool],
    ) -> None:
        self.leadership = leadership
        self.producer = producer
        self.over = threading.Event()
        self.reason = ""
        self.deposed: Deposed | None = None
        self.barriers: Mapping[Place, int] = {}
        self.recovered: Recovered | None = None
        self._ledger = ledger
        self._election = election
        self._is_stopping = is_stopping
        self._has_ended = False
        self._unwatch = ledger.watch(self._on_grant, self._on_close)
        try:
            self.look()  # it may have come before the watch
        except BaseException:
            self._unwatch()
            raise
        self._thread = threading.Thread(
            target=self._look, name=f"epochfence-tenure-{leadership.scope}", daemon=True
        )
        self._thread.start()

    def verify(self, timeout_s: float | None = None) -> None:
        """Return if this is still the latest leadership, as the ledger has it now.

        One read of the ledger; before an answer to a reader, or an effect outside of
        Kafka, that only a leader may give.

        Raises:
            Deposed: Another leads.
            LedgerUnavailable, TableUnavailable, LedgerRegressed: As `Ledger.verify`.
        """
        self._ledger.verify(self.leadership, timeout_s)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over; whether it is."""
        return self.over.wait(timeout_s)

    @property
    def is_told_to_stop(self) -> bool:
        """Whether this process is to lead no more: by `stop`, or by a signal."""
        return self._is_stopping()

    # How it ends.

    def look(self) -> None:
        """See whether another leads, as far as the ledger was read."""
        latest = self._ledger.state.latest(self.leadership.scope)
        if latest is not None:
            self._on_grant(latest)

    def _end(self, reason: str) -> None:
        if not self.over.is_set():
            self.reason = reason
            self.over.set()

    def _on_grant(self, claim: Claim) -> None:
        held = self.leadership
        if claim.scope == held.scope and claim.epoch > held.epoch:
            self.deposed = Deposed(held.scope, held.epoch, claim.epoch, claim.holder)
            self._end(f"deposed by epoch {claim.epoch} ({claim.holder})")

    def _on_close(self) -> None:
        self._end("the ledger was closed")

    def _look(self) -> None:
        while not self._has_ended and not self.over.is_set():
            if self._election.lost.wait(_LOOK_EVERY_S):
                self._end("the election is lost")
            elif self._is_stopping():
                self._end("it was told to stop")

    def end(self) -> None:
        """Stop for good: what was handed over is waited for.

        What a deposed leader has not sent yet is given up: nobody would admit it.
        """
        self._has_ended = True
        self._end("it was left")
        self._unwatch()
        try:
            if self.deposed is not None and not self.producer.is_shared:
                self.producer.purge()
        finally:
            try:
                self.producer.close()
            finally:
                self._thread.join()
