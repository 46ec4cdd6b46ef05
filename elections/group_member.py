"""A member of a consumer group that reads nothing: what it is assigned is all.

Its consumer is used by one thread only, its own: a second thread that asked the same
consumer for metadata while this one polled never got an answer (librdkafka 2.16).
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaError, TopicPartition

_log = logging.getLogger(__name__)

#: How often the thread looks up from waiting for the client.
_POLL_S = 0.1

#: How long the thread waits for the end of a rebalance before it leaves.
_DEPART_S = 5.0
_DEPART_POLL_S = 0.01

#: How long leaving may hold up its caller; the thread goes on with it after that.
_LEAVE_S = 3.0


class GroupMember:
    """Stands for the partition of a topic, once: what is lost is not stood for again.

    Args:
        consumer: Its own from now on; in a group of cooperative assignments.
        topic: The topic, of one partition.
        on_lost: Called on the thread that polls, when the partition is gone.
    """

    def __init__(
        self, consumer: Consumer, topic: str, on_lost: Callable[[GroupMember], None]
    ) -> None:
        self._consumer = consumer
        self._topic = topic
        self._on_lost = on_lost
        self._changed = threading.Condition()
        self._is_assigned = False
        self._is_over = False
        self._is_to_leave = threading.Event()
        #: What the group's coordinator last refused with.
        self.refusal: KafkaError | None = None
        self._thread = threading.Thread(
            target=self._stand, name=f"epochfence-election-{topic}", daemon=True
        )
        self._thread.start()

    @property
    def is_assigned(self) -> bool:
        """Whether the partition is this member's, as far as it knows."""
        return self._is_assigned

    @property
    def is_over(self) -> bool:
        """Whether it had the partition, and lost it."""
        return self._is_over

    def wait(self, timeout_s: float) -> bool:
        """Wait until the partition is assigned, or something else is to be known."""
        with self._changed:
            self._changed.wait_for(self._has_news, timeout_s)
            return self._is_assigned

    def _has_news(self) -> bool:
        return self._is_assigned or self._is_over or self.refusal is not None

    def leave(self) -> None:
        """Leave the group: what it had is assigned to another at once."""
        self._is_to_leave.set()
        self._thread.join(_LEAVE_S)

    # On its own thread.

    def _stand(self) -> None:
        self._consumer.subscribe(
            [self._topic],
            on_assign=self._assigned,
            on_revoke=self._gone,
            on_lost=self._gone,
        )
        while not self._is_to_leave.is_set() and not self._is_over:
            self._poll(_POLL_S)
        self._depart()

    def _poll(self, timeout_s: float) -> None:
        try:
            message = self._consumer.poll(timeout_s)
        except Exception:  # of a callback in the application's config
            _log.exception("a callback failed in the election's consumer")
            return
        error = None if message is None else message.error()
        if error is not None:
            with self._changed:
                self.refusal = error
                self._changed.notify_all()

    def _depart(self) -> None:
        """Leave the group so that it knows.

        A group that was not told waits for the member, and elects nobody, until its
        session is over; and a client without partitions that is only closed tells
        nothing.
        """
        self._consumer.unsubscribe()
        # At some moments of a rebalance, that takes effect only after it. (Of 25 that
        # left without waiting for it, one was waited for by its group.)
        deadline = time.monotonic() + _DEPART_S
        while self._consumer.memberid() and time.monotonic() < deadline:
            self._poll(_DEPART_POLL_S)
        self._consumer.close()

    def _assigned(self, consumer: Consumer, added: list[TopicPartition]) -> None:
        # At a number: a logical offset would be looked up. And paused: nothing is read.
        places = [TopicPartition(tp.topic, tp.partition, 0) for tp in added]
        consumer.incremental_assign(places)
        if not places:
            return
        consumer.pause(places)
        with self._changed:
            self._is_assigned = True
            self._changed.notify_all()

    def _gone(self, consumer: Consumer, removed: list[TopicPartition]) -> None:
        if removed:
            with self._changed:
                self._is_assigned, self._is_over = False, True
                self._changed.notify_all()
            self._on_lost(self)
        consumer.incremental_unassign(removed)
