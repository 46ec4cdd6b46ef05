"""Short histories that a fenced consumer once got wrong."""

from __future__ import annotations

import secrets
import time
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Message, TopicPartition
from confluent_kafka.cimpl import NewTopic

from epochfence import (
    FencedConsumer,
    Ledger,
    MisconfiguredError,
    TopicUnavailable,
    Verdict,
)
from epochfence.consumers import pipeline
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.partition_reader import PartitionReader
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.producing import make_anew
from support.stream import Stream, read_count, read_until, stamp, values_of
from support.waiting import wait_until


@pytest.fixture(scope="module")
def ledger(kafka: KafkaBroker) -> Iterator[Ledger]:
    with unnamed_topics(kafka).open() as ledger:
        yield ledger


class Bench:
    """Topics, a leader of a scope of its own, and consumers on them."""

    def __init__(self, kafka: KafkaBroker, ledger: Ledger) -> None:
        self.kafka = kafka
        self.ledger = ledger
        self.scope = f"w-{secrets.token_hex(4)}"
        self.group = f"g-{secrets.token_hex(4)}"
        self.leader = ledger.claim(self.scope, holder="pod")
        self.streams: dict[str, Stream] = {}

    def topic(self, partitions: int = 1) -> str:
        name = self.kafka.create_topic("orders", partitions)
        self.streams[name] = Stream(self.kafka, name)
        return name

    def write(self, topic: str, count: int, partition: int = 0) -> list[bytes]:
        stream = self.streams[topic]
        return stream.write(stamp(self.leader), count, partition=partition)

    def consumer(
        self, config: dict[str, Any] | None = None, **options: Any
    ) -> FencedConsumer:
        merged = {
            **self.kafka.config,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 50,
            **(config or {}),
        }
        require = {topic: [self.scope] for topic in self.streams}
        return FencedConsumer(merged, self.ledger, require=require, **options)

    def committed(self, topic: str) -> int:
        plain = Consumer({**self.kafka.config, "group.id": self.group})
        (found,) = plain.committed([TopicPartition(topic, 0)], timeout=10)
        plain.close()
        return found.offset

    def make_anew(self, topic: str) -> None:
        """Delete a topic and create it again."""
        self.kafka.delete_topic(topic)
        admin: Any = self.kafka.admin

        def created() -> bool:
            try:
                admin.create_topics([NewTopic(topic, 1)])[topic].result(10)
            except Exception:
                return False
            return True

        wait_until(created, 30, f"{topic} is there again")
        self.streams[topic] = Stream(self.kafka, topic)


@pytest.fixture
def bench(kafka: KafkaBroker, ledger: Ledger) -> Bench:
    return Bench(kafka, ledger)


def test_a_callback_that_raises_takes_no_message_with_it(bench: Bench) -> None:
    topic = bench.topic()
    told: list[object] = []

    def on_commit(*arguments: object) -> None:
        told.append(arguments)
        raise ValueError("from on_commit")

    config = {"on_commit": on_commit, "auto.commit.interval.ms": 20}
    values: list[bytes | None] = []
    written = bench.write(topic, 300)
    consumer = bench.consumer(config)
    consumer.assign([TopicPartition(topic, 0, 0)])
    raised = 0
    deadline = time.monotonic() + 60
    while len(values) < len(written) or not raised:
        assert time.monotonic() < deadline, (len(values), raised)
        try:
            message = consumer.poll(0.2)
        except ValueError:
            raised += 1
            continue
        if message is not None:
            values.append(message.value())
        if message is None or len(values) % 50 == 0:
            written += bench.write(topic, 5)
    # The answer to the last commit may come while it is closed.
    with suppress(ValueError):
        consumer.close()
    assert values == written
    assert 0 < raised <= len(told)


def test_an_on_assign_that_raises_stalls_nothing(bench: Bench) -> None:
    topic = bench.topic()
    written = bench.write(topic, 3)

    def on_assign(*_: object) -> None:
        raise ValueError("from on_assign")

    with bench.consumer() as consumer:
        consumer.subscribe([topic], on_assign=on_assign)
        with pytest.raises(ValueError, match="from on_assign"):
            consumer.poll(30)
        assert values_of(read_count(consumer, 3)) == written


def test_a_pause_while_a_partition_is_read_for_its_epochs(bench: Bench) -> None:
    topic = bench.topic()
    written = bench.write(topic, 2000)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 1900)])
        consumer.consume(1, 0)
        consumer.pause([TopicPartition(topic, 0)])
        assert consumer.consume(10, 0.5) == []
        consumer.resume([TopicPartition(topic, 0)])
        assert values_of(read_count(consumer, 100)) == written[1900:]


def test_a_pause_forgets_nothing(bench: Bench) -> None:
    topic = bench.topic()
    written = bench.write(topic, 10)
    place = TopicPartition(topic, 0)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = values_of(message for message in consumer.consume(3, 30))
        consumer.pause([place])
        assert consumer.position([place])[0].offset == 3
        consumer.commit(asynchronous=False)
        assert bench.committed(topic) == 3
        consumer.resume([place])
        values += values_of(read_count(consumer, 7))
    assert values == written
    assert bench.committed(topic) == 10


def test_an_end_comes_behind_the_records_before_it(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, 5)

    def is_end(message: Message) -> bool:
        error = message.error()
        return error is not None and error.code() == KafkaError._PARTITION_EOF

    with bench.consumer({"enable.partition.eof": True}) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages = read_until(consumer, lambda some: any(map(is_end, some)))
        assert [is_end(message) for message in messages] == [False] * 5 + [True]


def test_nothing_is_committed_where_nobody_has_been(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, 10)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read_count(consumer, 7)
    before = bench.committed(topic)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 2)])
        consumer.pause([TopicPartition(topic, 0)])
        assert consumer.consume(1, 1.0) == []
    assert bench.committed(topic) == before


def test_giving_partitions_up_commits_what_is_done(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, 10)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        read_count(consumer, 10)
        consumer.unassign()
        assert bench.committed(topic) == 10


@pytest.mark.parametrize("is_automatic", [True, False])
def test_another_topic_made_anew_repeats_nothing(
    bench: Bench, is_automatic: bool
) -> None:
    steady, renewed = bench.topic(), bench.topic()
    written = bench.write(steady, 50)
    bench.write(renewed, 3)
    with bench.consumer({"enable.auto.commit": is_automatic}) as consumer:
        consumer.assign([TopicPartition(steady, 0, 0), TopicPartition(renewed, 0, 0)])
        values: list[tuple[str | None, bytes | None]] = []
        while len(values) < 20:
            message = consumer.poll(30)
            assert message is not None
            values.append((message.topic(), message.value()))
        bench.make_anew(renewed)
        again = bench.write(renewed, 4)

        def rest() -> bool:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append((message.topic(), message.value()))
            new = [value for topic, value in values if topic == renewed]
            old = [value for topic, value in values if topic == steady]
            return len(old) >= 50 and new[-4:] == again and len(new) >= 4

        wait_until(rest, 60, "both were read to their end", interval_s=0)
        assert [value for topic, value in values if topic == steady] == written
        if not is_automatic:
            assert bench.committed(steady) < 0


def test_a_ledger_that_was_read_anew_is_the_ledger_of_all_partitions(
    bench: Bench,
) -> None:
    topic = bench.topic(partitions=2)
    places = [TopicPartition(topic, number, 0) for number in (0, 1)]
    for number in (0, 1):
        bench.write(topic, 3, number)
    with bench.consumer() as consumer:
        consumer.assign(places)
        read_count(consumer, 6)
        log: Any = bench.ledger._log  # pyright: ignore[reportPrivateUsage]
        log._log.restart()
        bench.ledger.refresh()
        consumer.seek(TopicPartition(topic, 0, 3))
        consumer.consume(1, 0.5)
        bench.leader = bench.ledger.claim(bench.scope, holder="successor")
        written = bench.write(topic, 3, 0) + bench.write(topic, 3, 1)
        assert sorted(values_of(read_count(consumer, 6)), key=repr) == sorted(written)
        assert consumer.counts == {"ok": 12}


def test_a_slow_application_still_answers_its_group(bench: Bench) -> None:
    topic = bench.topic()
    bench.write(topic, 150)
    config = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 200}
    revoked: list[int] = []
    with bench.consumer(config) as slow, bench.consumer(config) as other:

        def on_revoke(_: FencedConsumer, partitions: list[TopicPartition]) -> None:
            revoked.extend(tp.partition for tp in partitions)

        slow.subscribe([topic], on_revoke=on_revoke)
        assert slow.poll(30) is not None  # others were read ahead
        other.subscribe([topic])

        def is_told() -> bool:
            other.poll(0.1)
            assert slow.poll(0) is not None or revoked
            return bool(revoked)

        wait_until(is_told, 30, "it heard of the rebalance", interval_s=0.25)


# What a signal's handler raises, wherever it does.


class Stopped(Exception):
    """What a signal's handler raises."""


class LeakyClient:
    """The client; once, what it gives out is lost to an exception."""

    def __init__(self, raw: Consumer) -> None:
        self._raw = raw
        self.is_due = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    def consume(self, *arguments: Any) -> list[Message]:
        batch = self._raw.consume(*arguments)
        if batch and self.is_due:
            self.is_due = False
            raise Stopped
        return batch


def test_an_exception_that_takes_messages_with_it(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    bench = Bench(kafka, ledger)
    topic = bench.topic(2)
    good = bench.write(topic, 50, 0) + bench.write(topic, 50, 1)
    with bench.consumer() as consumer:
        inside: Any = consumer
        client = inside._reader._client
        consumer.subscribe([topic])
        client.raw = LeakyClient(client.raw)
        with pytest.raises(Stopped):
            read_count(consumer, 1)
        messages = read_count(consumer, 100)
        assert consumer.consume(10, 0.5) == []
    assert sorted(values_of(messages), key=repr) == sorted(good, key=repr)


def test_an_exception_between_a_fence_and_its_row(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(kafka, ledger)
    topic = bench.topic()
    good = bench.write(topic, 5)
    judge = PartitionFence.judge

    def interrupted(self: PartitionFence, *args: Any, **options: Any) -> Any:
        if judge(self, *args, **options) is not None:
            raise Stopped

    with bench.consumer() as consumer:
        consumer.subscribe([topic])
        with monkeypatch.context() as patched:
            patched.setattr(PartitionFence, "judge", interrupted)
            with pytest.raises(Stopped):
                read_count(consumer, 1)
        assert values_of(read_count(consumer, 5)) == good
    assert [row.position.offset for row in ledger.table.starts(topic, 0)] == [0]


def test_an_exception_in_the_midst_of_a_rebuild(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it had not judged yet is not taken for read."""
    bench = Bench(kafka, ledger)
    topic = bench.topic()
    stream = bench.streams[topic]
    bench.write(topic, 50)
    second = ledger.claim(bench.scope, holder="second")
    stream.barrier(second)
    bench.write(topic, 10)  # 51 to 60, of the deposed leader
    good = stream.write(stamp(second), 1)
    reader: Any = PartitionReader
    sorted_out = reader._sorted_out
    stopped: list[None] = []

    def interrupted(self: PartitionReader, batch: list[Message], end: int) -> Any:
        done = sorted_out(self, batch, end)
        if batch and not stopped:
            stopped.append(None)
            raise Stopped
        return done

    monkeypatch.setattr(PartitionReader, "_sorted_out", interrupted)
    with bench.consumer() as consumer:
        consumer.assign([TopicPartition(topic, 0, 55)])
        with pytest.raises(Stopped):
            read_count(consumer, 1)
        assert values_of(read_count(consumer, 1)) == good
        assert consumer.counts == {"stale-epoch": 6, "ok": 1}
    starts = {row.position.offset for row in ledger.table.starts(topic, 0)}
    assert starts == {0, 50}


def test_a_commit_of_what_was_read_in_a_former_life(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    """Taken for one of the new life, it would skip what was never read."""
    bench = Bench(kafka, ledger)
    topic = bench.topic()
    bench.write(topic, 10)
    with bench.consumer({"enable.auto.commit": False}) as consumer:
        consumer.subscribe([topic])
        former = read_count(consumer, 10)
        make_anew(kafka, topic)
        bench.write(topic, 30)
        latter: list[Message] = []

        inside: Any = consumer

        def has_come() -> bool:
            with suppress(TopicUnavailable):
                latter[:] = consumer.consume(3, 0.2)
            return topic in inside._reader._looks.renewed and bool(latter)

        wait_until(has_come, 30, "the new life is read")
        with pytest.raises(TopicUnavailable, match="of the former life"):
            consumer.commit(message=former[-1], asynchronous=False)
        consumer.commit(message=latter[-1], asynchronous=False)
    assert bench.committed(topic) == (latter[-1].offset() or 0) + 1


# Further histories.


def test_much_is_taken_in_while_a_topic_is_gone(
    kafka: KafkaBroker, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the rebalance helps, and that comes only to a client that is called."""
    monkeypatch.setattr(pipeline, "_MOST_WAITING", 100)
    bench = Bench(kafka, ledger)
    topic, other = bench.topic(), bench.topic()
    good = bench.write(topic, 1000)
    bench.write(other, 3)
    with bench.consumer({"topic.metadata.refresh.interval.ms": 500}) as consumer:
        consumer.subscribe([topic, other])
        wait_until(
            lambda: bool(consumer.poll(0.1)) or len(consumer.assignment()) == 2,
            30,
            "assigned",
        )
        kafka.delete_topic(other)
        values: list[bytes | None] = []
        deadline = time.monotonic() + 60
        consumer.seek(TopicPartition(topic, 0, 0))
        while len(values) < len(good):
            assert time.monotonic() < deadline, len(values)
            with suppress(TopicUnavailable):
                for message in consumer.consume(1000, 0.2):
                    if message.error() is None and message.topic() == topic:
                        values.append(message.value())
    assert values == good


def test_a_pause_does_not_tell_of_rejections_twice(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    bench = Bench(kafka, ledger)
    topic = bench.topic()
    stream = bench.streams[topic]
    good = bench.write(topic, 3)
    second = ledger.claim(bench.scope, holder="second")
    good += stream.write(stamp(second), 3)
    bench.write(topic, 3)  # 6 to 8: stale
    good += stream.write(stamp(second), 3)
    told: list[int | None] = []

    def on_rejected(message: Message, _: Verdict) -> None:
        told.append(message.offset())

    with bench.consumer(on_rejected=on_rejected) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        values = values_of(read_count(consumer, 1))
        while len(values) < len(good):
            message = consumer.poll(5)  # the rest is read ahead
            assert message is not None
            values.append(message.value())
            consumer.pause([TopicPartition(topic, 0)])
            consumer.resume([TopicPartition(topic, 0)])
        assert values == good
        assert told == [6, 7, 8]
        assert consumer.counts == {"ok": 9, "stale-epoch": 3}
        # A seek is another matter: what it goes back over is judged anew.
        consumer.seek(TopicPartition(topic, 0, 6))
        assert values_of(read_count(consumer, 3)) == good[-3:]
        assert told == [6, 7, 8] * 2


def test_an_error_that_is_raised_again_does_not_grow(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    bench = Bench(kafka, ledger)
    topic, other = bench.topic(), bench.topic()
    config = {**kafka.config, "group.id": bench.group}
    with FencedConsumer(config, ledger, require={topic: []}) as consumer:
        consumer.subscribe([f"^({topic}|{other})$"])
        lengths: list[int] = []
        while len(lengths) < 50:
            try:
                consumer.poll(0.1)
            except MisconfiguredError as error:
                lengths.append(len(traceback.extract_tb(error.__traceback__)))
        assert lengths[-1] == lengths[1]
