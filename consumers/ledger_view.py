"""The ledger as fences need it: what is known of it, and how to know more."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from confluent_kafka import Message

from epochfence.consumers.sieve import Sifted, sift
from epochfence.epochs.errors import LedgerUnavailable
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.values import EpochStart


class LedgerView:
    """What is known of the ledger, for the fences of one reader.

    Args:
        ledger: The ledger.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.state: LedgerState = ledger.state

    def update(self) -> None:
        """Go by the ledger as it was read last: read anew, it is another object.

        While it cannot be read, what was known stays true.
        """
        with suppress(LedgerUnavailable):
            self.state = self._ledger.state

    def refresh(self, starts: Iterable[EpochStart]) -> None:
        """Read the ledger to its end, and compare it with starts known before.

        Raises:
            LedgerUnavailable: It cannot be read now.
            LedgerRegressed: It has lost grants that were in use.
        """
        known = [(start.scope, start.epoch) for start in starts]
        self.state = self._ledger.refresh()
        self.state.check_not_below(known)

    def sift(
        self,
        fence: PartitionFence,
        messages: list[Message],
        sifted: Sifted,
        *,
        is_complete: bool,
        are_alike: bool | None = None,
    ) -> bool:
        """Judge the messages of one partition, having read the ledger if need be.

        Args:
            fence: The partition's fence.
            messages: Its messages, in order.
            sifted: Takes what comes of them.
            is_complete: Whether the ledger was read to its end after the messages
                were received.
            are_alike: Whether they share their headers, None: not known.

        Returns:
            Whether it has been read so now.

        Raises:
            LedgerUnavailable, LedgerRegressed, MisconfiguredError: No verdict.
                `sifted` holds what was judged before.
        """
        before = sifted.judged
        fence.ledger_replaced(self.state)
        if sift(
            fence, messages, sifted, ledger_complete=is_complete, are_alike=are_alike
        ):
            return is_complete
        self.refresh(fence.starts)
        fence.ledger_replaced(self.state)
        rest = messages[sifted.judged - before :]
        sift(fence, rest, sifted, ledger_complete=True, are_alike=are_alike or None)
        return True
