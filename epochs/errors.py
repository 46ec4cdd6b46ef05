"""Errors, sorted by what the caller does next.

Each type has one cause, carries the numbers involved as attributes, and ends
its message with the remedy. All of them can be pickled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


class EpochfenceError(Exception):
    """The base of every error that this package raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the type with positional arguments only.
        return _rebuild, (type(self), dict(vars(self)))


def _rebuild(kind: type[EpochfenceError], facts: dict[str, Any]) -> EpochfenceError:
    error = kind.__new__(kind)
    vars(error).update(facts)
    return error


def _led_by(epoch: int, holder: str) -> str:
    return f"epoch {epoch} is held by {holder!r}"


@dataclass(eq=False)
class Deposed(EpochfenceError):
    """A later leadership of the scope exists. Stop: this one is over."""

    scope: str
    held_epoch: int
    seen_epoch: int
    holder: str

    def __str__(self) -> str:
        return (
            f"epoch {self.held_epoch} of scope {self.scope!r} is deposed: "
            f"{_led_by(self.seen_epoch, self.holder)}. Stop what this leadership "
            f"does; claim again to lead again."
        )


@dataclass(eq=False)
class ClaimLost(EpochfenceError):
    """Somebody else leads. Follow, or campaign again.

    The claim came too late, or it won and was followed by another at once.

    Attributes:
        is_exact: Whether the claimed epoch came from elsewhere (`exactly`), and is not
            above what had been granted before.
    """

    scope: str
    claimed_epoch: int
    latest_epoch: int
    holder: str
    is_exact: bool = False

    def __str__(self) -> str:
        if self.is_exact:
            return (
                f"the claim to epoch {self.claimed_epoch} of scope {self.scope!r}, a "
                f"number from elsewhere, does not lead: "
                f"{_led_by(self.latest_epoch, self.holder)}. If that leader is at "
                f"work, follow it. Else what gives these numbers has fallen behind the "
                f"ledger (restored, reset or made anew), or gave one twice: set it "
                f"above {self.latest_epoch}, or claim without a number of its own."
            )
        return (
            f"the claim to epoch {self.claimed_epoch} of scope {self.scope!r} does not "
            f"lead: {_led_by(self.latest_epoch, self.holder)}. Follow that leader, or "
            f"claim again once an election says so."
        )


@dataclass(eq=False)
class ClaimUnknown(EpochfenceError):
    """Nobody knows whether the claim won. Do not lead; claim again."""

    scope: str
    claimed_epoch: int
    grant_id: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the outcome of the claim to epoch {self.claimed_epoch} of scope "
            f"{self.scope!r} (grant id {self.grant_id}) is unknown: {self.reason}. "
            f"Do not lead under it; claim again (a new claim gets a grant id of "
            f"its own)."
        )


@dataclass(eq=False)
class SinkFenced(EpochfenceError):
    """A newer instance of this sink has moved on. Drop the batch; reload or stop."""

    topic: str
    partition: int
    expected: tuple[str | None, int | None, int | None]
    found: tuple[str | None, int | None, int | None]

    def __str__(self) -> str:
        why = "another instance has written"
        if self.found == self.expected:
            return (
                f"the group counts this instance no more as the one that has "
                f"{self.topic}[{self.partition}], where the sink stands at (topic id, "
                f"leader epoch, next offset) {self.found}: it was stopped for too "
                f"long, or its function took longer than max.poll.interval.ms. Nothing "
                f"was changed. Drop the batch; reload the position if the partition is "
                f"assigned again, else stop."
            )
        if self.found[2] is None:
            why = "it was emptied"
        return (
            f"the sink's store of {self.topic}[{self.partition}] stands at (topic id, "
            f"leader epoch, next offset) {self.found}, not at {self.expected}: {why}. "
            f"Nothing was changed. Drop the batch; reload the position if the "
            f"partition is still assigned, else stop."
        )


@dataclass(eq=False)
class SinkUnavailable(EpochfenceError):
    """A sink's store does not answer, or not now. What it has stored tells the rest.

    Whether the batch was stored is not known: load the position and compare.
    """

    store: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the sink's store {self.store} cannot be written to or read now: "
            f"{self.reason}. Try again; if it was being written to, its position tells "
            f"whether that was stored."
        )


@dataclass(eq=False)
class TransactionAborted(EpochfenceError):
    """A transaction was aborted, and the leadership goes on. Do all of it again.

    Attributes:
        transactional_id: Whose transaction it was.
        reason: Why it was aborted.
    """

    transactional_id: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the transaction of {self.transactional_id!r} was aborted: {self.reason}. "
            f"Nobody who reads committed sees anything of it. This leadership goes on: "
            f"do the whole transaction again."
        )


@dataclass(eq=False)
class TransactionUnknown(EpochfenceError):
    """Nobody knows yet whether a transaction was committed. `confirm()` finds out.

    Attributes:
        transactional_id: Whose transaction it was.
        reason: Why that is not known.
    """

    transactional_id: str
    reason: str

    def __str__(self) -> str:
        return (
            f"whether the transaction of {self.transactional_id!r} was committed is "
            f"not known: {self.reason}. Do not repeat it blindly: confirm() finds out "
            f"what became of its messages; of offsets alone, the group's commits tell."
        )


@dataclass(eq=False)
class ElectionUnavailable(EpochfenceError):
    """What holds an election does not answer now. Nothing was decided; try again.

    Attributes:
        election: Names the election: its kind, where it is held, the office.
        reason: What it says, or does not.
    """

    election: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the election {self.election} is not to be reached: {self.reason}. "
            f"Nothing was decided: try again. Who leads goes on leading, as long as "
            f"the ledger says so."
        )


@dataclass(eq=False)
class NotAssigned(EpochfenceError):
    """A partition is not this process's now. Drop what it began there; poll on."""

    topic: str
    partition: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.topic}[{self.partition}] is not this process's: {self.reason}. "
            f"Drop what was read of it, and go on polling the consumer: it says which "
            f"partitions are assigned."
        )


@dataclass(eq=False)
class EpochUnavailable(EpochfenceError):
    """What gives the epochs of a scope does not answer now. Try again.

    Attributes:
        source: Names it: its kind, where it is, what it counts.
        reason: What it says, or does not.
    """

    source: str
    reason: str

    def __str__(self) -> str:
        return (
            f"there is no epoch to be had from {self.source}: {self.reason}. Nothing "
            f"was claimed: try again."
        )


@dataclass(eq=False)
class LedgerUnavailable(EpochfenceError):
    """The ledger cannot be read now. Nothing was decided; try again."""

    topic: str
    reason: str
    offset: int | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        return (
            f"the ledger (topic {self.topic!r}) cannot be read{where}: {self.reason}. "
            f"Nothing was decided: try again."
        )


@dataclass(eq=False)
class LedgerClosed(LedgerUnavailable):
    """The ledger was closed by this process, before what goes by it."""

    reason: str = "it was closed"

    def __str__(self) -> str:
        return (
            f"the ledger (topic {self.topic!r}) was closed. Nothing was decided. Open "
            f"another Ledger, and close what goes by a ledger before the ledger itself."
        )


@dataclass(eq=False)
class TableUnavailable(EpochfenceError):
    """The max-epoch table cannot be read or written now. Try again."""

    topic: str
    reason: str
    offset: int | None = None

    def __str__(self) -> str:
        where = "" if self.offset is None else f" at offset {self.offset}"
        return (
            f"the max-epoch table (topic {self.topic!r}) is not available{where}: "
            f"{self.reason}. Nothing was decided: try again."
        )


@dataclass(eq=False)
class TopicUnavailable(EpochfenceError):
    """A topic cannot be reached, read or written now. Try again."""

    topic: str
    reason: str
    partition: int | None = None
    offset: int | None = None

    def __str__(self) -> str:
        part = "" if self.partition is None else f" partition {self.partition}"
        where = "" if self.offset is None else f" at offset {self.offset}"
        what = f"topic {self.topic!r}{part}"
        return (
            f"{what} is not available{where}: {self.reason}. Try again; where it stays "
            f"so, see that it exists on this cluster, and that this client may use it."
        )


@dataclass(eq=False)
class LedgerRegressed(EpochfenceError):
    """The ledger knows less than was already acted upon. An operator decides."""

    scope: str
    ledger_epoch: int  # 0: the ledger knows none
    seen_epoch: int

    def __str__(self) -> str:
        knows = f"epoch {self.ledger_epoch}" if self.ledger_epoch else "no epoch at all"
        return (
            f"the ledger has lost grants of scope {self.scope!r}: its latest is "
            f"{knows}, but epoch {self.seen_epoch} was in use. The coordination topic "
            f"was lost, truncated or made anew. An operator, having made sure that no "
            f"leader is at work, raises the floor: epochfence ledger claim "
            f"{self.scope} --at-least {self.seen_epoch + 1}"
        )


@dataclass(eq=False)
class TableMissing(EpochfenceError):
    """Rows of the max-epoch table are gone. An operator decides."""

    topic: str
    partition: int
    offset: int
    expected_rows: int | None
    found_rows: int

    def __str__(self) -> str:
        expected = (
            "an unknown number of"
            if self.expected_rows is None
            else f"at least {self.expected_rows}"
        )
        return (
            f"the max-epoch table has {self.found_rows} rows for {self.topic}"
            f"[{self.partition}] below offset {self.offset}, where {expected} are "
            f"needed. Rebuild them by reading the partition from its start, or "
            f"restore the table topic."
        )


@dataclass(eq=False)
class EpochExhausted(EpochfenceError):
    """The scope has no higher epoch left. Use a new scope name."""

    scope: str
    latest_epoch: int

    def __str__(self) -> str:
        return (
            f"scope {self.scope!r} stands at epoch {self.latest_epoch}; no epoch above "
            f"2^63-1 exists. Move its writers and readers to a new scope name."
        )


@dataclass(eq=False)
class MisconfiguredError(EpochfenceError):
    """A setting is wrong. Fix it; trying again without a change is no use."""

    setting: str
    value: object
    problem: str
    remedy: str

    def __str__(self) -> str:
        named = self.setting
        if self.value is not ...:  # a value that is not to be repeated
            named = f"{self.setting} = {self.value!r}"
        return f"{named}: {self.problem}. {self.remedy}"
