"""The client underneath: assignments held back until their positions are known.

Measured with librdkafka 2.16, and the reason for the order of calls here:

- It compares a committed leader epoch with the log only on a seek. So a partition is
  attached paused, and let go by a seek with its leader epoch.
- It is attached at a number: the answer to a logical offset would come later than the
  seek, and silently undo it. At that number nothing is read.
- After it has reported an offset outside of the log, a seek fails; the partition has
  to be attached anew. In a group whose protocol is eager, that takes an `assign` of
  everything, each partition at its own position.
- A pause does not always survive that.
- An assignment takes effect later than the call returns, the later the busier the
  machine: until then a seek fails with that same error, and is tried again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from epochfence.consumers.partition import AssignedPartition
from epochfence.epochs.clients import KAFKA, Clients
from epochfence.epochs.connection import Config, LastError

#: How long a call may take that only makes the start faster.
_WAKE_S = 1.0

#: An assignment has taken effect after this time at the latest; a partition that
#: cannot be sought then has stopped again, and is attached once more.
_ATTACHED_S = 2.0
#: So many times.
_ATTACH_ATTEMPTS = 3
#: The time between two attempts to seek.
_SEEK_AGAIN_S = 0.005

#: Callbacks of a client's settings that the client calls among its messages.
_CALLBACKS = ("error_cb", "stats_cb", "throttle_cb", "on_commit")

OnPartitions = Callable[[Consumer, list[TopicPartition]], None]


class GroupClient:
    """A confluent consumer that delivers from a partition only once it is placed.

    Args:
        config: The client's settings.
        is_incremental: Whether the group's assignments come as differences.
        clients: Opens the consumer.

    Raises:
        MisconfiguredError: A setting is unknown, or contradicts the fence.
    """

    def __init__(
        self, config: Config, *, is_incremental: bool, clients: Clients = KAFKA
    ) -> None:
        #: What the application's callbacks raised inside the client: there it would
        #: take messages with it.
        self._raised: list[BaseException] = []
        self._config = dict(config)
        for name in _CALLBACKS:
            if callable(config.get(name)):
                self._config[name] = self.guarded(config[name])
        self._last_error = LastError(self._config)
        self._is_group_incremental = is_incremental
        self._is_torn = False
        self.is_subscribed = False
        self._clients = clients
        self.raw: Consumer = clients.group_consumer(self._config, self._last_error)

    def renew(self) -> None:
        """Go on with a new client: the old one may ignore a topic made anew for good.

        The old one leaves the group; nothing is assigned afterwards.
        """
        self.raw.close()
        self.raw = self._clients.group_consumer(self._config, self._last_error)

    def subscribe(
        self,
        topics: list[str],
        on_assign: OnPartitions,
        on_revoke: OnPartitions,
        on_lost: OnPartitions,
    ) -> None:
        """Join the group."""
        self.raw.subscribe(
            topics,
            on_assign=self.guarded(on_assign),
            on_revoke=self.guarded(on_revoke),
            on_lost=self.guarded(on_lost),
        )
        self.is_subscribed = True

    def unsubscribe(self) -> None:
        """Leave the group."""
        self.raw.unsubscribe()
        self.is_subscribed = False

    # Callbacks.

    def guarded(self, function: Callable[..., object]) -> Callable[..., None]:
        """The same, but what it raises waits for `raise_from_callbacks`."""

        def call(*arguments: object) -> None:
            try:
                function(*arguments)
            except BaseException as error:
                self._raised.append(error)

        return call

    def raise_from_callbacks(self) -> None:
        """Raise what a callback raised inside the client, if any did."""
        if self._raised:
            raise self._raised.pop(0)

    @property
    def is_incremental(self) -> bool:
        """Whether partitions may be attached and detached one by one."""
        return self._is_group_incremental or not self.is_subscribed

    # Attaching, held back.

    def attach(
        self, partitions: Collection[AssignedPartition], *, is_added: bool
    ) -> None:
        """Have partitions assigned, with nothing delivered yet.

        Args:
            partitions: Which.
            is_added: Whether the others stay assigned.
        """
        places = [p.at(0) for p in partitions]
        if is_added:
            self.raw.incremental_assign(places)
        else:
            self.raw.assign(places)
        if places:
            self.raw.pause(places)

    def hold(self, partitions: Collection[AssignedPartition]) -> None:
        """Deliver nothing of partitions until they are placed."""
        if partitions:
            self.raw.pause([p.at() for p in partitions])

    # Letting go.

    def place(
        self,
        partition: AssignedPartition,
        offset: int,
        leader_epoch: int | None,
        others: Collection[AssignedPartition],
    ) -> None:
        """Deliver from an offset on.

        Args:
            partition: Which partition.
            offset: The first offset to deliver.
            leader_epoch: That of the last record below; the client finds out with it
                whether the log was truncated.
            others: Every partition that is assigned.

        Raises:
            KafkaException: The client refuses.
        """
        if self._is_torn or not self._has_sought(partition, offset, leader_epoch):
            self._is_torn = True  # until every partition is where it belongs
            for _ in range(_ATTACH_ATTEMPTS):
                if self._has_attached_anew(partition, others) and self._has_sought(
                    partition, offset, leader_epoch, _ATTACHED_S
                ):
                    break
            else:
                raise KafkaException(
                    KafkaError(
                        KafkaError._STATE,
                        f"the client does not go to offset {offset}, after "
                        f"{_ATTACH_ATTEMPTS} assignments of the partition",
                    )
                )
            self._is_torn = False
        self._let_go(partition)
        if leader_epoch is None:
            # Without a leader epoch to compare, nothing wakes the client up, and the
            # first message would come a second later.
            with suppress(KafkaException):
                self.raw.get_watermark_offsets(partition.at(), timeout=_WAKE_S)

    def _has_sought(
        self,
        partition: AssignedPartition,
        offset: int,
        leader_epoch: int | None,
        within_s: float = 0.0,
    ) -> bool:
        """Whether the client has gone there; if not, it has to be attached anew."""
        known = -1 if leader_epoch is None else leader_epoch
        target = TopicPartition(
            partition.topic, partition.number, offset, leader_epoch=known
        )
        deadline = time.monotonic() + within_s
        while True:
            try:
                self.raw.seek(target)
            except KafkaException as error:
                if error.args[0].code() != KafkaError._STATE:
                    raise
                if time.monotonic() >= deadline:
                    return False
                time.sleep(_SEEK_AGAIN_S)
            else:
                return True

    def _let_go(self, partition: AssignedPartition) -> None:
        if not partition.is_paused:
            self.raw.resume([partition.at()])

    def _has_attached_anew(
        self,
        partition: AssignedPartition,
        others: Collection[AssignedPartition],
    ) -> bool:
        """Attach a partition once more; whether all others are where they were."""
        if self.is_incremental:
            self.raw.incremental_unassign([partition.at()])
            self.attach([partition], is_added=True)
            return True
        self.attach(others, is_added=False)
        for other in others:
            if other is partition or other.phase != "ready":
                continue
            at = other.read_to
            known = other.leader_epoch_below(at)
            if not self._has_sought(other, at, known, _ATTACHED_S):
                return False
            self._let_go(other)
        return True

    # The rest.

    def commit(
        self, offsets: Sequence[TopicPartition], *, is_asynchronous: bool
    ) -> list[TopicPartition] | None:
        """Commit offsets, as `Consumer.commit` does."""
        client: Any = self.raw  # its annotations want the keywords to be literal
        done: list[TopicPartition] | None = client.commit(
            offsets=list(offsets), asynchronous=is_asynchronous
        )
        return done
