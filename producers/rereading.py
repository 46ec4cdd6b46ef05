"""The messages of a deposed leader: read again, judged, and what was found recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from epochfence.epochs.confirming import PartitionAnswer, first_outranked
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import some_time, time_left
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.messages import headers_of
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.receipts import Outcome, Part
from epochfence.epochs.values import EpochStart, Place
from epochfence.producers.barriers import BarrierWriter
from epochfence.producers.judging import Judging
from epochfence.producers.lives import Life, Lives
from epochfence.producers.territory import Territory


class _Judged(NamedTuple):
    """What the reading of a partition came to."""

    outcomes: Mapping[Outcome, OffsetRanges]
    starts: list[EpochStart]


class Rereading:
    """Answers for the messages of a deposed leader.

    Args:
        connection: Connection settings, as for confluent-kafka.
        ledger: Knows the grants; its table, where epochs began.
        leaderships: What the messages were written under.
        territory: Tells where the own barriers are.
        writer: Writes a barrier where the true end of a log is in question.
        lives: Looks at topics.
        judging: How the consumers judge.
    """

    def __init__(
        self,
        connection: Config,
        ledger: Ledger,
        leaderships: Sequence[Leadership],
        territory: Territory,
        writer: BarrierWriter,
        lives: Lives,
        judging: Judging,
    ) -> None:
        self._connection = connection
        self._ledger = ledger
        self._leaderships = leaderships
        self._stamps = tuple(held.stamp for held in leaderships)
        self._epochs = {held.scope: held.epoch for held in leaderships}
        self._territory = territory
        self._writer = writer
        self._lives = lives
        self._judging = judging

    def answer(
        self, standing: Mapping[Place, OffsetRanges], deadline: float
    ) -> list[Part]:
        """What became of messages, by where they were acknowledged.

        To be called after the ledger was read to its end.

        Raises:
            TopicUnavailable: A partition could not be read as far as needed.
            TableUnavailable: The table could not be read or written.
            LedgerUnavailable, LedgerRegressed: As `Ledger.refresh`.
        """
        self._ledger.table.refresh(some_time(deadline))
        parts: list[Part] = []
        for topic in sorted({topic for topic, _ in standing}):
            of_topic = {
                number: offsets
                for (name, number), offsets in standing.items()
                if name == topic
            }
            for number, judged in self._judge_topic(topic, of_topic, deadline).items():
                parts += [
                    Part(topic, number, outcome, offsets)
                    for outcome, offsets in judged.outcomes.items()
                ]
        return parts

    def _judge_topic(
        self, topic: str, standing: Mapping[int, OffsetRanges], deadline: float
    ) -> Mapping[int, _Judged]:
        """Judge the partitions of a topic, all in one life of it; write the rows."""
        life = self._lives.look(topic, deadline)
        while True:
            judged = {
                number: self._judge((topic, number), offsets, life, deadline)
                for number, offsets in standing.items()
            }
            # A look that begins after the last record was received: the client goes on
            # silently when a topic is made anew.
            seen = self._lives.look(topic, deadline)
            if seen == life:
                break
            life = seen
        starts = [start for one in judged.values() for start in one.starts]
        self._ledger.table.write(
            starts,
            self._judging.of(topic).digest(),
            some_time(deadline),
        )
        return judged

    def _judge(
        self, place: Place, standing: OffsetRanges, now: Life | None, deadline: float
    ) -> _Judged:
        if now is None or place[1] not in now.partitions:
            # It is gone, with all that was in it; others wait for their answer.
            return _Judged({"indeterminate": standing}, [])
        life = now.topic_id
        ground = self._territory.ground(place)
        is_same_life = ground is not None and ground.topic_id == life
        barrier = ground.barrier if ground is not None and is_same_life else None
        fence, answer = self._read(place, standing, life, barrier, deadline)
        if answer.is_in_doubt:
            barrier = None
            fence, answer = self._read(place, standing, life, barrier, deadline)
        known = fence.starts
        starts = list(known)
        if barrier is not None:
            # A reading that begins there does not know of other scopes; and the own
            # epochs may have begun before: a successor's have not.
            own = self._epochs
            starts = [s for s in known if s.epoch > own.get(s.scope, s.epoch)]
        return _Judged(
            answer.outcomes(first_outranked(self._stamps, life, known)), starts
        )

    def _read(
        self,
        place: Place,
        standing: OffsetRanges,
        life: str | None,
        barrier: int | None,
        deadline: float,
    ) -> tuple[PartitionFence, PartitionAnswer]:
        topic, number = place
        clients = self._ledger.clients
        with clients.partition_reader(self._connection, topic, number) as reader:
            # A barrier that proves something is looked at, wherever the messages lie.
            end = standing.end if barrier is None else max(standing.end, barrier + 1)
            log_start, log_end = self._bounds(reader, end, deadline)
            answer = PartitionAnswer(
                standing, self._stamps, barrier, log_start, log_end
            )
            fence = PartitionFence(
                topic,
                number,
                self._judging.of(topic).decided(),
                self._ledger.state,
                self._ledger.table.starts(topic, number),
            )
            fence.enter_life(life)
            self._fold(reader, fence, answer, deadline)
        return fence, answer

    def _fold(
        self,
        reader: PartitionReader,
        fence: PartitionFence,
        answer: PartitionAnswer,
        deadline: float,
    ) -> None:
        batches = reader.read(
            answer.read_from,
            answer.read_to,
            stall_timeout_s=some_time(deadline),
        )
        for batch in batches:
            if time_left(deadline) == 0:
                raise self._unavailable(reader, "it was not read in time; allow more")
            is_complete = False
            for message in batch:
                offset, headers = message.offset(), headers_of(message)
                assert offset is not None
                while True:
                    verdict = fence.judge(
                        message.leader_epoch(),
                        offset,
                        headers,
                        message.value(),
                        ledger_complete=is_complete,
                    )
                    if verdict is not None:
                        break
                    # Of a grant, perhaps, that came after the ledger was read.
                    left_s = some_time(deadline)
                    fence.ledger_replaced(self._ledger.refresh(left_s))
                    is_complete = True
                answer.take(offset, headers, verdict)
        if reader.position is not None and reader.position < answer.read_to:
            raise self._unavailable(
                reader, "what follows is hidden by an open transaction of somebody"
            )

    def _bounds(
        self, reader: PartitionReader, wanted: int, deadline: float
    ) -> tuple[int, int]:
        """The log's first offset, and the one behind its last (or behind `wanted`)."""
        left_s = some_time(deadline)
        log_start, log_end = reader.bounds(left_s)
        if log_end >= wanted:
            return log_start, log_end
        place = reader.topic, reader.partition
        # To a committed reader, the log ends before the first open transaction.
        with self._ledger.clients.partition_reader(
            self._connection, *place, isolation="read_uncommitted"
        ) as uncommitted:
            log_start, log_end = uncommitted.bounds(left_s)
        if log_end >= wanted:
            return log_start, log_end
        # A deposed broker tells an old end. One more barrier, acknowledged by all
        # in-sync replicas, tells the true one; to readers it is as stale as we are.
        written = self._writer.write([place], self._leaderships, deadline)
        return log_start, min(written[place])

    def _unavailable(self, reader: PartitionReader, reason: str) -> TopicUnavailable:
        return TopicUnavailable(reader.topic, reason, reader.partition, reader.position)
