"""Short histories for tests of the rules: one line for one record.

`who` is one letter that stands for a candidate; its grant of an epoch has a grant id
made of the two, so that a test need not carry ids around.
"""

from __future__ import annotations

from collections.abc import Iterable

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import Claim, EpochStart, Position
from epochfence.epochs.verdicts import Verdict

Header = tuple[str, bytes | None]


def grant_id(epoch: int, who: str = "a") -> str:
    """The grant id of `who`'s claim to an epoch."""
    return f"{ord(who):04x}{epoch % 2**48:012x}"


def claim(scope: str, epoch: int, who: str = "a") -> Claim:
    """`who`'s claim to an epoch."""
    return Claim(scope, epoch, 0, grant_id(epoch, who), f"holder-{who}", 0)


def ledger(*claims: tuple[str, int] | tuple[str, int, str]) -> LedgerState:
    """A ledger of these claims (scope, epoch, who), in log order."""
    return LedgerState(
        claim(one[0], one[1], one[2] if len(one) == 3 else "a") for one in claims
    )


def stamp(epoch: int, scope: str = "s", who: str = "a") -> Header:
    """A stamp's header."""
    return "epochfence", f"{epoch}:{grant_id(epoch, who)}:{scope}".encode()


def barrier(epoch: int, scope: str = "s", who: str = "a") -> Header:
    """A barrier's header."""
    return "epochfence-barrier", stamp(epoch, scope, who)[1]


def start(
    epoch: int,
    offset: int,
    scope: str = "s",
    who: str | None = "a",
    leader_epoch: int | None = None,
    topic_id: str | None = None,
) -> EpochStart:
    """An epoch start of topic `t`, partition 0."""
    return EpochStart(
        "t",
        topic_id,
        0,
        scope,
        epoch,
        None if who is None else grant_id(epoch, who),
        Position(leader_epoch, offset),
    )


class History:
    """A partition whose records are judged one by one.

    Args:
        known: The ledger, None for authority `max-seen`.
        settings: The fence's settings; None: quarantine what is unstamped.
        starts: Epoch starts known beforehand.
    """

    def __init__(
        self,
        known: LedgerState | None = None,
        settings: FenceSettings | None = None,
        starts: Iterable[EpochStart] = (),
    ) -> None:
        if settings is None:
            authority = "max-seen" if known is None else "ledger"
            settings = FenceSettings(unstamped="quarantine", authority=authority)
        self.fence = PartitionFence("t", 0, settings, known, starts)
        self.offset = -1

    def verdict(
        self,
        *headers: Header,
        at: int | None = None,
        leader_epoch: int | None = None,
        value: bytes | None = b"v",
    ) -> Verdict:
        """Judge the next record, or the one at an offset."""
        self.offset = self.offset + 1 if at is None else at
        verdict = self.fence.judge(
            leader_epoch, self.offset, headers, value, ledger_complete=True
        )
        assert verdict is not None
        return verdict

    def judge(
        self,
        *headers: Header,
        at: int | None = None,
        leader_epoch: int | None = None,
        value: bytes | None = b"v",
    ) -> str:
        """The same, as `verdict` or `verdict/reason` where the reason says more."""
        found = self.verdict(*headers, at=at, leader_epoch=leader_epoch, value=value)
        return found.kind if found.reason == "ok" else f"{found.kind}/{found.reason}"


STALE = "stale/stale-epoch"
MALFORMED = "quarantined/malformed"
AMBIGUOUS = "quarantined/ambiguous"
UNSTAMPED = "quarantined/unstamped"
CONFLICT = "quarantined/conflict"
UNGRANTED = "quarantined/ungranted"
IMPLAUSIBLE = "quarantined/implausible"
