"""What a look at our own topics met: where each record stands, and what was none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from epochfence.epochs.claim_identity import ClaimIdentity
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.starts import RowInfo
from epochfence.epochs.values import EpochStart
from epochfence.replay.places import RecordPlace

#: How many records that are none of ours are kept one by one.
KEPT_PASSED_OVER = 20


class PassedOver(NamedTuple):
    """A record of one of our topics that is none of ours.

    Attributes:
        place: Where it stands.
        problem: What is wrong with it.
    """

    place: RecordPlace
    problem: str


@dataclass(frozen=True)
class ToldLedger:
    """What was met in a coordination topic.

    Attributes:
        topic_id: The life of the topic.
        places: Where each claim stands; its timestamp is the broker's, or the
            claimant's, as the topic is set.
        passed_over: The first records that are no claims.
        problems: Settings of the topic that break the promise.
    """

    topic_id: str | None = None
    places: Mapping[ClaimIdentity, RecordPlace] = field(
        default_factory=dict[ClaimIdentity, RecordPlace]
    )
    passed_over: Sequence[PassedOver] = ()
    problems: Sequence[MisconfiguredError] = ()


class ToldRow(NamedTuple):
    """A row of the table.

    Attributes:
        place: Where its record stands.
        info: Who wrote it, and under which settings.
    """

    place: RecordPlace
    info: RowInfo


@dataclass(frozen=True)
class ToldTable:
    """What was met in a table topic.

    Attributes:
        name: The topic.
        topic_id: Its life.
        offset: Where the reading ended.
        rows: The rows; of one that was written more than once, the first.
        passed_over: The first records that are no rows.
        passed_over_total: How many there are.
        problems: Settings of the topic that break the promise.
    """

    name: str
    topic_id: str | None = None
    offset: int | None = None
    rows: Mapping[EpochStart, ToldRow] = field(
        default_factory=dict[EpochStart, ToldRow]
    )
    passed_over: Sequence[PassedOver] = ()
    passed_over_total: int = 0
    problems: Sequence[MisconfiguredError] = ()

    def __str__(self) -> str:
        rows = "1 row" if len(self.rows) == 1 else f"{len(self.rows):,} rows"
        return f"Table: topic {self.name} as of offset {self.offset}, unsynced: {rows}."
