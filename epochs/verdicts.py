"""What the fence says of a record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from epochfence.epochs.values import EpochStart, Stamp

Kind = Literal["admitted", "barrier", "stale", "quarantined"]
Reason = Literal[
    "ok",
    "unstamped",
    "stale-epoch",
    "malformed",
    "ambiguous",
    "conflict",
    "ungranted",
    "implausible",
]


#: What must not be applied.
REJECTED: frozenset[Kind] = frozenset(("stale", "quarantined"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the fence says of one record.

    Attributes:
        kind: `admitted` (deliver it), `barrier` (in order, never delivered),
            `stale` (a deposed leader sent it) or `quarantined` (it cannot be
            trusted). The last two are *rejected*.
        reason: Why: `ok` for what is in order, `unstamped` also for what a
            setting let in.
        stamps: What the record carried, empty where it could not be read.
        cause: The stamp that decided, None where none did.
        current_epoch: The current epoch of that stamp's scope, None for none yet.
        starts: The epochs that this record opened.
    """

    kind: Kind
    reason: Reason
    stamps: tuple[Stamp, ...] = ()
    cause: Stamp | None = None
    current_epoch: int | None = None
    starts: tuple[EpochStart, ...] = ()

    @property
    def is_rejected(self) -> bool:
        """Whether the record must not be applied: stale or quarantined."""
        return self.kind in REJECTED
