"""The ledger as a fold over the records of the coordination topic.

A claim wins if and only if its epoch is greater than that of every earlier claim
of its scope in the log. Nothing else decides: two readers of the same records
hold the same ledger, whenever they read, and whatever the cleaner removed (it
removes only syncs, since no two claims share a key).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from epochfence.epochs.claim_identity import ClaimIdentity, plain_identity
from epochfence.epochs.claims import claim_of, decode_claim, is_sync
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
        problem: Why a record was passed over, empty otherwise.
    """

    fate: Fate
    problem: str = ""


_SYNC = Outcome("sync")
_GRANTED = Outcome("granted")
_LOST = Outcome("lost")
_REPEATED = Outcome("repeated")


class LedgerState:
    """Which claims were made, and which of them are grants."""

    def __init__(self, claims: Iterable[Claim] = ()) -> None:
        self._latest: dict[str, ClaimIdentity] = {}
        # In log order: no two claims share an identity. What was read and never asked
        # for is not decoded, or loading would take three times as long.
        self._claims: dict[ClaimIdentity, Claim | bytes] = {}
        self._lost: set[ClaimIdentity] = set()
        self.passed_over = 0
        for claim in claims:
            self.add(claim)

    def apply(self, key: bytes | None, value: bytes | None) -> Outcome:
        """Fold in one record of the coordination topic.

        Raises:
            UnknownFingerprint: A newer version wrote it; this reader has to stop.
        """
        identity = plain_identity(key, value)
        if identity is not None and value is not None:
            return self._fold(identity, value)
        if is_sync(key, value):
            return _SYNC
        try:
            claim = decode_claim(key, value)
        except Undecodable as error:
            self.passed_over += 1
            return Outcome("passed-over", str(error))
        return self.add(claim)

    def add(self, claim: Claim) -> Outcome:
        """Fold in one claim."""
        return self._fold((claim.scope, claim.epoch, claim.grant_id), claim)

    def _fold(self, identity: ClaimIdentity, told: Claim | bytes) -> Outcome:
        if identity in self._claims:
            return _REPEATED
        scope, epoch, _ = identity
        latest = self._latest.get(scope)
        if latest is not None and epoch <= latest[1]:
            # First: other threads must not take it for a grant meanwhile.
            self._lost.add(identity)
            self._claims[identity] = told
            return _LOST
        self._claims[identity] = told
        self._latest[scope] = identity
        return _GRANTED

    def latest(self, scope: str) -> Claim | None:
        """The latest grant of a scope, None where there is none."""
        latest = self._latest.get(scope)
        return None if latest is None else self._claim(latest)

    def epoch_of(self, scope: str) -> int:
        """The latest granted epoch of a scope, 0 where there is none."""
        latest = self._latest.get(scope)
        return 0 if latest is None else latest[1]

    def scopes(self) -> list[str]:
        """Every scope that has a grant, sorted."""
        return sorted(self._latest)

    def is_grant(self, scope: str, epoch: int, grant_id: str | None) -> bool:
        """Whether the ledger holds this grant."""
        identity = (scope, epoch, grant_id or "")
        return identity in self._claims and identity not in self._lost

    def find(self, scope: str, epoch: int, grant_id: str | None) -> Claim | None:
        """The claim, won or lost, None where there is none: who wrote, for people."""
        identity = (scope, epoch, grant_id or "")
        return self._claim(identity) if identity in self._claims else None

    def claims(self) -> Iterator[tuple[Claim, bool]]:
        """Every claim in log order, and whether it won."""
        for identity in self._in_log_order():
            yield self._claim(identity), identity not in self._lost

    def identities(self) -> Iterator[tuple[ClaimIdentity, bool]]:
        """The same, without what only people need: nothing has to be decoded."""
        for identity in self._in_log_order():
            yield identity, identity not in self._lost

    def sizes(self) -> tuple[int, int]:
        """How many claims there are, and how many of them are grants."""
        claims = len(self._claims)
        return claims, claims - len(self._lost)

    def grants_beyond(self, before: LedgerState) -> Iterator[Claim]:
        """The grants that an earlier reading did not hold, in log order."""
        for identity in self._in_log_order():
            if identity not in self._lost and not before.is_grant(*identity):
                yield self._claim(identity)

    def _in_log_order(self) -> list[ClaimIdentity]:
        # A copy: a reader thread may add claims meanwhile.
        return list(self._claims)

    def _claim(self, identity: ClaimIdentity) -> Claim:
        told = self._claims[identity]
        if isinstance(told, bytes):
            told = self._claims[identity] = claim_of(told)
        return told

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
