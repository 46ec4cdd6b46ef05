"""The testing kit's consumer: what comes out, and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence import (
    Fence,
    FencedConsumer,
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
    Verdict,
)
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Depose, Zombie

REQUIRE = {"orders": ["w"]}


@pytest.fixture
def producer(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    memory_log.create_topic("orders", partitions=2)
    leader = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="a"))
    leader.take_over(["orders"])
    return leader


@pytest.fixture
def consumer(producer: MemoryProducer, memory_ledger: MemoryLedger) -> MemoryConsumer:
    opened = MemoryConsumer(memory_ledger, require=REQUIRE)
    opened.subscribe(["orders"])
    return opened


def write(producer: MemoryProducer, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce("orders", value, partition=partition)


def read(consumer: FencedConsumer) -> list[str]:
    return [(message.value() or b"").decode() for message in consumer]


def test_a_zombie_does_not_come_out(
    producer: MemoryProducer,
    memory_ledger: MemoryLedger,
    zombie: Zombie,
) -> None:
    rejected: list[tuple[int | None, str]] = []

    def on_rejected(message: Message, verdict: Verdict) -> None:
        rejected.append((message.offset(), verdict.reason))

    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, on_rejected=on_rejected)
    consumer.subscribe(["orders"])
    write(producer, "in time")
    producer.hold()
    write(producer, "too late")
    assert read(consumer) == ["in time"]
    zombie(producer)
    assert read(consumer) == []
    assert rejected == [(3, "stale-epoch")]
    assert consumer.counts == {"barrier": 4, "ok": 1, "stale-epoch": 1}


def test_calls_do_not_wait(producer: MemoryProducer, consumer: MemoryConsumer) -> None:
    assert consumer.poll() is None
    assert consumer.consume(5) == []
    write(producer, "a", "b", "c")
    write(producer, "d", partition=1)
    assert len(consumer.consume(2)) == 2
    first = consumer.poll()
    assert first is not None
    assert first.value() == b"c"
    assert read(consumer) == ["d"]
    assert consumer.progress == {}
    consumer.close()
    assert read(consumer) == []
    with pytest.raises(RuntimeError, match="Consumer closed"):
        consumer.poll()


def test_commits_outlive_a_consumer(
    producer: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    config = {"group.id": "g", "enable.auto.commit": False}
    write(producer, "a", "b", "c")
    with MemoryConsumer(memory_ledger, require=REQUIRE, config=config) as consumer:
        consumer.subscribe(["orders"])
        first, second = consumer.consume(2)
        done = consumer.commit(first, asynchronous=False)
        assert done is not None
        assert [(tp.partition, tp.offset) for tp in done] == [(0, 2)]
        assert consumer.position([TopicPartition("orders", 0)])[0].offset == 3
        assert second.offset() == 2
    with MemoryConsumer(memory_ledger, require=REQUIRE, config=config) as consumer:
        consumer.subscribe(["orders"])
        assert read(consumer) == ["b", "c"]
    with MemoryConsumer(memory_ledger, require=REQUIRE) as other:
        other.subscribe(["^ord.*"])
        assert read(other) == ["a", "b", "c"]
    with MemoryConsumer(memory_ledger, require=REQUIRE) as other:
        other.subscribe(["orders"])
        assert read(other) == [], "committed when it was closed"


def test_a_seek_back_and_one_forward(
    producer: MemoryProducer, memory_ledger: MemoryLedger, zombie: Zombie
) -> None:
    write(producer, "a", "b")
    producer.hold()
    write(producer, "late")
    zombie(producer)
    consumer = MemoryConsumer(memory_ledger, require=REQUIRE)
    # In the middle, with nothing known: what lies below is read for its epochs.
    consumer.assign([TopicPartition("orders", 0, 4)])
    assert read(consumer) == []
    assert consumer.counts == {"stale-epoch": 1}
    consumer.seek(TopicPartition("orders", 0, 2))
    assert read(consumer) == ["b"]
    consumer.seek(TopicPartition("orders", 0, OFFSET_BEGINNING))
    assert read(consumer) == ["a", "b"]
    with pytest.raises(KafkaException, match="not assigned"):
        consumer.seek(TopicPartition("orders", 1, 0))
    consumer.pause([TopicPartition("orders", 0)])
    consumer.seek(TopicPartition("orders", 0, 1))
    assert read(consumer) == []
    consumer.resume([TopicPartition("orders", 0)])
    assert read(consumer) == ["a", "b"]


def test_the_log_is_truncated(
    producer: MemoryProducer, consumer: MemoryConsumer, memory_log: MemoryLog
) -> None:
    write(producer, "a", "b", "c")
    assert read(consumer) == ["a", "b", "c"]
    memory_log.truncate("orders", 0, 2)
    write(producer, "d")
    assert read(consumer) == ["d"]
    assert consumer.position([TopicPartition("orders", 0)])[0].offset == 3


def test_the_topic_is_made_anew(
    producer: MemoryProducer,
    consumer: MemoryConsumer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    depose: Depose,
) -> None:
    write(producer, "a", "b")
    assert read(consumer) == ["a", "b"]
    with MemoryProducer(memory_ledger, depose(*producer.leaderships)) as successor:
        successor.take_over(["orders"])
        write(successor, "c")
        assert read(consumer) == ["c"]
        memory_log.recreate("orders")
        # Its epoch began in the earlier life, and goes on counting.
        stale = [("epochfence", producer.leaderships[0].stamp_value)]
        memory_log.append("orders", "old", partition=0, headers=stale)
        write(successor, "d")
        assert read(consumer) == ["d"]
    assert consumer.counts["stale-epoch"] == 1


def test_unstamped_history(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> None:
    memory_log.create_topic("orders")
    memory_log.append("orders", "history")
    undecided = MemoryConsumer(memory_ledger, require=REQUIRE)
    undecided.subscribe(["orders"])
    with pytest.raises(MisconfiguredError, match="has no stamp of w"):
        undecided.poll()
    decided = MemoryConsumer(
        memory_ledger, require=REQUIRE, unstamped="admit-until-first-stamp"
    )
    decided.subscribe(["orders"])
    assert read(decided) == ["history"]
    assert decided.counts == {"unstamped-admitted": 1}
    dry = MemoryConsumer(memory_ledger, require=REQUIRE, mode="dry-run")
    dry.subscribe(["orders"])
    assert read(dry) == ["history"]
    assert dry.counts == {"unstamped": 1}


def test_a_made_up_stamp_is_looked_up(
    producer: MemoryProducer,
    consumer: MemoryConsumer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
) -> None:
    write(producer, "a")
    assert read(consumer) == ["a"]
    made_up = [("epochfence", b"9:0123456789abcdef:w")]
    memory_log.append("orders", "x", partition=0, headers=made_up)
    write(producer, "b")
    memory_ledger.fail(LedgerUnavailable("epochfence.coordination", "no answer"))
    with pytest.raises(LedgerUnavailable):
        consumer.poll()
    assert read(consumer) == ["b"]
    assert consumer.counts["ungranted"] == 1


def test_what_is_delivered_twice(
    producer: MemoryProducer, consumer: MemoryConsumer, memory_log: MemoryLog
) -> None:
    """By a legitimate leader: the fence is no help, so applications must be ready."""
    write(producer, "a")
    memory_log.repeat(memory_log.records("orders", 0)[-1])
    assert read(consumer) == ["a", "a"]


def test_a_topic_that_is_not_available(
    producer: MemoryProducer, consumer: MemoryConsumer, memory_log: MemoryLog
) -> None:
    write(producer, "a")
    consumer.poll()
    memory_log.fail(TopicUnavailable("orders", "no broker answers"))
    with pytest.raises(TopicUnavailable, match="no broker answers"):
        consumer.poll()
    write(producer, "b")
    assert read(consumer) == ["b"]


def test_events_and_callbacks(
    producer: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    told: list[object] = []

    def note(what: str) -> Any:
        def call(_: FencedConsumer, places: list[TopicPartition]) -> None:
            told.append((what, [tp.partition for tp in places]))

        return call

    def on_commit(error: KafkaError | None, places: list[TopicPartition]) -> None:
        told.append((error, [(tp.partition, tp.offset) for tp in places]))

    config = {"enable.partition.eof": True, "on_commit": on_commit}
    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, config=config)
    consumer.subscribe(["orders"], on_assign=note("on"), on_revoke=note("off"))
    codes: list[int] = []
    for event in consumer.consume(5):
        error = event.error()
        assert error is not None
        codes.append(error.code())
    assert codes == [KafkaError._PARTITION_EOF] * 2
    assert told == [("on", [0, 1])]
    write(producer, "a")
    assert read(consumer) == ["a"]
    consumer.commit(offsets=[TopicPartition("orders", 0, 2)])
    consumer.poll()
    assert told[1] == (None, [(0, 2)])
    consumer.unsubscribe()
    assert consumer.poll() is None
    assert ("off", [0, 1]) in told
    assert consumer.assignment() == []


def test_where_nothing_is_committed_the_application_may_want_to_know(
    producer: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    config = {"auto.offset.reset": "error"}
    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, config=config)
    consumer.assign([TopicPartition("orders", 0)])
    event = consumer.poll()
    assert event is not None
    error = event.error()
    assert error is not None
    assert error.code() == KafkaError._AUTO_OFFSET_RESET
    assert consumer.poll() is None


def test_what_an_application_makes_of_a_message_is_not_in_the_log(
    producer: MemoryProducer, consumer: MemoryConsumer, memory_log: MemoryLog
) -> None:
    write(producer, "a")
    message = consumer.poll()
    assert message is not None
    message.set_value("decoded")
    assert memory_log.records("orders", 0)[-1].value() == b"a"


def test_the_rule_alone_judges_its_records(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    zombie: Zombie,
) -> None:
    write(producer, "a", "b", "c")
    producer.hold()
    write(producer, "late")
    zombie(producer)
    fence = Fence(memory_ledger, require=REQUIRE)
    passed = fence.filter(memory_log.records("orders", 0))
    assert [message.value() for message in passed] == [b"a", b"b", b"c"]


def test_a_plain_one_reads_there_too(
    producer: MemoryProducer, memory_ledger: MemoryLedger
) -> None:
    """For an application that makes its consumer itself, from config and ledger."""
    write(producer, "a", "b")
    config = {"group.id": "plain", "auto.offset.reset": "earliest"}
    with FencedConsumer(config, memory_ledger, require=REQUIRE) as consumer:
        consumer.subscribe(["orders"])
        messages = consumer.consume(2, timeout=5)
        assert [message.value() for message in messages] == [b"a", b"b"]
        assert consumer.poll(0.05) is None


def test_what_makes_no_sense(
    consumer: MemoryConsumer, memory_ledger: MemoryLedger
) -> None:
    with pytest.raises(MisconfiguredError, match="listed: orders"):
        consumer.subscribe(["others"])
    with pytest.raises(AttributeError, match="testing kit's consumer has no"):
        consumer.consumer_group_metadata()
    anything: Any = object()
    with pytest.raises(MisconfiguredError, match="it is no MemoryLedger"):
        MemoryConsumer(anything, require=REQUIRE)
