"""Reading as a member of a group: from the client, through the fences, to the outbox.

One pass (`fetch`, for which gathering.py calls) does, in this order: what an earlier
pass could not finish; partitions that were assigned or moved (loading.py); a batch from
the client; a look at topic ids where one is due; verdicts; the rows of the epochs that
began, acknowledged; and only then the messages are in the outbox. An error on the way
leaves everything where it was, and the next pass goes on there.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence.consumers.client import GroupClient
from epochfence.consumers.committing import Committer, due
from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.loading import Loader, Positions
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.consumers.partition import AssignedPartition
from epochfence.consumers.pipeline import Pipeline
from epochfence.consumers.rejections import OnRejected, Rejections
from epochfence.consumers.settings import Policies, unlisted
from epochfence.epochs.connection import connection_settings
from epochfence.epochs.errors import (
    EpochfenceError,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import Place, SinkState

_log = logging.getLogger(__name__)

Told = Callable[[list[TopicPartition]], None] | None

#: How long one pass waits for messages while a partition is read for its epochs.
_BUSY_S = 0.01

_END_OFFSET = re.compile(r"broker end offset is (-?\d+)")


@dataclass(slots=True)
class _Callbacks:
    """What the application wants to be told of its assignment."""

    topics: list[str] = field(default_factory=list[str])
    on_assign: Told = None
    on_revoke: Told = None
    on_lost: Told = None


class GroupReader:
    """What a `FencedConsumer` does, for one thread at a time.

    Args:
        config: The client's settings.
        ledger: The ledger.
        settings: The settings of each topic's fence.
        policies: What the client would do by itself.
        is_dry_run: Whether rejected messages are delivered all the same.
        may_rebuild: Whether missing epoch starts may be found by reading.
        on_rejected: Called with each rejected message and its verdict.
        timeout_s: How long each wait for the cluster may take.
        positions: Tells what a sink has stored; None: go by the group's commits.
    """

    def __init__(
        self,
        config: dict[str, Any],
        ledger: Ledger,
        settings: Mapping[str, FenceSettings],
        policies: Policies,
        *,
        is_dry_run: bool,
        may_rebuild: bool,
        on_rejected: OnRejected | None,
        timeout_s: float,
        positions: Positions | None,
    ) -> None:
        self._settings = settings
        self._policies = policies
        self._view = LedgerView(ledger)
        connection = connection_settings(config)
        clients, keeper = ledger.clients, None
        if not ledger.is_embedded:
            keeper = clients.topic_keeper(connection, timeout_s)
        self._looks = TopicLooks(keeper, timeout_s)
        self._client = GroupClient(
            {**config, "on_commit": self._committed},
            is_incremental=policies.is_incremental,
            clients=clients,
        )
        self._partitions: dict[Place, AssignedPartition] = {}
        self._committer = Committer(
            self._client, self._looks, self._partitions, policies.on_commit
        )
        self._loader = Loader(
            self._client,
            connection,
            self._view,
            ledger.table,
            self._looks,
            reset=policies.reset,
            may_rebuild=may_rebuild,
            timeout_s=timeout_s,
            clients=clients,
            positions=positions,
        )
        self.rejections = Rejections(on_rejected, is_dry_run=is_dry_run)
        self._pipeline = Pipeline(
            self._client,
            self._partitions,
            settings,
            self._view,
            ledger.table,
            self._looks,
            self.rejections,
            group_id=config["group.id"],
            is_dry_run=is_dry_run,
            timeout_s=timeout_s,
        )
        self._has_positions = positions is not None
        self.is_closed = False
        self._callbacks: _Callbacks | None = None
        self._has_assigned = False
        self._is_leaving_uncommitted = False
        self._refused: MisconfiguredError | None = None
        self._next_commit = time.monotonic() + policies.commit_interval_s
        self._made_anew: set[str] = set()

    @property
    def raw(self) -> Consumer:
        """The client underneath."""
        return self._client.raw

    @property
    def progress(self) -> dict[Place, tuple[int, int, int]]:
        """The rebuilds that go on."""
        return self._loader.progress

    def _topics(self) -> set[str]:
        return {topic for topic, _ in self._partitions}

    # Handing over.

    @property
    def size(self) -> int:
        """How much there is to hand over at once."""
        return len(self._pipeline.outbox)

    @property
    def is_client_waiting(self) -> bool:
        """Whether the client has to be called again, whatever there is."""
        return self._pipeline.is_client_waiting and not self.is_closed

    @property
    def is_at_rest(self) -> bool:
        """Whether nothing is left to be done for what was assigned and received."""
        is_placed = all(
            partition.phase in ("ready", "stopped")
            for partition in self._partitions.values()
        )
        return is_placed and not self._made_anew and self._pipeline.is_empty

    def look_soon(self) -> None:
        """Have the next pass look at the topics' ids, however soon that is."""
        for topic in self._topics():
            self._looks.doubt(topic)

    @property
    def is_held_up(self) -> bool:
        """Whether what there is has to go out before anything else can happen."""
        return bool(self._pipeline.outside) and self.size > 0

    def take(self, count: int) -> list[Message]:
        """Hand over at most `count` messages and events."""
        self._check_open()
        self.rejections.call_back()
        self._commit_in_time()
        return self._pipeline.outbox.take(count)

    def _check_open(self) -> None:
        if self.is_closed:
            raise RuntimeError("Consumer closed")

    # One pass.

    def fetch(self, missing: int, wait_s: float, count: int) -> None:
        """Fill the outbox.

        Args:
            missing: How many messages the application still wants.
            wait_s: How long to wait for the client.
            count: How many it wanted when it called.
        """
        self._check_open()
        refusal = self._refused or self._pipeline.refusal
        if refusal is not None:
            self._pipeline.receive(0, 0, count)  # its callbacks go on
            raise copy(refusal)  # its traceback would grow
        self.rejections.call_back()
        try:
            self._bring_on(wait_s, count)
            is_busy = bool(self._loader.progress)
            self._pipeline.receive(missing, _BUSY_S if is_busy else wait_s, count)
            topics = self._topics()
            if self._looks.is_due(topics):
                self._looks.look(topics)
                self.rejections.tell_rest()
            elif self._has_positions and self._pipeline.inbox_size >= missing > 0:
                # There is more to come, and `state` will want it: it is answered while
                # these messages are judged.
                self._looks.begin(topics)
            self._judge()
        except TopicMadeAnew as news:
            self._made_anew |= news.topics
        self.rejections.call_back()

    def _judge(self) -> None:
        try:
            self._pipeline.judge()
            self._pipeline.release()
        except (EpochfenceError, TopicMadeAnew):
            raise
        except BaseException:
            # What a signal's handler raises may come between a fence and what it found.
            self._pipeline.has_lost_track = True
            raise

    def _bring_on(self, wait_s: float, count: int) -> None:
        """See to what has to be done before new messages are received."""
        try:
            if self._made_anew:
                self._renew()
            if self._pipeline.has_lost_track:
                self._go_back_to_handed()
            self._pipeline.release()
            if self._pipeline.outside and not self.size:
                self._leave_outside()
            self._commit_in_time()
            self._loader.settle(self._partitions.values())
        except EpochfenceError:
            # The client is called all the same: a rebalance may be what helps.
            self._pipeline.receive(0, wait_s, count)
            raise
        finally:
            notices, self._loader.notices = self._loader.notices, []
            self._pipeline.outbox.add(notices, {})

    def _place_anew(self, partition: AssignedPartition, offset: int | None) -> None:
        """Have a partition start at another place: nothing of it stays on its way."""
        self._drop([partition.place])
        self._client.hold([partition])
        partition.move_to(offset)

    def _go_back_to_handed(self) -> None:
        """Read again what the application has not got: nobody knows what is missing."""
        for partition in self._partitions.values():
            if partition.phase == "ready":
                # Not with what its fence has found: that may be without a row.
                partition.fence = None
                told_to = partition.told_to
                self._place_anew(partition, partition.next_offset)
                partition.told_to = told_to
        self._pipeline.has_lost_track = False

    def _drop(self, places: Collection[Place]) -> None:
        """Drop what is on the way of partitions, and what is being done for them."""
        for place in places:
            self._pipeline.outside.pop(place, None)
        self._loader.forget(
            [p for place, p in self._partitions.items() if place in places]
        )
        self._pipeline.drop(places)

    # Moved, by the client or by Kafka.

    def _leave_outside(self) -> None:
        """Go on where the client found the offset to be outside of the log."""
        outside = list(self._pipeline.outside.items())
        for place, event in outside:
            partition = self._partitions.get(place)
            if partition is None:
                continue
            error = event.error()
            text = "" if error is None else error.str()
            asked = event.offset()
            if "truncat" in text:
                self._go_back(partition, text)
            elif self._has_positions and not self._is_below_start(partition):
                self._stop_beyond_end(partition, text)
            elif asked is not None and asked != partition.read_to:
                # Of a fetch before it was placed where it is: asked for once more.
                self._place_anew(partition, partition.read_to)
            elif self._policies.reset == "error":
                self._drop([place])
                self._pipeline.outbox.add([event], {})
                partition.phase = "stopped"
            else:
                _log.warning(
                    "%s[%d]: %s; it goes on at the %s offset",
                    *place,
                    text,
                    self._policies.reset,
                )
                is_latest = self._policies.reset == "latest"
                target = OFFSET_END if is_latest else OFFSET_BEGINNING
                self._place_anew(partition, target)
        self._pipeline.outside.clear()

    def _is_below_start(self, partition: AssignedPartition) -> bool:
        low, _ = self._loader.bounds(partition)
        return partition.read_to < low

    def _stop_beyond_end(self, partition: AssignedPartition, text: str) -> None:
        """A sink that is ahead of its log: reading it again would repeat effects."""
        self._looks.look([partition.topic])  # of another topic, all is read
        self._drop([partition.place])
        partition.phase = "stopped"
        partition.problem = MisconfiguredError(
            f"the sink's position of {partition.topic}[{partition.number}]",
            partition.read_to,
            f"it is no offset of the log ({text}): records that had their effect are "
            f"gone, and others may stand in their places",
            "See what the store holds; then set its stored next offset to where it has "
            "to go on, or remove that row to have all of the log applied.",
        )  # fmt: skip

    def _go_back(self, partition: AssignedPartition, text: str) -> None:
        """Go on where a log was cut, or where the application has come to below."""
        _log.warning("%s[%d] was truncated: %s", *partition.place, text)
        found = _END_OFFSET.search(text)
        end = -1 if found is None else int(found[1])
        partition.truncate_to(max(end, 0))
        handed = partition.next_offset
        if end < 0 and self._has_positions:
            self._stop_beyond_end(partition, text)
        elif end < 0:
            self._place_anew(partition, OFFSET_BEGINNING)
        else:
            self._place_anew(partition, end if handed is None else min(end, handed))

    def _renew(self) -> None:
        """Begin with topics that were made anew, with a new client underneath."""
        made_anew = set(self._made_anew)
        self._drop([p for p in self._partitions if p[0] in made_anew])
        for (topic, _), partition in self._partitions.items():
            if topic in made_anew:
                partition.move_to(None)
        if self._policies.is_auto_commit:
            self._commit_quietly(self._due())
        self._pipeline.drop(list(self._partitions))
        try:
            self._client.renew()  # leaves the group: all is revoked
        finally:
            self._made_anew -= made_anew
            if self._client.is_subscribed:
                self._give_up(list(self._partitions), is_lost=True)
                self._join()
            else:
                self._attach_again()

    def _attach_again(self) -> None:
        """Go on with a new client where each partition has come to."""
        kept = list(self._partitions.values())
        for partition in kept:
            at = partition.next_offset
            self._drop([partition.place])
            partition.move_to(partition.wanted if at is None else at)
        self._client.attach(kept, is_added=False)

    # Assignment.

    def subscribe(
        self, topics: list[str], on_assign: Told, on_revoke: Told, on_lost: Told
    ) -> None:
        """Join the group."""
        self._check_open()
        self._callbacks = _Callbacks(topics, on_assign, on_revoke, on_lost)
        self._refused = self._pipeline.refusal = None
        self._join()

    def _join(self) -> None:
        assert self._callbacks is not None
        self._client.subscribe(
            self._callbacks.topics, self._assigned, self._revoked, self._lost
        )

    def unsubscribe(self) -> None:
        """Leave the group; partitions are given up at the next call for messages."""
        self._check_open()
        self._client.unsubscribe()
        self._refused = self._pipeline.refusal = None

    def assign(self, partitions: list[AssignedPartition], *, is_added: bool) -> None:
        """Read partitions."""
        self._check_open()
        self._client.attach(partitions, is_added=is_added)
        self._has_assigned = True
        places = [partition.place for partition in partitions]
        self._give_up(places if is_added else list(self._partitions))
        for partition in partitions:
            self._partitions[partition.place] = partition

    def unassign(self, partitions: Sequence[TopicPartition] | None) -> None:
        """Read these partitions no more, or none."""
        self._check_open()
        if partitions is None:
            places = list(self._partitions)
        else:
            places = [(tp.topic, tp.partition) for tp in partitions]
        self._commit_given_up(places)
        if partitions is None:
            self.raw.unassign()
        else:
            self.raw.incremental_unassign(list(partitions))
        self._give_up(places)

    def _give_up(self, places: Collection[Place], *, is_lost: bool = False) -> None:
        self._drop(places)
        if not is_lost:
            self._commit_given_up(places)
        for place in places:
            self._partitions.pop(place, None)

    def _commit_given_up(self, places: Collection[Place]) -> None:
        """Commit what is done of partitions that go, where that is automatic."""
        if self._policies.is_auto_commit and not self._is_leaving_uncommitted:
            given_up = [self._partitions[p] for p in places if p in self._partitions]
            self._commit_quietly(
                due(given_up, is_auto_store=self._policies.is_auto_store)
            )

    def _assigned(self, _: Consumer, tps: list[TopicPartition]) -> None:
        self._has_assigned = False
        try:
            if self._callbacks is not None and self._callbacks.on_assign is not None:
                self._callbacks.on_assign(tps)
        finally:
            # Whatever it raised: the client would assign them by itself.
            if not self._has_assigned:
                self._take_on(tps)

    def _take_on(self, tps: list[TopicPartition]) -> None:
        for tp in tps:
            if tp.topic not in self._settings:
                self._refused = unlisted(tp.topic, self._settings)
        partitions = [
            AssignedPartition(tp.topic, tp.partition, self._settings[tp.topic], None)
            for tp in tps
            if tp.topic in self._settings
        ]
        self.assign(partitions, is_added=self._client.is_incremental)

    def _revoked(self, _: Consumer, tps: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in tps]
        self._pipeline.drop(places)
        try:
            if self._callbacks is not None and self._callbacks.on_revoke is not None:
                self._callbacks.on_revoke(tps)
        finally:
            self._give_up(places)

    def _lost(self, _: Consumer, tps: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in tps]
        self._pipeline.drop(places)
        try:
            if self._callbacks is not None:
                told = self._callbacks.on_lost or self._callbacks.on_revoke
                if told is not None:
                    told(tps)
        finally:
            self._give_up(places, is_lost=True)

    # Offsets.

    def _due(self) -> list[TopicPartition]:
        return due(
            self._partitions.values(), is_auto_store=self._policies.is_auto_store
        )

    def _commit_in_time(self) -> None:
        """Commit what is done, where that is automatic and its time has come."""
        now = time.monotonic()
        if not self._policies.is_auto_commit or now < self._next_commit:
            return
        self._next_commit = now + self._policies.commit_interval_s
        self._commit_quietly(self._due(), is_asynchronous=True)

    def _commit_quietly(
        self, offsets: list[TopicPartition], *, is_asynchronous: bool = False
    ) -> None:
        """Commit without being asked to: the application need not be told at once."""
        # Topic by topic: one that is gone must not keep the others from theirs.
        for topic in sorted({tp.topic for tp in offsets}):
            of_topic = [tp for tp in offsets if tp.topic == topic]
            try:
                self._committer.commit(of_topic, is_asynchronous=is_asynchronous)
            except TopicMadeAnew as news:
                self._made_anew |= news.topics
            except (EpochfenceError, KafkaException) as error:
                _log.warning(
                    "an automatic commit failed, and is tried again: %s", error
                )

    def commit(
        self, offsets: list[TopicPartition] | None, *, is_asynchronous: bool
    ) -> list[TopicPartition] | None:
        """Commit offsets, or all that is done or stored."""
        wanted = self._due() if offsets is None else offsets
        if not wanted:
            raise KafkaException(KafkaError(KafkaError._NO_OFFSET))
        try:
            return self._committer.commit(wanted, is_asynchronous=is_asynchronous)
        except TopicMadeAnew as news:
            self._made_anew |= news.topics
            raise TopicUnavailable(
                ", ".join(sorted(news.topics)),
                "it was deleted and made anew, and what was read of the former one is "
                "not committed",
            ) from None

    def _committed(
        self, error: KafkaError | None, offsets: list[TopicPartition]
    ) -> None:
        self._committer.committed(error, offsets)

    def store(self, offsets: Sequence[TopicPartition]) -> None:
        """Store offsets to be committed."""
        if self._policies.is_auto_store:
            raise MisconfiguredError(
                "enable.auto.offset.store", True, "offsets are stored automatically",
                "Set it to False to store them yourself.",
            )  # fmt: skip
        for tp in offsets:
            self._known(tp).stored_offset = tp.offset

    def position(self, tps: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Where the next message is looked for."""
        found: list[TopicPartition] = []
        for tp in tps:
            partition = self._partitions.get((tp.topic, tp.partition))
            offset = None if partition is None else partition.next_offset
            found.append(
                TopicPartition(
                    tp.topic,
                    tp.partition,
                    OFFSET_INVALID if offset is None else offset,
                )
            )
        return found

    def group_metadata(self) -> Any:
        """What a transaction shows of this member, and of its generation."""
        found = self.raw.consumer_group_metadata()
        if self._client.is_subscribed:
            self._check_member()
        return found

    def commit_as_given(self, tps: list[TopicPartition]) -> list[TopicPartition]:
        """Commit offsets as they are, as a member."""
        self._check_member()
        return self.raw.commit(offsets=tps, asynchronous=False)

    def _check_member(self) -> None:
        if not self.raw.memberid():
            unknown = KafkaError.UNKNOWN_MEMBER_ID
            raise KafkaException(KafkaError(unknown, "this consumer is no member now"))

    def state(self, tp: TopicPartition) -> SinkState | None:
        """What a sink stores of all that was handed over of a partition.

        It is stored as a commit is: so the topic's id is read after the last record
        was received. None, too, where it is another topic than before.
        """
        partition = self._known(tp)
        if partition.has_moved:
            topics = {partition.topic}
            try:
                self._looks.look_since(topics, self._pipeline.received_at)
            except TopicMadeAnew as news:
                self._made_anew |= news.topics
        return None if partition.topic in self._made_anew else partition.state

    def seek(self, tp: TopicPartition) -> None:
        """Go on at another offset."""
        self._place_anew(self._known(tp), tp.offset)

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        """Deliver nothing of partitions."""
        for partition in [self._known(tp) for tp in tps]:
            partition.is_paused = True
            self._client.hold([partition])
            if not self._pipeline.drop([partition.place]):
                continue
            at = partition.next_offset
            if partition.phase == "ready" and at is not None:
                # What was read ahead is read again.
                partition.read_to = at
                known = partition.leader_epoch_below(at)
                try:
                    self._client.place(partition, at, known, self._partitions.values())
                except KafkaException as error:
                    _log.warning("%s[%d] is placed anew: %s", *partition.place, error)
                    partition.move_to(at)

    def resume(self, tps: Sequence[TopicPartition]) -> None:
        """Deliver from partitions again."""
        for partition in [self._known(tp) for tp in tps]:
            partition.is_paused = False
            if partition.phase == "ready":
                self.raw.resume([partition.at()])

    def _known(self, tp: TopicPartition) -> AssignedPartition:
        partition = self._partitions.get((tp.topic, tp.partition))
        if partition is None:
            raise KafkaException(
                KafkaError(
                    KafkaError._STATE, f"{tp.topic}[{tp.partition}] is not assigned"
                )
            )
        return partition

    # The end.

    def close(self, *, is_clean: bool) -> None:
        """Leave the group; commit what is done, where that is automatic."""
        if self.is_closed:
            return
        self._is_leaving_uncommitted = not is_clean
        try:
            self.rejections.call_back()
            if self._policies.is_auto_commit and is_clean:
                self._commit_quietly(self._due())
        finally:
            self._loader.forget(list(self._partitions.values()))
            try:
                self.raw.close()
            finally:
                self.is_closed = True
                self.rejections.close()
        self._client.raise_from_callbacks()
