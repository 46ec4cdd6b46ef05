"""The fenced consumer on a real broker: what comes out, and what is committed."""

from __future__ import annotations

import logging
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

from epochfence import (
    FencedConsumer,
    ForeignField,
    ForeignHeader,
    Leadership,
    Ledger,
    LedgerUnavailable,
    MisconfiguredError,
    TableMissing,
    TableUnavailable,
)
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics, unnamed_topics
from support.stream import (
    MADE_UP,
    Headers,
    Stream,
    read_count,
    read_to,
    stamp,
    values_of,
)
from support.waiting import wait_until

MADE_UP_HEADERS: Headers = [("epochfence", MADE_UP.encode())]


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture(scope="module")
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as ledger:
        yield ledger


class Setting:
    """A topic, a scope of its own, and consumers on them."""

    def __init__(self, kafka: KafkaBroker, ledger: Ledger, partitions: int = 1) -> None:
        self.kafka = kafka
        self.ledger = ledger
        self.topic = kafka.create_topic("orders", partitions)
        self.scope = f"w-{secrets.token_hex(4)}"
        self.group = f"g-{secrets.token_hex(4)}"
        self.stream = Stream(kafka, self.topic)

    def lead(self) -> Leadership:
        return self.ledger.claim(self.scope, holder="pod")

    def config(self, **more: Any) -> dict[str, Any]:
        named = {
            name
            if name in ("on_commit", "log_level")
            else name.replace("_", "."): value
            for name, value in more.items()
        }
        return {
            **self.kafka.config,
            "group.id": self.group,
            "auto.offset.reset": "earliest",
            # A fetch that waits for more holds up the next seek.
            "fetch.wait.max.ms": 50,
            **named,
        }

    def consumer(
        self, config: dict[str, Any] | None = None, **options: Any
    ) -> FencedConsumer:
        options.setdefault("require", {self.topic: [self.scope]})
        return FencedConsumer(config or self.config(), self.ledger, **options)

    def at(self, offset: int, partition: int = 0) -> TopicPartition:
        return TopicPartition(self.topic, partition, offset)

    def end(self, partition: int = 0) -> dict[tuple[str, int], int]:
        plain = Consumer({**self.kafka.config, "group.id": "x"})
        place = TopicPartition(self.topic, partition)
        _, end = plain.get_watermark_offsets(place, timeout=10)
        plain.close()
        return {(self.topic, partition): end}

    def metadata(self) -> str:
        """What the last commit says."""
        return self.committed().metadata or ""

    def committed(self, partition: int = 0) -> TopicPartition:
        plain = Consumer({**self.kafka.config, "group.id": self.group})
        (found,) = plain.committed([TopicPartition(self.topic, partition)], timeout=10)
        plain.close()
        return found

    def takeover(self, partition: int = 0) -> list[bytes]:
        """A deposed leader in its successor's midst; what may be delivered."""
        first = self.lead()
        good = self.stream.write(stamp(first), 4, partition=partition)
        second = self.lead()
        self.stream.barrier(second, partition=partition)
        good += self.stream.write(stamp(second), 3, partition=partition)
        self.stream.write(stamp(first), 3, partition=partition)
        good += self.stream.write(stamp(second), 2, partition=partition)
        return good


@pytest.fixture
def setting(kafka: KafkaBroker, ledger: Ledger) -> Setting:
    return Setting(kafka, ledger)


# What comes out.


@pytest.mark.parametrize("how", ["poll", "consume", "iterate", "assign"])
def test_only_admitted_messages_come_out(setting: Setting, how: str) -> None:
    good = setting.takeover()
    messages: list[Message] = []
    with setting.consumer() as consumer:
        if how == "assign":
            consumer.assign([setting.at(0)])
        else:
            consumer.subscribe([setting.topic])
        while len(messages) < len(good):
            if how == "poll":
                message = consumer.poll(10)
                assert message is not None
                messages.append(message)
            elif how == "iterate":
                messages.append(next(consumer))
            else:
                messages += consumer.consume(3, 10)
        assert consumer.consume(10, 0.2) == []
        assert consumer.counts == {"ok": 9, "barrier": 1, "stale-epoch": 3}
    assert values_of(messages) == good
    first = messages[0]
    assert (first.topic(), first.partition(), first.offset(), first.key()) == (
        setting.topic, 0, 0, b"k",
    )  # fmt: skip


def test_a_call_waits_until_there_are_enough_or_the_time_is_over(
    setting: Setting,
) -> None:
    leader = setting.lead()
    with setting.consumer() as consumer:
        consumer.assign([setting.at(0)])
        assert consumer.poll(0) is None
        assert consumer.consume(0, 10) == []
        begun = time.monotonic()
        written = setting.stream.write(stamp(leader), 2)
        assert values_of(consumer.consume(3, 2.0)) == written
        assert time.monotonic() - begun >= 2.0
        written = setting.stream.write(stamp(leader), 3)
        assert values_of(consumer.consume(3, 600)) == written


def test_events_of_the_client_come_through(setting: Setting) -> None:
    written = setting.stream.write(stamp(setting.lead()), 2)
    with setting.consumer(setting.config(enable_partition_eof=True)) as consumer:
        consumer.assign([setting.at(0)])
        messages: list[Message] = []
        while len(messages) < 3:
            messages += consumer.consume(10, 0.2)
        events = [m.error() for m in messages if m.error() is not None]
        assert [event.code() for event in events if event] == [
            KafkaError._PARTITION_EOF
        ]
        assert values_of(m for m in messages if m.error() is None) == written
        written = setting.stream.write(stamp(setting.lead()))
        assert next(consumer).value() == written[0]  # iteration passes over the end


def test_a_flood_of_made_up_stamps_costs_one_sync_a_batch(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs: list[float] = []
    refresh = Ledger.refresh

    def counted(ledger: Ledger, timeout_s: float | None = None) -> Any:
        syncs.append(time.monotonic())
        return refresh(ledger, timeout_s)

    setting.stream.write(stamp(setting.lead()))
    setting.stream.write(MADE_UP_HEADERS, 3000)
    monkeypatch.setattr(Ledger, "refresh", counted)
    with setting.consumer(require={setting.topic: []}) as consumer:
        consumer.assign([setting.at(0)])
        read_to(consumer, setting.end())
        assert consumer.counts == {"ok": 1, "ungranted": 3000}
    assert len(syncs) <= 20


def test_records_without_stamps_stop_a_consumer_until_it_is_told(
    setting: Setting,
) -> None:
    plain = setting.stream.write([], 3)
    leader = setting.lead()
    good = setting.stream.write(stamp(leader), 2)
    setting.stream.write([])
    with setting.consumer() as consumer:
        consumer.subscribe([setting.topic])
        for _ in range(2):
            with pytest.raises(MisconfiguredError, match="admit-until-first-stamp"):
                consumer.consume(10, 10)
        assert consumer.counts == {}
    assert setting.committed().offset < 0
    with setting.consumer(unstamped="admit-until-first-stamp") as consumer:
        consumer.subscribe([setting.topic])
        assert values_of(read_count(consumer, 5)) == plain + good
        read_to(consumer, setting.end())
        assert consumer.counts == {"unstamped-admitted": 3, "ok": 2, "unstamped": 1}


@pytest.mark.parametrize("where", ["header", "payload"])
def test_stamps_of_another_system(setting: Setting, where: str) -> None:
    epochs = [1, 1, 2, 1, 2, 900, 3]
    producer = Producer({**setting.kafka.config, "log_level": 2})
    for epoch in epochs:
        producer.produce(setting.topic, b"%d" % epoch, headers=[("gen", b"%d" % epoch)])
    assert producer.flush(30) == 0
    stamps = (
        ForeignHeader("gen", "decimal")
        if where == "header"
        else ForeignField("gen", lambda value: int(value or b""))
    )
    options: dict[str, Any] = {"require": {setting.topic: []}, "stamps": stamps}
    for _ in range(2):  # the second time from the start, with the table's rows
        with setting.consumer(max_jump=100, **options) as consumer:
            consumer.assign([setting.at(0)])
            read = values_of(read_to(consumer, setting.end()))
            assert read == [b"1", b"1", b"2", b"2", b"3"]
            assert consumer.counts == {"ok": 5, "stale-epoch": 1, "implausible": 1}


def test_aborted_transactions_are_not_seen(setting: Setting) -> None:
    leader = setting.lead()
    good = setting.stream.write(stamp(leader), 2)
    producer = Producer(
        {**setting.kafka.config, "transactional.id": setting.group, "log_level": 2}
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    late = setting.lead()
    producer.produce(setting.topic, b"aborted", headers=stamp(late))
    producer.flush(30)
    producer.abort_transaction(30)
    good += setting.stream.write(stamp(leader), 2)
    with setting.consumer() as consumer:
        consumer.assign([setting.at(0)])
        # What was aborted opened no epoch: the earlier leader is not stale.
        assert values_of(read_count(consumer, 4)) == good


# The table.


def test_the_record_that_opens_an_epoch_waits_for_its_row(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = setting.takeover()
    table = setting.ledger.table
    write = table.write
    written: list[Any] = []

    def refuse(*_: object) -> None:
        raise TableUnavailable(table.topic, "not today")

    with setting.consumer() as consumer:
        consumer.assign([setting.at(0)])
        monkeypatch.setattr(table, "write", refuse)
        for _ in range(3):
            with pytest.raises(TableUnavailable, match="not today"):
                consumer.consume(100, 10)
        assert consumer.counts == {}
        assert consumer.position([setting.at(0)])[0].offset == 0

        def note(starts: Any, *rest: Any) -> None:
            written.extend(starts)
            write(starts, *rest)

        monkeypatch.setattr(table, "write", note)
        assert values_of(read_count(consumer, len(good))) == good
    assert [(start.epoch, start.position.offset) for start in written] == [
        (1, 0),
        (2, 4),
    ]
    table.refresh()
    assert set(written) <= set(table.starts(setting.topic, 0))


def test_a_seek_before_the_row_was_written_writes_it_later(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = setting.takeover()
    table = setting.ledger.table
    with setting.consumer() as consumer:
        consumer.assign([setting.at(0)])
        with monkeypatch.context() as patched:

            def refuse(*_: object) -> None:
                raise TableUnavailable(table.topic, "not today")

            patched.setattr(table, "write", refuse)
            with pytest.raises(TableUnavailable):
                consumer.consume(100, 10)
        consumer.seek(setting.at(0))
        assert values_of(read_count(consumer, len(good))) == good
    table.refresh()
    starts = table.starts(setting.topic, 0)
    assert sorted(start.epoch for start in starts) == [1, 2]


def test_the_ledger_out_of_reach_stops_only_what_needs_it(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = setting.takeover()
    with setting.consumer(require={setting.topic: []}) as consumer:
        consumer.assign([setting.at(0)])
        assert consumer.poll(30) is not None
        setting.stream.write(MADE_UP_HEADERS)

        def refuse(*_: object) -> None:
            raise LedgerUnavailable("coordination", "not today")

        with monkeypatch.context() as patched:
            patched.setattr(setting.ledger, "refresh", refuse)
            assert values_of(read_count(consumer, len(good) - 1)) == good[1:]
            for _ in range(2):
                with pytest.raises(LedgerUnavailable):
                    consumer.poll(10)
        read_to(consumer, setting.end())
        assert consumer.counts["ungranted"] == 1


# Commits.


def test_a_commit_tells_what_the_table_has_to_hold(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    good = setting.takeover()
    config = setting.config(enable_auto_commit=False)
    with setting.consumer(config) as consumer:
        consumer.subscribe([setting.topic])
        messages = read_count(consumer, len(good))
        done = consumer.commit(message=messages[1], asynchronous=False)
        assert done is not None
        assert [(tp.offset, tp.error) for tp in done] == [(2, None)]
        first = setting.committed()
        assert (first.offset, first.leader_epoch) == (2, 0)
        assert setting.metadata().endswith(f'"n":1,"e":{{"{setting.scope}":1}}}}')
        read_to(consumer, setting.end())
        consumer.commit(asynchronous=False)
    last = setting.committed()
    assert (last.offset, last.leader_epoch) == (13, 0)
    assert setting.metadata().endswith(f'"n":2,"e":{{"{setting.scope}":2}}}}')
    more = setting.stream.write(stamp(setting.lead()))
    with (
        caplog.at_level(logging.INFO, "epochfence"),
        setting.consumer(config, rebuild=False) as consumer,
    ):
        consumer.subscribe([setting.topic])
        assert values_of(read_count(consumer, 1)) == more


def test_a_commit_of_another_tool_means_reading_what_lies_below(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.takeover()
    plain = Consumer({**setting.kafka.config, "group.id": setting.group})
    place = TopicPartition(setting.topic, 0, 9, metadata="some tool's own")
    plain.commit(offsets=[place], asynchronous=False)
    plain.close()
    with setting.consumer(rebuild=False) as consumer:
        consumer.subscribe([setting.topic])
        for _ in range(2):
            with pytest.raises(TableMissing) as missing:
                consumer.consume(1, 30)
            assert (missing.value.offset, missing.value.expected_rows) == (9, None)
    with caplog.at_level(logging.INFO, "epochfence"), setting.consumer() as consumer:
        consumer.subscribe([setting.topic])
        messages = read_to(consumer, setting.end())
        assert [message.offset() for message in messages] == [11, 12]
    assert any("is read from offset 0 to 9" in text for text in caplog.messages)
    assert setting.metadata().startswith('{"epochfence":1,')


def test_all_forms_of_commit(kafka: KafkaBroker, ledger: Ledger) -> None:
    setting = Setting(kafka, ledger, partitions=2)
    leader = setting.lead()
    for partition in (0, 1):
        setting.stream.write(stamp(leader), 4, partition=partition)
    told: list[tuple[KafkaError | None, list[TopicPartition]]] = []

    def on_commit(error: KafkaError | None, offsets: list[TopicPartition]) -> None:
        told.append((error, offsets))

    config = setting.config(
        enable_auto_commit=False, enable_auto_offset_store=False, on_commit=on_commit
    )
    with setting.consumer(config) as consumer:
        consumer.subscribe([setting.topic])
        with pytest.raises(KafkaException) as nothing:
            consumer.commit(asynchronous=False)
        assert nothing.value.args[0].code() == KafkaError._NO_OFFSET
        messages = read_count(consumer, 8)
        with pytest.raises(KafkaException):
            consumer.commit()
        consumer.store_offsets(messages[0])
        consumer.store_offsets(offsets=[setting.at(2, 1)])
        consumer.commit(asynchronous=False)
        number = messages[0].partition() or 0
        assert setting.committed(number).offset == 1 or number == 1
        assert setting.committed(1).offset == 2 or number == 1
        assert consumer.commit(offsets=[setting.at(3, 0)]) is None
        wait_until(
            lambda: bool(told) or bool(consumer.consume(1, 0.1)), 30, "it was told"
        )
        assert told[0][0] is None
        assert setting.committed(0).offset == 3
        with pytest.raises(MisconfiguredError, match="metadata"):
            consumer.commit(
                offsets=[TopicPartition(setting.topic, 0, 1, metadata="mine")]
            )
        with pytest.raises(ValueError, match="not both"):
            consumer.commit(message=messages[0], offsets=[])
        # What was committed by us can be committed again.
        again = consumer.committed([setting.at(0, 0)], timeout=10)
        consumer.commit(offsets=again, asynchronous=False)
    assert setting.committed(0).offset == 3


def test_a_commit_beyond_what_was_judged_says_only_which_life(
    setting: Setting,
) -> None:
    setting.takeover()
    config = setting.config(enable_auto_commit=False)
    with setting.consumer(config) as consumer:
        consumer.subscribe([setting.topic])
        assert consumer.poll(30) is not None
        consumer.seek(setting.at(2))
        consumer.commit(offsets=[setting.at(500)], asynchronous=False)
    found = setting.committed()
    assert found.offset == 500
    assert '"t":' in setting.metadata()
    assert '"n":' not in setting.metadata()


def test_automatic_commits_cover_what_the_application_is_done_with(
    setting: Setting,
) -> None:
    setting.stream.write(stamp(setting.lead()), 6)
    config = setting.config(auto_commit_interval_ms=1)
    with setting.consumer(config) as consumer:
        consumer.subscribe([setting.topic])
        assert consumer.poll(30) is not None
        # What was handed over last is not done with before the next call.
        assert setting.committed().offset < 0
        assert consumer.poll(30) is not None
        wait_until(
            lambda: setting.committed().offset == 1, 30, "the first is committed"
        )
    assert setting.committed().offset == 2  # leaving the block says that it is done

    def fail() -> None:
        with setting.consumer(config) as consumer:
            consumer.subscribe([setting.topic])
            message = consumer.poll(30)
            assert message is not None
            assert message.offset() == 2
            raise ValueError("failed")

    with pytest.raises(ValueError, match="failed"):
        fail()
    assert setting.committed().offset == 2
    with setting.consumer(config) as consumer:
        consumer.subscribe([setting.topic])
        assert values_of(read_count(consumer, 4))[0] == b"3"
    assert setting.committed().offset == 6


# Moving about.


def test_seeks_give_the_verdicts_of_before(setting: Setting) -> None:
    setting.takeover()
    setting.stream.write(stamp(setting.lead()), 2)
    with setting.consumer() as consumer:
        consumer.assign([setting.at(0)])
        admitted = [m.offset() or 0 for m in read_to(consumer, setting.end())]
        for offset in [*range(15, -1, -1), *range(0, 16, 3)]:
            consumer.seek(setting.at(offset))
            expected = [one for one in admitted if one >= offset]
            got = [m.offset() for m in read_to(consumer, setting.end())]
            assert got == expected
        consumer.seek(setting.at(OFFSET_BEGINNING))
        assert len(read_to(consumer, setting.end())) == len(admitted)
        consumer.seek(setting.at(OFFSET_END))
        assert read_to(consumer, setting.end()) == []
        consumer.seek(setting.at(-2000 - 2))  # the last two
        got = [m.offset() for m in read_to(consumer, setting.end())]
        assert got == admitted[-2:]
    with setting.consumer() as consumer:
        consumer.assign([setting.at(9)])  # in the midst: what lies below is read first
        got = [m.offset() for m in read_to(consumer, setting.end())]
        assert got == [one for one in admitted if one >= 9]
        with pytest.raises(KafkaException, match="not assigned"):
            consumer.seek(setting.at(0, 7))


def test_pauses(kafka: KafkaBroker, ledger: Ledger) -> None:
    setting = Setting(kafka, ledger, partitions=2)
    leader = setting.lead()
    zero = setting.stream.write(stamp(leader), 50, partition=0)
    one = setting.stream.write(stamp(leader), 50, partition=1)
    with setting.consumer() as consumer:
        consumer.assign([setting.at(0, 0), setting.at(0, 1)])
        first = consumer.poll(30)
        assert first is not None
        paused = first.partition() or 0
        other = 1 - paused
        consumer.pause([setting.at(0, paused)])  # others of it were read ahead
        got = values_of(read_to(consumer, setting.end(other)))
        assert got == (zero, one)[other]
        assert consumer.consume(10, 0.3) == []
        consumer.resume([setting.at(0, paused)])
        assert values_of(read_count(consumer, 49)) == (zero, one)[paused][1:]
        assert [tp.offset for tp in consumer.position(consumer.assignment())] == [
            50,
            50,
        ]


def test_the_application_may_choose_where_to_start(setting: Setting) -> None:
    setting.takeover()
    chosen: list[list[int]] = []

    def on_assign(consumer: FencedConsumer, partitions: list[TopicPartition]) -> None:
        chosen.append([tp.partition for tp in partitions])
        consumer.assign([setting.at(6)])

    with setting.consumer() as consumer:
        consumer.subscribe([setting.topic], on_assign=on_assign)
        messages = read_to(consumer, setting.end())
    assert chosen == [[0]]
    assert [message.offset() for message in messages] == [6, 7, 11, 12]


@pytest.mark.parametrize(
    ("reset", "offsets"), [("earliest", [0, 1, 2]), ("latest", [2])]
)
def test_where_a_new_group_starts(
    setting: Setting, reset: str, offsets: list[int]
) -> None:
    leader = setting.lead()
    setting.stream.write(stamp(leader), 2)
    with setting.consumer(setting.config(auto_offset_reset=reset)) as consumer:
        consumer.subscribe([setting.topic])
        messages: list[Message] = []

        def is_placed() -> bool:
            messages.extend(consumer.consume(1, 0))
            placed = consumer.position(consumer.assignment())
            return any(tp.offset >= 0 for tp in placed)

        wait_until(is_placed, 30, "its position is fixed")
        setting.stream.write(stamp(leader))
        messages += read_to(consumer, setting.end())
    assert [message.offset() for message in messages] == offsets


def test_a_new_group_without_a_policy_is_told(setting: Setting) -> None:
    setting.stream.write(stamp(setting.lead()), 2)
    with setting.consumer(setting.config(auto_offset_reset="error")) as consumer:
        consumer.subscribe([setting.topic])
        event = consumer.poll(30)
        assert event is not None
        error = event.error()
        assert error is not None
        assert error.code() == KafkaError._AUTO_OFFSET_RESET
        assert consumer.poll(0.3) is None
        consumer.seek(setting.at(1))
        message = consumer.poll(30)
        assert message is not None
        assert message.offset() == 1


# Threads and signals.


def test_a_thread_may_commit_while_another_consumes(setting: Setting) -> None:
    setting.stream.write(stamp(setting.lead()), 3)
    with setting.consumer(setting.config(enable_auto_commit=False)) as consumer:
        consumer.subscribe([setting.topic])
        messages = read_count(consumer, 3)
        told: list[str] = []

        def consume() -> None:
            try:
                while True:
                    consumer.consume(10, 30)
            except RuntimeError as error:
                told.append(str(error))

        thread = threading.Thread(target=consume)
        thread.start()
        try:
            for message in messages:
                consumer.commit(message, asynchronous=False)
                assert setting.committed().offset == (message.offset() or 0) + 1
        finally:
            consumer.close()
            with pytest.raises(RuntimeError, match="closed"):
                consumer.poll(0)
        # The call that was waiting is told as well; its thread ends by that.
        thread.join(30)
        assert told == ["Consumer closed"]
        assert not thread.is_alive()


def test_closing_ends_the_iteration(setting: Setting) -> None:
    consumer = setting.consumer()
    consumer.subscribe([setting.topic])
    closing = threading.Timer(0.5, consumer.close)
    closing.start()
    try:
        assert list(consumer) == []
    finally:
        closing.join()
    consumer.close()


def test_a_signal_is_handled_while_it_waits(setting: Setting) -> None:
    class Stopped(Exception):
        pass

    def stop(*_: object) -> None:
        raise Stopped

    before = signal.signal(signal.SIGALRM, stop)
    try:
        with setting.consumer() as consumer:
            consumer.subscribe([setting.topic])
            signal.setitimer(signal.ITIMER_REAL, 0.5)
            with pytest.raises(Stopped):
                consumer.consume(10, 120)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Settings.


def test_a_pattern_that_finds_a_topic_of_which_nobody_said_what_it_carries(
    setting: Setting,
) -> None:
    with setting.consumer(require={"others": []}) as consumer:
        consumer.subscribe([f"^{setting.topic}"])
        for _ in range(2):
            with pytest.raises(MisconfiguredError, match="listed: others"):
                consumer.consume(1, 30)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_share_group_is_refused(setting: Setting, protocol: str) -> None:
    confluent: Any = pytest.importorskip("confluent_kafka")
    if not hasattr(confluent, "ShareConsumer"):
        pytest.skip("this client has no share consumers")
    sharing = confluent.ShareConsumer(
        {**setting.kafka.config, "group.id": setting.group, "log_level": 0}
    )
    try:
        sharing.subscribe([setting.topic])
        sharing.poll(1)
        config = setting.config(group_protocol=protocol, log_level=0)
        with setting.consumer(config) as consumer:
            consumer.subscribe([setting.topic])
            with pytest.raises(MisconfiguredError, match="KIP-932"):
                consumer.consume(1, 60)
    finally:
        sharing.close()
