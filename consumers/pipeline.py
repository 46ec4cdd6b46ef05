"""From the client to the outbox: messages received, judged, their rows written.

What an error holds up stays where it is, and the next call goes on there.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message

from epochfence.consumers.client import GroupClient
from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.looks import TopicLooks
from epochfence.consumers.outbox import Outbox, Place, place_of
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.rejections import Rejections
from epochfence.consumers.sieve import Sifted, stretches
from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.table import Table

#: So many messages are taken from the client's queue at once where the application
#: asks for one at a time.
_AHEAD = 500


@dataclass(slots=True)
class _Judged:
    """A batch with its verdicts, whose rows may not be written yet."""

    sifted: Sifted
    ends: dict[AssignedPartition, int]
    received_at: float


#: A plain consumer on a share group's id, classic or KIP-848, gets one of these.
_OTHER_KIND = (KafkaError.INCONSISTENT_GROUP_PROTOCOL, KafkaError._FATAL)


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
        #: Why the group cannot be read in, None where it can.
        self.refusal: MisconfiguredError | None = None
        self._is_dry_run = is_dry_run
        self._timeout_s = timeout_s
        # Not judged yet; judged, without rows yet; to be handed over.
        self._inbox: list[Message] = []
        self._received_at = 0.0
        self._judged: _Judged | None = None
        self.outbox = Outbox()
        #: What the client has to say besides, as messages with an error.
        self.events: list[Message] = []
        #: Partitions whose offset the client has found outside of the log.
        self.outside: dict[Place, Message] = {}

    @property
    def size(self) -> int:
        """How much there is to hand over at once."""
        return len(self.outbox) + len(self.events)

    def take(self, count: int) -> list[Message]:
        """Hand over at most `count` messages and events."""
        if not self.events:
            return self.outbox.take(count)
        events = self.events[:count]
        del self.events[:count]
        return events + self.outbox.take(count - len(events))

    def receive(self, missing: int, wait_s: float, count: int) -> None:
        """Take a batch from the client, unless one is still to be judged.

        Args:
            missing: How many messages the application still wants.
            wait_s: How long to wait for them.
            count: How many it wanted when it called.
        """
        if self._inbox:
            return
        raw = self._client.raw
        if count > 1:
            batch = raw.consume(missing, wait_s)
        else:
            first = raw.poll(wait_s)
            batch = [] if first is None else [first, *raw.consume(_AHEAD - 1, 0)]
        self._received_at = time.monotonic()
        # An error has no other trace: it is asked for at each, in the client's speed.
        if any(map(Message.error, batch)):
            for event in [m for m in batch if m.error() is not None]:
                self._take_event(event)
            batch = [message for message in batch if message.error() is None]
        self._inbox = batch

    def _take_event(self, event: Message) -> None:
        error = event.error()
        assert error is not None
        place = place_of(event)
        partition = self._partitions.get(place)
        if error.code() == KafkaError._AUTO_OFFSET_RESET and partition is not None:
            if partition.phase == "ready":
                self.outside[place] = event
            return
        if error.code() in _OTHER_KIND and self._is_refused(error):
            return
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            self._looks.doubt(place[0])
        self.events.append(event)

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

    def judge(self) -> None:
        """Give verdicts to what was received, as far as that goes."""
        if not self._inbox:
            return
        if self._view.update():
            for assigned in self._partitions.values():
                fence = assigned.fence
                if fence is not None:
                    fence.ledger_replaced(self._view.state)
        sifted = Sifted(self._is_dry_run)
        judged = _Judged(sifted, {}, self._received_at)
        parts = list(
            stretches(
                self._inbox,
                is_one_topic=len({topic for topic, _ in self._partitions}) == 1,
            )
        )
        is_complete = False
        rest: list[Message] = []
        failure: EpochfenceError | None = None
        for index, (topic, number, messages) in enumerate(parts):
            partition = self._partitions.get((topic, number))
            expected = [] if partition is None else self._expected(partition, messages)
            if partition is None or partition.fence is None or not expected:
                continue
            before = sifted.judged
            try:
                is_complete = self._view.sift(
                    partition.fence, expected, sifted, is_complete=is_complete
                )
            except EpochfenceError as error:
                failure = error
                rest = expected[sifted.judged - before :]
                for _, _, later in parts[index + 1 :]:
                    rest += later
                expected = expected[: sifted.judged - before]
            if expected:
                judged.ends[partition] = _note_judged(partition, expected)
            if failure is not None:
                break
        self._inbox = rest
        if sifted.judged:
            self._judged = judged
        elif failure is not None:
            raise failure

    def _expected(
        self, partition: AssignedPartition, messages: list[Message]
    ) -> list[Message]:
        """Those messages that come next in a partition which delivers."""
        if partition.phase != "ready":
            return []  # they are read again, once it is placed
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
        fallen = messages[0].leader_epoch()
        known = partition.leader_epoch
        if fallen is not None and known is not None and fallen < known:
            self._looks.look([partition.topic])
        return messages

    def release(self) -> None:
        """Write the rows of what was judged; then it may be handed over."""
        judged = self._judged
        if judged is None:
            return
        starts = judged.sifted.starts
        if starts:
            topics = {start.topic for start in starts}
            if not self._looks.began_since(topics, judged.received_at):
                self._looks.look(topics)
            for topic in sorted(topics):
                self._table.write(
                    [start for start in starts if start.topic == topic],
                    self._settings[topic].digest(),
                    self._timeout_s,
                )
        self._judged = None
        for partition, end in judged.ends.items():
            partition.complete_to = max(partition.complete_to or 0, end)
        self.outbox.add(judged.sifted.passed, judged.ends)
        self._rejections.take(judged.sifted, self._view.state)

    def drop(self, places: Collection[Place]) -> bool:
        """Drop what is on the way of these partitions; whether there was anything."""
        was_there = any(self.outbox.holds(place) for place in places)
        self.outbox.drop(places)
        kept = [m for m in self._inbox if place_of(m) not in places]
        was_there = was_there or len(kept) < len(self._inbox)
        self._inbox = kept
        judged = self._judged
        if judged is not None:
            sifted = judged.sifted
            gone = [s for s in sifted.starts if (s.topic, s.partition) in places]
            sifted.starts = [s for s in sifted.starts if s not in gone]
            sifted.passed = [m for m in sifted.passed if place_of(m) not in places]
            for partition in [p for p in judged.ends if p.place in places]:
                del judged.ends[partition]
                partition.forget_starts(gone)
                was_there = True
        for place in places:
            self.outside.pop(place, None)
        return was_there


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
