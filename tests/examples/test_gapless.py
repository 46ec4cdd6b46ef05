"""The settings of the examples' producers: nothing gets past what is missing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import KafkaError, Message, Producer

from command_line import gapless_config
from support.brokers import KafkaBroker
from support.cut_network import CutNetwork
from support.kafka_local import local_broker_behind
from support.kafka_node import LOOPBACK
from support.reading import read_all
from support.waiting import wait_until

_WAIT_S = 60


@pytest.fixture(scope="module")
def cluster() -> Iterator[tuple[KafkaBroker, CutNetwork]]:
    """A broker, and the network over which producers come to it."""
    with ExitStack() as stack:
        kafka, (network,) = local_broker_behind(stack, 1)
        yield kafka, network


class Sender:
    """A producer with a connection, and what became of its messages."""

    def __init__(self, topic: str, config: dict[str, object]) -> None:
        self._topic = topic
        # As the fenced producer has it, which it asks for by itself.
        self._producer = Producer({**config, "enable.idempotence": True})
        self.delivered: list[str] = []
        self.failed: list[str] = []
        self.send("first")
        assert self._producer.flush(_WAIT_S) == 0
        assert self.delivered == ["first"]

    def send(self, value: str) -> None:
        """Hand a message over."""

        def tell(error: KafkaError | None, message: Message) -> None:
            del message
            (self.delivered if error is None else self.failed).append(value)

        self._producer.produce(self._topic, value, partition=0, on_delivery=tell)

    def close(self) -> None:
        """Drop what is on its way."""
        self._producer.purge()
        self._producer.flush(_WAIT_S)

    def poll(self) -> None:
        """Learn of what has become known."""
        self._producer.poll(0)

    def flush(self) -> None:
        """Wait until everything is known."""
        assert self._producer.flush(_WAIT_S) == 0


def test_a_broker_that_does_not_answer_for_a_while(
    cluster: tuple[KafkaBroker, CutNetwork],
) -> None:
    """Where another producer's message times out, this one's waits, and arrives."""
    kafka, network = cluster
    options = argparse.Namespace(
        bootstrap_server=f"{LOOPBACK}:{network.port}", property=[]
    )
    config = gapless_config(options)
    topics = {name: kafka.create_topic(name) for name in ("gapless", "timed")}
    gapless = Sender(topics["gapless"], config)
    timed = Sender(topics["timed"], {**config, "message.timeout.ms": 5000})

    network.cut()
    gapless.send("second")
    timed.send("second")

    def has_timed_out() -> bool:
        gapless.poll()
        timed.poll()
        return bool(timed.failed)

    wait_until(has_timed_out, _WAIT_S, "the time-out is over")
    assert gapless.failed == []
    gapless.send("third")
    network.mend()
    gapless.flush()
    assert gapless.delivered == ["first", "second", "third"]
    timed.close()
    found = [message.value() for message in read_all(kafka, topics["gapless"])]
    assert found == [b"first", b"second", b"third"]
