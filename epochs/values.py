"""The values of the rules: what exists, exists only in a correct form.

A value of a type of this module has been checked; code that receives one need
not look again. Words as in the glossary of docs/rules.md.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

from epochfence.epochs.errors import MisconfiguredError

if TYPE_CHECKING:
    from epochfence.epochs.starts import CommitMetadata

#: The highest epoch. Every language that may read a stamp has a 64-bit integer.
MAX_EPOCH = 2**63 - 1

#: What a foreign scope begins with; no scope of ours can, so the two never clash.
FOREIGN_PREFIX = "~"

_SCOPE = re.compile(r"[A-Za-z0-9._/-]{1,200}\Z")
_GRANT_ID = re.compile(r"[0-9a-f]{16}\Z")
_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}\Z")


#: The longest time that the Kafka client's calls take.
_MAX_TIMEOUT_S = 3600.0


def check_timeout(timeout_s: float, setting: str = "timeout_s") -> float:
    """Give `timeout_s` back if one can wait so long; else `MisconfiguredError`.

    Args:
        timeout_s: The seconds to check.
        setting: What they are called in the error's message.
    """
    if not isinstance(timeout_s, int | float) or not 0 < timeout_s <= _MAX_TIMEOUT_S:
        raise MisconfiguredError(
            setting, timeout_s, "not a time to wait",
            f"Use a number of seconds above 0, up to {_MAX_TIMEOUT_S:g}.",
        )  # fmt: skip
    return timeout_s


def check_count(count: int, setting: str) -> int:
    """Give a number of messages back if it is one; else `MisconfiguredError`."""
    if type(count) is not int or count < 1:
        raise MisconfiguredError(
            setting, count, "no number of messages", "Use a whole number above 0."
        )
    return count


def check_function(
    name: str, function: object, remedy: str = "Give a function."
) -> None:
    """Return if `function` can be called, or is None; else `MisconfiguredError`."""
    if function is not None and not callable(function):
        raise MisconfiguredError(name, function, "it cannot be called", remedy)


def check_scope(scope: str) -> str:
    """Give `scope` back if it names one; raise `MisconfiguredError` if not."""
    if not isinstance(scope, str) or not _SCOPE.match(scope):
        shown = scope
        if isinstance(scope, str) and len(scope) > 60:
            shown = f"{scope[:60]}… ({len(scope)} long)"
        raise MisconfiguredError(
            "scope",
            shown,
            "this is no scope name",
            "Use 1 to 200 of the characters A-Z a-z 0-9 . _ - /",
        )
    return scope


def check_epoch(epoch: int, setting: str = "epoch", lowest: int = 1) -> int:
    """Give `epoch` back if it is one; raise `MisconfiguredError` if not.

    Args:
        epoch: The number to check.
        setting: What the number is called in the error's message.
        lowest: The lowest number allowed: 0 for foreign epochs and for "none yet".
    """
    if type(epoch) is not int or not lowest <= epoch <= MAX_EPOCH:
        raise MisconfiguredError(
            setting, epoch, "no epoch",
            f"Use a whole number from {lowest} to 2^63-1 ({MAX_EPOCH}).",
        )  # fmt: skip
    return epoch


def check_grant_id(grant_id: str) -> str:
    """Give `grant_id` back if it is one; raise `MisconfiguredError` if not."""
    if not _GRANT_ID.match(grant_id):
        raise MisconfiguredError(
            "grant_id", grant_id[:60], "malformed", "Use 16 lower-case hex digits."
        )
    return grant_id


def is_topic_id(value: object) -> TypeGuard[str]:
    """Whether this is Kafka's id of a topic: URL-safe base64 without padding."""
    return isinstance(value, str) and _TOPIC_ID.match(value) is not None


def is_foreign(scope: str) -> bool:
    """Whether a scope is that of a foreign header: `~` and the header's name."""
    return (
        isinstance(scope, str) and len(scope) > 1 and scope.startswith(FOREIGN_PREFIX)
    )


#: A topic's name and a partition's number.
Place = tuple[str, int]


class Position(NamedTuple):
    """Where a record stands in its partition.

    Compared by the broker's leader epoch first and the offset second; where a
    leader epoch is unknown on either side, by the offsets alone. That is no total
    order, so there is no `<`.
    """

    leader_epoch: int | None
    offset: int

    def is_at_or_before(self, other: Position) -> bool:
        """Whether this position is not behind `other`."""
        mine, theirs = self.leader_epoch, other.leader_epoch
        if mine is None or theirs is None or mine == theirs:
            return self.offset <= other.offset
        return mine < theirs


@dataclass(frozen=True, slots=True)
class Stamp:
    """Scope, epoch and grant id as they travel with a message.

    A foreign stamp has a scope that begins with `~`, an epoch that may be 0, and
    no grant id.
    """

    scope: str
    epoch: int
    grant_id: str | None

    def __post_init__(self) -> None:
        if is_foreign(self.scope):
            check_epoch(self.epoch, lowest=0)
            if self.grant_id is not None:
                raise MisconfiguredError(
                    "grant_id", self.grant_id, "a foreign stamp has none", "Use None."
                )
            return
        check_scope(self.scope)
        check_epoch(self.epoch)
        check_grant_id(self.grant_id or "")


@dataclass(frozen=True, slots=True)
class Claim:
    """A record by which a candidate asks for an epoch of a scope.

    A claim that won is a *grant*; which ones did is the ledger's to say.

    Attributes:
        scope: What the candidate wants to lead.
        epoch: The epoch asked for, 1 to 2^63-1.
        previous: The epoch seen as the latest, 0 for none. Information only.
        grant_id: 16 lower-case hex digits, random, never sent twice.
        holder: Names the candidate, for people.
        claimed_at: Milliseconds since 1970 by the candidate's clock, for people.
        attributes: Free text pairs, such as where to forward requests to.
    """

    scope: str
    epoch: int
    previous: int
    grant_id: str
    holder: str
    claimed_at: int
    attributes: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)

    def __post_init__(self) -> None:
        check_scope(self.scope)
        check_epoch(self.epoch)
        check_grant_id(self.grant_id)

    @property
    def stamp(self) -> Stamp:
        """The stamp of messages written under this claim, should it have won."""
        return Stamp(self.scope, self.epoch, self.grant_id)


class SinkPosition(NamedTuple):
    """How far a sink has come on a partition, as it stores that with its data.

    Attributes:
        topic_id: The life of the topic, None where topics have no ids.
        leader_epoch: That of the last record judged below the offset, None: unknown.
        next_offset: Every admitted record below it has had its effect.
    """

    topic_id: str | None
    leader_epoch: int | None
    next_offset: int


class EpochStart(NamedTuple):
    """Where an epoch of a scope began on one partition: a fact about the log.

    Attributes:
        topic: The topic's name.
        topic_id: Kafka's id of this life of the topic (URL-safe base64 without
            padding), None where unknown.
        partition: The partition's number.
        scope: Whose epoch began.
        epoch: Which epoch.
        grant_id: Under which grant; None for foreign epochs.
        position: Where the first admitted record of that epoch stands.
    """

    topic: str
    topic_id: str | None
    partition: int
    scope: str
    epoch: int
    grant_id: str | None
    position: Position


class SinkState(NamedTuple):
    """What a sink has stored of a partition: as far as it has come, all is known.

    Attributes:
        position: How far it has come.
        starts: Every epoch start that counts there.
        said: What a commit says of the starts, where those are in the max-epoch table
            and nowhere else (`KafkaSink`); None: `starts` are all.
    """

    position: SinkPosition
    starts: tuple[EpochStart, ...] = ()
    said: CommitMetadata | None = None
