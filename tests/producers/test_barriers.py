"""How barriers are sent, whatever the client that sends them is told."""

from __future__ import annotations

import time
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence import Leadership, TopicUnavailable
from epochfence.epochs.connection import Config, LastError
from epochfence.producers.barriers import BarrierWriter
from epochfence.testing import MemoryLog
from epochfence.testing.clients import MemoryClients, MemoryKeeper
from epochfence.testing.sender import MemorySender


class Sender(MemorySender):
    """Notes what it is asked for."""

    def __init__(self, log: MemoryLog, asked: list[str], *, is_answered: bool) -> None:
        super().__init__(log)
        self._asked = asked
        self._is_answered = is_answered

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        self._asked.append(f"what is {topic}?")
        if not self._is_answered:
            raise KafkaException(KafkaError(KafkaError._TRANSPORT))
        return super().list_topics(topic, timeout)

    def produce(self, topic: str, *arguments: Any, **more: Any) -> None:
        self._asked.append(f"send to {topic}")
        super().produce(topic, *arguments, **more)


class SenderClients(MemoryClients):
    """Opens that."""

    def __init__(self, log: MemoryLog, *, is_answered: bool) -> None:
        super().__init__(log)
        self.asked: list[str] = []
        self._is_answered = is_answered

    def appending_producer(self, config: Config, last_error: LastError) -> Producer:
        sender: Any = Sender(self._log, self.asked, is_answered=self._is_answered)
        opened: Producer = sender
        return opened


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_client_is_told_of_a_topic_before_it_sends_to_it(
    memory_log: MemoryLog, leadership: Leadership, topic: str, is_answered: bool
) -> None:
    """A client of Kafka's that does not know a topic waits before it asks by itself."""
    clients = SenderClients(memory_log, is_answered=is_answered)
    writer = BarrierWriter({}, MemoryKeeper(memory_log), clients=clients)
    places = [(topic, 0), (topic, 1)]
    written = writer.write(places, [leadership], time.monotonic() + 10)
    assert written == {(topic, 0): [0], (topic, 1): [0]}
    assert clients.asked == [f"what is {topic}?", *[f"send to {topic}"] * 2]


def test_the_embedded_broker_is_not_asked(
    memory_log: MemoryLog, leadership: Leadership, topic: str
) -> None:
    clients = SenderClients(memory_log, is_answered=True)
    writer = BarrierWriter({}, None, clients=clients)
    writer.write([(topic, 0)], [leadership], time.monotonic() + 10)
    assert clients.asked == [f"send to {topic}"]


def test_a_barrier_for_which_no_time_is_left_is_no_wrong_setting(
    memory_log: MemoryLog, leadership: Leadership, topic: str
) -> None:
    """What came before it may have taken all of the time."""
    writer = BarrierWriter(
        {}, MemoryKeeper(memory_log), clients=MemoryClients(memory_log)
    )
    with pytest.raises(TopicUnavailable, match="not acknowledged in time"):
        writer.write([(topic, 0)], [leadership], time.monotonic())
