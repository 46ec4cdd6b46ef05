"""What an example does in a tenure, on the testing kit: in a thread, with faults."""

from __future__ import annotations

import threading
from collections.abc import Callable

from epochfence import Leadership, Tenure, lead
from epochfence.testing import MemoryLedger, MemoryProducer
from support.local_election import LocalElection, LocalOffice

SCOPE = "w"
TOPIC = "orders"
_WAIT_S = 60


class Paused(MemoryProducer):
    """A producer whose messages are on their way, and cannot be called back."""

    def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Do nothing: they have left."""


class Service:
    """Leads in a thread.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: MemoryLedger) -> None:
        self.election = LocalElection(LocalOffice())
        self.producers: list[Paused] = []
        self.error: BaseException | None = None
        #: Called with each producer before it writes.
        self.prepare: Callable[[Paused], object] = lambda _: None
        self._ledger = ledger
        self._leading = lead(
            {}, ledger, self.election, SCOPE, [TOPIC], holder="pod", cursors=True,
            new_producer=self._made, longest_wait_s=0.1,
        )  # fmt: skip
        self._thread: threading.Thread | None = None

    def _made(self, leadership: Leadership) -> MemoryProducer:
        producer = Paused(self._ledger, leadership)
        self.producers.append(producer)
        self.prepare(producer)
        return producer

    def start(self, work: Callable[[Tenure], object]) -> None:
        """Do this work in every tenure."""
        self._thread = threading.Thread(target=self._run, args=[work], daemon=True)
        self._thread.start()

    def _run(self, work: Callable[[Tenure], object]) -> None:
        try:
            self._leading.serve(work)
        except BaseException as error:
            self.error = error

    def wait(self) -> None:
        """Wait until it has ended by itself."""
        assert self._thread is not None
        self._thread.join(_WAIT_S)
        assert not self._thread.is_alive()

    def end(self) -> None:
        """Stop it."""
        self._leading.stop()
        if self._thread is not None:
            self.wait()
