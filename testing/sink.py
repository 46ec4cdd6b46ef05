"""A sink in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from confluent_kafka import Message

from epochfence.consumers.dead_letters import DeadLetter
from epochfence.consumers.sink import SinkBatch
from epochfence.epochs.errors import EpochfenceError, SinkUnavailable
from epochfence.epochs.values import Place, SinkState
from epochfence.testing.log import Faults, check_times


class MemorySink:
    """Keeps the messages of each partition, and can be told to fail.

    Several runners may have the same one, as instances of an application share a
    database.
    """

    keeps_rejected = True

    def __init__(self) -> None:
        self._messages: dict[Place, list[Message]] = {}
        self._states: dict[Place, SinkState] = {}
        self._rejected: dict[Place, list[DeadLetter]] = {}
        self._faults = Faults()
        self._losses = 0
        self._lock = threading.Lock()
        #: How many calls have failed.
        self.failures = 0

    def messages(self, topic: str, partition: int = 0) -> list[Message]:
        """What was applied of a partition, in order."""
        return list(self._messages.get((topic, partition), ()))

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        """The values of what was applied of a partition, in order."""
        return [message.value() for message in self.messages(topic, partition)]

    def rejected(self, topic: str, partition: int = 0) -> list[DeadLetter]:
        """What was rejected of a partition, in order."""
        return list(self._rejected.get((topic, partition), ()))

    def state(self, topic: str, partition: int = 0) -> SinkState | None:
        """What is stored of a partition: `load`, which never fails."""
        return self._states.get((topic, partition))

    def fail(self, error: EpochfenceError | None = None, times: int = 1) -> None:
        """Have the next calls fail, before anything is done.

        Args:
            error: With what; None: `SinkUnavailable`.
            times: How many of them.
        """
        self._faults.add(error or self._unavailable(), times)

    def lose_outcome(self, times: int = 1) -> None:
        """Have the next writes be stored, and then fail as if they were not."""
        self._losses += check_times(times)

    @staticmethod
    def _unavailable() -> SinkUnavailable:
        return SinkUnavailable("memory", "the test wants it so")

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition."""
        self._meet_fault()
        return self.state(topic, partition)

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Apply batches, all of them or none."""
        self._meet_fault()
        with self._lock:
            self._apply(batches)
        if self._losses:
            self._losses -= 1
            self.failures += 1
            raise self._unavailable()

    def _apply(self, batches: Sequence[SinkBatch]) -> None:
        for batch in batches:
            state = self._states.get(batch.place)
            batch.check(None if state is None else state.position)
        for batch in batches:
            self._messages.setdefault(batch.place, []).extend(batch.messages)
            self._rejected.setdefault(batch.place, []).extend(batch.rejected)
            state = self._states.get(batch.place)
            known = () if state is None else state.starts
            starts = tuple(dict.fromkeys((*known, *batch.new_starts)))
            self._states[batch.place] = SinkState(batch.position, starts)

    def _meet_fault(self) -> None:
        try:
            self._faults.check()
        except EpochfenceError:
            self.failures += 1
            raise
