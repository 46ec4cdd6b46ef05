"""An audit: everything judged by the same settings, ledger and known epoch starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from epochfence.epochs.errors import LedgerRegressed, MisconfiguredError
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.partition_audit import PartitionAudit, PartitionState
from epochfence.replay.told_records import ToldLedger


@dataclass(frozen=True)
class LedgerSource:
    """A ledger for an audit: where it came from, and what it says.

    Attributes:
        state: What it says.
        name: The file's or the topic's name.
        is_topic: Whether it was read from a topic.
        offset: Where the reading of the topic ended.
        told: What else was met in reading the topic, for who looks for damage.
    """

    state: LedgerState
    name: str
    is_topic: bool = False
    offset: int | None = None
    told: ToldLedger | None = None

    def __str__(self) -> str:
        claims, grants = self.state.sizes()
        where = (
            f"topic {self.name} as of offset {self.offset}, unsynced (it may be behind)"
            if self.is_topic
            else f"file {self.name}"
        )
        return (
            f"Ledger: {where}: {claims:,} claims, {grants:,} of them granted, "
            f"{len(self.state.scopes()):,} scopes."
        )


@dataclass
class Audit:
    """What an audit judges by, and what it found, partition by partition.

    Args:
        settings: What the records must carry.
        source: The ledger; None where there is none (authority `max-seen`).
        table: Epoch starts known beforehand.
        floor: More of them, of the table topic. Where the ledger is below one of
            these, that is a finding (`check_ledger`) and no error.

    Raises:
        LedgerRegressed: The ledger of a topic is below the table.
        MisconfiguredError: Authority `ledger` without a ledger; or a file's ledger is
            below the table.
    """

    settings: FenceSettings
    source: LedgerSource | None
    table: Iterable[EpochStart] = ()
    floor: Iterable[EpochStart] = ()
    partitions: dict[tuple[str, int], PartitionAudit] = field(
        default_factory=dict[tuple[str, int], PartitionAudit], init=False
    )

    def __post_init__(self) -> None:
        self.table = tuple(self.table)
        # With max-seen no verdict asks the ledger: it only names the holders.
        if self.ledger is not None and self.settings.authority == "ledger":
            self._check_not_below(self.ledger)
        self.table = tuple(dict.fromkeys((*self.table, *self.floor)))

    @property
    def ledger(self) -> LedgerState | None:
        """What the ledger says, None where there is none."""
        return None if self.source is None else self.source.state

    def partition(
        self, topic: str, partition: int, state: PartitionState | None = None
    ) -> PartitionAudit:
        """The audit of one partition.

        Args:
            topic: The topic.
            partition: The partition's number.
            state: Where an earlier audit of it stopped.
        """
        found = self.partitions.get((topic, partition))
        if found is None or state is not None:
            found = PartitionAudit(
                topic, partition, self.settings, self.ledger, self.table, state
            )
            self.partitions[topic, partition] = found
        return found

    def states(self) -> list[PartitionState]:
        """What was found, by topic and partition."""
        return [self.partitions[at].state() for at in sorted(self.partitions)]

    def _check_not_below(self, ledger: LedgerState) -> None:
        try:
            ledger.check_not_below((row.scope, row.epoch) for row in self.table)
        except LedgerRegressed as error:
            if self.source is None or self.source.is_topic:
                raise
            raise MisconfiguredError(
                "--ledger", self.source.name,
                f"it ends with epoch {error.ledger_epoch} of scope {error.scope!r}, "
                f"and the table tells where epoch {error.seen_epoch} began",
                "It was written before the table was, or they are not of one cluster: "
                "have epochfence ledger export write it anew.",
            ) from error  # fmt: skip
