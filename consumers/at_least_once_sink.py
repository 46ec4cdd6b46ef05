"""Any other store as a sink: each call may come again, and has the same key then.

The positions are the commits of the group that reads, made after the calls. Before
them, the group is asked whether it would take a commit: a process that was stopped for
long calls nothing more once it wakes up, unless it was stopped amid its calls.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from epochfence.consumers.group_positions import (
    NOT_OF_THE_GENERATION,
    CommittingMember,
    check_alone,
    commit_of,
    joined,
    state_of,
    stored_commits,
)
from epochfence.consumers.sink import SinkBatch, check_acts
from epochfence.epochs.errors import MisconfiguredError, SinkFenced, SinkUnavailable
from epochfence.epochs.idempotency import message_key
from epochfence.epochs.values import (
    Place,
    Position,
    SinkPosition,
    SinkState,
    check_timeout,
)

_log = logging.getLogger(__name__)

_STORE = "of positions (the group's commits)"

_REFUSALS = NOT_OF_THE_GENERATION | {KafkaError.OFFSET_METADATA_TOO_LARGE}

#: Called with a message's idempotency key, and the message.
Call = Callable[[str, Message], object]


class AtLeastOnceSink:
    """Calls a function with each admitted message, at least once, in order.

    For what cannot keep a position together with its data: an API of somebody else's,
    e-mail, payments. The function hands the key over, `message_key` of the message:
    who receives it does nothing where it has seen that key before.

    What it cannot promise, and no other way can without the receiver's help:

    - *Once.* A process that ends between calls and commit leaves the calls to be made
      again, with the same keys. The receiver has to honour keys, and to keep them for
      longer than an outage may last (often that is 24 hours).
    - *That a fenced batch did nothing.* `SinkFenced` says that nothing was changed: of
      positions. The calls that came before have happened (and are logged).
    - *Order in time.* What is called again comes after what was called since. Two
      instances may call at the same time for a moment, the same messages with the same
      keys; one that was stopped amid its calls makes the rest when it wakes up.
    - *Taking back.* What a deposed leader wrote before its successor's barrier is
      admitted; what an unclean election cut off a log stays done, and the record that
      takes its place has the same key.
    - Keys are of one life of a topic: where it is made anew and written to once more,
      all is called with other keys.

    Where a call fails, those of its batch that came before are not made again by this
    process. If its error ends the run, they are committed first.

    Args:
        call: What to do with a message: a function of its key and of it, which has
            done so when it returns. Of what passes, it raises `SinkUnavailable`: the
            message is called for again. Anything else that it raises ends the run.
        timeout_s: How long to wait for the group.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(self, call: Call, *, timeout_s: float = 10.0) -> None:
        if not callable(call):
            raise MisconfiguredError(
                "call", call, "it cannot be called",
                "Give a function of a key and a message.",
            )  # fmt: skip
        check_acts("call", call)
        self._call = call
        self._timeout_s = check_timeout(timeout_s)
        self._lock = threading.Lock()
        self._member: CommittingMember | None = None
        # Of batches that are not committed: how many calls were made. A batch that is
        # written again is the same object; one that is read again is not.
        self._called: dict[Place, tuple[SinkBatch, int]] = {}
        # How the group refused a partition's last commit.
        self._refusals: dict[Place, KafkaException] = {}

    def join(self, member: CommittingMember) -> None:
        """Go by this member of the group that reads; a `SinkRunner` sees to it.

        Raises:
            MisconfiguredError: It goes by another one already.
        """
        check_alone(self, self._member)
        self._member = member

    # Reading and writing.

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was committed last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The group does not answer now.
        """
        with self._lock:
            (found,) = self._stored([(topic, partition)])
            return state_of(found)

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Make the calls of batches of different partitions; then commit.

        Raises:
            SinkFenced: The group counts this instance no more as the one that has the
                partition, or another has committed. No position has changed; calls may
                have been made.
            SinkUnavailable: The group does not answer, or the function said so.
            MisconfiguredError: A topic's id is not known: there are no keys.
            Exception: Whatever the function raises. What was called before is
                committed.
        """
        with self._lock:
            for batch in batches:
                if self._called.get(batch.place, (batch, 0))[0] is not batch:
                    del self._called[batch.place]
            self._check(batches)
            try:
                for batch in batches:
                    self._make_calls(batch)
            except SinkUnavailable:
                raise
            except Exception:
                self._commit_what_was_called(batches)
                raise
            self._commit(batches)
            for batch in batches:
                self._called.pop(batch.place, None)

    def ask(self, topic: str, partition: int) -> None:
        """Ask the group whether it would take a commit of its member.

        What stands there is committed again. Where nothing does, the answer to the
        last commit is given.

        Raises:
            KafkaException: It would not.
            SinkUnavailable: It does not answer now.
        """
        with self._lock:
            refusal = self._refusals.pop((topic, partition), None)
            (found,) = self._stored([(topic, partition)])
            if found.offset >= 0:
                self._commit_offsets([found])
            elif refusal is not None:
                raise refusal

    def _check(self, batches: Sequence[SinkBatch]) -> None:
        """See that there are keys, and that it is this instance that has to call."""
        found = self._stored([batch.place for batch in batches])
        again: list[TopicPartition] = []
        for batch, tp in zip(batches, found, strict=True):
            state = state_of(tp)
            batch.check(state and state.position)
            if batch.messages:
                message_key(batch.position.topic_id, batch.partition, 0)
                if state is not None:
                    again.append(tp)
        if again:
            self._commit_of(batches, again)

    def _make_calls(self, batch: SinkBatch) -> None:
        made = self._calls_made(batch)
        for count, message in enumerate(batch.messages[made:], made + 1):
            offset = message.offset()
            assert offset is not None
            key = message_key(batch.position.topic_id, batch.partition, offset)
            self._call(key, message)
            self._called[batch.place] = batch, count

    def _calls_made(self, batch: SinkBatch) -> int:
        return self._called.get(batch.place, (batch, 0))[1]

    def _commit_what_was_called(self, batches: Sequence[SinkBatch]) -> None:
        """Commit as far as calls were made, so that the next run begins behind them."""
        called = [
            _up_to(batch, made)
            for batch in batches
            if (made := self._calls_made(batch))
        ]
        try:
            if called:
                self._commit(called)
        except (SinkFenced, SinkUnavailable, KafkaException) as error:
            _log.warning("the calls that were made are not committed: %s", error)

    # Commits.

    def _commit(self, batches: Sequence[SinkBatch]) -> None:
        try:
            self._commit_of(batches, [commit_of(batch) for batch in batches])
        except KafkaException:  # too large
            shorter = [commit_of(batch, with_epochs=False) for batch in batches]
            self._commit_of(batches, shorter)

    def _commit_of(
        self, batches: Sequence[SinkBatch], offsets: list[TopicPartition]
    ) -> None:
        """Commit for batches.

        Raises:
            SinkFenced: The group counts this instance no more as one of its members.
            SinkUnavailable: It does not answer now.
            KafkaException: The metadata are too large.
        """
        try:
            self._commit_offsets(offsets)
        except KafkaException as error:
            if error.args[0].code() not in NOT_OF_THE_GENERATION:
                raise
            for batch in batches:
                made = self._calls_made(batch)
                if made:
                    _log.warning(
                        "%s[%s]: calls were made for offsets %s to %s, and the group "
                        "takes no commit of them. Who has the partition now makes "
                        "them again, with the same keys.",
                        *batch.place, batch.messages[0].offset(),
                        batch.messages[made - 1].offset(),
                    )  # fmt: skip
            self._refusals[batches[0].place] = error
            (stored,) = self._stored([batches[0].place])
            state = state_of(stored)
            raise batches[0].fenced(state and state.position) from error

    def _commit_offsets(self, offsets: list[TopicPartition]) -> None:
        """Commit offsets as they are.

        Raises:
            KafkaException: The group refuses.
            SinkUnavailable: It does not answer now.
        """
        try:
            for tp in self._joined.commit_as_given(offsets):
                if tp.error is not None:
                    raise KafkaException(tp.error)
        except KafkaException as error:
            cause = error.args[0]
            if cause.code() in _REFUSALS:
                raise
            reason = f"the commit fails: {cause.str()}"
            raise SinkUnavailable(_STORE, reason) from error

    def _stored(self, places: Sequence[Place]) -> list[TopicPartition]:
        return stored_commits(self._joined, places, _STORE, self._timeout_s)

    @property
    def _joined(self) -> CommittingMember:
        return joined(self, self._member)


def _up_to(batch: SinkBatch, count: int) -> SinkBatch:
    """What a batch would be if its first messages were all."""
    if count == len(batch.messages):
        return batch
    last = batch.messages[count - 1]
    topic_id, offset = batch.position.topic_id, last.offset()
    assert offset is not None
    at = Position(last.leader_epoch(), offset)
    starts = [
        start
        for start in batch.starts
        if start.topic_id not in (None, topic_id) or start.position.is_at_or_before(at)
    ]
    position = SinkPosition(topic_id, at.leader_epoch, offset + 1)
    return replace(
        batch, messages=batch.messages[:count], position=position, starts=starts
    )
