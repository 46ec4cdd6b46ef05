"""The ledger, in memory."""

from __future__ import annotations

from collections.abc import Mapping

from epochfence.epochs.errors import EpochfenceError, TableUnavailable
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.testing.clients import MemoryClients, MemorySyncedLog
from epochfence.testing.log import MemoryLog, check_times


class MemoryLedger(Ledger):
    """A `Ledger` on a `MemoryLog`: the same code, with other clients underneath.

    Two ledgers on one log are those of two processes. `FencedProducer` and
    `FencedConsumer` that are given it write to that log and read from it;
    `MemoryProducer` and `MemoryConsumer` do so without ever waiting.

    Args:
        log: The log; None: one of its own.
        timeout_s: As for `Ledger`.
    """

    def __init__(
        self, log: MemoryLog | None = None, *, timeout_s: float = 10.0
    ) -> None:
        self.log = MemoryLog() if log is None else log
        self.clients = self._memory = MemoryClients(self.log)
        super().__init__({}, timeout_s=timeout_s)

    def _claims(self) -> MemorySyncedLog:
        return self._memory.synced_logs[self.coordination_topic]

    # Faults.

    def fail(self, error: EpochfenceError, times: int = 1) -> None:
        """Have the next calls that read the ledger to its end meet an error.

        These are `claim`, `refresh`, `verify`, `take_over` and `confirm`, and the
        calls of a consumer that meets an epoch it does not know. What it raises,
        `LedgerUnavailable("epochfence.coordination", "no broker answers")` for
        instance, is raised so often, whichever call comes. A `TableUnavailable` is met
        by those that read the table.
        """
        if isinstance(error, TableUnavailable):
            _ = self.table  # opened when first used
            self._memory.synced_logs[self.table_topic].faults.add(error, times)
        else:
            self._claims().faults.add(error, times)

    def lose_outcome(self, *, granted: bool = True, times: int = 1) -> None:
        """Have the next claims end in `ClaimUnknown`.

        Args:
            granted: Whether the claim is in the log all the same, and has won.
            times: How many claims.
        """
        self._claims().lost_outcomes += [granted] * check_times(times)

    def lose_grants(self) -> None:
        """Have the coordination topic lose all that it holds: `LedgerRegressed`."""
        self._claims().lose_all()

    def depose(
        self,
        leadership: Leadership,
        *,
        holder: str = "successor",
        attributes: Mapping[str, str] | None = None,
    ) -> Leadership:
        """Claim the scope of a leadership anew; give the new one.

        Raises:
            MisconfiguredError: It is none of this ledger.
        """
        self.check_origin(leadership)
        return self.claim(leadership.scope, holder=holder, attributes=attributes)

    def __enter__(self) -> MemoryLedger:
        return self
