"""What other settings would have said of the same records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from epochfence.epochs.verdicts import Kind, Reason, Verdict
from epochfence.replay.partition_audit import PartitionState

_Key = tuple[Kind, Reason, Kind, Reason]


class Change(msgspec.Struct):
    """Records of one partition on which two settings disagree in the same way.

    Attributes:
        verdict: What the settings of the audit say.
        reason: Why.
        other_verdict: What the other settings say.
        other_reason: Why.
        records: How many.
        first_offset: The first of them.
        last_offset: The last.
    """

    verdict: Kind
    reason: Reason
    other_verdict: Kind
    other_reason: Reason
    records: int
    first_offset: int
    last_offset: int


class WhatIfState(msgspec.Struct):
    """What other settings say of one partition.

    Attributes:
        state: What is known under them.
        changes: Where they disagree.
    """

    state: PartitionState
    changes: list[Change]


class Verdicts:
    """The verdicts of some records, in order: a `VerdictWriter` that keeps them."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.verdicts: list[Verdict] = []

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Keep the verdict that some records share."""
        self.offsets += offsets
        self.verdicts += [verdict] * len(offsets)


class Changes:
    """Collects where two settings disagree.

    Args:
        known: What was collected before.
    """

    def __init__(self, known: Iterable[Change] = ()) -> None:
        self._changes: dict[_Key, Change] = {
            (one.verdict, one.reason, one.other_verdict, one.other_reason): one
            for one in known
        }

    @property
    def all(self) -> list[Change]:
        """Each change, in the order in which they were met."""
        return list(self._changes.values())

    def take(self, offset: int, verdict: Verdict, other: Verdict) -> None:
        """Compare two verdicts on a record."""
        if (verdict.kind, verdict.reason) == (other.kind, other.reason):
            return
        key = (verdict.kind, verdict.reason, other.kind, other.reason)
        change = self._changes.get(key)
        if change is None:
            change = self._changes[key] = Change(*key, 0, offset, offset)
        change.records += 1
        change.last_offset = offset
