"""Whether leaderships are still what they were: by the ledger, and by the table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochfence.epochs.errors import Deposed, LedgerRegressed
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.values import EpochStart


def check_granted(leaderships: Sequence[Leadership], state: LedgerState) -> None:
    """See that the ledger, read to its end, still knows every grant.

    Raises:
        LedgerRegressed: It has lost one.
    """
    for held in leaderships:
        if not state.is_grant(held.scope, held.epoch, held.grant_id):
            raise LedgerRegressed(held.scope, state.epoch_of(held.scope), held.epoch)


def deposed_by(leaderships: Sequence[Leadership], state: LedgerState) -> Deposed | None:
    """The error for the first leadership that has a successor, None where none has."""
    for held in leaderships:
        latest = state.latest(held.scope)
        if latest is not None and latest.epoch > held.epoch:
            return Deposed(held.scope, held.epoch, latest.epoch, latest.holder)
    return None


def check_rows(leaderships: Sequence[Leadership], rows: Iterable[EpochStart]) -> None:
    """See that the table knows of nothing that the latest grants cannot explain.

    For leaderships that a ledger, read to its end after the table was, shows as the
    latest ones.

    Raises:
        LedgerRegressed: A row has an epoch above the own one, or the own epoch under
            another grant.
    """
    held_of = {held.scope: held for held in leaderships}
    for row in rows:
        held = held_of.get(row.scope)
        if held is None or row.epoch < held.epoch:
            continue
        is_own = row.epoch == held.epoch and row.grant_id in (None, held.grant_id)
        if not is_own:
            raise LedgerRegressed(held.scope, held.epoch, row.epoch)
