"""From the client to the outbox: messages received, judged, their rows written.

What an error holds up stays where it is, and the next call goes on there. Only messages
of partitions that deliver are on their way; whoever moves a partition drops them first.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, Message

from epochfence.consumers.client import GroupClient
from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.consumers.outbox import Outbox, place_of
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.pieces import Piece, cut, share_headers
from epochfence.consumers.rejections import Rejections
from epochfence.consumers.sieve import Sifted
from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.table import Table
from epochfence.epochs.values import EpochStart, Place

#: So many messages are taken from the client's queue at once where the application
#: asks for one at a time.
_AHEAD = 200

#: So many may wait to be judged while an error holds them up.
_MOST_WAITING = 10_000

#: After this time without a call, the client may take the application for dead.
_SERVE_EVERY_S = 1.0

#: A plain consumer on a share group's id, classic or KIP-848, gets one of these.
_OTHER_KIND = (KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError._FATAL)


@dataclass(slots=True)
class _Part:
    """Messages of one partition with their verdicts, or an event of the client."""

    partition: AssignedPartition | None
    sifted: Sifted
    end: int = 0


@dataclass(slots=True)
class _Judged:
    """A batch with its verdicts, whose rows may not be written yet."""

    received_at: float
    parts: list[_Part] = field(default_factory=list[_Part])

    @property
    def starts(self) -> list[EpochStart]:
        return [start for part in self.parts for start in part.sifted.starts]

    @property
    def passed(self) -> list[Message]:
        if len(self.parts) == 1:
            return self.parts[0].sifted.passed
        return [message for part in self.parts for message in part.sifted.passed]

    @property
    def ends(self) -> dict[AssignedPartition, int]:
        return {part.partition: part.end for part in self.parts if part.partition}


class Pipeline:
    """What is on its way from the client to the application.

    Args:
        client: The client underneath.
        partitions: All that are assigned, kept up to date by its owner.
        settings: The settings of each topic's fence.
        view: The ledger.
        table: The max-epoch table.
        looks: Tells topic ids.
        rejections: Is told of verdicts.
        group_id: The group, for messages.
        is_dry_run: Whether rejected messages are delivered all the same.
        timeout_s: How long each wait for the cluster may take.
    """

    def __init__(
        self,
        client: GroupClient,
        partitions: Mapping[Place, AssignedPartition],
        settings: Mapping[str, FenceSettings],
        view: LedgerView,
        table: Table,
        looks: TopicLooks,
        rejections: Rejections,
        *,
        group_id: str,
        is_dry_run: bool,
        timeout_s: float,
    ) -> None:
        self._client = client
        self._partitions = partitions
        self._settings = settings
        self._view = view
        self._table = table
        self._looks = looks
        self._rejections = rejections
        self._group_id = group_id
        self._is_dry_run = is_dry_run
        self._timeout_s = timeout_s
        # Not judged yet; judged, without rows yet; to be handed over.
        self._inbox: list[Message] = []
        #: When the client was called last, by `time.monotonic`.
        self.received_at = 0.0
        # The one partition that all of the inbox is of, where that is known.
        self._only: AssignedPartition | None = None
        self._judged: _Judged | None = None
        self.outbox = Outbox()
        #: Partitions whose offset the client has found outside of the log.
        self.outside: dict[Place, Message] = {}
        #: Whether messages may have been lost between the client and here.
        self.has_lost_track = False
        #: Why the group cannot be read in, None where it can.
        self.refusal: MisconfiguredError | None = None

    @property
    def is_client_waiting(self) -> bool:
        """Whether the client has to be called again, whatever there is to hand over."""
        return time.monotonic() - self.received_at > _SERVE_EVERY_S

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits for more than to be handed over."""
        return not self._inbox and self._judged is None and not self.outside

    @property
    def inbox_size(self) -> int:
        """How much waits to be judged."""
        return len(self._inbox)

    # Receiving.

    def receive(self, missing: int, wait_s: float, count: int) -> None:
        """Take a batch from the client; while one waits, hardly more than callbacks.

        Args:
            missing: How many messages the application still wants.
            wait_s: How long to wait for them.
            count: How many it wanted when it called.

        Raises what the application's callbacks raised, with nothing lost.
        """
        # What a signal's handler raises takes messages with it that the client has
        # given out already.
        self.has_lost_track = True
        is_held_up = bool(self._inbox)
        only, self._only = self._sole_partition(), None
        if self._inbox or missing <= 0:
            # The client is called whatever waits: a rebalance may be what helps.
            self._take_in(self._ask(1, wait_s))
        elif count > 1:
            self._take_in(self._ask(missing, wait_s))
        else:
            first = self._client.raw.poll(wait_s)
            if first is not None:
                self._take_in([first])
                self._take_in(self._ask(_AHEAD - 1, 0))
        self.has_lost_track = False
        if is_held_up and len(self._inbox) > _MOST_WAITING:
            # Too much to keep while an error lasts: it is read again after it.
            self._inbox = []
            self.has_lost_track = True
        self.received_at = time.monotonic()
        # The assignment may have changed meanwhile, and what came be of either.
        if not is_held_up and only is self._sole_partition():
            self._only = only
        if not all(p.phase == "ready" for p in self._partitions.values()):
            # What is not placed is read again once it is.
            self._inbox = [m for m in self._inbox if self._is_expected(m)]
        self._client.raise_from_callbacks()

    def _sole_partition(self) -> AssignedPartition | None:
        if len(self._partitions) != 1:
            return None
        return next(iter(self._partitions.values()), None)

    def _ask(self, count: int, wait_s: float) -> list[Message]:
        try:
            return self._client.raw.consume(count, wait_s)
        except (KafkaException, RuntimeError):
            self.has_lost_track = False  # it says no, and gives nothing out
            raise

    def _take_in(self, batch: list[Message]) -> None:
        if not self._inbox:
            self._inbox = batch
            return
        # Callbacks ran meanwhile: what came before may be of others by now.
        self._inbox = [m for m in self._inbox if self._is_expected(m)] + batch

    def _is_expected(self, message: Message) -> bool:
        partition = self._partitions.get(place_of(message))
        is_placed = partition is not None and partition.phase == "ready"
        return is_placed or message.error() is not None

    # Judging.

    def judge(self) -> None:
        """Give verdicts to what was received, as far as that goes."""
        if not self._inbox or self._judged is not None:
            return
        self._view.update()
        judged = _Judged(self.received_at)
        pieces = list(self._pieces())
        is_complete = False
        done = 0
        try:
            for partition, piece in pieces:
                if partition is None:
                    self._take_events(piece.messages, judged)
                else:
                    is_complete = self._judge_piece(
                        partition, piece, judged, is_complete=is_complete
                    )
                done += 1
        except BaseException as error:
            if not judged.parts:
                raise
            self._inbox, self._judged = self._rest(pieces[done:]), judged
            # What was judged goes on; the next call meets the error again.
            if not isinstance(error, EpochfenceError):
                raise
        else:
            self._inbox, self._judged = [], judged

    def _pieces(self) -> Iterator[tuple[AssignedPartition | None, Piece]]:
        """The inbox, cut where the partition changes; None: events of the client."""
        is_one_topic = len(self._settings) == 1
        only = None if self._only is None else self._only.place
        are_alike = share_headers(self._inbox)
        for piece in cut(
            self._inbox, is_one_topic=is_one_topic, only=only, are_alike=are_alike
        ):
            if piece.place is None:
                yield None, piece
                continue
            partition = self._partitions.get(piece.place)
            if partition is not None:
                yield partition, piece

    def _judge_piece(
        self,
        partition: AssignedPartition,
        piece: Piece,
        judged: _Judged,
        *,
        is_complete: bool,
    ) -> bool:
        """Judge messages of one partition; whether the ledger was read meanwhile."""
        expected = self._expected(partition, piece.messages)
        for messages in _cut_at(expected, partition.told_to):
            is_complete = self._sift(
                partition,
                piece._replace(messages=messages),
                judged,
                is_complete=is_complete,
            )
        return is_complete

    def _sift(
        self,
        partition: AssignedPartition,
        piece: Piece,
        judged: _Judged,
        *,
        is_complete: bool,
    ) -> bool:
        assert partition.fence is not None
        sifted = Sifted(self._is_dry_run)
        try:
            return self._view.sift(
                partition.fence, piece.messages, sifted,
                is_complete=is_complete, are_alike=piece.are_alike,
            )  # fmt: skip
        finally:
            if sifted.judged:
                end = _note_judged(partition, piece.messages[: sifted.judged])
                judged.parts.append(_Part(partition, sifted, end))

    def _rest(
        self, pieces: Sequence[tuple[AssignedPartition | None, Piece]]
    ) -> list[Message]:
        """What is still to be judged: read no more, and nothing that was moved."""
        return [
            message
            for partition, piece in pieces
            for message in piece.messages
            if partition is None
            or (
                partition.phase == "ready"
                and (message.offset() or 0) >= partition.read_to
            )
        ]

    def _expected(
        self, partition: AssignedPartition, messages: list[Message]
    ) -> list[Message]:
        """Those messages that come next in a partition which delivers."""
        if partition.phase != "ready" or partition.fence is None:
            return []
        offset = messages[0].offset()
        assert offset is not None
        if offset < partition.read_to:
            messages = [m for m in messages if (m.offset() or 0) >= partition.read_to]
            if not messages:
                return []
        if partition.has_gap:
            # Records that were not there when what lies below was read.
            self._client.hold([partition])
            partition.move_to(offset)
            return []
        epochs = [
            partition.leader_epoch,
            *(messages[n].leader_epoch() for n in (0, -1)),
        ]
        known = [epoch for epoch in epochs if epoch is not None]
        if known != sorted(known):
            # It fell while offsets rose: of another life, perhaps.
            self._looks.look([partition.topic])
        return messages

    # Events.

    def _take_events(self, events: Sequence[Message], judged: _Judged) -> None:
        sifted = Sifted()
        for event in events:
            if not self._is_ours(event):
                sifted.passed.append(event)
        if sifted.passed:
            judged.parts.append(_Part(None, sifted))

    def _is_ours(self, event: Message) -> bool:
        """Whether an event is dealt with here; else the application is told."""
        error = event.error()
        assert error is not None
        place = place_of(event)
        partition = self._partitions.get(place)
        if error.code() == KafkaError._AUTO_OFFSET_RESET and partition is not None:
            if partition.phase == "ready":
                self.outside[place] = event
            return True
        if error.code() in _OTHER_KIND and self._is_refused(error):
            return True
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._looks.doubt(place[0])
        return False

    def _is_refused(self, error: KafkaError) -> bool:
        """Whether the group is of a kind that this consumer can be no member of."""
        text = error.str()
        if error.code() == KafkaError._FATAL and "group id does not exist" not in text:
            return False
        self.refusal = MisconfiguredError(
            "group.id", self._group_id, f"the group cannot be joined: {text}",
            "It may be a share group (KIP-932), which breaks the order within a "
            "partition, or have members with another group.protocol or "
            "partition.assignment.strategy. Use a group of its own.",
        )  # fmt: skip
        return True

    # Releasing.

    def release(self) -> None:
        """Write the rows of what was judged; then it may be handed over."""
        judged = self._judged
        if judged is None:
            return
        starts = judged.starts
        if starts:
            self._write_rows(starts, judged.received_at)
        self._judged = None
        for partition, end in judged.ends.items():
            partition.complete_to = max(partition.complete_to or 0, end)
        self.outbox.add(judged.passed, judged.ends)
        for part in judged.parts:
            of = part.partition
            if of is None or part.end > of.told_to:
                self._rejections.take(part.sifted, self._view.state)
            if of is not None:
                of.told_to = max(of.told_to, part.end)

    def _write_rows(self, starts: list[EpochStart], received_at: float) -> None:
        topics = {start.topic for start in starts}
        self._looks.look_since(topics, received_at)
        other = {s.topic for s in starts if s.topic_id != self._looks.topic_id(s.topic)}
        if other:
            raise TopicMadeAnew(frozenset(other))
        for topic in sorted(topics):
            self._table.write(
                [start for start in starts if start.topic == topic],
                self._settings[topic].digest(),
                self._timeout_s,
            )

    # Dropping.

    def drop(self, places: Collection[Place]) -> bool:
        """Drop what is on the way of these partitions; whether there was anything."""
        was_there = any(self.outbox.holds(place) for place in places)
        self.outbox.drop(places)
        kept = [m for m in self._inbox if place_of(m) not in places]
        was_there = was_there or len(kept) < len(self._inbox)
        self._inbox = kept
        judged = self._judged
        if judged is not None:
            gone = [
                part
                for part in judged.parts
                if part.partition is not None and part.partition.place in places
            ]
            judged.parts = [part for part in judged.parts if part not in gone]
            for part in gone:
                assert part.partition is not None
                part.partition.forget_starts(part.sifted.starts)
                was_there = True
        return was_there


def _cut_at(messages: list[Message], offset: int) -> list[list[Message]]:
    """Messages below an offset, and the rest; neither where it is empty."""
    if not messages or (messages[0].offset() or 0) >= offset:
        return [messages] if messages else []
    below = sum((message.offset() or 0) < offset for message in messages)
    return [part for part in (messages[:below], messages[below:]) if part]


def _note_judged(partition: AssignedPartition, messages: Sequence[Message]) -> int:
    """Note the leader epochs of judged records; give the offset behind the last."""
    first, last = messages[0], messages[-1]
    offset, end = first.offset(), last.offset()
    assert offset is not None
    assert end is not None
    if first.leader_epoch() == last.leader_epoch():
        partition.note_run(first.leader_epoch(), offset)
    else:
        for message in messages:
            partition.note_run(message.leader_epoch(), message.offset() or 0)
    partition.read_to = end + 1
    return end + 1
