"""Findings' evidence: what is known of claims, rows and records, and who claimed."""

from __future__ import annotations

from collections.abc import Sequence

from epochfence.epochs.values import Claim, EpochStart
from epochfence.replay.audit import LedgerSource
from epochfence.replay.partition_audit import PartitionState
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import Evidence
from epochfence.replay.told_records import PassedOver


class Witness:
    """Makes evidence of what is known of claims, rows and records.

    Args:
        source: The ledger.
    """

    def __init__(self, source: LedgerSource | None) -> None:
        self._source = source

    def find(
        self, scope: str | None, epoch: int | None, grant_id: str | None
    ) -> Claim | None:
        """The claim that is cited; None: nothing is, or no ledger knows it."""
        if self._source is None or scope is None or epoch is None:
            return None
        return self._source.state.find(scope, epoch, grant_id)

    def holder(
        self, scope: str | None, epoch: int | None, grant_id: str | None
    ) -> str | None:
        """Who claimed that."""
        claim = self.find(scope, epoch, grant_id)
        return None if claim is None else claim.holder

    def is_grant(self, scope: str, epoch: int, grant_id: str | None) -> bool:
        """Whether the ledger holds this grant; without one, any is taken for one."""
        return self._source is None or self._source.state.is_grant(
            scope, epoch, grant_id
        )

    def who(self, scope: str, epoch: int, grant_id: str | None) -> str:
        """A claim, for people."""
        holder = self.holder(scope, epoch, grant_id)
        name = f"epoch {epoch} of scope {scope!r}"
        return name if holder is None else f"{holder!r} ({name})"

    def claim(self, what: str, scope: str, epoch: int, grant_id: str) -> Evidence:
        """A claim of the ledger, and where it stands."""
        source = self._source
        told = None if source is None else source.told
        place = None if told is None else told.places.get((scope, epoch, grant_id))
        is_topic = source is not None and source.is_topic
        return Evidence(
            what=what,
            topic=source.name if source is not None and is_topic else None,
            topic_id=None if told is None else told.topic_id,
            partition=0 if is_topic else None,
            offset=None if place is None else place.offset,
            leader_epoch=None if place is None else place.leader_epoch,
            timestamp=None if place is None else place.timestamp,
            scope=scope,
            epoch=epoch,
            grant_id=grant_id,
            holder=self.holder(scope, epoch, grant_id),
        )

    def start(self, what: str, start: EpochStart) -> Evidence:
        """An epoch start: the record of the data topic that it names."""
        return Evidence(
            what=what,
            topic=start.topic,
            topic_id=start.topic_id,
            partition=start.partition,
            offset=start.position.offset,
            leader_epoch=start.position.leader_epoch,
            scope=start.scope,
            epoch=start.epoch,
            grant_id=start.grant_id,
            holder=self.holder(start.scope, start.epoch, start.grant_id),
        )

    def record(
        self,
        what: str,
        state: PartitionState,
        place: RecordPlace,
        cited: tuple[str | None, int | None, str | None],
    ) -> Evidence:
        """A record of the data topic, and what it cites."""
        ids = state.topic_ids
        scope, epoch, grant_id = cited
        return Evidence(
            what=what,
            topic=state.topic,
            topic_id=ids[place.life] if place.life < len(ids) else None,
            partition=state.partition,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            timestamp=place.timestamp,
            scope=scope,
            epoch=epoch,
            grant_id=grant_id,
            holder=self.holder(scope, epoch, grant_id),
        )


def passed_over(
    topic: str, topic_id: str | None, records: Sequence[PassedOver]
) -> tuple[Evidence, ...]:
    """Records of a topic of ours that are none of ours."""
    return tuple(
        Evidence(
            what=f"passed over: {problem}",
            topic=topic,
            topic_id=topic_id,
            partition=0,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            timestamp=place.timestamp,
        )
        for place, problem in records
    )
