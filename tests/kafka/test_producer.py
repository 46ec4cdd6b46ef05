"""FencedProducer on real Kafka: what it hands over, and what it refuses."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Message, Producer, TopicPartition

from epochfence import (
    Deposed,
    Leadership,
    Ledger,
    MisconfiguredError,
)
from epochfence.producers.fenced_producer import FencedProducer
from support.brokers import KafkaBroker
from support.forking import told_in_child
from support.ledgers import LedgerTopics, unnamed_topics
from support.producing import mock_cluster, records, stamp_of
from support.reading import read_all
from support.waiting import wait_until


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture(scope="module")
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def leadership(ledger: Ledger) -> Leadership:
    return ledger.claim("s", holder="a")


@pytest.fixture
def producer(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> Iterator[FencedProducer]:
    with FencedProducer(kafka.config, ledger, leadership) as opened:
        yield opened


def ignore(error: object, message: object) -> None:
    """A delivery callback."""


#: Calls of `produce`: positional arguments and keywords, without the topic.
CALLS: list[tuple[list[Any], dict[str, Any]]] = [
    ([], {}),
    ([b"v"], {}),
    (["v"], {}),
    ([None, b"k"], {}),
    ([b"v", "k", 1], {}),
    ([b"v", b"k", 1, ignore], {}),
    ([b"v", b"k", 1, None, ignore], {}),
    ([b"v", b"k", 1, ignore, ignore, 1_700_000_000_000], {}),
    ([b"v", b"k", 1, None, None, 0, [("a", b"1"), ("b", None), ("a", "2")]], {}),
    ([b"v"], {"headers": {"a": b"1", "b": "ä", "c": None}}),
    ([b"v"], {"headers": []}),
    ([b"v"], {"headers": {}}),
    ([], {"value": b"v", "key": b"k", "partition": 0, "timestamp": 1_600_000_000_000}),
    ([], {"value": b"v", "on_delivery": ignore, "callback": ignore}),
    ([b"v"], {"headers": [("Epochfence", b"1"), ("x-epochfence", b"2")]}),
]


def test_the_same_messages_come_out(
    kafka: KafkaBroker, producer: FencedProducer, leadership: Leadership
) -> None:
    theirs, ours = (kafka.create_topic("t", partitions=2) for _ in range(2))
    producer.take_over([ours])
    plain = Producer({**kafka.config, "partitioner": "random"})
    for topic, produce in ((theirs, plain.produce), (ours, producer.produce)):
        for number, (arguments, keywords) in enumerate(CALLS):
            marked: dict[str, Any] = {"partition": number % 2, **keywords}
            if len(arguments) > 2:
                del marked["partition"]
            produce(topic, *arguments, **marked)
    assert plain.flush(30) == 0
    assert producer.flush(30) == 0
    theirs_there = read_all(kafka, theirs)
    assert len(theirs_there) == len(CALLS)
    # Barriers apart, only the stamp is different, which comes first.
    ours_there = [
        message
        for message in read_all(kafka, ours)
        if headers_of(message)[0] == stamp_of(leadership)
    ]
    for mine, other in zip(ours_there, theirs_there, strict=True):
        assert headers_of(mine)[1:] == headers_of(other)
        for fact in (Message.key, Message.value, Message.partition):
            assert fact(mine) == fact(other)
        if (other.timestamp()[1] or 0) < 1_750_000_000_000:
            assert mine.timestamp() == other.timestamp()


def headers_of(message: Message) -> list[Any]:
    return list(message.headers() or [])


REFUSED: list[tuple[dict[str, Any], type[Exception]]] = [
    ({"headers": (("a", b"1"),)}, TypeError),
    ({"headers": [["a", b"1"]]}, TypeError),
    ({"headers": [("a",)]}, TypeError),
    ({"headers": "ab"}, TypeError),
    ({"headers": [("a", 5)]}, TypeError),
    ({"partition": None}, TypeError),
    ({"value": 5}, TypeError),
    ({"partition": 77}, KafkaException),
    ({"value": b"x" * 2_000_000}, KafkaException),
]


def test_what_the_client_refuses(kafka: KafkaBroker, producer: FencedProducer) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    plain = Producer(kafka.config)
    errors: list[object] = []
    for one in (plain, producer):
        one.list_topics(topic, timeout=10)  # unknown partitions are refused at once
        for keywords, kind in REFUSED:
            with pytest.raises(kind) as error:
                one.produce(topic, **keywords)
            errors.append(error)
    # Their tracebacks keep nothing alive that `confirm` waits for.
    assert len(producer.confirm()) == 0
    assert len(errors) == 2 * len(REFUSED)


def test_a_full_queue(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t")
    small = {**kafka.config, "queue.buffering.max.messages": 10, "linger.ms": 5000}
    with FencedProducer(small, ledger, leadership) as producer:
        producer.take_over([topic])
        for _ in range(10):
            producer.produce(topic, b"v")
        with pytest.raises(BufferError) as full:
            producer.produce(topic, b"v", on_delivery=ignore)
        assert len(producer) == 10
        assert producer.confirm().counts["admitted"] == 10
        assert full.value.args  # held until here, with its traceback
        producer.produce(topic, b"v")
        assert producer.confirm().counts["admitted"] == 1


def test_the_users_headers_are_left_alone(
    kafka: KafkaBroker, producer: FencedProducer, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    mine = [("a", b"1")]
    for _ in range(2):
        producer.produce(topic, b"v", headers=mine)
    producer.produce(topic, b"v")
    producer.flush(30)
    assert mine == [("a", b"1")]
    assert [record.headers for record in records(kafka, topic)[1:]] == [
        [stamp_of(leadership), ("a", b"1")],
        [stamp_of(leadership), ("a", b"1")],
        [stamp_of(leadership)],
    ]


# Where it may write.


def test_a_topic_that_is_taken_over_while_it_is_written_to(
    kafka: KafkaBroker,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t")
    inside: Any = producer
    check = inside._check_leading

    def meanwhile() -> None:
        check()
        monkeypatch.undo()
        producer.take_over([topic])

    monkeypatch.setattr(producer, "_check_leading", meanwhile)
    producer.produce(topic, b"v")
    assert producer.confirm().are_all_admitted


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["no-such-topic"], "no such topic"),
        (["a b"], "no topic can have this name"),
        ([TopicPartition("no-such-topic", 0)], "no such topic"),
    ],
)
def test_what_cannot_be_taken_over(
    producer: FencedProducer, wrong: Any, words: str
) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        producer.take_over(wrong)


# Who may write.


def test_deposed_as_soon_as_the_ledger_shows_it(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    leadership: Leadership,
    producer: FencedProducer,
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    producer.produce(topic, b"v")
    epoch = leadership.epoch
    with topics.open() as other:
        other.claim("r", holder="c")  # another scope deposes nobody
        producer.produce(topic, b"v")
        other.claim("s", holder="b")

    def is_deposed() -> bool:
        try:
            producer.produce(topic, b"v")
        except Deposed as deposed:
            seen = (deposed.held_epoch, deposed.seen_epoch, deposed.holder)
            assert seen == (epoch, epoch + 1, "b")
            return True
        return False

    wait_until(is_deposed, 30, "produce raises Deposed")
    with pytest.raises(Deposed):
        producer.take_over([topic])
    assert set(producer.confirm().counts.items()) >= {("fenced", 0), ("lost", 0)}


def test_a_forked_process_writes_nothing(
    kafka: KafkaBroker, producer: FencedProducer
) -> None:
    """Its client has no threads there: messages would be taken, and never sent."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    calls: list[Callable[[], object]] = [
        lambda: producer.produce(topic, b"v"),
        lambda: producer.take_over([topic]),
        producer.confirm,
        producer.close,
    ]
    told = told_in_child(calls)
    assert len(told) == 3
    assert all("open one in each process" in one for one in told)
    producer.produce(topic, b"v")
    assert producer.confirm().are_all_admitted


def test_a_close_that_is_interrupted_may_be_repeated(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t")
    told: list[object] = []

    def once(*_: object) -> None:
        told.append(None)
        if len(told) == 1:
            raise KeyboardInterrupt

    config = {**kafka.config, "linger.ms": 200, "batch.num.messages": 10}
    producer = FencedProducer(config, ledger, leadership)
    producer.take_over([topic])
    for _ in range(100):
        producer.produce(topic, b"v", on_delivery=once)
    with pytest.raises(KeyboardInterrupt):
        producer.close()
    producer.close()
    assert len(producer) == 0
    assert len(records(kafka, topic)) == 101


# The producer underneath.


def test_a_shared_producer(kafka: KafkaBroker, ledger: Ledger) -> None:
    topic = kafka.create_topic("t")
    shared = Producer({**kafka.config, "acks": "all", "enable.idempotence": True})
    first, second = (ledger.claim(scope, holder="a") for scope in "rs")
    with FencedProducer(shared, ledger, first) as one:
        with FencedProducer(shared, ledger, second) as other:
            one.take_over([topic])
            other.take_over([topic])
            one.produce(topic, b"1")
            other.produce(topic, b"2")
            other.produce(topic, b"2")
            assert len(one.confirm()) == 1
            assert len(other.confirm()) == 2
        one.produce(topic, b"1")
        assert len(one.confirm()) == 1
    shared.produce(topic, b"still open")
    assert shared.flush(30) == 0
    assert [record.headers for record in records(kafka, topic)[2:]] == [
        [stamp_of(first)],
        [stamp_of(second)],
        [stamp_of(second)],
        [stamp_of(first)],
        [],
    ]


def test_delivery_callbacks(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t")
    told: list[tuple[str, object, int | None]] = []

    def teller(name: str) -> Any:
        def tell(error: object, message: Message) -> None:
            told.append((name, error, message.offset()))

        return tell

    settings = {**kafka.config, "on_delivery": teller("default")}
    with FencedProducer(settings, ledger, leadership) as producer:
        producer.take_over([topic])
        producer.produce(topic, b"v")
        producer.produce(topic, b"v", on_delivery=teller("on_delivery"))
        producer.produce(topic, b"v", callback=teller("callback"))
        both = {"callback": teller("callback"), "on_delivery": teller("on_delivery")}
        producer.produce(topic, b"v", **both)
        assert len(producer.confirm()) == 4
    assert told == [
        ("default", None, 1),
        ("on_delivery", None, 2),
        ("callback", None, 3),
        ("callback", None, 4),
    ]


def test_a_delivery_callback_that_fails(
    kafka: KafkaBroker, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])

    def fail(error: object, message: object) -> None:
        raise RuntimeError("the user's own fault")

    producer.produce(topic, b"v", on_delivery=fail)
    producer.produce(topic, b"v")
    with pytest.raises(RuntimeError, match="own fault"):
        producer.flush(30)
    assert producer.confirm().counts["admitted"] == 2


def test_the_rest_is_that_of_the_producer_underneath(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t")
    patient = {**kafka.config, "linger.ms": 60_000}
    with FencedProducer(patient, ledger, leadership) as producer:
        producer.take_over([topic])
        producer.produce(topic, b"v")
        assert (len(producer), bool(producer)) == (1, True)
        assert producer.poll(0) == 0
        producer.purge()
        assert producer.poll(10) == 1
        assert (len(producer), bool(producer)) == (0, True)
        receipts = producer.confirm()
        assert len(receipts) == 0
        (failed,) = receipts.undelivered
        assert failed[:3] == (topic, -1, "_PURGE_QUEUE")
        assert failed.messages == 1
        assert producer.confirm().are_all_admitted
        assert topic in producer.list_topics(timeout=10).topics
        assert list(producer.list_topics(topic, 10).topics) == [topic]
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(producer)
        producer.produce(topic, b"v")
    # Closed: what was handed over is delivered.
    assert [record.value for record in records(kafka, topic)[1:]] == [b"v"]
    producer.close()
    for call in (
        lambda: producer.produce(topic, b"v"),
        lambda: producer.take_over([topic]),
        producer.confirm,
    ):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_the_embedded_broker() -> None:
    owner, servers = mock_cluster()
    config = {"bootstrap.servers": servers}
    with Ledger(config, embedded=True) as ledger:
        first = ledger.claim("s", holder="a")
        with FencedProducer(config, ledger, first) as producer:
            taken = producer.take_over(["t", TopicPartition("u", 1)])
            assert sorted(taken) == [("t", n) for n in range(4)] + [("u", 1)]
            for _ in range(5):
                producer.produce("t", b"v")
            assert producer.confirm().counts["admitted"] == 5
            producer.produce("t", b"v")
            producer.flush(10)
            ledger.claim("s", holder="b")
            assert producer.confirm().counts["admitted"] == 1
    assert owner.flush(10) == 0
