"""Kafka to Kafka in transactions: what the group and the coordinator keep away."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from epochfence import (
    FencedConsumer,
    KafkaSink,
    Ledger,
    MisconfiguredError,
    SinkBatch,
    SinkFenced,
    SinkPosition,
    SinkRunner,
    SinkUnavailable,
)
from epochfence.consumers.dead_letters import letter_of_message
from epochfence.consumers.kafka_output import Output
from epochfence.epochs.topics import TopicKeeper
from support.brokers import KafkaBroker
from support.fenced_topic import (
    TAKEOVER_ADMITTED,
    TAKEOVER_END,
    WAYS,
    Rebuilds,
    committed,
    fenced,
    metadata_of,
    write_takeover,
)
from support.reading import read_all
from support.running import running
from support.stamped import Writer, stamp
from support.waiting import wait_until

IN_GROUPS = [way for way in WAYS if way != "assigned"]


class Target:
    """A topic that sinks produce to, and all who have to be closed."""

    def __init__(self, kafka: KafkaBroker, stack: ExitStack) -> None:
        self.kafka = kafka
        self.topic = kafka.create_topic("copy")
        self._stack = stack

    def copy(self, output: Output, messages: Sequence[Message]) -> None:
        for message in messages:
            output.produce(self.topic, value=b"%d" % (message.offset() or 0))

    def sink(self, apply: Any = None, **config: Any) -> KafkaSink:
        sink = KafkaSink({**self.kafka.config, **config}, apply or self.copy)
        return self._stack.enter_context(sink)

    def joined(self, apply: Any = None, **config: Any) -> KafkaSink:
        """A sink that goes by somebody outside of a group that has no members."""
        sink = self.sink(apply, **config)
        member = Consumer(
            {
                **self.kafka.config,
                "group.id": f"g-{secrets.token_hex(4)}",
                "isolation.level": "read_committed",
            }
        )
        self._stack.callback(member.close)
        sink.join(member)
        return sink

    def values(self, isolation_level: str = "read_committed") -> list[int]:
        records = read_all(self.kafka, self.topic, isolation_level=isolation_level)
        return [int(record.value() or b"-1") for record in records]


@pytest.fixture
def target(kafka: KafkaBroker) -> Iterator[Target]:
    with ExitStack() as stack:
        yield Target(kafka, stack)


def batch(topic: str, *offsets: int, partition: int = 0) -> SinkBatch:
    """The first batch of a partition: messages at these offsets."""
    messages = [Message(topic=topic, partition=partition, offset=at) for at in offsets]
    end = SinkPosition(None, None, offsets[-1] + 1)
    return SinkBatch(topic, partition, messages, None, end, ())


def written_takeover(kafka: KafkaBroker, ledger: Ledger, topic: str) -> Writer:
    """Have two leaders write; what wrote for them."""
    writer = Writer(kafka, topic)
    write_takeover(writer, ledger.claim("w", holder="a"), ledger.claim("w", holder="b"))
    return writer


def test_a_takeover_is_copied_and_the_group_goes_on_behind_it(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    target: Target,
    rebuilds: Rebuilds,
) -> None:
    writer = written_takeover(kafka, ledger, topic)
    config = {**kafka.config, "group.id": f"group-{topic}"}
    runner = SinkRunner(config, ledger, target.sink(), require={topic: ["w"]})
    with running(runner, topic):
        wait_until(lambda: stands_at(runner, topic, TAKEOVER_END), 60, "all is read")
    assert target.values() == TAKEOVER_ADMITTED
    rebuilds.take()
    with fenced(kafka, ledger, topic) as consumer:
        found = committed(consumer, topic)
        assert (found.offset, found.leader_epoch) == (TAKEOVER_END, 0)
        assert metadata_of(found)["n"] == 2
        assert metadata_of(found)["e"] == {"w": 2}
        consumer.subscribe([topic])
        consumer.consume(1, 5)
        assert rebuilds.take() == []  # the commit tells what has to be known
    again = SinkRunner(config, ledger, target.sink(), require={topic: ["w"]})
    writer.write([("epochfence", ledger.claim("w", holder="c").stamp_value)], b"c")
    with running(again, topic):
        wait_until(lambda: stands_at(again, topic, TAKEOVER_END + 1), 60, "it goes on")
    assert target.values() == [*TAKEOVER_ADMITTED, TAKEOVER_END]


def stands_at(runner: SinkRunner, topic: str, offset: int) -> bool:
    position = runner.progress.positions.get((topic, 0))
    return position is not None and position.next_offset == offset


def test_a_group_that_has_committed_without_it_is_rebuilt(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    target: Target,
    rebuilds: Rebuilds,
) -> None:
    written_takeover(kafka, ledger, topic)
    config = {**kafka.config, "group.id": f"group-{topic}"}
    plain = Consumer(config)
    plain.commit(offsets=[TopicPartition(topic, 0, 4)], asynchronous=False)
    plain.close()
    runner = SinkRunner(config, ledger, target.sink(), require={topic: ["w"]})
    with running(runner, topic):
        wait_until(lambda: stands_at(runner, topic, TAKEOVER_END), 60, "all is read")
    assert rebuilds.take() == [(0, 0, 4)]
    assert target.values() == [at for at in TAKEOVER_ADMITTED if at >= 4]


@pytest.mark.parametrize("way", IN_GROUPS)
def test_a_member_of_a_generation_that_has_passed_changes_nothing(
    kafka: KafkaBroker, ledger: Ledger, target: Target, way: str
) -> None:
    """Another one joins while it has a batch in its hands."""
    topic = kafka.create_topic("orders", 2)
    with (
        fenced(kafka, ledger, topic, client=WAYS[way]) as first,
        fenced(kafka, ledger, topic, client=WAYS[way]) as second,
    ):
        first.subscribe([topic])
        wait_until(lambda: len(assigned(first)) == 2, 60, "it has both partitions")

        class Sleeper:
            """The first member as it was before the second one joined."""

            committed = first.committed
            generation = first.consumer_group_metadata()

            def consumer_group_metadata(self) -> Any:
                return self.generation

        sleeper, other = target.sink(), target.sink()
        sleeper.join(Sleeper())
        other.join(second)
        second.subscribe([topic])

        def is_shared_out() -> bool:
            return len(assigned(first)) == len(assigned(second)) == 1

        wait_until(is_shared_out, 60, "each has a partition")
        (taken,) = second.assignment()
        with pytest.raises(SinkFenced, match="no more as the one that has"):
            sleeper.write([batch(topic, 7, partition=taken.partition)])
        assert target.values() == []
        other.write([batch(topic, 8, partition=taken.partition)])
        assert target.values() == [8]


def assigned(consumer: FencedConsumer) -> list[TopicPartition]:
    consumer.consume(1, 0.1)
    return consumer.assignment()


def test_who_is_no_member_has_nothing_to_show(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        with pytest.raises(KafkaException, match="no member"):
            consumer.consumer_group_metadata()
        wait_until(lambda: assigned(consumer), 60, "it is a member")
        assert consumer.consumer_group_metadata()


def test_a_transaction_that_lasts_too_long(topic: str, target: Target) -> None:
    is_slow = [True]

    def apply(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        if is_slow.pop():
            is_slow.append(False)
            vars(output)["_producer"].flush(30)
            # Its record, and behind it the coordinator's word that it is aborted.
            wait_until(lambda: end_of(target) == 2, 60, "the transaction is ended")

    sink = target.joined(apply, **{"transaction.timeout.ms": 1000})
    with pytest.raises(SinkUnavailable, match=r"lasted .* \(transaction.timeout.ms\)"):
        sink.write([batch(topic, 3)])
    assert target.values() == []
    assert sink.load(topic, 0) is None
    is_slow[:] = [False]
    sink.write([batch(topic, 3)])
    assert target.values() == [3]


def end_of(target: Target) -> int:
    consumer = Consumer({**target.kafka.config, "group.id": "any"})
    try:
        place = TopicPartition(target.topic, 0)
        return consumer.get_watermark_offsets(place, timeout=30)[1]
    finally:
        consumer.close()


def test_another_producer_takes_the_transactional_id(
    topic: str, target: Target
) -> None:
    name = {"transactional.id": f"sink-{topic}"}

    def apply(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        target.sink(**name)

    with pytest.raises(MisconfiguredError, match="another producer has taken it"):
        target.joined(apply, **name).write([batch(topic, 3)])
    assert target.values() == []


def raises(error: Exception) -> Callable[..., None]:
    def apply(*_: object) -> None:
        raise error

    return apply


@pytest.mark.parametrize("error", [ValueError("no"), KafkaException("of another")])
def test_a_function_that_fails(topic: str, target: Target, error: Exception) -> None:
    fails = [True]

    def apply(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        if fails.pop():
            raise error

    sink = target.joined(apply)
    with pytest.raises(type(error)) as raised:
        sink.write([batch(topic, 3)])
    assert raised.value is error
    assert (target.values(), sink.load(topic, 0)) == ([], None)
    fails[:] = [False]
    sink.write([batch(topic, 3)])
    assert target.values() == [3]


def test_a_message_that_is_refused(topic: str, target: Target) -> None:
    def too_large(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        output.produce(target.topic, value=bytes(2_000_000))

    def nowhere(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        output.produce("there-is-no-such-topic", value=b"9")

    with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
        target.joined(too_large).write([batch(topic, 3)])
    sink = target.joined(nowhere, **{"transaction.timeout.ms": 2000})
    with pytest.raises(KafkaException, match="UNKNOWN_TOPIC"):
        sink.write([batch(topic, 3)])
    assert (target.values(), sink.load(topic, 0)) == ([], None)


def test_metadata_that_is_too_large_goes_without_epochs(
    topic: str, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epochfence.consumers import group_positions, kafka_sink

    def large(of: SinkBatch, *, with_epochs: bool, **more: Any) -> TopicPartition:
        made = group_positions.commit_of(of, with_epochs=with_epochs, **more)
        if with_epochs:
            made = TopicPartition(made.topic, made.partition, 4, metadata="x" * 5000)
        return made

    monkeypatch.setattr(kafka_sink, "commit_of", large)
    sink = target.joined()
    sink.write([batch(topic, 3)])
    assert target.values() == [3]
    state = sink.load(topic, 0)
    assert state is not None
    assert state.said is not None
    assert (state.said.starts, state.said.epochs) == (0, None)


def test_a_full_queue_is_waited_for(topic: str, target: Target) -> None:
    sink = target.joined(**{"queue.buffering.max.messages": 10})
    sink.write([batch(topic, *range(100))])
    assert target.values() == list(range(100))


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (None, "config"),
        ({}, "bootstrap.servers"),
        ({"transaction.timeout.ms": "soon"}, "transaction.timeout.ms"),
        ({"acks": 1}, "acks"),
        ({"enable.idempotence": False}, "enable.idempotence"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_that_are_wrong(
    kafka: KafkaBroker, config: dict[str, Any] | None, named: str
) -> None:
    given: Any = {**kafka.config, **config} if config else config
    with pytest.raises(MisconfiguredError) as refused:
        KafkaSink(given, raises(ValueError()))
    assert refused.value.setting == named


def test_a_sink_that_nobody_drives(topic: str, target: Target) -> None:
    with pytest.raises(MisconfiguredError, match="SinkRunner"):
        target.sink().write([batch(topic, 3)])


def test_a_cluster_that_does_not_answer() -> None:
    with pytest.raises(SinkUnavailable, match=r"127\.0\.0\.1:1"):
        KafkaSink(
            {"bootstrap.servers": "127.0.0.1:1"}, raises(ValueError()), timeout_s=0.5
        )


def test_a_function_that_always_lasts_too_long(topic: str, target: Target) -> None:
    ends: list[int] = []

    def apply(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        vars(output)["_producer"].flush(30)
        ends.append(end_of(target))
        wait_until(lambda: end_of(target) > ends[-1], 60, "the transaction is ended")

    sink = target.joined(apply, **{"transaction.timeout.ms": 1000})
    for _ in range(2):
        with pytest.raises(SinkUnavailable, match="lasted"):
            sink.write([batch(topic, 3)])
    with pytest.raises(MisconfiguredError, match="3 times in a row"):
        sink.write([batch(topic, 3)])


def test_a_queue_that_stays_full(topic: str, target: Target) -> None:
    config = {"queue.buffering.max.messages": 10, "linger.ms": 8000}
    sink = KafkaSink({**target.kafka.config, **config}, target.copy, timeout_s=3)
    member = Consumer({**target.kafka.config, "group.id": topic})
    with sink:
        sink.join(member)
        with pytest.raises(SinkUnavailable, match="queue is full"):
            sink.write([batch(topic, *range(100))])
    member.close()
    assert target.values() == []


def test_a_sink_of_two_runners(topic: str, target: Target) -> None:
    """Commits of one would be made in the other's group."""
    sink = target.joined()
    other = Consumer({**target.kafka.config, "group.id": f"{topic}-other"})
    with pytest.raises(MisconfiguredError, match="another runner has it"):
        sink.join(other)
    other.close()


def test_a_function_that_outlasts_the_poll_interval_goes_on(
    kafka: KafkaBroker, ledger: Ledger, topic: str, target: Target
) -> None:
    """The member is put out of its group, but nobody else has written."""
    is_slow = [True]

    def apply(output: Output, messages: Sequence[Message]) -> None:
        target.copy(output, messages)
        if is_slow.pop():
            is_slow.append(False)
            consumer: Any = vars(runner)["_consumer"]
            wait_until(lambda: not is_member(consumer), 60, "it is put out")

    def is_member(consumer: FencedConsumer) -> bool:
        try:
            consumer.consumer_group_metadata()
        except KafkaException:
            return False
        return True

    writer = Writer(kafka, topic)
    writer.write(stamp(ledger.claim("w", holder="a")), b"v")
    runner = SinkRunner(
        {
            **kafka.config,
            "group.id": f"group-{topic}",
            "session.timeout.ms": 1500,
            "max.poll.interval.ms": 1500,
        },
        ledger,
        target.sink(apply),
        require={topic: ["w"]},
    )
    with running(runner, topic):
        wait_until(lambda: stands_at(runner, topic, 1), 60, "it goes on")
    assert target.values() == [0]


def test_dead_letter_topics_that_will_not_do(
    kafka: KafkaBroker, topic: str, target: Target
) -> None:
    compacted = kafka.create_topic("dead", config={"cleanup.policy": "compact"})
    for name, said in (("no-such-topic", "no such topic"), (compacted, "compact")):
        with pytest.raises(MisconfiguredError, match=said):
            KafkaSink(kafka.config, target.copy, dead_letters=name)
    with KafkaSink(kafka.config, target.copy, dead_letters=topic) as sink:
        member = Consumer({**kafka.config, "group.id": topic})
        sink.join(member)
        with pytest.raises(MisconfiguredError, match="it is read from"):
            sink.write([batch(topic, 3)])
        member.close()
    assert target.values() == []


def test_a_dead_letter_topic_whose_settings_may_not_be_read(
    kafka: KafkaBroker, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not known of it is no fault of it."""

    def unreadable(*_: object) -> None:
        """None, as for a client that may not."""

    monkeypatch.setattr(TopicKeeper, "settings", unreadable)
    dead = kafka.create_topic("dead")
    with KafkaSink(kafka.config, target.copy, dead_letters=dead) as sink:
        assert sink.keeps_rejected


def test_a_letter_that_is_too_large_is_kept_without_its_value(
    kafka: KafkaBroker, ledger: Ledger, topic: str, target: Target
) -> None:
    """Else a deposed leader could stop whoever reads behind it."""
    dead = kafka.create_topic("dead", config={"max.message.bytes": "10000"})
    old, new = (ledger.claim("w", holder=name) for name in "ab")
    writer = Writer(kafka, topic)
    writer.write(stamp(new), b"v")
    for value in (bytes(20_000), b"small"):
        writer.write(stamp(old), value)
    writer.write([*stamp(old), ("large", bytes(20_000))], b"v")
    sink = KafkaSink(kafka.config, target.copy, dead_letters=dead)
    config = {**kafka.config, "group.id": f"group-{topic}"}
    with sink:
        runner = SinkRunner(config, ledger, sink, require={topic: ["w"]})
        with running(runner, topic):
            wait_until(lambda: stands_at(runner, topic, 4), 60, "all is read")
    letters = [letter_of_message(record) for record in read_all(kafka, dead)]
    found = [one for one in letters if one is not None]
    assert [(one.offset, one.value, one.left_out_bytes) for one in found] == [
        (1, None, 20_000),
        (2, b"small", None),
        (3, None, 1),
    ]
    assert [len(one.headers) for one in found] == [1, 1, 0]
