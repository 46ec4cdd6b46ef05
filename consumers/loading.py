"""Bringing partitions to where they may deliver: position, table, rebuild.

In this order, for each partition that was assigned or whose position moved over
records that were not judged: the topic's id is read; the position is fixed as a
number; the table is read to its end, then the ledger; what a commit says of the
table is compared with it; and where something is missing, the partition is read
from its start up to the position.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from copy import copy

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
)

from epochfence.consumers.arguments import TAIL_BASE
from epochfence.consumers.client import GroupClient
from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.looks import TopicLooks
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.rebuild import Rebuild
from epochfence.epochs.clients import Clients
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import EpochfenceError, TableMissing, TopicUnavailable
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.resuming import (
    Resumption,
    count_below,
    has_all,
    names_life,
    resume,
    resume_stored,
)
from epochfence.epochs.table import Table
from epochfence.epochs.values import Position, SinkState

_log = logging.getLogger(__name__)

#: Tells what a sink has stored of a topic's partition, None for nothing.
Positions = Callable[[str, int], SinkState | None]

#: How long one call reads for a rebuild before the other partitions get their turn.
_REBUILD_SLICE_S = 0.1


class _Placed:
    """A partition whose position is fixed.

    Attributes:
        partition: The partition.
        low: The log's first offset.
        start: Where to begin, and what has to be known there.
        offset: The same as a number.
        is_committed: Whether the group's commit says so.
    """

    def __init__(
        self,
        partition: AssignedPartition,
        low: int,
        start: Resumption,
        *,
        is_committed: bool,
    ) -> None:
        self.partition = partition
        self.is_committed = is_committed
        self.low = low
        self.start = start
        self.offset = low if start.offset is None else start.offset


class Loader:
    """Brings assigned partitions to where they deliver.

    Args:
        client: The client underneath.
        config: Connection settings, for the reading of a rebuild.
        view: The ledger.
        table: The max-epoch table.
        looks: Tells topic ids.
        reset: The policy where nothing is committed.
        may_rebuild: Whether epoch starts that are missing may be found by reading.
        timeout_s: How long each wait may take.
        clients: Opens what a rebuild reads with.
        positions: Tells what a sink has stored of a partition; None: the group's
            commits tell where to begin.
    """

    def __init__(
        self,
        client: GroupClient,
        config: Config,
        view: LedgerView,
        table: Table,
        looks: TopicLooks,
        *,
        reset: str,
        may_rebuild: bool,
        timeout_s: float,
        clients: Clients,
        positions: Positions | None,
    ) -> None:
        self._clients = clients
        self._positions = positions
        self._client = client
        self._config = config
        self._view = view
        self._table = table
        self._looks = looks
        self._reset = reset
        self._may_rebuild = may_rebuild
        self._timeout_s = timeout_s
        self._rebuilds: dict[AssignedPartition, tuple[_Placed, Rebuild]] = {}
        #: What the application has to be told, as messages with an error.
        self.notices: list[Message] = []

    def settle(
        self,
        partitions: Collection[AssignedPartition],
    ) -> None:
        """Bring partitions on, as far as it goes without holding up the others.

        Args:
            partitions: All that are assigned.

        Raises:
            TopicMadeAnew: A topic is another than before.
            TopicUnavailable, TableUnavailable, LedgerUnavailable: Call again.
            LedgerRegressed, TableMissing: An operator decides.
            MisconfiguredError: It was not decided what to do with a record.
        """
        for partition in partitions:
            if partition.problem is not None:
                raise copy(partition.problem)  # its traceback would grow
            if partition.phase == "rebuilding" and partition not in self._rebuilds:
                partition.phase = "new"  # something came in the way of its end
        fresh = [p for p in partitions if p.phase == "new"]
        if fresh:
            self._looks.look(p.topic for p in partitions)
            placed = self._place(fresh)
            self._table.refresh(self._timeout_s)
            rows = [row for p in fresh for row in self._table.starts(p.topic, p.number)]
            rows += [start for p in fresh for start in p.stored_starts]
            self._view.refresh(rows)
            for one in placed:
                self._load(one, partitions)
        for partition in partitions:
            if partition.phase == "rebuilding":
                self._rebuild(partition, partitions)
                break  # one at a time: each has a client of its own

    def forget(self, partitions: Collection[AssignedPartition]) -> None:
        """Stop what is being done for partitions."""
        for partition in partitions:
            going_on = self._rebuilds.pop(partition, None)
            if going_on is not None:
                going_on[1].close()

    @property
    def progress(self) -> dict[tuple[str, int], tuple[int, int, int]]:
        """The rebuilds that go on: where each began, has come to, and will end."""
        return {
            partition.place: (rebuild.start, rebuild.position, rebuild.end)
            for partition, (_, rebuild) in list(self._rebuilds.items())
        }

    # The position, as a number.

    def _place(self, fresh: Sequence[AssignedPartition]) -> list[_Placed]:
        for partition in fresh:
            topic_id = self._looks.topic_id(partition.topic)
            if partition.topic_id != topic_id:
                partition.enter_life(topic_id)
        going_on = [
            p for p in fresh if p.wanted in (None, OFFSET_STORED, OFFSET_INVALID)
        ]
        if self._positions is None:
            committed = self._committed(going_on)
        else:
            committed = self._stored(going_on, self._positions)
        placed: list[_Placed] = []
        for partition in fresh:
            low, high = self.bounds(partition)
            start = committed.get(partition) or self._start(partition, low, high)
            if start is None:
                self.notices.append(_no_offset(partition))
                partition.phase = "stopped"
            else:
                is_committed = partition in committed
                placed.append(_Placed(partition, low, start, is_committed=is_committed))
        return placed

    def _committed(
        self, partitions: Sequence[AssignedPartition]
    ) -> dict[AssignedPartition, Resumption]:
        """Where the group's commits have partitions begin; without those it has not."""
        if not partitions:
            return {}
        try:
            offsets = self._client.raw.committed(
                [p.at() for p in partitions], timeout=self._timeout_s
            )
        except KafkaException as error:
            raise self._no_offsets(partitions[0], error.args[0].str()) from error
        found: dict[AssignedPartition, Resumption] = {}
        for partition, tp in zip(partitions, offsets, strict=True):
            if tp.error is not None:
                raise self._no_offsets(partition, tp.error.str())
            if tp.offset < 0:
                continue
            life = partition.topic_id
            if partition.topic in self._looks.renewed and not names_life(
                tp.metadata, life
            ):
                continue  # of a life that was seen to end
            found[partition] = resume(tp.offset, tp.leader_epoch, tp.metadata, life)
            partition.committed_offset = tp.offset
        return found

    def _stored(
        self, partitions: Sequence[AssignedPartition], positions: Positions
    ) -> dict[AssignedPartition, Resumption]:
        """Where a sink has partitions begin; without those it knows nothing of."""
        found: dict[AssignedPartition, Resumption] = {}
        for partition in partitions:
            state = positions(partition.topic, partition.number)
            if state is None:
                continue
            partition.stored_starts = state.starts
            life = partition.topic_id
            is_of_it = state.position.topic_id == life
            if is_of_it or partition.topic not in self._looks.renewed:
                found[partition] = resume_stored(state, life)
            # else: of a life that was seen to end
        return found

    def _no_offsets(
        self, partition: AssignedPartition, reason: str
    ) -> TopicUnavailable:
        return TopicUnavailable(
            partition.topic,
            f"the group's committed offset is not to be had: {reason}",
            partition.number,
        )

    def bounds(self, partition: AssignedPartition) -> tuple[int, int]:
        """The log's first offset, and the one behind its last.

        Raises:
            TopicUnavailable: Its leader does not answer.
        """
        try:
            return self._client.raw.get_watermark_offsets(
                partition.at(), timeout=self._timeout_s
            )
        except KafkaException as error:
            raise TopicUnavailable(
                partition.topic, error.args[0].str(), partition.number
            ) from error

    def _start(
        self, partition: AssignedPartition, low: int, high: int
    ) -> Resumption | None:
        """Where to begin without a commit; None: the application has to say."""
        wanted = partition.wanted
        if wanted in (None, OFFSET_STORED, OFFSET_INVALID):
            if partition.topic in self._looks.renewed:
                return Resumption(None)  # its life was seen to begin
            if self._reset == "error":
                return None
            wanted = OFFSET_END if self._reset == "latest" else OFFSET_BEGINNING
        if wanted == OFFSET_BEGINNING:
            offset = low
        elif wanted == OFFSET_END:
            offset = high
        elif wanted < 0:
            offset = max(low, high - (TAIL_BASE - wanted))
        else:
            offset = wanted
        # Where nobody has come to by reading, there is nothing to commit.
        partition.committed_offset = offset
        # Of what was not read here, nobody knows the leader epoch.
        is_read = offset <= min(high, partition.read_to)
        known = partition.leader_epoch_below(offset) if is_read else None
        return Resumption(offset, known)

    # What is known there.

    def _load(
        self,
        placed: _Placed,
        partitions: Collection[AssignedPartition],
    ) -> None:
        partition, offset = placed.partition, placed.offset
        known = dict.fromkeys(self._table.starts(partition.topic, partition.number))
        known.update(dict.fromkeys(partition.stored_starts))
        if partition.fence is not None:
            known.update(dict.fromkeys(partition.fence.starts))
        fence = PartitionFence(
            partition.topic,
            partition.number,
            partition.settings,
            self._view.state,
            known,
        )
        fence.enter_life(partition.topic_id)
        self._table.compare_settings(
            partition.topic, partition.number, partition.settings
        )
        metadata = placed.start.metadata
        known_to = partition.complete_to
        is_known = known_to is not None and offset <= known_to
        if not is_known and metadata is not None:
            is_known = has_all(fence, placed.start.leader_epoch, offset, metadata)
        if not is_known and offset > placed.low:
            if not self._may_rebuild:
                raise self._missing(placed, fence)
            begin = placed.low if known_to is None else max(placed.low, known_to)
            self._warn_of_lost_head(placed, fence)
            rebuild = Rebuild(
                self._config,
                fence,
                self._view,
                begin,
                offset,
                self._timeout_s,
                self._clients,
            )
            self._rebuilds[partition] = placed, rebuild
            partition.phase = "rebuilding"
            return
        if not is_known:
            self._check_rows(placed, fence)
            self._warn_of_lost_head(placed, fence)
        self._begin(placed, fence, placed.start.leader_epoch, offset, partitions)

    def _rebuild(
        self,
        partition: AssignedPartition,
        partitions: Collection[AssignedPartition],
    ) -> None:
        placed, rebuild = self._rebuilds[partition]
        try:
            if not rebuild.advance(_REBUILD_SLICE_S):
                return
        except BaseException as error:
            is_at_its_end = isinstance(error, TopicUnavailable)
            if is_at_its_end or not isinstance(error, EpochfenceError):
                # What a signal's handler raises leaves a hole in the reading.
                partition.phase = "new"
                self.forget([partition])
            raise
        # The id as of after the last record that was read: else its rows would be
        # written, and the position taken, for another life.
        self._looks.look([partition.topic])
        self._table.write(rebuild.starts, partition.settings.digest(), self._timeout_s)
        self.forget([partition])
        self._check_rows(placed, rebuild.fence)
        leader_epoch = placed.start.leader_epoch
        if leader_epoch is None:
            leader_epoch = rebuild.leader_epoch
        known_to = min(rebuild.position, placed.offset)
        self._begin(placed, rebuild.fence, leader_epoch, known_to, partitions)
        if placed.is_committed:
            partition.committed_offset = None  # the next commit says what is known

    def _check_rows(self, placed: _Placed, fence: PartitionFence) -> None:
        metadata, start = placed.start.metadata, placed.start
        if metadata is None:
            return
        if not has_all(fence, start.leader_epoch, placed.offset, metadata):
            # All was read, and nothing more is to be found: an operator decides.
            placed.partition.phase = "stopped"
            placed.partition.problem = self._missing(placed, fence)
            raise placed.partition.problem

    def _missing(self, placed: _Placed, fence: PartitionFence) -> TableMissing:
        start = placed.start
        return TableMissing(
            fence.topic,
            fence.partition,
            placed.offset,
            None if start.metadata is None else start.metadata.starts,
            count_below(fence, start.leader_epoch, placed.offset),
        )

    def _begin(
        self,
        placed: _Placed,
        fence: PartitionFence,
        leader_epoch: int | None,
        known_to: int,
        partitions: Collection[AssignedPartition],
    ) -> None:
        partition, offset = placed.partition, placed.offset
        if partition.complete_to is None or partition.complete_to < known_to:
            partition.complete_to = known_to
        try:
            self._client.place(partition, offset, leader_epoch, partitions)
        except KafkaException as error:
            partition.phase = "new"
            raise TopicUnavailable(
                partition.topic, error.args[0].str(), partition.number, offset
            ) from error
        partition.start_at(fence, offset, leader_epoch)

    # Warnings.

    def _warn_of_lost_head(self, placed: _Placed, fence: PartitionFence) -> None:
        """Say what cannot be known where the log does not begin at 0."""
        if placed.low <= 0:
            return
        current: dict[str, int] = {}
        for start in fence.counting(Position(None, placed.low)):
            current[start.scope] = max(start.epoch, current.get(start.scope, -1))
        required = placed.partition.settings.required_scopes(fence.partition)
        latest = self._view.state
        if required and all(
            current.get(scope, -1) == latest.epoch_of(scope) for scope in required
        ):
            return
        _log.warning(
            "%s[%d] begins at offset %d: epochs that began before it are known only "
            "as far as the table has rows of them",
            fence.topic,
            fence.partition,
            placed.low,
        )


def _no_offset(partition: AssignedPartition) -> Message:
    """What the client reports under the policy `error`."""
    reason = KafkaError(
        KafkaError._AUTO_OFFSET_RESET, "no previously committed offset available"
    )
    return Message(topic=partition.topic, partition=partition.number, error=reason)
