"""What became of a deposed leader's acknowledged messages, partition by partition.

A fold over the judged records of the partition. A message that was written before the
own barrier is admitted, if a ledger read after that barrier's acknowledgement still
found every own grant the latest: no successor had written by then. From there on (from
the log's start, where there is no such barrier) the fence has the say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import OUTCOMES, Outcome
from epochfence.epochs.stamps import BARRIER_HEADER, Headers
from epochfence.epochs.values import EpochStart, Stamp
from epochfence.epochs.verdicts import Verdict


def first_outranked(
    stamps: Sequence[Stamp], topic_id: str | None, starts: Iterable[EpochStart]
) -> int | None:
    """The offset from which on a higher epoch than one of `stamps` counts.

    By offsets alone: nobody knows the leader epoch of a record that is gone.

    Args:
        stamps: The stamps of a message.
        topic_id: The life of the topic that it is in.
        starts: The epoch starts of its partition.

    Returns:
        That offset, None where no higher epoch has begun.
    """
    own = {stamp.scope: stamp.epoch for stamp in stamps}
    offsets = [
        start.position.offset if start.topic_id in (None, topic_id) else 0
        for start in starts
        if start.epoch > own.get(start.scope, start.epoch)
    ]
    return min(offsets, default=None)


class PartitionAnswer:
    """What became of the messages of one partition.

    Args:
        acknowledged: The offsets of the messages.
        stamps: The stamps that each of them carries.
        barrier: The offset of the own barrier, if a ledger read after its
            acknowledgement found every own grant the latest; else None.
        log_start: The first offset of the log.
        log_end: The one behind its last.
    """

    def __init__(
        self,
        acknowledged: OffsetRanges,
        stamps: tuple[Stamp, ...],
        barrier: int | None,
        log_start: int,
        log_end: int,
    ) -> None:
        self._acknowledged = acknowledged
        self._stamps = stamps
        self._scopes = {stamp.scope: stamp.epoch for stamp in stamps}
        self._assumed = 0 if barrier is None else barrier
        self._log_start = log_start
        self._log_end = log_end
        # Whether what may decide lies below the log's start.
        self._is_head_missing = self._assumed < log_start
        self._seen: dict[Outcome, OffsetRanges] = {
            outcome: OffsetRanges() for outcome in OUTCOMES
        }
        self._is_barrier_due = barrier is not None and not self._is_head_missing
        self._has_barrier = barrier is not None
        #: Where to read from, and up to (without it).
        self.read_from = max(log_start, self._assumed)
        wanted = acknowledged.end
        if self._is_barrier_due:
            wanted = max(wanted, self._assumed + 1)
        self.read_to = min(log_end, wanted)
        self._is_doubted = False

    def take(self, offset: int, headers: Headers, verdict: Verdict) -> None:
        """Take in the next record from `read_from` on, and its verdict."""
        if self._is_barrier_due:
            # Not there any more: truncated, or cleaned away.
            self._is_barrier_due = False
            is_barrier = verdict.kind == "barrier" and verdict.stamps[0] in self._stamps
            self._is_doubted = offset != self._assumed or not is_barrier
        if verdict.starts and self._has_barrier:
            self._look_at_starts(verdict)
        if offset in self._acknowledged:
            self._seen[self._outcome(headers, verdict)].add(offset)

    def _look_at_starts(self, verdict: Verdict) -> None:
        """An epoch that outranks the own one may not be opened by this record at all:
        a further scope of it may be stale, by what lies before the barrier.
        """
        outranks = any(
            start.epoch > self._scopes.get(start.scope, start.epoch)
            for start in verdict.starts
        )
        if outranks and any(s.scope not in self._scopes for s in verdict.stamps):
            self._is_doubted = True

    @property
    def is_in_doubt(self) -> bool:
        """Whether the barrier is no ground to stand on: begin again without it.

        To be asked once all records from `read_from` up to `read_to` were taken.
        """
        return self._is_doubted or self._is_barrier_due

    def _outcome(self, headers: Headers, verdict: Verdict) -> Outcome:
        is_barrier = any(name == BARRIER_HEADER for name, _ in headers)
        if is_barrier or verdict.stamps != self._stamps:
            return "lost"  # another record lies there
        if self._is_head_missing:
            return "fenced" if verdict.kind == "stale" else "indeterminate"
        return "fenced" if verdict.is_rejected else "admitted"

    def outcomes(self, first_outranked: int | None) -> dict[Outcome, OffsetRanges]:
        """The answer, once all records from `read_from` up to `read_to` were taken.

        Args:
            first_outranked: As the function of that name tells, by all starts known.
        """
        acknowledged = self._acknowledged
        found = self._seen
        found["admitted"].update(acknowledged.between(0, self._assumed))
        found["lost"].update(
            acknowledged.between(max(self._log_end, self._assumed), acknowledged.end)
        )
        # What is left was not seen: cleaned away, or gone with the log's head.
        unseen = acknowledged
        for offsets in found.values():
            unseen = unseen.without(offsets)
        if self._is_head_missing and first_outranked is not None:
            found["fenced"].update(unseen.between(first_outranked, unseen.end))
            unseen = unseen.between(0, first_outranked)
        found["indeterminate"].update(unseen)
        return found
