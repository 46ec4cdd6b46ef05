"""The testing kit agrees with real Kafka: the same scripts, played on both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from epochfence import (
    ClaimLost,
    EpochfenceError,
    FencedConsumer,
    FencedProducer,
    FenceSettings,
    Leadership,
    Ledger,
)
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.waiting import wait_until

Seen = list[object]


class Stage(Protocol):
    """What a script is played on."""

    ledger: Ledger
    topic: str

    def producer(self, *led: Leadership, **options: Any) -> FencedProducer: ...
    def consumer(self, **options: Any) -> FencedConsumer: ...
    def hold(self, producer: FencedProducer) -> None: ...
    def release(self, producer: FencedProducer) -> None: ...
    def write_raw(self, value: bytes, headers: Any = None) -> None: ...
    def read(self, consumer: FencedConsumer) -> list[bytes | None]: ...


class MemoryStage:
    def __init__(self) -> None:
        self.log = MemoryLog()
        self.topic = self.log.create_topic("orders", partitions=2)
        self.ledger: Ledger = MemoryLedger(self.log)

    @property
    def _in_memory(self) -> MemoryLedger:
        assert isinstance(self.ledger, MemoryLedger)
        return self.ledger

    def producer(self, *led: Leadership, **options: Any) -> FencedProducer:
        return MemoryProducer(self._in_memory, led, **options)

    def consumer(self, **options: Any) -> FencedConsumer:
        config = {"enable.auto.commit": False}
        return MemoryConsumer(self._in_memory, config=config, **options)

    def hold(self, producer: FencedProducer) -> None:
        assert isinstance(producer, MemoryProducer)
        producer.hold()

    def release(self, producer: FencedProducer) -> None:
        assert isinstance(producer, MemoryProducer)
        producer.release()

    def write_raw(self, value: bytes, headers: Any = None) -> None:
        self.log.append(self.topic, value, b"k", 0, headers=headers)

    def read(self, consumer: FencedConsumer) -> list[bytes | None]:
        return [message.value() for message in consumer]


class KafkaStage:
    def __init__(self, kafka: KafkaBroker, ledger: Ledger) -> None:
        self.kafka = kafka
        self.ledger = ledger
        self.topic = kafka.create_topic("orders", partitions=2)
        self._raw = Producer(kafka.config)
        self._opened: list[FencedProducer] = []

    def producer(self, *led: Leadership, **options: Any) -> FencedProducer:
        # What is not flushed stays on its way, for longer than a test takes.
        config = {**self.kafka.config, "linger.ms": 60_000}
        self._opened.append(FencedProducer(config, self.ledger, led, **options))
        return self._opened[-1]

    def consumer(self, **options: Any) -> FencedConsumer:
        config = {
            **self.kafka.config,
            "group.id": self.topic,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "fetch.wait.max.ms": 20,
        }
        return FencedConsumer(config, self.ledger, **options)

    def hold(self, producer: FencedProducer) -> None:
        producer.flush(30)

    def release(self, producer: FencedProducer) -> None:
        assert producer.flush(30) == 0

    def write_raw(self, value: bytes, headers: Any = None) -> None:
        self._raw.produce(self.topic, value, b"k", 0, headers=headers)
        assert self._raw.flush(30) == 0

    def close(self) -> None:
        for producer in self._opened:
            producer.close()

    def read(self, consumer: FencedConsumer) -> list[bytes | None]:
        """Up to the ends of what is assigned (or of everything, after subscribe)."""
        places = [TopicPartition(self.topic, number) for number in range(2)]
        ends = {
            tp.partition: consumer.get_watermark_offsets(tp, timeout=10)[1]
            for tp in places
        }
        values: list[bytes | None] = []

        def is_at_end() -> bool:
            values.extend(message.value() for message in consumer.consume(100, 0.05))
            assigned = consumer.assignment()
            at = {tp.partition: tp.offset for tp in consumer.position(assigned)}
            return bool(at) and all(at[number] >= ends[number] for number in at)

        wait_until(is_at_end, 30, "all is read")
        return values


def outcomes(producer: FencedProducer) -> list[object]:
    return [tuple(receipt)[1:] for receipt in producer.confirm()]


def error_of(call: Callable[[], object]) -> str:
    try:
        call()
    except (EpochfenceError, KafkaException) as error:
        return type(error).__name__
    return "none"


def read_all(stage: Stage, **options: Any) -> Seen:
    options.setdefault("require", {stage.topic: ["w"]})
    with stage.consumer(**options) as consumer:
        consumer.assign([TopicPartition(stage.topic, number) for number in range(2)])
        values = stage.read(consumer)
        # Partitions interleave as they like.
        return [sorted(map(str, values)), sorted(consumer.counts.items())]


def write(stage: Stage, producer: FencedProducer, *values: str, at: int = 0) -> None:
    for value in values:
        producer.produce(stage.topic, value, "k", at)


# The scripts.


def one_leader(stage: Stage) -> Seen:
    with stage.producer(stage.ledger.claim("w", holder="a")) as leader:
        early = error_of(lambda: write(stage, leader, "early"))
        barriers = sorted(leader.take_over([stage.topic]).values())
        write(stage, leader, "a", "b")
        leader.produce(stage.topic, "c", "a key")
        return [early, barriers, outcomes(leader), *read_all(stage)]


def takeover(stage: Stage) -> Seen:
    first = stage.producer(stage.ledger.claim("w", holder="a"))
    first.take_over([stage.topic])
    write(stage, first, "a")
    seen: Seen = [outcomes(first)]
    second = stage.producer(stage.ledger.claim("w", holder="b"))
    second.take_over([stage.topic])
    write(stage, second, "b")
    seen += [error_of(lambda: first.take_over([stage.topic])), outcomes(second)]
    return [*seen, *read_all(stage)]


def a_zombie(stage: Stage) -> Seen:
    first = stage.producer(stage.ledger.claim("w", holder="a"))
    first.take_over([stage.topic])
    write(stage, first, "in time")
    stage.hold(first)
    write(stage, first, "late", "later")
    second = stage.producer(stage.ledger.claim("w", holder="b"))
    second.take_over([stage.topic])
    write(stage, second, "b")
    seen: Seen = [outcomes(second)]
    stage.release(first)
    return [*seen, outcomes(first), *read_all(stage)]


def a_zombie_that_came_first(stage: Stage) -> Seen:
    first = stage.producer(stage.ledger.claim("w", holder="a"))
    first.take_over([stage.topic])
    stage.hold(first)
    write(stage, first, "late")
    second = stage.producer(stage.ledger.claim("w", holder="b"))
    stage.release(first)
    second.take_over([stage.topic])
    return [outcomes(first), *read_all(stage)]


def a_double_takeover(stage: Stage) -> Seen:
    leaders = []
    for holder in "abc":
        leader = stage.producer(stage.ledger.claim("w", holder=holder))
        leader.take_over([stage.topic])
        write(stage, leader, f"{holder}1")
        stage.hold(leader)
        leaders.append(leader)
        write(stage, leader, f"{holder}2")
    for leader in leaders:
        stage.release(leader)
    return [*map(outcomes, leaders), *read_all(stage)]


def deposed_in_the_middle(stage: Stage) -> Seen:
    held = stage.ledger.claim("w", holder="a")
    leader = stage.producer(held)
    leader.take_over([stage.topic])
    write(stage, leader, "a", "b")
    leader.flush(30)
    stage.ledger.claim("w", holder="b")
    # The real one is told by the thread that follows the ledger, which has read it.
    seen: Seen = [error_of(lambda: write(stage, leader, "c")), error_of(held.verify)]
    return [*seen, outcomes(leader), *read_all(stage)]


def two_scopes(stage: Stage) -> Seen:
    controller = stage.ledger.claim("w", holder="a")
    shard = stage.ledger.claim("shard", holder="a")
    require = {stage.topic: ["w", "shard"]}
    both = stage.producer(controller, shard)
    both.take_over([stage.topic])
    write(stage, both, "a")
    stage.hold(both)
    write(stage, both, "late")
    stage.ledger.claim("w", holder="b")
    next_shard = stage.ledger.claim("shard", holder="b")
    other = stage.producer(next_shard)
    other.take_over([stage.topic])
    write(stage, other, "lacks one")
    # Its own consumers would require no more than it stamps.
    seen: Seen = [outcomes(other)]
    stage.release(both)
    return [*seen, outcomes(both), *read_all(stage, require=require)]


def a_scope_for_each_partition(stage: Stage) -> Seen:
    settings = FenceSettings(["w/{partition}"])
    mine = stage.ledger.claim("w/1", holder="a")
    leader = stage.producer(mine, settings=settings)
    seen: Seen = [error_of(lambda: leader.take_over([stage.topic]))]
    leader.take_over([TopicPartition(stage.topic, 1)])
    seen.append(error_of(lambda: write(stage, leader, "a", at=0)))
    write(stage, leader, "b", at=1)
    seen.append(outcomes(leader))
    return [*seen, *read_all(stage, require={stage.topic: ["w/{partition}"]})]


def unstamped_history(stage: Stage) -> Seen:
    stage.write_raw(b"history")
    choice: Any = {"unstamped": "admit-until-first-stamp"}
    seen: Seen = []
    with stage.consumer(require={stage.topic: ["w"]}) as undecided:
        undecided.assign([TopicPartition(stage.topic, 0)])
        seen.append(error_of(lambda: stage.read(undecided)))
    leader = stage.producer(
        stage.ledger.claim("w", holder="a"), settings=FenceSettings(["w"], **choice)
    )
    leader.take_over([stage.topic])
    write(stage, leader, "a")
    seen.append(outcomes(leader))
    stage.write_raw(b"forgotten")
    return [*seen, *read_all(stage, **choice)]


def made_up_and_damaged_stamps(stage: Stage) -> Seen:
    held = stage.ledger.claim("w", holder="a")
    with stage.producer(held) as leader:
        leader.take_over([stage.topic])
        write(stage, leader, "a")
        leader.flush(30)
    for header in (b"9:0123456789abcdef:w", b"1:0123456789abcdef:w", b"x", None):
        stage.write_raw(b"bad", [("epochfence", header)])
    good = ("epochfence", held.stamp_value)
    stage.write_raw(b"twice", [good, good])
    stage.write_raw(b"copied", [good, ("mine", b"1")])
    return read_all(stage)


def seek_back_and_commit(stage: Stage) -> Seen:
    first = stage.producer(stage.ledger.claim("w", holder="a"))
    first.take_over([stage.topic])
    write(stage, first, "a", "b")
    stage.hold(first)
    write(stage, first, "late")
    second = stage.producer(stage.ledger.claim("w", holder="b"))
    second.take_over([stage.topic])
    stage.release(first)
    write(stage, second, "c")
    second.flush(30)
    seen: Seen = []
    require = {stage.topic: ["w"]}
    with stage.consumer(require=require) as consumer:
        consumer.assign([TopicPartition(stage.topic, 0)])
        seen.append(stage.read(consumer))
        consumer.seek(TopicPartition(stage.topic, 0, 2))
        seen.append(stage.read(consumer))
        consumer.commit(offsets=[TopicPartition(stage.topic, 0, 2)], asynchronous=False)
        seen.append(sorted(consumer.counts.items()))
    with stage.consumer(require=require) as consumer:
        consumer.subscribe([stage.topic])
        seen.append(stage.read(consumer))
        (committed,) = consumer.committed([TopicPartition(stage.topic, 0)], 10)
        seen += [committed.offset, sorted(consumer.counts.items())]
    return seen


def a_dry_run(stage: Stage) -> Seen:
    a_zombie(stage)
    return read_all(stage, mode="dry-run")


def lost_claims(stage: Stage) -> Seen:
    stage.ledger.claim("w", holder="a")
    seen: Seen = []
    with pytest.raises(ClaimLost) as lost:
        stage.ledger.claim("w", holder="b", seen=0)
    seen += [lost.value.claimed_epoch, lost.value.latest_epoch, lost.value.holder]
    seen.append(error_of(lambda: stage.ledger.claim("w", holder="b", exactly=1)))
    seen.append(stage.ledger.claim("w", holder="b", at_least=5).epoch)
    seen.append(error_of(lambda: stage.ledger.claim("w", holder="b", at_least=2**50)))
    return [*seen, error_of(lambda: stage.ledger.claim("a scope", holder="b"))]


SCRIPTS: list[Callable[[Stage], Seen]] = [
    one_leader,
    takeover,
    a_zombie,
    a_zombie_that_came_first,
    a_double_takeover,
    deposed_in_the_middle,
    two_scopes,
    a_scope_for_each_partition,
    unstamped_history,
    made_up_and_damaged_stamps,
    seek_back_and_commit,
    a_dry_run,
    lost_claims,
]


@pytest.fixture
def stage(kafka: KafkaBroker) -> Iterator[KafkaStage]:
    with unnamed_topics(kafka).open() as ledger:
        opened = KafkaStage(kafka, ledger)
        yield opened
        opened.close()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.__name__)
def test_it_sees_what_one_sees_on_kafka(
    stage: KafkaStage, script: Callable[[Stage], Seen]
) -> None:
    assert script(MemoryStage()) == script(stage)
