"""A topic of ours that is read to its end on demand, and noticed when made anew."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from epochfence.epochs.coalesce import Coalesced
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import EpochfenceError, TopicUnavailable
from epochfence.epochs.topic_log import (
    Appended,
    Follower,
    ReadingStoppedError,
    TopicLog,
)
from epochfence.epochs.topics import TopicKeeper

_log = logging.getLogger(__name__)

#: Makes the error for a log that cannot be read: why, and at which offset.
Unavailable = Callable[[str, int | None], EpochfenceError]
#: Called with a deadline when the topic was made anew, before it is read.
BeforeReload = Callable[[float], None]


class SyncedLog:
    """Follows a topic, and reads it to its end for whoever asks.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic, which exists.
        follower: Takes in its records.
        keeper: Tells the topic's id; None for the embedded broker, which knows none.
        before_reload: Called with a deadline when the topic was made anew, before
            it is read.
        unavailable: Makes the error that is raised where the log cannot be read.

    Raises:
        TopicUnavailable: The cluster does not answer.
        MisconfiguredError: A setting is unknown or contradicts what is needed.
    """

    def __init__(
        self,
        config: Config,
        topic: str,
        follower: Follower,
        keeper: TopicKeeper | None,
        *,
        before_reload: BeforeReload,
        unavailable: Unavailable,
    ) -> None:
        self._topic = topic
        self._keeper = keeper
        self._before_reload = before_reload
        self._unavailable = unavailable
        self._is_reload_due = False
        facts = None if keeper is None else keeper.facts(topic)
        self._topic_id = None if facts is None else facts.topic_id
        self._log = TopicLog(config, topic, follower)
        self._shared_sync = Coalesced(
            self._sync, lambda: unavailable("not read to its end in time", None)
        )

    def append(
        self,
        key: bytes,
        value: bytes | None,
        deadline: float,
        *,
        discard: bool = False,
    ) -> None:
        """Append a record, as `TopicLog.append`, which tells what is raised."""
        self._log.append(key, value, deadline, discard=discard)

    def append_all(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        deadline: float,
        *,
        discard: bool = False,
    ) -> list[Appended]:
        """Append records, as `TopicLog.append_all`."""
        return self._log.append_all(records, deadline, discard=discard)

    def check_reading(self) -> None:
        """Raise the error for a log that is not followed any more; else return."""
        failure = self._log.failure
        if failure is not None:
            raise self._unavailable(failure.reason, failure.offset)

    def read_to_told_end(self, deadline: float) -> None:
        """Read what a broker calls the end. Nothing is written.

        Raises the error that `unavailable` makes.
        """
        try:
            self._log.read_to_told_end(deadline)
        except ReadingStoppedError as error:
            raise self._unavailable(error.reason, error.offset) from error

    def read_to_end(self, deadline: float) -> None:
        """Read the log to its end, by a sync; concurrent callers share one.

        Raises the error that `unavailable` makes, and what `before_reload` raises.
        """
        if self._log.is_on_its_thread:
            raise self._unavailable(
                "a watcher must not wait for what it holds up", None
            )
        self._shared_sync(deadline)

    def _sync(self, deadline: float) -> None:
        """One synchronised read, and a look whether the topic is still the same.

        The look comes after the sync's acknowledgement and before the reading: the
        clients of a topic that was made anew may never get on.
        """
        self._log.resume()
        try:
            if self._is_reload_due:
                self._reload(deadline)
                return
            offset = self._append_sync(deadline)
            if offset is None or self._is_made_anew(deadline):
                self._reload(deadline)
            else:
                self._log.read_past(offset, deadline)
        except ReadingStoppedError as error:
            raise self._unavailable(error.reason, error.offset) from error
        except TopicUnavailable as error:
            raise self._unavailable(error.reason, error.offset) from error

    def _append_sync(self, deadline: float) -> int | None:
        """Append a sync; give its offset, None if the topic turns out to be new."""
        # Half of the time: what is left serves where the clients turn out stale.
        midway = time.monotonic() + time_left(deadline) / 2
        try:
            return self._log.append_sync(midway)
        except ReadingStoppedError:
            if self._is_made_anew(deadline):
                return None
        return self._log.append_sync(deadline)

    def _is_made_anew(self, deadline: float) -> bool:
        """Whether the topic is another than the one that is followed."""
        if self._keeper is None:
            return False
        facts = self._keeper.facts(self._topic, time_left(deadline))
        if facts is None:
            raise self._unavailable("there is no such topic", None)
        if facts.topic_id == self._topic_id:
            return False
        _log.warning(
            "topic %s was made anew (id %s, before %s)",
            self._topic,
            facts.topic_id,
            self._topic_id,
        )
        self._topic_id = facts.topic_id
        self._is_reload_due = True
        return True

    def _reload(self, deadline: float) -> None:
        """Begin with the topic that was made anew, as what was known allows."""
        self._before_reload(deadline)
        self._log.restart()
        offset = self._log.append_sync(deadline)
        if self._is_made_anew(deadline):
            # Nothing of it was read yet: the next call begins with it.
            raise self._unavailable("the topic was made anew once more", None)
        self._log.read_past(offset, deadline)
        self._is_reload_due = False

    def close(self) -> None:
        """Stop following. May be called again."""
        self._log.close()
