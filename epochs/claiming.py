"""How claims are made: appended one behind the other, then read back, all at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from secrets import token_hex

from epochfence.epochs.claims import checked_value, claim_key
from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    EpochfenceError,
    LedgerUnavailable,
    MisconfiguredError,
)
from epochfence.epochs.grant_follower import GrantFollower
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.synced_log import SyncedLog
from epochfence.epochs.topic_log import (
    Appended,
    AppendRefusedError,
    AppendUnknownError,
)
from epochfence.epochs.values import Claim, check_scope

#: The part of the time that is kept for reading claims back.
_FOR_READING = 0.25


class Claiming:
    """Makes the claims of a ledger.

    Args:
        log: The coordination topic.
        follower: Knows what was read of it.
        topic: Its name, for messages.
        leadership_of: Makes the leadership of a claim that has won.
    """

    def __init__(
        self,
        log: SyncedLog,
        follower: GrantFollower,
        topic: str,
        leadership_of: Callable[[Claim], Leadership],
    ) -> None:
        self._log = log
        self._follower = follower
        self._topic = topic
        self._leadership_of = leadership_of

    def asked(
        self,
        scope: str,
        plan: Callable[[str, Claim | None], int],
        holder: str,
        attributes: Mapping[str, str],
    ) -> Claim:
        """The claim to the epoch that `plan` chooses, given the latest grant.

        To be called after the log was read to its end.
        """
        latest = self._follower.state.latest(scope)
        return Claim(
            scope=scope,
            epoch=plan(scope, latest),
            previous=0 if latest is None else latest.epoch,
            grant_id=token_hex(8),
            holder=holder,
            claimed_at=time.time_ns() // 1_000_000,
            attributes=attributes,
        )

    def append(
        self, claims: Sequence[Claim], deadline: float
    ) -> list[Leadership | EpochfenceError]:
        """Append claims; give what became of each, in their order.

        Raises:
            MisconfiguredError: One is too large. None was appended.
        """
        records = [(claim_key(claim), checked_value(claim)) for claim in claims]
        if not records:
            return []
        # Some time is left to read what was granted: else nobody knows of any.
        append_by = deadline - _FOR_READING * time_left(deadline)
        appended = self._log.append_all(records, append_by, discard=True)
        unread = ""
        if any(isinstance(one, int) for one in appended):
            try:
                # Not only up to the claims: a claimant that was stopped in between
                # should hear of its successors, or that the topic was made anew.
                self._log.read_to_end(deadline)
            except EpochfenceError as error:
                unread = f"it was written, but then: {error}".rstrip(".")
        return [
            self._outcome(claim, one, unread)
            for claim, one in zip(claims, appended, strict=True)
        ]

    def _outcome(
        self, claim: Claim, appended: Appended, unread: str
    ) -> Leadership | EpochfenceError:
        """What became of a claim; `unread` says why the log was not read behind it."""
        if isinstance(appended, AppendRefusedError):
            reason = f"the claim was refused: {appended}"
            refused = LedgerUnavailable(self._topic, reason)
            refused.__cause__ = appended
            return refused
        unknown = partial(ClaimUnknown, claim.scope, claim.epoch, claim.grant_id)
        if isinstance(appended, AppendUnknownError):
            return unknown(str(appended))
        if unread:
            return unknown(unread)
        latest = self._follower.state.latest(claim.scope)
        if latest is not None and latest.grant_id == claim.grant_id:
            return self._leadership_of(claim)
        if latest is None or latest.epoch < claim.epoch:
            return unknown("it was acknowledged, but is not in the log")
        return ClaimLost(claim.scope, claim.epoch, latest.epoch, latest.holder)


def checked_scopes(scopes: Iterable[str]) -> list[str]:
    """Scope names, each once.

    Raises:
        MisconfiguredError: One is none, or they are no list.
    """
    if isinstance(scopes, str) or not isinstance(scopes, Iterable):
        example = scopes if isinstance(scopes, str) else "orders/3"
        raise MisconfiguredError(
            "scopes", scopes, "a list of scopes is expected", f"Use [{example!r}]."
        )
    return list(dict.fromkeys(check_scope(scope) for scope in scopes))


def checked_seen(
    seen: Mapping[str, int] | None, scopes: Sequence[str]
) -> Mapping[str, int]:
    """The epochs that were seen, by scope.

    Raises:
        MisconfiguredError: They are no mapping, or not of these scopes.
    """
    if seen is not None and not isinstance(seen, Mapping):
        raise MisconfiguredError(
            "seen", seen, "a mapping of scopes to epochs is expected",
            "Use {'orders/3': 7}, or leave it out: the latest are read at the call.",
        )  # fmt: skip
    others = sorted(set(seen or {}) - set(scopes), key=str)
    if others:
        raise MisconfiguredError(
            "seen", others[0], "it is none of the scopes to claim",
            "Name the same scopes in both.",
        )  # fmt: skip
    return seen or {}
