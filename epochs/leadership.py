"""What a winner holds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from epochfence.epochs.errors import EpochfenceError
from epochfence.epochs.stamps import encode_stamp
from epochfence.epochs.values import Claim, Stamp


@dataclass(frozen=True, slots=True)
class Leadership:
    """One leadership of one scope: it never changes; a new grant is a new object.

    Only a ledger makes one, from a claim that it has seen win.

    Attributes:
        claim: The claim that won.
        origin: Names the ledger that granted it: its topic and its cluster's id.
    """

    claim: Claim
    _verify: Callable[[Leadership, float], None] = field(repr=False, compare=False)
    origin: str = field(repr=False, compare=False)

    @property
    def scope(self) -> str:
        """What is led."""
        return self.claim.scope

    @property
    def epoch(self) -> int:
        """The number of this leadership."""
        return self.claim.epoch

    @property
    def grant_id(self) -> str:
        """Tells this grant from every other."""
        return self.claim.grant_id

    @property
    def holder(self) -> str:
        """Names the leader, for people."""
        return self.claim.holder

    @property
    def attributes(self) -> Mapping[str, str]:
        """What the leader said of itself when it claimed."""
        return MappingProxyType(dict(self.claim.attributes))

    @property
    def stamp(self) -> Stamp:
        """The stamp of messages written under this leadership."""
        return self.claim.stamp

    @property
    def stamp_value(self) -> bytes:
        """The value of the header that carries that stamp."""
        return encode_stamp(self.stamp)

    def verify(self, timeout_s: float = 10.0) -> None:
        """Return if this is still the latest leadership of its scope, as of now.

        Costs one synchronised read of the ledger; concurrent callers share one.
        The answer is about the past as soon as it is there: a successor may claim
        the moment after. It is good for reads that must not come from a deposed
        leader; what is written is guarded by its stamp.

        Args:
            timeout_s: How long to wait for the ledger.

        Raises:
            Deposed: There is a later one.
            LedgerUnavailable: The ledger could not be read to its end in time.
            LedgerRegressed: The ledger has lost this grant.
        """
        self._verify(self, timeout_s)


@dataclass(frozen=True, slots=True)
class Claimed:
    """What became of claims to several scopes: each is in one of the two.

    Attributes:
        won: The leaderships, by scope.
        failed: What went wrong with the other claims, by scope: `ClaimLost`,
            `ClaimUnknown`, `LedgerUnavailable` or `EpochExhausted`, as `Ledger.claim`
            raises them.
    """

    won: Mapping[str, Leadership]
    failed: Mapping[str, EpochfenceError]
