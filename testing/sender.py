"""What stands in for confluent-kafka's `Producer`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, Message

from epochfence.testing.log import MemoryLog, check_times
from epochfence.testing.metadata import metadata_of

Report = Callable[[KafkaError | None, Message], None]


class _Sent(NamedTuple):
    """A message on its way, and whom to tell of it."""

    topic: str
    value: Any
    key: Any
    partition: int
    report: Report | None
    timestamp: int
    headers: Any


class MemorySender:
    """Writes to a `MemoryLog`, at once; reports are served by `poll` and `flush`.

    Args:
        log: Where to.

    Attributes:
        is_holding: Whether messages stay on their way.
    """

    def __init__(self, log: MemoryLog) -> None:
        self._log = log
        self.is_holding = False
        self._held: deque[_Sent] = deque()
        self._reports: deque[tuple[Report | None, KafkaError | None, Message]] = deque()
        self._failures: deque[tuple[int, bool]] = deque()
        self._is_reported = threading.Event()

    @property
    def held_topics(self) -> list[str]:
        """Where to messages are on their way."""
        return sorted({sent.topic for sent in self._held})

    @property
    def held(self) -> int:
        """How many messages are on their way."""
        return len(self._held)

    def fail_deliveries(self, code: int, times: int, *, arrives: bool) -> None:
        """Have the next messages reported as not delivered."""
        self._failures.extend([(code, arrives)] * check_times(times))

    def release(self) -> list[Message]:
        """Have arrive what is on its way; give the records."""
        self.is_holding = False
        arrived: list[Message] = []
        while self._held:
            record = self._arrive(self._held.popleft())
            if record is not None:
                arrived.append(record)
        return arrived

    def _arrive(self, sent: _Sent) -> Message | None:
        record: Message | None = None
        code, arrives = self._failures.popleft() if self._failures else (0, True)
        if arrives:
            record = self._log.append(
                sent.topic,
                sent.value,
                sent.key,
                sent.partition,
                headers=sent.headers,
                timestamp=sent.timestamp,
            )
        error = KafkaError(code) if code else None
        told = record
        if told is None:
            told = Message(topic=sent.topic, partition=sent.partition, error=error)
        self._report(sent, error, told)
        return record

    def _report(self, sent: _Sent, error: KafkaError | None, message: Message) -> None:
        self._reports.append((sent.report, error, message))
        self._is_reported.set()

    # As confluent-kafka's.

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """Hand a message over."""
        report = on_delivery if callback is None else callback
        sent = _Sent(topic, value, key, partition, report, timestamp, headers)
        if self.is_holding:
            if partition >= 0:
                self._log.partition(topic, partition)  # raises if there is none
            self._held.append(sent)
        else:
            self._arrive(sent)

    def poll(self, timeout: float = -1) -> int:
        """Serve reports; wait for the first up to a `timeout` above 0, in seconds."""
        if timeout > 0 and not self._reports:
            self._is_reported.wait(timeout)
        self._is_reported.clear()
        served = 0
        while self._reports:
            report, error, message = self._reports.popleft()
            served += 1
            try:
                if report is not None:
                    report(error, message)
            finally:
                # Whoever keeps what it raised keeps this frame, and would keep the
                # message from being taken for one that is reported on.
                del report
        return served

    def flush(self, timeout: float = -1) -> int:
        """Serve reports; give how many messages are still on their way."""
        self.poll(0)
        return len(self)

    def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Give up what is on its way."""
        code = KafkaError._PURGE_QUEUE if in_queue else KafkaError._PURGE_INFLIGHT
        while self._held:
            sent = self._held.popleft()
            error = KafkaError(code)
            message = Message(topic=sent.topic, partition=sent.partition, error=error)
            self._report(sent, error, message)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Tell metadata."""
        return metadata_of(self._log, topic)

    def __len__(self) -> int:
        return len(self._held) + len(self._reports)
