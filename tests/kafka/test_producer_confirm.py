"""`confirm()` on real Kafka: each message is answered, and answered right."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from epochfence import (
    Deposed,
    EpochfenceError,
    Leadership,
    Ledger,
    LedgerUnavailable,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.receipts import Receipts
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.table import Table
from epochfence.epochs.topics import TopicKeeper
from epochfence.producers import acknowledgements, partition_watch
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.lives import Lives
from epochfence.producers.reported import Reported
from epochfence.producers.territory import Ground
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.ledgers import LedgerTopics, unnamed_topics, write_record
from support.producing import (
    add_partitions,
    barriers,
    doing,
    make_anew,
    records,
    stamp_of,
)
from support.waiting import wait_until

#: A port on which nobody listens.
NOBODY_THERE = "127.0.0.1:1"


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


@pytest.fixture(autouse=True)
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Producers here are not told of grants, and so go on writing: zombies."""
    monkeypatch.setattr(FencedProducer, "_on_grant", doing(None))


@pytest.fixture
def producer(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> Iterator[FencedProducer]:
    with FencedProducer(kafka.config, ledger, leadership) as opened:
        yield opened


def write(producer: FencedProducer, topic: str, count: int, partition: int = 0) -> None:
    """Write messages, and see them acknowledged."""
    for _ in range(count):
        producer.produce(topic, b"v", b"k", partition)
    assert producer.flush(30) == 0


def succeed(kafka: KafkaBroker, ledger: Ledger, topic: str, scope: str = "s") -> None:
    """Claim, take over, and write a message."""
    leadership = ledger.claim(scope, holder="successor")
    with FencedProducer(kafka.config, ledger, leadership) as successor:
        successor.take_over([topic])
        successor.produce(topic, b"new", b"k", 0)
        assert successor.confirm().are_all_admitted


def outcomes(receipts: Receipts, partition: int = 0) -> dict[int | None, str]:
    """Outcomes by offset."""
    return {r.offset: r.outcome for r in receipts if r.partition == partition}


def told_by(logger: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the loggers below one have told."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith(f"{logger}.")
    ]


# Still the latest.


def test_a_partition_that_requires_what_nobody_here_leads(
    kafka: KafkaBroker, ledger: Ledger
) -> None:
    """It was added; consumers of it reject what carries another scope's stamp."""
    topic = kafka.create_topic("t", partitions=2)
    settings = FenceSettings(["o/{partition}"])
    leaderships = [ledger.claim(f"o/{number}", holder="a") for number in range(2)]
    with FencedProducer(
        kafka.config, ledger, leaderships, settings=settings
    ) as producer:
        producer.take_over([topic])
        add_partitions(kafka, topic, 3)
        producer.list_topics(topic, 10)
        for number in range(3):
            producer.produce(topic, b"v", partition=number)
        receipts = producer.confirm()
        found = [set(outcomes(receipts, number).values()) for number in range(3)]
        assert found == [{"admitted"}, {"admitted"}, {"fenced"}]


def test_a_callback_that_keeps_its_exception(
    kafka: KafkaBroker, producer: FencedProducer
) -> None:
    """With it, it keeps the frames that called it."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    kept: list[Exception] = []

    def told(*_: object) -> None:
        try:
            int("x")
        except ValueError as error:
            kept.append(error)

    producer.produce(topic, b"v", on_delivery=told)
    assert producer.confirm(timeout_s=5).are_all_admitted
    assert len(kept) == 1


def test_what_was_acknowledged_is_admitted(
    kafka: KafkaBroker, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t", partitions=2)
    producer.take_over([topic])
    for number in range(100):
        producer.produce(topic, b"v", partition=number % 2)
    receipts = producer.confirm()
    assert receipts.are_all_admitted
    assert receipts.counts["admitted"] == len(receipts) == 100
    assert [r.offset for r in receipts if r.partition == 1] == list(range(1, 51))
    assert receipts.outcome(topic, 0, 50) == "admitted"
    assert receipts.outcome(topic, 0, 51) is None
    # Each is told of once.
    assert len(producer.confirm()) == 0
    write(producer, topic, 1)
    assert outcomes(producer.confirm()) == {51: "admitted"}


def test_confirming_while_others_produce(
    kafka: KafkaBroker, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t", partitions=2)
    producer.take_over([topic])
    stopping = threading.Event()
    delivered: list[int] = []
    handed_over = [0, 0]

    def go_on(number: int) -> None:
        while not stopping.is_set():
            try:
                producer.produce(topic, b"v", on_delivery=report if number else None)
            except BufferError:
                producer.poll(0.01)
                continue
            handed_over[number] += 1
            if handed_over[number] % 100 == 0:
                producer.poll(0)

    def report(error: object, message: Any) -> None:
        assert error is None
        delivered.append(message.offset())

    threads = [threading.Thread(target=go_on, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    answers: list[Receipts] = []
    try:
        while len(answers) < 5:
            at_least = sum(handed_over) - sum(len(answer) for answer in answers)
            answers.append(producer.confirm(30))
            # All that had been handed over at the call.
            assert len(answers[-1]) >= at_least - len(threads)
    finally:
        stopping.set()
        for thread in threads:
            thread.join()
    answers.append(producer.confirm())
    assert all(answer.are_all_admitted for answer in answers)
    told = [(r.partition, r.offset) for answer in answers for r in answer]
    assert len(set(told)) == len(told) == sum(handed_over)
    assert len(delivered) == handed_over[1]


def test_messages_that_are_not_acknowledged(
    ledger: Ledger, leadership: Leadership, kafka: KafkaBroker
) -> None:
    topic = kafka.create_topic("t")
    nowhere = {"bootstrap.servers": NOBODY_THERE, "log_level": 0}
    with FencedProducer(Producer(nowhere), ledger, leadership) as producer:
        producer.take_over([topic])
        for _ in range(3):
            producer.produce(topic, b"v")
        for _ in range(2):
            with pytest.raises(TopicUnavailable, match="3 messages are not ack") as one:
                producer.confirm(timeout_s=0.3)
            assert one.value.topic == topic
        producer.purge()
        (failed,) = producer.confirm().undelivered
        assert failed.messages == 3


@pytest.mark.parametrize("refused_first", [True, False])
def test_a_client_that_has_failed_for_good(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    caplog: pytest.LogCaptureFixture,
    refused_first: bool,
) -> None:
    """It says so once, to whoever calls, in the midst of what is to be told."""
    topic = kafka.create_topic("t", config={"max.message.bytes": "2000"})
    config = {**kafka.config, "enable.gapless.guarantee": True}
    with FencedProducer(config, ledger, leadership) as producer:
        producer.take_over([topic])
        if not refused_first:
            producer.produce(topic, b"v")
            producer.flush()
        producer.produce(topic, bytes(5000))
        receipts = producer.confirm()
        (failed,) = receipts.undelivered
        assert (failed.error, failed.messages) == ("MSG_SIZE_TOO_LARGE", 1)
        assert receipts.counts["admitted"] == (0 if refused_first else 1)
        (told,) = told_by("epochfence.producers", caplog)
        assert "Message size too large" in told
        assert "claim anew" in told
        with pytest.raises(KafkaException, match="_FATAL"):
            producer.produce(topic, b"v")
        assert producer.unconfirmed == 0
        assert producer.confirm().are_all_admitted


def test_a_client_that_has_failed_is_closed(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    caplog: pytest.LogCaptureFixture,
) -> None:
    topic = kafka.create_topic("t", config={"max.message.bytes": "2000"})
    config = {**kafka.config, "enable.gapless.guarantee": True}
    with FencedProducer(config, ledger, leadership) as producer:
        producer.take_over([topic])
        producer.produce(topic, bytes(5000))
    (told,) = told_by("epochfence.producers", caplog)
    assert "Message size too large" in told


@pytest.mark.parametrize("fault", ["ledger", "table", "write", "look", "read"])
def test_after_an_error_nothing_is_forgotten(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 2)
    succeed(kafka, ledger, topic)
    write(producer, topic, 2)
    spot, error = {
        "ledger": (Ledger.refresh, LedgerUnavailable("c", "down")),
        "table": (Table.refresh, TableUnavailable("s", "down")),
        "write": (Table.write, TableUnavailable("s", "down")),
        "look": (Lives.look, TopicUnavailable(topic, "down")),
        "read": (PartitionReader.read, TopicUnavailable(topic, "down")),
    }[fault]

    kinds: list[type[Any]] = [Ledger, Table, Lives, PartitionReader]
    (kind,) = [one for one in kinds if spot in vars(one).values()]
    with monkeypatch.context() as patch:
        patch.setattr(kind, spot.__name__, doing(error))
        for _ in range(2):
            with pytest.raises(EpochfenceError, match="down"):
                producer.confirm()
    expected = {1: "admitted", 2: "admitted", 5: "fenced", 6: "fenced"}
    assert outcomes(producer.confirm()) == expected
    assert len(producer.confirm()) == 0


# Deposed.


def test_deposed_in_the_midst_of_it(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    producer: FencedProducer,
) -> None:
    topic = kafka.create_topic("t", partitions=3)
    producer.take_over([topic])
    write(producer, topic, 3, partition=0)
    write(producer, topic, 1, partition=1)
    with topics.open() as elsewhere:
        later = elsewhere.claim("s", holder="b")
        write(producer, topic, 2, partition=0)  # granted is not yet taken over
        with FencedProducer(kafka.config, elsewhere, later) as successor:
            successor.take_over([TopicPartition(topic, 0)])
            write(producer, topic, 2, partition=0)
            successor.produce(topic, b"v", b"k", 0)
            assert successor.confirm().are_all_admitted
            write(producer, topic, 1, partition=0)
            write(producer, topic, 1, partition=2)
            before = elsewhere.table.starts(topic, 0)
            receipts = producer.confirm()
            assert outcomes(receipts, 0) == {
                **dict.fromkeys((1, 2, 3, 4, 5), "admitted"),
                **dict.fromkeys((7, 8, 10), "fenced"),
            }
            assert outcomes(receipts, 1) == {1: "admitted"}
            assert outcomes(receipts, 2) == {1: "admitted"}
            assert not receipts.are_all_admitted
            # What the answer stands on is there for every reader.
            assert before == []
            elsewhere.table.refresh()
            starts = elsewhere.table.starts(topic, 0)
            found = {(row.scope, row.epoch, row.position.offset) for row in starts}
            assert found == {("s", later.epoch, 6)}
            assert elsewhere.table.digests(topic, 0) == {
                FenceSettings(["s"], unstamped="quarantine").digest()
            }
    with pytest.raises(Deposed):
        producer.produce(topic, b"v")
    assert len(producer.confirm()) == 0


def test_a_barrier_that_is_gone_proves_nothing(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    """Though all messages were acknowledged below it: an election cut the log."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 2)
    succeed(kafka, ledger, topic)
    write(producer, topic, 1)  # 5
    inside: Any = producer
    # As if there had been one behind them all.
    inside._territory._grounds[topic, 0] = Ground(_topic_id(kafka, topic), 6)
    found = outcomes(producer.confirm())
    assert found == {1: "admitted", 2: "admitted", 5: "fenced"}


def _topic_id(kafka: KafkaBroker, topic: str) -> str:
    facts = TopicKeeper(kafka.config, 10).facts(topic)
    assert facts is not None
    return facts.topic_id


def test_a_second_barrier_is_no_epoch_start(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    """A row of it would be missed for good once the table had to be rebuilt."""
    topic = kafka.create_topic("t")
    for _ in range(2):
        producer.take_over([topic])
        write(producer, topic, 1)
        assert producer.confirm().are_all_admitted
    write(producer, topic, 1)
    succeed(kafka, ledger, topic)
    write(producer, topic, 1)
    assert outcomes(producer.confirm()) == {4: "admitted", 7: "fenced"}
    ledger.table.refresh()
    [start] = ledger.table.starts(topic, 0)
    assert start.position.offset == 5


def test_deposed_under_one_of_two_scopes(kafka: KafkaBroker, ledger: Ledger) -> None:
    topic = kafka.create_topic("t")
    pair = [ledger.claim(scope, holder="a") for scope in ("two", "of/0")]
    settings = {topic: FenceSettings(["two", "of/{partition}"])}
    with FencedProducer(kafka.config, ledger, pair, settings=settings) as producer:
        producer.take_over([topic])
        write(producer, topic, 1)
        succeed(kafka, ledger, topic, "of/0")
        write(producer, topic, 1)
        assert outcomes(producer.confirm()) == {2: "admitted", 5: "fenced"}
    ledger.table.refresh()
    digests = ledger.table.digests(topic, 0)
    assert digests == {settings[topic].digest()}  # as given, though undecided there


def test_only_what_lies_behind_the_barrier_is_read(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t", partitions=3)
    for number in range(3):
        write_record(kafka, topic, None, b"unstamped", partition=number)
    producer.take_over([topic])
    write(producer, topic, 2, partition=0)
    write(producer, topic, 2, partition=1)
    producer.take_over([TopicPartition(topic, 1)])
    succeed(kafka, ledger, topic)
    read: list[tuple[int, int, int]] = []
    whole = PartitionReader.read

    def noted(self: PartitionReader, start: int, end: int, **more: Any) -> Any:
        if self.topic == topic:
            read.append((self.partition, start, end))
        return whole(self, start, end, **more)

    monkeypatch.setattr(PartitionReader, "read", noted)
    assert producer.confirm().counts["admitted"] == 4
    assert read == [(0, 1, 4), (1, 4, 5)]  # of the latter, the barrier alone


def test_a_partition_without_a_proved_barrier_is_read_from_its_start(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The successor's barrier lies before the own one."""
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", 600)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        add_partitions(kafka, topic, 2)
        producer.list_topics(topic, 10)
        succeed(kafka, ledger, topic)
        write(producer, topic, 2, partition=1)
        wait_until(lambda: len(barriers(kafka, topic)) == 4, 30, "the own barrier")
        assert outcomes(producer.confirm(), 1) == {1: "fenced", 2: "fenced"}


# Logs that are not what they were.


def cut_head(kafka: KafkaBroker, topic: str, offset: int) -> None:
    """Remove what lies before an offset, as retention does."""
    admin: Any = kafka.admin
    place = TopicPartition(topic, 0, offset)
    (done,) = admin.delete_records([place]).values()
    done.result(30)


def test_the_heads_of_logs_are_gone(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    blind, told = kafka.create_topic("t"), kafka.create_topic("u")
    producer.take_over([blind, told])
    for topic in (blind, told):
        write(producer, topic, 2)  # 1, 2
    later = ledger.claim("s", holder="b")
    with FencedProducer(kafka.config, ledger, later) as successor:
        successor.take_over([blind, told])  # 3
    for topic in (blind, told):
        write(producer, topic, 2)  # 4, 5
    # Of one topic, somebody has put on record what will be gone.
    record_starts(kafka, ledger, told)
    for topic in (blind, told):
        cut_head(kafka, topic, 5)
    receipts = producer.confirm()
    by_topic = {
        name: {r.offset: r.outcome for r in receipts if r.topic == name}
        for name in (blind, told)
    }
    assert by_topic[blind] == dict.fromkeys((1, 2, 4, 5), "indeterminate")
    assert by_topic[told] == {
        1: "indeterminate",
        2: "indeterminate",
        4: "fenced",
        5: "fenced",
    }


def record_starts(kafka: KafkaBroker, ledger: Ledger, topic: str) -> None:
    """Put on record where epochs began, as a reader of the topic does."""
    settings = FenceSettings(["s"], unstamped="quarantine")
    fence = PartitionFence(topic, 0, settings, ledger.refresh())
    facts = TopicKeeper(kafka.config, 10).facts(topic)
    assert facts is not None
    fence.enter_life(facts.topic_id)
    with PartitionReader(kafka.config, topic, 0) as reader:
        for batch in reader.read(*reader.bounds(10)):
            for one in batch:
                offset = one.offset()
                assert offset is not None
                fence.judge(
                    one.leader_epoch(), offset, headers_of(one), ledger_complete=True
                )
    ledger.table.write(fence.starts, settings.digest())


def test_a_message_that_the_cleaner_took(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t", config=dict(COMPACTABLE))
    producer.take_over([topic])
    write(producer, topic, 3)  # 1 to 3, of one key
    succeed(kafka, ledger, topic)  # of the same key
    write(producer, topic, 1)  # 6
    force_compaction(kafka, topic)
    assert {r.offset for r in records(kafka, topic)} >= {0, 4, 6}
    assert outcomes(producer.confirm()) == {
        **dict.fromkeys((1, 2, 3), "indeterminate"),
        6: "fenced",
    }


def test_a_topic_made_anew(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What was written to the life before is lost, whatever lies there now."""
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", 600)
    topic = kafka.create_topic("t")
    with FencedProducer(kafka.config, ledger, leadership) as producer:
        producer.take_over([topic])
        write(producer, topic, 3)
        make_anew(kafka, topic)
        # The same stamp at an offset of before, by another producer of this leader.
        with FencedProducer(kafka.config, ledger, leadership) as other:
            other.take_over([topic])
        succeed(kafka, ledger, topic)
        write_record(kafka, topic, None, b"v", [stamp_of(leadership)])
        receipts = producer.confirm()
        assert outcomes(receipts) == {1: "lost", 2: "lost", 3: "fenced"}
        # One more barrier told where the log truly ends, if at all.
        assert len(records(kafka, topic)) == 4


@pytest.mark.parametrize("is_taken_over_anew", [False, True])
def test_a_topic_made_anew_and_the_barriers_of_each_life(
    kafka: KafkaBroker,
    ledger: Ledger,
    leadership: Leadership,
    monkeypatch: pytest.MonkeyPatch,
    is_taken_over_anew: bool,
) -> None:
    """Messages of one life are not before a barrier of another."""
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", 600)
    topic = kafka.create_topic("t")
    producer = FencedProducer(kafka.config, ledger, leadership)
    producer.take_over([topic])
    write(producer, topic, 5)
    if not is_taken_over_anew:
        producer.take_over([topic])
    make_anew(kafka, topic)
    if is_taken_over_anew:
        for _ in range(7):
            write_record(kafka, topic, None, b"unstamped")
        producer.take_over([topic])
    succeed(kafka, ledger, topic)
    receipts = producer.confirm()
    assert receipts.counts["lost"] == len(receipts) == 5
    producer.close()


def test_a_topic_made_anew_while_it_is_read(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 2)
    succeed(kafka, ledger, topic)
    write(producer, topic, 1)
    read = PartitionReader.read
    times: list[int] = []

    def read_and_replace(self: PartitionReader, *place: int, **more: Any) -> Any:
        yield from read(self, *place, **more)
        if self.topic == topic:
            times.append(place[0])
            if len(times) == 1:
                make_anew(kafka, topic)

    monkeypatch.setattr(PartitionReader, "read", read_and_replace)
    receipts = producer.confirm()
    assert receipts.counts["lost"] == len(receipts) == 3
    assert len(times) == 2
    facts = {row.topic_id for row in ledger.table.starts(topic, 0)}
    assert len(facts) <= 1  # no row mixes the two lives


def test_a_topic_that_is_gone(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 2)
    other = kafka.create_topic("t", partitions=2)
    producer.take_over([other])
    write(producer, other, 1, partition=0)
    write(producer, other, 1, partition=1)
    ledger.claim("s", holder="b")
    kafka.delete_topic(topic)
    make_anew(kafka, other)  # without partition 1
    receipts = producer.confirm()
    gone = [receipts.outcome(topic, 0, offset) for offset in (1, 2)]
    assert gone == ["indeterminate"] * 2
    # The others get their answer all the same.
    assert receipts.outcome(other, 0, 1) == "lost"
    assert receipts.outcome(other, 1, 1) == "indeterminate"
    assert len(producer.confirm()) == 0


def test_where_an_offset_came_again_nothing_is_taken_for_granted(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What lies below may be gone as well, though nobody else leads."""
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", 600)
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 10)
    make_anew(kafka, topic)
    for _ in range(5):
        write_record(kafka, topic, None, b"foreign")
    write(producer, topic, 1)
    found = outcomes(producer.confirm())
    assert {found[offset] for offset in range(1, 5)} == {"lost"}


def test_a_report_that_an_exception_came_before(
    kafka: KafkaBroker, producer: FencedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler's, for one: the client does not report again."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    report = acknowledgements.Generation.report
    interrupted: list[None] = []

    def interruptible(self: Any, error: Any, message: Any) -> None:
        if not interrupted:
            interrupted.append(None)
            raise KeyboardInterrupt
        report(self, error, message)

    monkeypatch.setattr(acknowledgements.Generation, "report", interruptible)
    assert producer.confirm().are_all_admitted  # from here on, that is the report
    for _ in range(3):
        producer.produce(topic, b"v")
    with pytest.raises(KeyboardInterrupt):
        producer.flush(30)
    receipts = producer.confirm()
    assert len(receipts) == 2
    assert not receipts.are_all_admitted
    [missed] = receipts.undelivered
    assert (missed.error, missed.messages) == ("REPORT_LOST", 1)
    producer.produce(topic, b"v")
    assert producer.confirm().are_all_admitted


def test_an_end_that_a_deposed_broker_told(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is called lost before a barrier has told the true end."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 2)
    succeed(kafka, ledger, topic)
    write(producer, topic, 2)
    monkeypatch.setattr(PartitionReader, "bounds", doing((0, 2)))
    assert outcomes(producer.confirm()) == {
        1: "admitted",
        2: "admitted",
        5: "fenced",
        6: "fenced",
    }


def test_an_open_transaction_hides_what_follows(
    kafka: KafkaBroker, ledger: Ledger, producer: FencedProducer
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 1)
    rogue = Producer({**kafka.config, "transactional.id": topic})
    rogue.init_transactions(30)
    rogue.begin_transaction()
    rogue.produce(topic, b"open", partition=0)
    assert rogue.flush(30) == 0
    write(producer, topic, 1)
    ledger.claim("s", holder="b")
    with pytest.raises(TopicUnavailable, match="open transaction"):
        producer.confirm()
    rogue.abort_transaction(30)
    assert outcomes(producer.confirm()) == {1: "admitted", 3: "admitted"}


def test_it_takes_longer_than_allowed(
    kafka: KafkaBroker,
    ledger: Ledger,
    producer: FencedProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 1)
    ledger.claim("s", holder="b")
    monkeypatch.setattr("epochfence.producers.rereading.time_left", doing(0.0))
    with pytest.raises(TopicUnavailable, match="allow more"):
        producer.confirm()
    monkeypatch.undo()
    assert producer.confirm().counts["admitted"] == 1


def test_exceptions_on_the_way_to_the_answer_cost_nothing(
    kafka: KafkaBroker, producer: FencedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a signal's handler raises there: the next answer has everything."""
    topic = kafka.create_topic("t")
    producer.take_over([topic])
    write(producer, topic, 3)
    for kind, name in ((Ledger, "refresh"), (Reported, "await_all")):
        with monkeypatch.context() as patched:
            patched.setattr(kind, name, doing(KeyboardInterrupt()))
            with pytest.raises(KeyboardInterrupt):
                producer.confirm()
        write(producer, topic, 1)
    assert outcomes(producer.confirm()) == dict.fromkeys(range(1, 6), "admitted")
    assert len(producer.confirm()) == 0


def test_many_reports_are_folded_on_the_way(
    kafka: KafkaBroker, producer: FencedProducer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acknowledgements, "_QUEUED", 10)
    topic = kafka.create_topic("t", partitions=2)
    producer.take_over([topic])
    for number in range(2000):
        producer.produce(topic, b"v", partition=number % 2)
        producer.poll(0)
    receipts = producer.confirm()
    assert receipts.are_all_admitted
    assert len(receipts) == 2000
