"""Real clients for a ledger in memory: they look at settings, and reach nobody."""

from __future__ import annotations

from typing import Any

from epochfence.epochs.clients import KAFKA
from epochfence.testing import MemoryLedger

#: Nobody listens there: what is refused is refused before anybody is asked.
NOBODY_THERE: dict[str, Any] = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}


def with_real_clients(ledger: MemoryLedger) -> MemoryLedger:
    """The ledger; whoever goes by it from now on opens clients of the real thing."""
    ledger.clients = KAFKA
    return ledger
