"""What an election has to do: choose one of several candidates, as well as it can."""

from __future__ import annotations

import threading
from typing import Protocol, runtime_checkable


@runtime_checkable
class Election(Protocol):
    """Chooses one candidate of several, for one office.

    Safety does not rest on it: at times two are elected, or nobody is. Whoever is
    elected claims an epoch of the ledger, and leads only if that claim wins. So an
    election may be wrong, late or gone, and nothing is corrupted; but as long as it is
    gone, nobody new takes over.

    The latest epoch has to be known *before* the election is won
    (`Ledger.claim(seen=)`): a process that sleeps between the two then loses to whoever
    claimed meanwhile. That is why `campaign` waits for a short time only: read the
    epoch, campaign, read again.

    Used by one thread at a time; `lost` may be looked at, and waited for, by any.

    Attributes:
        lost: Set while this candidate is not elected, as far as it knows: from the
            beginning, after `resign`, and as soon as it hears that it is elected no
            more. Who leads and finds it set stops, and asks the ledger.
    """

    @property
    def lost(self) -> threading.Event:
        """Set while this candidate is not elected, as far as it knows."""
        ...

    def campaign(self, timeout_s: float) -> bool:
        """Stand for election; whether this candidate is elected when this returns.

        Called again after False, it goes on with the same candidacy: who has waited
        longest comes first, where the election has such an order.

        Args:
            timeout_s: How long to wait. 0: only look.

        Raises:
            ElectionUnavailable: What holds the election does not answer now. Nothing
                was decided; call again.
            MisconfiguredError: It answers that it will never elect this candidate.
        """
        ...

    def resign(self) -> None:
        """Give up the office, or the candidacy, so that another is elected at once.

        Afterwards, `campaign` begins anew. Where nothing answers, the office is free
        only after the election's own time; that is no error.
        """
        ...

    def close(self) -> None:
        """Resign, and give up what was opened here. May be called again."""
        ...
