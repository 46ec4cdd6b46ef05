"""Reading as a member of a group: from the client, through the fences, to the outbox.

One pass (`Gathering.step`) does, in this order: what an earlier pass could not
finish; partitions that were assigned or moved (loading.py); a batch from the client;
a look at topic ids where one is due; verdicts; the rows of the epochs that began,
acknowledged; and only then the messages are in the outbox. An error on the way leaves
everything where it was, and the next pass goes on there.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from epochfence.consumers.loading import Loader
from epochfence.consumers.looks import TopicLooks, TopicMadeAnew
from epochfence.consumers.outbox import Place
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
from epochfence.epochs.topics import TopicKeeper

_log = logging.getLogger(__name__)

Told = Callable[[list[TopicPartition]], None] | None

#: How long one pass waits for messages: then signal handlers and other threads run.
_SLICE_S = 0.2
#: The same while a partition is read for its epochs.
_BUSY_S = 0.01

_END_OFFSET = re.compile(r"broker end offset is (-?\d+)")


@dataclass(slots=True)
class _Callbacks:
    """What the application wants to be told of its assignment."""

    topics: list[str] = field(default_factory=list[str])
    on_assign: Told = None
    on_revoke: Told = None
    on_lost: Told = None


class Gathering:
    """One call for messages, carried out in passes."""

    def __init__(self, reader: GroupReader, count: int, timeout_s: float) -> None:
        self._reader = reader
        self._count = count
        self._deadline = float("inf") if timeout_s < 0 else time.monotonic() + timeout_s
        self._has_tried = False

    def step(self) -> list[Message] | None:
        """One pass; the messages, once there are enough or the time is over."""
        reader = self._reader
        missing = self._count - reader.size
        left = self._deadline - time.monotonic()
        if missing <= 0 or (left <= 0 and self._has_tried):
            return reader.take(self._count)
        self._has_tried = True
        try:
            is_all = reader.fetch(missing, min(_SLICE_S, max(left, 0.0)), self._count)
        except EpochfenceError:
            if not reader.size:
                raise
            is_all = True  # the next call meets it again
        if is_all or reader.size >= self._count:
            return reader.take(self._count)
        return None


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
    ) -> None:
        self._settings = settings
        self._policies = policies
        self._view = LedgerView(ledger)
        connection = connection_settings(config)
        keeper = None if ledger.is_embedded else TopicKeeper(connection, timeout_s)
        self._looks = TopicLooks(keeper, timeout_s)
        self._client = GroupClient(
            {**config, "on_commit": self._committed},
            is_incremental=policies.is_incremental,
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

    def gathering(self, count: int, timeout_s: float) -> Gathering:
        """Begin to gather messages."""
        return Gathering(self, count, timeout_s)

    @property
    def size(self) -> int:
        """How much there is to hand over at once."""
        return self._pipeline.size

    def take(self, count: int) -> list[Message]:
        """Hand over at most `count` messages and events."""
        if self.is_closed:
            raise RuntimeError("Consumer closed")
        self._commit_in_time()
        return self._pipeline.take(count)

    # One pass.

    def fetch(self, missing: int, wait_s: float, count: int) -> bool:
        """Fill the outbox; whether what is there had better be handed over now."""
        if self.is_closed:
            raise RuntimeError("Consumer closed")
        refusal = self._refused or self._pipeline.refusal
        if refusal is not None:
            raise refusal
        self.rejections.call_back()
        try:
            if self._made_anew:
                self._renew()
            self._pipeline.release()
            if self._pipeline.outside and len(self._pipeline.outbox):
                return True  # what was read before goes out before
            self._leave_outside()
            self._commit_in_time()
            self._loader.settle(self._partitions.values())
            self._pipeline.events += self._loader.notices
            self._loader.notices.clear()
            is_busy = bool(self._loader.progress)
            self._pipeline.receive(missing, _BUSY_S if is_busy else wait_s, count)
            topics = self._topics()
            if self._looks.is_due(topics):
                self._looks.look(topics)
                self.rejections.tell_rest()
            self._pipeline.judge()
            self._pipeline.release()
        except TopicMadeAnew as news:
            self._made_anew |= news.topics
        self.rejections.call_back()
        return False

    def _drop(self, places: Collection[Place]) -> bool:
        """Drop what is on the way of partitions; whether there was anything."""
        self._loader.forget(
            [p for place, p in self._partitions.items() if place in places]
        )
        return self._pipeline.drop(places)

    # Moved, by the client or by Kafka.

    def _leave_outside(self) -> None:
        """Go on where the client found the offset to be outside of the log."""
        for place, event in self._pipeline.outside.items():
            partition = self._partitions[place]
            error = event.error()
            text = "" if error is None else error.str()
            asked = event.offset()
            if "truncat" in text:
                found = _END_OFFSET.search(text)
                end = -1 if found is None else int(found[1])
                _log.warning("%s[%d] was truncated: %s", *place, text)
                partition.truncate_to(max(end, 0))
                partition.move_to(end if end >= 0 else OFFSET_BEGINNING)
            elif asked is not None and asked != partition.read_to:
                # Of a fetch before it was placed; where it is now, nobody has asked.
                partition.move_to(partition.read_to)
            elif self._policies.reset == "error":
                self._pipeline.events.append(event)
                partition.phase = "stopped"
            else:
                _log.warning(
                    "%s[%d]: %s; it goes on at the %s offset",
                    *place,
                    text,
                    self._policies.reset,
                )
                is_latest = self._policies.reset == "latest"
                partition.move_to(OFFSET_END if is_latest else OFFSET_BEGINNING)
        self._pipeline.outside.clear()

    def _renew(self) -> None:
        """Begin with topics that were made anew, with a new client underneath."""
        places = [p for p in self._partitions if p[0] in self._made_anew]
        self._drop(places)
        for place in places:
            self._partitions[place].move_to(None)
        self._commit_quietly(self._due())
        kept = list(self._partitions.values())
        self._client.renew()  # leaves the group: all is revoked
        self._made_anew.clear()
        if self._callbacks is not None:
            self._partitions.clear()
            self._join()
            return
        for partition in kept:
            if partition.phase != "new":
                partition.move_to(partition.next_offset)
        self._client.attach(kept, is_added=False)

    # Assignment.

    def subscribe(
        self, topics: list[str], on_assign: Told, on_revoke: Told, on_lost: Told
    ) -> None:
        """Join the group."""
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
        self.raw.unsubscribe()
        self._refused = None

    def assign(self, partitions: list[AssignedPartition], *, is_added: bool) -> None:
        """Read partitions."""
        self._has_assigned = True
        if not is_added:
            self._give_up(list(self._partitions))
        for partition in partitions:
            self._partitions[partition.place] = partition
        self._client.attach(partitions, is_added=is_added)

    def unassign(self, partitions: Sequence[TopicPartition] | None) -> None:
        """Read these partitions no more, or none."""
        if partitions is None:
            self.raw.unassign()
            self._give_up(list(self._partitions))
        else:
            self.raw.incremental_unassign(list(partitions))
            self._give_up([(tp.topic, tp.partition) for tp in partitions])

    def _give_up(self, places: Collection[Place]) -> None:
        self._drop(places)
        for place in places:
            self._partitions.pop(place, None)

    def _assigned(self, _: Consumer, tps: list[TopicPartition]) -> None:
        self._has_assigned = False
        if self._callbacks is not None and self._callbacks.on_assign is not None:
            self._callbacks.on_assign(tps)
        if self._has_assigned:
            return
        listed = [tp for tp in tps if tp.topic in self._settings]
        for tp in tps:
            if tp.topic not in self._settings:
                self._refused = unlisted(tp.topic, self._settings)
        partitions = [
            AssignedPartition(tp.topic, tp.partition, self._settings[tp.topic], None)
            for tp in listed
        ]
        self.assign(partitions, is_added=self._client.is_incremental)

    def _revoked(self, _: Consumer, tps: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in tps]
        self._drop(places)
        if self._callbacks is not None and self._callbacks.on_revoke is not None:
            self._callbacks.on_revoke(tps)
        if self._policies.is_auto_commit and not self._is_leaving_uncommitted:
            given_up = [self._partitions[p] for p in places if p in self._partitions]
            self._commit_quietly(
                due(given_up, is_auto_store=self._policies.is_auto_store)
            )
        self._give_up(places)

    def _lost(self, _: Consumer, tps: list[TopicPartition]) -> None:
        places = [(tp.topic, tp.partition) for tp in tps]
        self._drop(places)
        if self._callbacks is not None:
            told = self._callbacks.on_lost or self._callbacks.on_revoke
            if told is not None:
                told(tps)
        self._give_up(places)

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
        if not offsets:
            return
        try:
            self._committer.commit(offsets, is_asynchronous=is_asynchronous)
        except TopicMadeAnew as news:
            self._made_anew |= news.topics
        except (EpochfenceError, KafkaException) as error:
            _log.warning("an automatic commit failed, and is tried again: %s", error)

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

    def seek(self, tp: TopicPartition) -> None:
        """Go on at another offset."""
        partition = self._known(tp)
        self._drop([partition.place])
        self._client.hold([partition])
        partition.move_to(tp.offset)

    def pause(self, tps: Sequence[TopicPartition]) -> None:
        """Deliver nothing of partitions."""
        for partition in [self._known(tp) for tp in tps]:
            partition.is_paused = True
            self._client.hold([partition])
            next_offset = partition.next_offset
            if self._drop([partition.place]) and partition.phase == "ready":
                partition.move_to(next_offset)  # what was read ahead is read again

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
        if self._policies.is_auto_commit and is_clean:
            self._commit_quietly(self._due())
        self._is_leaving_uncommitted = True
        self._loader.forget(list(self._partitions.values()))
        self.raw.close()
        self.is_closed = True
        self.rejections.close()
