"""The ledger as a fold over the records of the coordination topic.

A claim wins if and only if its epoch is greater than that of every earlier claim
of its scope in the log. Nothing else decides: two readers of the same records
hold the same ledger, whenever they read, and whatever the cleaner removed (it
removes only syncs, since no two claims share a key).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from epochfence.epochs.claims import decode_claim, is_sync
from epochfence.epochs.errors import LedgerRegressed
from epochfence.epochs.schemas import Undecodable
from epochfence.epochs.values import Claim, is_foreign

#: What became of a record: a grant, a claim that lost, the same claim once more,
#: a sync, or none of these.
Fate = Literal["granted", "lost", "repeated", "sync", "passed-over"]


class Outcome(NamedTuple):
    """What the ledger made of one record.

    Attributes:
        fate: What became of it.
        claim: The claim, None where it was none.
        problem: Why a record was passed over, empty otherwise.
    """

    fate: Fate
    claim: Claim | None = None
    problem: str = ""


_SYNC = Outcome("sync")


class LedgerState:
    """Which claims were made, and which of them are grants."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._latest: dict[str, Claim] = {}
        # In log order: a claim's epoch and grant id never come twice in a scope.
        self._claims: dict[tuple[str, int, str], bool] = {}
        self._by_id: dict[tuple[str, int, str], Claim] = {}
        self.passed_over = 0
        for claim in claims:
            self.add(claim)

    def apply(self, key: bytes | None, value: bytes | None) -> Outcome:
        """Fold in one record of the coordination topic.

        Raises:
            UnknownFingerprint: A newer version wrote it; this reader has to stop.
        """
        if is_sync(key, value):
            return _SYNC
        try:
            claim = decode_claim(key, value)
        except Undecodable as error:
            self.passed_over += 1
            return Outcome("passed-over", None, str(error))
        return self.add(claim)

    def add(self, claim: Claim) -> Outcome:
        """Fold in one claim."""
        identity = (claim.scope, claim.epoch, claim.grant_id)
        if identity in self._claims:
            return Outcome("repeated", self._by_id[identity])
        latest = self._latest.get(claim.scope)
        won = latest is None or claim.epoch > latest.epoch
        self._by_id[identity] = claim
        self._claims[identity] = won
        if won:
            self._latest[claim.scope] = claim
        return Outcome("granted" if won else "lost", claim)

    def latest(self, scope: str) -> Claim | None:
        """The latest grant of a scope, None where there is none."""
        return self._latest.get(scope)

    def epoch_of(self, scope: str) -> int:
        """The latest granted epoch of a scope, 0 where there is none."""
        latest = self._latest.get(scope)
        return 0 if latest is None else latest.epoch

    def scopes(self) -> list[str]:
        """Every scope that has a grant, sorted."""
        return sorted(self._latest)

    def is_grant(self, scope: str, epoch: int, grant_id: str | None) -> bool:
        """Whether the ledger holds this grant."""
        return self._claims.get((scope, epoch, grant_id or ""), False)

    def find(self, scope: str, epoch: int, grant_id: str | None) -> Claim | None:
        """The claim, won or lost, None where there is none: who wrote, for people."""
        return self._by_id.get((scope, epoch, grant_id or ""))

    def claims(self) -> Iterator[tuple[Claim, bool]]:
        """Every claim in log order, and whether it won."""
        # A copy of the keys: a reader thread may add claims meanwhile.
        for identity in list(self._claims):
            yield self._by_id[identity], self._claims[identity]

    def check_not_below(self, floor: Iterable[tuple[str, int]]) -> None:
        """Compare with the epochs of each scope that are known to have been in use.

        Who compares with the max-epoch table reads the table first and the ledger
        after it: the other way round, a new leader looks like a loss.

        Raises:
            LedgerRegressed: A scope's latest grant is below its floor.
        """
        for scope, epoch in floor:
            if is_foreign(scope):
                continue
            if self.epoch_of(scope) < epoch:
                raise LedgerRegressed(scope, self.epoch_of(scope), epoch)
