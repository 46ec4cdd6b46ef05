"""What one partition holds: epoch by epoch, and what was rejected, cause by cause."""

from __future__ import annotations

import msgspec

from epochfence.epochs.values import Stamp
from epochfence.epochs.verdicts import Kind, Reason
from epochfence.replay.places import RecordPlace


class EpochHistory(msgspec.Struct):
    """What one partition holds of one epoch that began there or was granted.

    Attributes:
        scope: Whose epoch.
        epoch: Its number.
        grant_id: Its grant, None for foreign epochs.
        start: The record with which it began, None where that was not read.
        barrier: Its first barrier that was let through.
        first_write: Its first record that was admitted, barriers not counted.
        last_write: The last one.
        admitted: Records and barriers let through.
        barriers: The barriers among them.
        rejected: Its records that were not let through, by reason.
        last_rejected: The last of those.
    """

    scope: str
    epoch: int
    grant_id: str | None
    start: RecordPlace | None = None
    barrier: RecordPlace | None = None
    first_write: RecordPlace | None = None
    last_write: RecordPlace | None = None
    admitted: int = 0
    barriers: int = 0
    rejected: dict[str, int] = {}
    last_rejected: RecordPlace | None = None

    @property
    def stamp(self) -> Stamp:
        """What its messages carry."""
        return Stamp(self.scope, self.epoch, self.grant_id)

    def take(
        self,
        kind: Kind,
        reason: Reason,
        records: int,
        first: RecordPlace,
        last: RecordPlace,
    ) -> None:
        """Add records that got the same verdict in a row."""
        if kind == "admitted":
            self.admitted += records
            self.first_write = self.first_write or first
            self.last_write = last
        elif kind == "barrier":
            self.admitted += records
            self.barriers += records
            self.barrier = self.barrier or first
        else:
            self.rejected[reason] = self.rejected.get(reason, 0) + records
            self.last_rejected = last


class Rejections(msgspec.Struct):
    """The rejected records of one partition that have the same cause.

    Attributes:
        kind: `stale` or `quarantined`.
        reason: Why.
        scope: The scope of the stamp that decided, None where none did.
        epoch: Its epoch.
        grant_id: Its grant id.
        current_epoch: What was current for the first of them.
        records: How many.
        first: The first of them.
        last: The last.
        against: Where the epoch began that the first of them contradicts, None where
            nothing was read that it contradicts.
        against_grant_id: The grant under which that one began.
    """

    kind: Kind
    reason: Reason
    scope: str | None
    epoch: int | None
    grant_id: str | None
    current_epoch: int | None
    records: int
    first: RecordPlace
    last: RecordPlace
    against: RecordPlace | None = None
    against_grant_id: str | None = None
