"""What a fenced consumer knows of one of its partitions."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

from confluent_kafka import OFFSET_INVALID, TopicPartition

from epochfence.epochs.errors import EpochfenceError
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.resuming import metadata_at, state_at
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.starts import CommitMetadata
from epochfence.epochs.values import EpochStart, SinkPosition, SinkState

#: `new`: its position is not fixed. `rebuilding`: what lies below is being read.
#: `ready`: it delivers. `stopped`: the application has to seek first.
Phase = Literal["new", "rebuilding", "ready", "stopped"]


class AssignedPartition:
    """One assigned partition: its fence, and how far it has come.

    Attributes:
        topic: The topic's name.
        number: The partition's number.
        settings: The settings of its fence.
        phase: What has to be done before it delivers.
        wanted: The offset to start at, as the application or the client said, a
            logical one perhaps; None: the committed one.
        topic_id: The topic's id in this life, None where there are none.
        fence: Judges its records, once the position is fixed.
        complete_to: Every epoch start below this offset is known and has its row;
            None: not known yet.
        read_to: Behind the last record that was judged.
        told_to: Below it, verdicts were counted and told of: what is read once more
            (after a pause) is not. A seek begins anew.
        next_offset: Behind the last record that was handed over or passed over;
            None while the position is not fixed.
        stored_offset: What the application has stored to be committed.
        committed_offset: What needs no commit any more.
        is_paused: Whether the application has paused it.
        has_gap: Whether records between `complete_to` and the position were not
            there when they were looked for.
        stored_starts: The epoch starts that a sink has stored.
        problem: What an operator has to see to before it can deliver.
    """

    def __init__(
        self, topic: str, number: int, settings: FenceSettings, wanted: int | None
    ) -> None:
        self.topic = topic
        self.number = number
        self.settings = settings
        self.phase: Phase = "new"
        self.wanted = wanted
        self.topic_id: str | None = None
        self.fence: PartitionFence | None = None
        self.complete_to: int | None = None
        self.read_to = 0
        self.told_to = 0
        self.next_offset: int | None = None
        self.stored_offset: int | None = None
        self.committed_offset: int | None = None
        self.is_paused = False
        self.has_gap = False
        self.stored_starts: tuple[EpochStart, ...] = ()
        self.problem: EpochfenceError | None = None
        # What a sink stores at an offset, worked out once.
        self._state: SinkState | None = None
        # Where each stretch of judged records of one leader epoch began.
        self._runs: list[tuple[int, int | None]] = []

    @property
    def leader_epoch(self) -> int | None:
        """The leader epoch of the last judged record, None if unknown."""
        return self._runs[-1][1] if self._runs else None

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition number."""
        return self.topic, self.number

    def at(self, offset: int = OFFSET_INVALID) -> TopicPartition:
        """This partition, at an offset, as the client takes it."""
        return TopicPartition(self.topic, self.number, offset)

    # Leader epochs.

    def note_run(self, leader_epoch: int | None, offset: int) -> None:
        """Note that records from `offset` on have this leader epoch."""
        runs = self._runs
        while runs and runs[-1][0] >= offset:
            runs.pop()
        if not runs or runs[-1][1] != leader_epoch:
            runs.append((offset, leader_epoch))

    def leader_epoch_below(self, offset: int) -> int | None:
        """The leader epoch of the last judged record below an offset, if known."""
        for first, leader_epoch in reversed(self._runs):
            if first < offset:
                return leader_epoch
        return None

    # Starting anew.

    def move_to(self, offset: int | None) -> None:
        """Start at another place, once that is fixed and what lies below is known."""
        self.phase = "new"
        self.problem = None
        self.wanted = offset
        self.told_to = 0
        self.next_offset = None
        self.stored_offset = None

    def enter_life(self, topic_id: str | None) -> None:
        """Begin with another life of the topic: nothing of it is known."""
        if self.topic_id is not None:
            self.wanted = None  # an offset of the former life
        self.topic_id = topic_id
        self.fence = None
        self.complete_to = None
        self.next_offset = None
        self.stored_offset = None
        self.committed_offset = None
        self._runs.clear()

    def start_at(
        self, fence: PartitionFence, offset: int, leader_epoch: int | None
    ) -> None:
        """Deliver from an offset on, below which every start is known."""
        self.phase = "ready"
        self.fence = fence
        self.wanted = None
        if offset > self.read_to:
            self.note_run(None, self.read_to)  # nobody knows of what lies between
        self.read_to = self.next_offset = offset
        self.has_gap = self.complete_to is None or self.complete_to < offset
        if leader_epoch is not None and offset > 0:
            self.note_run(leader_epoch, offset - 1)

    def truncate_to(self, end: int) -> None:
        """Note that the log was cut at an offset: what lies behind is not known."""
        if self.complete_to is not None:
            self.complete_to = min(self.complete_to, end)

    def forget_starts(self, starts: Collection[EpochStart]) -> None:
        """Forget starts that got no row: their records will be judged again."""
        fence = self.fence
        gone = set(starts)
        if fence is None or gone.isdisjoint(fence.starts):
            return
        known = [start for start in fence.starts if start not in gone]
        self.fence = fence.with_starts(known)

    # Commits, and what a sink stores in their place.

    @property
    def state(self) -> SinkState | None:
        """What a sink stores of all that was handed over; None: nothing is known."""
        offset = self.next_offset
        if self.fence is None or self.complete_to is None or offset is None:
            return None
        if self.phase != "ready" or offset > min(self.complete_to, self.read_to):
            return None
        if self._state is None or self.has_moved:
            self._state = state_at(self.fence, self._position_at(offset))
        return self._state

    @property
    def has_moved(self) -> bool:
        """Whether it stands elsewhere than when `state` was told."""
        offset = self.next_offset
        if self._state is None or offset is None:
            return True
        return self._state.position != self._position_at(offset)

    def _position_at(self, offset: int) -> SinkPosition:
        return SinkPosition(self.topic_id, self.leader_epoch_below(offset), offset)

    def metadata_at(self, offset: int) -> tuple[int | None, CommitMetadata]:
        """The leader epoch and metadata of a commit at an offset.

        Beyond what is known, the commit says only which life it is of, so that the
        next start looks at the records between.
        """
        if self.fence is None or self.complete_to is None:
            return None, CommitMetadata(self.topic_id)
        if offset > min(self.complete_to, self.read_to):
            return None, CommitMetadata(self.topic_id)
        leader_epoch = self.leader_epoch_below(offset)
        return leader_epoch, metadata_at(self.fence, leader_epoch, offset)
