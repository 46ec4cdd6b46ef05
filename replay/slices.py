"""One slice of a partition, read and judged; it can be left and gone on with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.log_order import OutOfOrderError
from epochfence.replay.partition_audit import PartitionAudit, PartitionState
from epochfence.replay.partition_replay import PartitionReplay
from epochfence.replay.sources import VerdictWriter
from epochfence.replay.topic_source import Slice
from epochfence.replay.what_if import Changes, WhatIfState


class SliceState(msgspec.Struct):
    """How far the judging of a slice has come, and what was found.

    Attributes:
        partition: Which partition.
        next_offset: Everything below was judged.
        is_done: Whether the slice's end was come to, or what stands before it cannot
            be read by a committed reader.
        state: What was found.
        what_if: What other settings say, in their order.
    """

    partition: int
    next_offset: int
    is_done: bool
    state: PartitionState
    what_if: list[WhatIfState] = []


@dataclass(frozen=True)
class Job:
    """All that judging a slice takes; it can be sent to another process.

    Attributes:
        config: Connection settings, as for confluent-kafka.
        timeout_s: How long the cluster may take where nothing comes.
        settings: What the records must carry.
        ledger: The grants.
        known: Epoch starts known beforehand, of all partitions.
        what_if: Other settings to judge by as well.
    """

    config: Mapping[str, Any]
    timeout_s: float
    settings: FenceSettings
    ledger: LedgerState | None
    known: Sequence[EpochStart] = ()
    what_if: Sequence[FenceSettings] = field(default=())


#: Told after each batch how many records were in it, how to get what was found so far,
#: and which offset was come to. Says whether to stop here.
AfterBatch = Callable[[int, Callable[[], SliceState], int], bool]


class SliceFailed(Exception):
    """A slice could not be read to its end.

    Attributes:
        error: Why.
        state: What was found before.
    """

    def __init__(self, error: TopicUnavailable, state: SliceState) -> None:
        super().__init__(str(error))
        self.error = error
        self.state = state


def judge_slice(
    job: Job,
    piece: Slice,
    begun: SliceState | None,
    after_batch: AfterBatch,
    verdicts: VerdictWriter | None = None,
) -> SliceState:
    """Judge the records of a slice.

    Args:
        job: What to judge by.
        piece: What to read.
        begun: Where an earlier reading stopped, None for none.
        after_batch: Called after each batch, and every moment where none comes.
        verdicts: Takes each record's verdict.

    Raises:
        SliceFailed: The partition could not be read, or changed meanwhile.
    """
    replay = _replay(job, piece, begun, verdicts)
    start = piece.start if begun is None else begun.next_offset

    def state(is_done: bool = False) -> SliceState:
        return SliceState(
            piece.partition, position, is_done, replay.audit.state(), replay.what_if()
        )

    position = start
    try:
        with PartitionReader(job.config, piece.topic, piece.partition) as reader:
            for batch in reader.read(start, piece.end, stall_timeout_s=job.timeout_s):
                replay.take_messages(piece.topic_id, batch)
                position = min(reader.position or start, piece.end)
                if after_batch(len(batch), state, position):
                    return state(position >= piece.end)
            if reader.position is not None:
                position = min(reader.position, piece.end)
            return state(is_done=True)
    except TopicUnavailable as error:
        raise SliceFailed(error, state()) from error
    except OutOfOrderError as error:
        position = max(replay.audit.last_offset + 1, start)
        changed = TopicUnavailable(
            piece.topic,
            f"its log changed while it was read: {error}",
            piece.partition,
            position,
        )
        raise SliceFailed(changed, state()) from error


def _replay(
    job: Job, piece: Slice, begun: SliceState | None, verdicts: VerdictWriter | None
) -> PartitionReplay:
    def audit(settings: FenceSettings, state: PartitionState | None) -> PartitionAudit:
        return PartitionAudit(
            piece.topic, piece.partition, settings, job.ledger, job.known, state
        )

    others: list[tuple[PartitionAudit, Changes]] = []
    for number, settings in enumerate(job.what_if):
        before = None if begun is None else begun.what_if[number]
        others.append(
            (
                audit(settings, None if before is None else before.state),
                Changes(() if before is None else before.changes),
            )
        )
    main = audit(job.settings, None if begun is None else begun.state)
    return PartitionReplay(main, others, verdicts)
