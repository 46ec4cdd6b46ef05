"""The fenced consumer on one node: topics made anew, retention, lost tables, resets.

Each test compares all that is delivered with what has to be, and counts the rest:
nothing comes out unjudged, nothing is skipped, and nothing comes twice unasked.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_END,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence import (
    Leadership,
    Ledger,
    LedgerRegressed,
    TableMissing,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.epochs.settings import FenceSettings
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics, unnamed_topics
from support.stamped import (
    Header,
    Place,
    Reading,
    Writer,
    consumer_config,
    create_named,
    delete_records,
    judged_in_full,
    made_up,
    offsets_of,
    position_of,
    read_to,
    read_until,
    stamp,
    write_aborted,
)
from support.waiting import wait_until

SCOPE = "w"
QUARANTINE = FenceSettings([SCOPE], unstamped="quarantine")


@pytest.fixture
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("faults")


@pytest.fixture
def rebuilds(caplog: pytest.LogCaptureFixture) -> Rebuilds:
    caplog.set_level(logging.INFO, logger=Rebuilds.LOGGER)
    return Rebuilds(caplog)


class Rebuilds:
    """The rebuilds that the log tells of."""

    LOGGER = "epochfence.consumers.rebuild"

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def take(self) -> list[tuple[int, int, int]]:
        """Partition, start and end of each that was begun since the last call."""
        begun: list[tuple[int, int, int]] = []
        for record in self._caplog.records:
            if record.name == self.LOGGER and "is read from" in record.msg:
                assert isinstance(record.args, tuple)
                _, *numbers = record.args
                partition, start, end = [int(str(number)) for number in numbers]
                begun.append((partition, start, end))
        self._caplog.clear()
        return sorted(begun)


def fenced(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    group: str = "group",
    reset: str = "earliest",
    *,
    client: dict[str, Any] | None = None,
    settings: FenceSettings = QUARANTINE,
    **options: Any,
) -> FencedConsumer:
    config = consumer_config(kafka, f"{group}-{topic}", reset, client)
    return FencedConsumer(config, ledger, require={topic: settings}, **options)


def committed(consumer: FencedConsumer, topic: str) -> TopicPartition:
    (found,) = consumer.committed([TopicPartition(topic, 0)], timeout=30)
    return found


def metadata_of(tp: TopicPartition) -> dict[str, Any]:
    metadata: dict[str, Any] = json.loads(tp.metadata or "")
    return metadata


def topic_id(ledger: Ledger, topic: str) -> str:
    """The topic's id, as rows have it."""
    ledger.table.refresh()
    (found,) = {start.topic_id for start in ledger.table.starts(topic, 0)}
    assert found is not None
    return found


def starts(ledger: Ledger, topic: str) -> list[tuple[int, int]]:
    """Epoch and offset of each row of a topic's partition 0."""
    ledger.table.refresh()
    rows = ledger.table.starts(topic, 0)
    return sorted((row.epoch, row.position.offset) for row in rows)


def write_takeover(
    writer: Writer, a: Leadership, b: Leadership, partition: int = 0
) -> None:
    """Nine records: a, a, b's barrier, b, a zombie, b, made up, a zombie, b.

    What is admitted has the offsets 0, 1, 3, 5, 8.
    """
    writer.write(stamp(a), b"a", b"a", partition=partition)
    writer.barrier(b, partition=partition)
    for headers in (stamp(b), stamp(a), stamp(b), made_up(SCOPE, 77), stamp(a)):
        writer.write(headers, b"v", partition=partition)
    writer.write(stamp(b), b"b", partition=partition)


TAKEOVER_END = 9
TAKEOVER_ADMITTED = [0, 1, 3, 5, 8]
TAKEOVER_COUNTS = {"ok": 5, "barrier": 1, "stale-epoch": 2, "ungranted": 1}

# Topics made anew.

WAYS: dict[str, dict[str, str]] = {
    "assigned": {},
    "eager": {"partition.assignment.strategy": "range"},
    "cooperative": {"partition.assignment.strategy": "cooperative-sticky"},
    "kip-848": {"group.protocol": "consumer"},
}


def begin(consumer: FencedConsumer, way: str, topic: str) -> None:
    """Take the topic's only partition, and wait until its position is fixed."""
    if way == "assigned":
        consumer.assign([TopicPartition(topic, 0)])
    else:
        consumer.subscribe([topic])
    read_until(consumer, lambda _: position_of(consumer, (topic, 0)) >= 0)


def write_second_life(
    kafka: KafkaBroker, topic: str, a: Leadership, b: Leadership, c: Leadership
) -> None:
    """Five records: a zombie, b, c's barrier, a zombie, c; admitted are 1 and 4.

    The first is a zombie because b's epoch began in the life before.
    """
    writer = Writer(kafka, topic)  # the one of the first life knows that one only
    writer.write(stamp(a), b"zombie")
    writer.write(stamp(b), b"b")
    writer.barrier(c)
    writer.write(stamp(b), b"zombie")
    writer.write(stamp(c), b"c")


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_made_anew_is_read_from_its_start_and_old_epochs_count(
    kafka: KafkaBroker, ledger: Ledger, topic: str, way: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    place: Place = (topic, 0)
    # Under `latest`, what was written before the new life is noticed would be lost.
    with fenced(
        kafka, ledger, topic, reset="latest",
        client={
            "enable.auto.commit": True, "auto.commit.interval.ms": 100, **WAYS[way]
        },
    ) as consumer:  # fmt: skip
        begin(consumer, way, topic)
        write_takeover(Writer(kafka, topic), a, b)
        assert offsets_of(read_to(consumer, {place: 9})) == TAKEOVER_ADMITTED
        first_id = topic_id(ledger, topic)
        read_until(consumer, lambda _: committed(consumer, topic).offset == 9)
        c = ledger.claim(SCOPE, holder="c")
        with Reading(consumer) as reading:
            kafka.delete_topic(topic)
            create_named(kafka, topic)
            made_at = time.monotonic()
            write_second_life(kafka, topic, a, b, c)
            wait_until(lambda: len(reading.messages) >= 2, 30, "the new life is read")
            took_s = time.monotonic() - made_at
            wait_until(
                lambda: committed(consumer, topic).offset == 5, 30, "it is committed"
            )
        assert offsets_of(reading.messages) == [1, 4]
        # A look a second, and joining anew; the rest is for slow machines.
        assert took_s < 12
        assert {type(error) for error in reading.errors} <= {TopicUnavailable}
        assert reading.events == []
        assert consumer.counts == {
            **TAKEOVER_COUNTS, "ok": 7, "barrier": 2, "stale-epoch": 4
        }  # fmt: skip
        now = committed(consumer, topic)
        told = metadata_of(now)
        assert told["t"] != first_id
        assert (told["n"], told["e"]) == (3, {SCOPE: 3})
    ledger.table.refresh()
    rows = {
        (row.topic_id, row.epoch, row.position.offset)
        for row in ledger.table.starts(topic, 0)
    }
    assert rows == {(first_id, 1, 0), (first_id, 2, 2), (told["t"], 3, 2)}
    # A consumer that begins now knows what counts from the commit.
    with fenced(kafka, ledger, topic, rebuild=False) as consumer:
        begin(consumer, "assigned", topic)
        assert position_of(consumer, place) == 5
        writer = Writer(kafka, topic)
        writer.write(stamp(b), b"zombie")
        writer.write(stamp(c), b"c")
        assert offsets_of(read_to(consumer, {place: 7})) == [6]
    kafka.delete_topic(topic)


@pytest.mark.parametrize("way", ["assigned", "kip-848"])
def test_a_new_life_that_is_longer_than_the_old_one_is_read_from_its_start(
    kafka: KafkaBroker, ledger: Ledger, topic: str, way: str
) -> None:
    """The client goes on silently at the old offset, where there are records now."""
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    with fenced(kafka, ledger, topic, client=WAYS[way]) as consumer:
        begin(consumer, way, topic)
        writer = Writer(kafka, topic)
        writer.write(stamp(a), b"a")
        writer.write(stamp(b), b"b")
        assert offsets_of(read_to(consumer, {(topic, 0): 2})) == [0, 1]
        first_id = topic_id(ledger, topic)
        with Reading(consumer) as reading:
            kafka.delete_topic(topic)
            create_named(kafka, topic)
            # No epoch begins here: nothing but the look each second can tell.
            writer = Writer(kafka, topic)
            writer.write(stamp(b), b"b")
            writer.write(stamp(a), *[b"zombie"] * 5)
            writer.write(stamp(b), b"b", b"b", b"b")  # 6 to 8

            def is_read_from_the_start() -> bool:
                return offsets_of(reading.messages)[-4:] == [0, 6, 7, 8]

            wait_until(is_read_from_the_start, 30, "the new life is read")
            done = consumer.commit(asynchronous=False)
        assert done is not None
        assert [tp.offset for tp in done] == [9]
        # Before the change is noticed, which takes a second at most, what lies
        # behind the old position may come out.
        early = offsets_of(reading.messages)[:-4]
        assert early in ([], [6, 7, 8])
        assert metadata_of(committed(consumer, topic))["t"] != first_id
    kafka.delete_topic(topic)


@pytest.mark.parametrize("reset", ["latest", "error"])
def test_a_commit_of_an_earlier_life_is_followed_by_the_start_of_this_one(
    kafka: KafkaBroker, ledger: Ledger, topic: str, reset: str
) -> None:
    """Kafka drops commits with a topic; one that was under way may come after."""
    commit_takeover(kafka, ledger, topic, at=3)
    with fenced(kafka, ledger, topic) as consumer:
        old = committed(consumer, topic)
    kafka.delete_topic(topic)
    create_named(kafka, topic)
    plain = Consumer(consumer_config(kafka, f"group-{topic}"))
    plain.commit(offsets=[old], asynchronous=False)
    plain.close()
    c = ledger.claim(SCOPE, holder="c")
    writer = Writer(kafka, topic)
    writer.write(stamp(c), *[b"c"] * 5)
    with fenced(kafka, ledger, topic, reset=reset, rebuild=False) as consumer:
        assert committed(consumer, topic).offset == 3
        consumer.assign([TopicPartition(topic, 0)])
        assert offsets_of(read_to(consumer, {(topic, 0): 5})) == [0, 1, 2, 3, 4]
        consumer.commit(asynchronous=False)
        told = metadata_of(committed(consumer, topic))
        assert told["t"] != metadata_of(old)["t"]
        assert told["n"] == 3
    kafka.delete_topic(topic)


@pytest.mark.parametrize("way", ["assigned", "eager"])
def test_a_topic_made_anew_leaves_the_others_as_they_are(
    kafka: KafkaBroker, ledger: Ledger, topic: str, way: str
) -> None:
    """Also where the client has to be replaced, and joins the group once more."""
    other = kafka.create_topic("other")
    a, b, c = [ledger.claim(SCOPE, holder=holder) for holder in "abc"]
    writer = Writer(kafka, other)
    config = consumer_config(
        kafka,
        f"group-{topic}",
        settings={
            **WAYS[way],
            "enable.auto.commit": way != "assigned",
            "auto.commit.interval.ms": 100,
        },
    )
    require = {topic: QUARANTINE, other: QUARANTINE}
    with FencedConsumer(config, ledger, require=require) as consumer:
        if way == "assigned":
            consumer.assign([TopicPartition(topic, 0), TopicPartition(other, 0)])
        else:
            consumer.subscribe([topic, other])
        write_takeover(Writer(kafka, topic), a, b)
        write_takeover(writer, a, b)
        first = read_to(consumer, {(topic, 0): 9, (other, 0): 9})
        assert offsets_of(first, topic=other) == TAKEOVER_ADMITTED
        with Reading(consumer) as reading:
            kafka.delete_topic(topic)
            create_named(kafka, topic)
            write_second_life(kafka, topic, a, b, c)
            for _ in range(10):
                writer.write(stamp(b), b"b")  # 9 to 18
                writer.write(stamp(a), b"zombie")
            wait_until(
                lambda: offsets_of(reading.messages, topic=topic) == [1, 4],
                30,
                "the new life is read",
            )
            reading.wait_for({(other, 0): 29})
        assert offsets_of(reading.messages, topic=topic) == [1, 4]
        assert offsets_of(reading.messages, topic=other) == [*range(9, 29, 2)]
        assert consumer.counts["ok"] == 5 + 5 + 2 + 10
    kafka.delete_topic(topic)


def test_a_topic_made_anew_commits_nothing_of_others_that_nobody_asked_to_commit(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    other = kafka.create_topic("other")
    a, b, c = [ledger.claim(SCOPE, holder=holder) for holder in "abc"]
    config = consumer_config(kafka, f"group-{topic}")  # without automatic commits
    require = {topic: QUARANTINE, other: QUARANTINE}
    with FencedConsumer(config, ledger, require=require) as consumer:
        consumer.subscribe([topic, other])
        write_takeover(Writer(kafka, topic), a, b)
        write_takeover(Writer(kafka, other), a, b)
        read_to(consumer, {(topic, 0): 9, (other, 0): 9})
        with Reading(consumer) as reading:
            kafka.delete_topic(topic)
            create_named(kafka, topic)
            write_second_life(kafka, topic, a, b, c)
            wait_until(
                lambda: offsets_of(reading.messages, topic=topic) == [1, 4],
                30,
                "the new life is read",
            )
            reading.wait_for({(other, 0): 9})
        # As after any other rebalance, what was not committed comes again.
        assert offsets_of(reading.messages, topic=other) in ([], TAKEOVER_ADMITTED)
        assert committed(consumer, other).offset < 0
    kafka.delete_topic(topic)


def test_a_topic_made_anew_while_it_is_paused_waits_to_be_resumed(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    place: Place = (topic, 0)
    with fenced(kafka, ledger, topic) as consumer:
        begin(consumer, "assigned", topic)
        write_takeover(Writer(kafka, topic), a, b)
        read_to(consumer, {place: 9})
        consumer.pause([TopicPartition(topic, 0)])
        kafka.delete_topic(topic)
        create_named(kafka, topic)
        c = ledger.claim(SCOPE, holder="c")
        write_second_life(kafka, topic, a, b, c)
        with Reading(consumer) as reading:
            wait_until(
                lambda: position_of(consumer, place) == 0, 30, "the change is noticed"
            )
            writer = Writer(kafka, topic)
            writer.write(stamp(c), b"c")
            assert reading.messages == []
            consumer.resume([TopicPartition(topic, 0)])
            reading.wait_for({place: 6})
        assert offsets_of(reading.messages) == [1, 4, 5]
    kafka.delete_topic(topic)


@pytest.mark.parametrize("way", ["assigned", "eager", "kip-848"])
def test_a_topic_that_is_gone_is_told_of_and_read_once_it_is_back(
    kafka: KafkaBroker, ledger: Ledger, topic: str, way: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    with fenced(kafka, ledger, topic, client=WAYS[way]) as consumer:
        begin(consumer, way, topic)
        write_takeover(Writer(kafka, topic), a, b)
        assert offsets_of(read_to(consumer, {(topic, 0): 9})) == TAKEOVER_ADMITTED
        kafka.delete_topic(topic)
        if way == "kip-848":  # the group is told, and the partition is given up
            read_until(consumer, lambda _: consumer.assignment() == [])
            with pytest.raises(KafkaException) as nothing:
                consumer.commit(asynchronous=False)
            assert nothing.value.args[0].code() == KafkaError._NO_OFFSET
        else:
            with pytest.raises(
                TopicUnavailable, match="there is no such topic"
            ) as gone:
                read_until(consumer, lambda _: False, timeout_s=10)
            assert gone.value.topic == topic
            with pytest.raises(TopicUnavailable, match="nothing of it is committed"):
                consumer.commit(asynchronous=False)
            with pytest.raises(TopicUnavailable):
                consumer.commit(asynchronous=True)
        create_named(kafka, topic)
        c = ledger.claim(SCOPE, holder="c")
        write_second_life(kafka, topic, a, b, c)
        after = read_until(
            consumer, lambda seen: len(seen) >= 2, retried=(TopicUnavailable,)
        )
        assert offsets_of(after) == [1, 4]
        assert committed(consumer, topic).offset < 0  # of neither life
        consumer.commit(asynchronous=False)
        assert committed(consumer, topic).offset == 5
    kafka.delete_topic(topic)


# Retention.


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_retention_overtakes_a_paused_consumer(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str, reset: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    place: Place = (topic, 0)
    writer = Writer(kafka, topic)
    with fenced(kafka, ledger, topic, reset=reset) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        writer.write(stamp(a), b"a", b"a", b"a")
        assert offsets_of(read_to(consumer, {place: 3})) == [0, 1, 2]
        consumer.pause([TopicPartition(topic, 0)])
        writer.barrier(b)  # 3
        writer.write(stamp(b), b"b", b"b")
        writer.write(stamp(a), b"zombie")  # 6
        writer.write(stamp(b), b"b")  # 7
        writer.write(stamp(a), b"zombie")  # 8
        # Another group, in another process for all it shares with this one.
        with (
            topics.open() as others,
            fenced(kafka, others, topic, "others") as other,
        ):
            other.assign([TopicPartition(topic, 0, 0)])
            read_to(other, {place: 9})
        delete_records(kafka, topic, 6)
        assert consumer.poll(0.3) is None
        consumer.resume([TopicPartition(topic, 0)])
        if reset == "error":
            event = event_of(consumer)
            error = event.error()
            assert error is not None
            assert error.code() == KafkaError._AUTO_OFFSET_RESET
            assert (event.topic(), event.partition()) == place
            assert consumer.poll(0.5) is None  # it waits for a decision
            consumer.seek(TopicPartition(topic, 0, 7))
        if reset == "latest":
            read_until(consumer, lambda _: position_of(consumer, place) == 9)
        writer.write(stamp(a), b"zombie")  # 9
        writer.write(stamp(b), b"b")  # 10
        after = read_to(consumer, {place: 11})
        expected = {
            "earliest": ([7, 10], 3), "error": ([7, 10], 2), "latest": ([10], 1)
        }  # fmt: skip
        admitted, stale = expected[reset]
        assert offsets_of(after) == admitted
        assert consumer.counts == {"ok": 3 + len(admitted), "stale-epoch": stale}
        consumer.commit(asynchronous=False)
        told = metadata_of(committed(consumer, topic))
        assert (told["n"], told["e"]) == (2, {SCOPE: 2})


@pytest.mark.parametrize("way", ["eager", "cooperative", "kip-848"])
def test_retention_overtakes_one_partition_of_a_group(
    kafka: KafkaBroker, ledger: Ledger, way: str
) -> None:
    """In an eager group, the other one has to be attached anew with it."""
    topic = kafka.create_topic("two", 2)
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    overtaken, other = TopicPartition(topic, 0), TopicPartition(topic, 1)
    ends: dict[Place, int] = {(topic, 0): 9, (topic, 1): 9}
    writer = Writer(kafka, topic)
    for partition in (0, 1):
        write_takeover(writer, a, b, partition)
    with fenced(kafka, ledger, topic, client=WAYS[way]) as consumer:
        consumer.subscribe([topic])
        first = read_to(consumer, ends)
        for partition in (0, 1):
            assert offsets_of(first, partition) == TAKEOVER_ADMITTED
        consumer.pause([overtaken, other])
        for partition in (0, 1):
            for headers in (stamp(b), stamp(a)) * 5:  # 9 to 18
                writer.write(headers, b"v", partition=partition)
        delete_records(kafka, topic, 12)
        consumer.resume([overtaken])
        # The other one stays where it is, and paused.
        seen = read_until(consumer, lambda _: position_of(consumer, (topic, 0)) == 19)
        assert offsets_of(seen, 0) == [13, 15, 17]
        assert consumer.poll(0.3) is None
        assert offsets_of(seen, 1) == []
        consumer.resume([other])
        for partition in (0, 1):
            writer.write(stamp(b), b"b", partition=partition)  # 19
        seen = read_to(consumer, {(topic, 0): 20, (topic, 1): 20})
        assert offsets_of(seen, 0) == [19]
        assert offsets_of(seen, 1) == [9, 11, 13, 15, 17, 19]
        # Both at work.
        delete_records(kafka, topic, 5, partition=1)
        consumer.seek(TopicPartition(topic, 1, 2))
        for partition in (0, 1):
            for headers in (stamp(b), stamp(a), stamp(b)):  # 20 to 22
                writer.write(headers, b"v", partition=partition)
        end = 23
        seen = read_until(
            consumer,
            lambda seen: (
                position_of(consumer, (topic, 0)) == end
                and position_of(consumer, (topic, 1)) == end
                and offsets_of(seen, 1)[-1:] == [22]
            ),
        )
        assert offsets_of(seen, 0) == [20, 22]
        assert offsets_of(seen, 1) == [5, 8, 9, 11, 13, 15, 17, 19, 20, 22]


@pytest.mark.parametrize("reset", ["earliest", "latest", "error"])
def test_retention_overtakes_a_commit(
    kafka: KafkaBroker, ledger: Ledger, topic: str, reset: str
) -> None:
    commit_takeover(kafka, ledger, topic, at=1)
    delete_records(kafka, topic, 4)
    with fenced(kafka, ledger, topic, reset=reset) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        if reset == "error":
            error = event_of(consumer).error()
            assert error is not None
            assert error.code() == KafkaError._AUTO_OFFSET_RESET
            consumer.seek(TopicPartition(topic, 0, 7))
        after = read_to(consumer, {(topic, 0): TAKEOVER_END})
        assert (
            offsets_of(after) == {"earliest": [5, 8], "latest": [], "error": [8]}[reset]
        )


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_commit_beyond_the_end_is_taken_for_one_of_a_truncated_log(
    kafka: KafkaBroker, ledger: Ledger, topic: str, reset: str
) -> None:
    """With the leader epoch of the last record, the broker says where it ends."""
    commit_takeover(kafka, ledger, topic, at=100)
    place: Place = (topic, 0)
    with fenced(kafka, ledger, topic, reset=reset) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_until(consumer, lambda _: position_of(consumer, place) == 9)
        Writer(kafka, topic).write(made_up(SCOPE, 9), b"made up")
        assert read_to(consumer, {place: 10}) == []
        assert consumer.counts == {"ungranted": 1}


@pytest.mark.parametrize("reset", ["earliest", "error"])
def test_a_seek_beyond_the_end_goes_by_the_policy(
    kafka: KafkaBroker, ledger: Ledger, topic: str, reset: str
) -> None:
    commit_takeover(kafka, ledger, topic, at=9)
    place: Place = (topic, 0)
    with fenced(kafka, ledger, topic, reset=reset) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_until(consumer, lambda _: position_of(consumer, place) == 9)
        consumer.seek(TopicPartition(topic, 0, 100))
        if reset == "error":
            error = event_of(consumer).error()
            assert error is not None
            assert error.code() == KafkaError._AUTO_OFFSET_RESET
            consumer.seek(TopicPartition(topic, 0, 0))
        # Its position is 100 until the client has found that to be outside.
        after = read_until(consumer, lambda seen: offsets_of(seen)[-1:] == [8])
        assert offsets_of(after) == TAKEOVER_ADMITTED


def event_of(consumer: FencedConsumer) -> Message:
    found: list[Message] = []

    def is_there() -> bool:
        message = consumer.poll(0.1)
        if message is not None:
            assert message.error() is not None
            found.append(message)
        return bool(found)

    wait_until(is_there, 30, "the client has something to say")
    return found[0]


def lost_head_warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    logger = "epochfence.consumers.loading"
    messages = [r.getMessage() for r in caplog.records if r.name == logger]
    return [text for text in messages if "begins at offset" in text]


def test_a_log_without_its_head_is_known_from_the_rows_of_others(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    place: Place = (topic, 0)
    writer = Writer(kafka, topic)
    write_takeover(writer, a, b)

    def admitted(group: str, ledger: Ledger) -> list[int]:
        caplog.clear()
        with fenced(kafka, ledger, topic, group) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            return offsets_of(read_to(consumer, {place: TAKEOVER_END}))

    assert admitted("first", ledger) == TAKEOVER_ADMITTED
    assert lost_head_warnings(caplog) == []  # the log begins at 0
    delete_records(kafka, topic, 7)
    assert admitted("with rows", ledger) == [8]
    assert lost_head_warnings(caplog) == []  # what is current there is the latest
    # A table that has no rows, of a family that shares the ledger.
    bare = LedgerTopics(kafka, topics.coordination_topic, topics.table_topic + "-bare")
    with bare.open() as without:
        assert admitted("without rows", without) == [7, 8]
        (warning,) = lost_head_warnings(caplog)
        assert warning.startswith(f"{topic}[0] begins at offset 7: ")
        assert admitted("found since", without) == [7, 8]
        assert len(lost_head_warnings(caplog)) == 1
    ledger.claim(SCOPE, holder="c")  # may have begun below offset 7, for all one knows
    assert admitted("a later leader", ledger) == [8]
    assert len(lost_head_warnings(caplog)) == 1


# The table is lost.


def lose_table(kafka: KafkaBroker, topics: LedgerTopics) -> None:
    kafka.delete_topic(topics.table_topic)


def remake_table(topics: LedgerTopics) -> None:
    with topics.open():
        pass  # it creates what is missing


def commit_takeover(kafka: KafkaBroker, ledger: Ledger, topic: str, *, at: int) -> None:
    """Have a group read the nine records of a takeover and commit at an offset."""
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    write_takeover(Writer(kafka, topic), a, b)
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_to(consumer, {(topic, 0): TAKEOVER_END})
        consumer.commit(offsets=[TopicPartition(topic, 0, at)], asynchronous=False)


def test_a_table_that_is_gone_stops_a_start_and_one_made_anew_is_rebuilt(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    rebuilds: Rebuilds,
) -> None:
    commit_takeover(kafka, ledger, topic, at=4)
    lose_table(kafka, topics)
    with fenced(kafka, ledger, topic, timeout_s=2) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(2):
            with pytest.raises(TableUnavailable) as unavailable:
                read_until(consumer, bool, timeout_s=20)
            assert unavailable.value.topic == topics.table_topic
        assert consumer.counts == {}
        assert position_of(consumer, (topic, 0)) < 0
        remake_table(topics)
        after = read_to(
            consumer, {(topic, 0): TAKEOVER_END}, retried=(TableUnavailable,)
        )
        assert offsets_of(after) == [5, 8]
        assert consumer.counts == {"ok": 2, "stale-epoch": 2, "ungranted": 1}
    assert rebuilds.take() == [(0, 0, 4)]
    assert starts(ledger, topic) == [(1, 0), (2, 2)]


def test_a_table_that_is_gone_holds_back_the_record_that_opens_an_epoch(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    writer = Writer(kafka, topic)
    with fenced(kafka, ledger, topic, timeout_s=2) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        writer.write(stamp(a), b"a")
        assert offsets_of(read_to(consumer, {(topic, 0): 1})) == [0]
        lose_table(kafka, topics)
        writer.write(stamp(b), b"b")
        writer.write(stamp(a), b"zombie")
        writer.write(stamp(b), b"b")
        for _ in range(2):
            with pytest.raises(TableUnavailable):
                read_until(consumer, bool, timeout_s=20)
        assert position_of(consumer, (topic, 0)) == 1
        assert consumer.counts == {"ok": 1}
        remake_table(topics)
        after = read_to(consumer, {(topic, 0): 4}, retried=(TableUnavailable,))
        assert offsets_of(after) == [1, 3]
        assert consumer.counts == {"ok": 3, "stale-epoch": 1}
    assert (2, 1) in starts(ledger, topic)


@pytest.mark.parametrize("case", ["the head is gone", "rebuilding is off"])
def test_rows_that_cannot_be_found_again_are_missed(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    case: str,
) -> None:
    commit_takeover(kafka, ledger, topic, at=6)
    is_off = case == "rebuilding is off"
    if not is_off:
        delete_records(kafka, topic, 3)
    lose_table(kafka, topics)
    remake_table(topics)
    with fenced(kafka, ledger, topic, rebuild=not is_off) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        for _ in range(2):
            with pytest.raises(TableMissing) as missing:
                read_until(consumer, bool, timeout_s=20)
            seen = missing.value
            assert (seen.topic, seen.partition, seen.offset) == (topic, 0, 6)
            # A record of b's at offset 3 tells of one epoch, but of no other.
            assert (seen.expected_rows, seen.found_rows) == (2, 0 if is_off else 1)
        assert consumer.counts == {}
        # The way out that the application has: to begin where something is known.
        consumer.seek(TopicPartition(topic, 0, 0 if is_off else 3))
        after = read_to(consumer, {(topic, 0): TAKEOVER_END})
        assert offsets_of(after) == (TAKEOVER_ADMITTED if is_off else [3, 5, 8])
    assert (2, 2 if is_off else 3) in starts(ledger, topic)


def test_without_rebuilding_a_start_that_knows_nothing_is_refused(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    commit_takeover(kafka, ledger, topic, at=TAKEOVER_END)
    with fenced(kafka, ledger, topic, rebuild=False) as consumer:
        consumer.assign([TopicPartition(topic, 0, 4)])
        with pytest.raises(TableMissing) as missing:
            read_until(consumer, bool, timeout_s=20)
        seen = missing.value
        assert (seen.offset, seen.expected_rows, seen.found_rows) == (4, None, 2)
        assert "an unknown number of" in str(seen)


# Commits of others.


@pytest.mark.parametrize("metadata", ["", "flink-checkpoint-42", '{"epochfence":2}'])
def test_a_commit_of_another_tool_means_a_rebuild_once(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    rebuilds: Rebuilds,
    metadata: str,
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    writer = Writer(kafka, topic)
    write_takeover(writer, a, b)
    plain = Consumer(consumer_config(kafka, f"group-{topic}"))
    plain.commit(
        offsets=[TopicPartition(topic, 0, 4, metadata=metadata)], asynchronous=False
    )
    plain.close()
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        after = read_to(consumer, {(topic, 0): TAKEOVER_END})
        assert offsets_of(after) == [5, 8]
        assert consumer.counts == {"ok": 2, "stale-epoch": 2, "ungranted": 1}
        assert consumer.progress == {}
        consumer.commit(asynchronous=False)
    assert rebuilds.take() == [(0, 0, 4)]
    assert starts(ledger, topic) == [(1, 0), (2, 2)]
    writer.write(stamp(a), b"zombie")
    writer.write(stamp(b), b"b")
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        assert offsets_of(read_to(consumer, {(topic, 0): 11})) == [10]
        assert consumer.counts == {"ok": 1, "stale-epoch": 1}
    assert rebuilds.take() == []


def test_a_commit_of_another_tool_is_followed_by_one_that_tells_more(
    kafka: KafkaBroker, ledger: Ledger, topic: str, rebuilds: Rebuilds
) -> None:
    """Even where nothing is delivered in between."""
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    write_takeover(Writer(kafka, topic), a, b)
    plain = Consumer(consumer_config(kafka, f"group-{topic}"))
    plain.commit(offsets=[TopicPartition(topic, 0, 9)], asynchronous=False)
    plain.close()
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert read_to(consumer, {(topic, 0): 9}) == []
        consumer.commit(asynchronous=False)
        told = metadata_of(committed(consumer, topic))
        assert (told["n"], told["e"]) == (2, {SCOPE: 2})
    assert rebuilds.take() == [(0, 0, 9)]
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert read_to(consumer, {(topic, 0): 9}) == []
    assert rebuilds.take() == []


# Every restart.

#: One partition for each offset that a reader may begin at.
RESTARTS = range(31)
HISTORY_END = 33


def write_history(kafka: KafkaBroker, topic: str, ledger: Ledger) -> None:
    """Write the same 33 records to each partition."""
    writer = Writer(kafka, topic)
    a, b, c = [ledger.claim(SCOPE, holder=holder) for holder in "abc"]

    def write(headers: list[Header], count: int = 1) -> None:
        for partition in RESTARTS:
            writer.write(headers, *[b"v"] * count, partition=partition)

    def barrier(leadership: Leadership) -> None:
        for partition in RESTARTS:
            writer.barrier(leadership, partition=partition)

    write(stamp(a), 3)
    barrier(b)  # 3
    write(stamp(b), 2)
    write(stamp(a))
    # If it counted, c's epoch would begin here, and b would be stale from here on.
    write_aborted(kafka, topic, stamp(c), RESTARTS)  # 7, its marker 8
    write(stamp(b), 2)
    write(made_up(SCOPE, 77))  # 11
    write(stamp(a))
    write([])  # 13
    barrier(c)
    write(stamp(b), 2)
    write(stamp(c), 2)  # 17
    write(made_up(SCOPE, 3))
    write(stamp(a))
    write(stamp(c), 2)  # 21
    write(stamp(b), 3)
    write(made_up(SCOPE, 2))  # 26
    write(stamp(c), 3)
    write(stamp(b))  # 30
    write(made_up(SCOPE, 4))
    write(stamp(c))


ADMITTED = [0, 1, 2, 4, 5, 9, 10, 17, 18, 21, 22, 27, 28, 29, 32]


def test_every_restart_gives_the_verdicts_of_a_full_reading(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, rebuilds: Rebuilds
) -> None:
    topic = kafka.create_topic("history", len(RESTARTS))
    write_history(kafka, topic, ledger)
    by_offset = [TopicPartition(topic, n, n) for n in RESTARTS]
    by_commit = [TopicPartition(topic, n) for n in RESTARTS]
    ends: dict[Place, int] = {(topic, n): HISTORY_END for n in RESTARTS}
    in_full, _ = judged_in_full(kafka, topic, QUARANTINE, ledger.refresh())
    assert in_full == dict.fromkeys(ends, ADMITTED)

    with fenced(kafka, ledger, topic, "ours") as consumer:
        consumer.assign([TopicPartition(topic, n, 0) for n in RESTARTS])
        first = read_to(consumer, ends)
        assert {place: offsets_of(first, place[1]) for place in ends} == in_full
        consumer.commit(offsets=by_offset, asynchronous=False)
    plain = Consumer(consumer_config(kafka, f"others-{topic}"))
    plain.commit(offsets=by_offset, asynchronous=False)
    plain.close()
    assert rebuilds.take() == []

    def check(ledger: Ledger, group: str, places: list[TopicPartition]) -> None:
        with fenced(kafka, ledger, topic, group) as consumer:
            consumer.assign(places)
            wanted = {(topic, tp.partition): HISTORY_END for tp in places}
            after = read_to(consumer, wanted, timeout_s=60)
        for tp in places:
            expected = [offset for offset in ADMITTED if offset >= tp.partition]
            assert offsets_of(after, tp.partition) == expected, (group, tp)

    # Rows that are there, and a commit that tells so: nothing has to be read.
    check(ledger, "ours", by_commit)
    assert rebuilds.take() == []
    bare = LedgerTopics(kafka, topics.coordination_topic, topics.table_topic + "-bare")
    with ThreadPoolExecutor(12) as pool, bare.open() as without:
        cases = [
            (ledger, "nobody", by_offset),
            (ledger, "others", by_commit),
            (without, "ours", by_commit),
        ]
        checks = [
            pool.submit(check, *case[:2], case[2][first::4])
            for case in cases
            for first in range(4)
        ]
        for one in checks:
            one.result()
        # Those at offset 0 have nothing below that could be read.
        assert len(rebuilds.take()) == len(cases) * (len(RESTARTS) - 1)
        without.table.refresh()
        # As far as each had to be read or was read: all of it.
        assert len(without.table.all_starts()) == 3 * len(RESTARTS)


def test_seeking_to_and_fro_gives_the_verdicts_of_a_full_reading(
    kafka: KafkaBroker, ledger: Ledger, topic: str, rebuilds: Rebuilds
) -> None:
    a, b, c = [ledger.claim(SCOPE, holder=holder) for holder in "abc"]
    writer = Writer(kafka, topic)
    write_takeover(writer, a, b)
    place: Place = (topic, 0)
    admitted = [*TAKEOVER_ADMITTED, 9, 10, 12, 14, 17]
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        first = read_to(consumer, {place: TAKEOVER_END})
        assert offsets_of(first) == TAKEOVER_ADMITTED
        # Ahead over what was not judged: that is read.
        consumer.pause([TopicPartition(topic, 0)])
        write_takeover(writer, b, c)
        consumer.seek(TopicPartition(topic, 0, 13))
        consumer.resume([TopicPartition(topic, 0)])
        assert offsets_of(read_to(consumer, {place: 18})) == [14, 17]
        assert rebuilds.take() == [(0, 9, 13)]
        # From here on all is known, wherever it goes.
        for offset in (0, 18, 7, 17, 3, 3, 12, 0, 18, 1, 8, 11):
            consumer.seek(TopicPartition(topic, 0, offset))
            seen = offsets_of(read_to(consumer, {place: 18}))
            assert seen == [at for at in admitted if at >= offset]
        consumer.seek(TopicPartition(topic, 0, OFFSET_END))
        assert read_to(consumer, {place: 18}) == []
        # In mid-course, with messages under way that are dropped.
        for offset in (9, 2, 15):
            consumer.seek(TopicPartition(topic, 0, 0))
            assert [next_offset(consumer) for _ in range(3)] == [0, 1, 3]
            consumer.seek(TopicPartition(topic, 0, offset))
            seen = offsets_of(read_to(consumer, {place: 18}))
            assert seen == [at for at in admitted if at >= offset]
    assert rebuilds.take() == []
    assert starts(ledger, topic) == [(1, 0), (2, 2), (3, 11)]


def next_offset(consumer: FencedConsumer) -> int:
    (message,) = read_until(consumer, bool)
    (offset,) = offsets_of([message])
    return offset


# The ledger is lost.


def test_a_ledger_that_was_lost_stops_the_verdicts_that_need_it(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str
) -> None:
    a, b = [ledger.claim(SCOPE, holder=holder) for holder in "ab"]
    place: Place = (topic, 0)
    writer = Writer(kafka, topic)
    with fenced(kafka, ledger, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        write_takeover(writer, a, b)
        read_to(consumer, {place: TAKEOVER_END})
        kafka.delete_topic(topics.coordination_topic)
        # Opened where no row tells of it, another process finds no loss.
        unaware = LedgerTopics(
            kafka, topics.coordination_topic, topics.table_topic + "-unaware"
        )
        with unaware.open() as other:
            rogue = other.claim(SCOPE, holder="rogue")
            assert rogue.epoch == 1
            # What is current needs no ledger.
            writer.write(stamp(b), b"b")  # 9
            assert offsets_of(read_to(consumer, {place: 10})) == [9]
            writer.write(made_up(SCOPE, 7), b"made up")  # 10
            writer.write(stamp(rogue), b"rogue")  # 11
            writer.write(stamp(b), b"b")  # 12
            for _ in range(2):
                with pytest.raises(LedgerRegressed) as regressed:
                    read_until(consumer, bool, timeout_s=20)
                seen = regressed.value
                assert (seen.scope, seen.ledger_epoch, seen.seen_epoch) == (SCOPE, 1, 2)
            assert position_of(consumer, place) == 10
            c = other.claim(SCOPE, holder="operator", at_least=3)
        assert c.epoch == 3
        writer.barrier(c)  # 13
        writer.write(stamp(b), b"zombie")
        writer.write(stamp(c), b"c")
        assert offsets_of(read_to(consumer, {place: 16})) == [12, 15]
        assert consumer.counts == {
            "ok": 8, "barrier": 2, "stale-epoch": 4, "ungranted": 2
        }  # fmt: skip
    assert starts(ledger, topic) == [(1, 0), (2, 2), (3, 13)]


def test_a_ledger_that_was_lost_stops_a_start(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str
) -> None:
    commit_takeover(kafka, ledger, topic, at=4)
    kafka.delete_topic(topics.coordination_topic)
    with topics.open() as other, fenced(kafka, other, topic) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        with pytest.raises(LedgerRegressed) as regressed:
            read_until(consumer, bool, timeout_s=20)
        seen = regressed.value
        assert (seen.scope, seen.ledger_epoch, seen.seen_epoch) == (SCOPE, 0, 2)
        other.claim(SCOPE, holder="operator", at_least=3)
        after = read_to(consumer, {(topic, 0): TAKEOVER_END})
        # b's grant is lost, but its epoch began here: its records are its.
        assert offsets_of(after) == [5, 8]


# Metadata.


@pytest.mark.parametrize("is_refused_by", ["nobody", "the broker"])
def test_a_commit_with_too_many_epochs_to_tell_of(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    is_refused_by: str,
    monkeypatch: pytest.MonkeyPatch,
    rebuilds: Rebuilds,
) -> None:
    if is_refused_by == "the broker":
        # Its limit is 4,096 bytes where nobody has set another.
        monkeypatch.setattr(
            "epochfence.epochs.starts.MAX_METADATA_EPOCHS_BYTES", 100_000
        )
    scopes = [f"{number:02d}-{'x' * 190}" for number in range(25)]
    leaders = [ledger.claim(scope, holder="a") for scope in scopes]
    writer = Writer(kafka, topic)
    for leader in leaders[:2]:
        writer.write(stamp(leader), b"v")
    writer.write(stamp(*leaders), b"v", b"v")  # 2, 3
    answers: list[tuple[KafkaError | None, TopicPartition]] = []

    def on_commit(error: KafkaError | None, tps: list[TopicPartition]) -> None:
        answers.extend((error, tp) for tp in tps)

    with fenced(
        kafka,
        ledger,
        topic,
        client={"on_commit": on_commit},
        settings=FenceSettings([]),
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_to(consumer, {(topic, 0): 4})
        consumer.commit(offsets=[TopicPartition(topic, 0, 2)], asynchronous=False)
        assert metadata_of(committed(consumer, topic))["e"] == dict.fromkeys(
            scopes[:2], 1
        )
        done = consumer.commit(
            offsets=[TopicPartition(topic, 0, 3)], asynchronous=False
        )
        assert done is not None
        assert [(tp.offset, tp.error) for tp in done] == [(3, None)]
        now = committed(consumer, topic)
        assert (now.offset, now.leader_epoch) == (3, 0)
        told = metadata_of(now)
        assert (told["n"], "e" in told) == (25, False)
        answers.clear()
        assert consumer.commit(asynchronous=True) is None
        read_until(consumer, lambda _: bool(answers))
        ((error, tp),) = answers
        assert (error, tp.error, tp.offset) == (None, None, 4)
        now = committed(consumer, topic)
        assert now.offset == 4
        told = metadata_of(now)
        assert (told["n"], "e" in told) == (25, False)
    writer.write(stamp(*leaders), b"v")
    with fenced(kafka, ledger, topic, settings=FenceSettings([])) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        assert offsets_of(read_to(consumer, {(topic, 0): 5})) == [4]
    assert rebuilds.take() == []


def test_a_commit_that_was_repeated_without_epochs_is_done(
    kafka: KafkaBroker, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("epochfence.epochs.starts.MAX_METADATA_EPOCHS_BYTES", 100_000)
    scopes = [f"{number:02d}-{'x' * 190}" for number in range(25)]
    leaders = [ledger.claim(scope, holder="a") for scope in scopes]
    Writer(kafka, topic).write(stamp(*leaders), b"v")
    answers: list[KafkaError | None] = []

    def on_commit(error: KafkaError | None, _: list[TopicPartition]) -> None:
        answers.append(error)

    with fenced(
        kafka,
        ledger,
        topic,
        client={"on_commit": on_commit},
        settings=FenceSettings([]),
    ) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        read_to(consumer, {(topic, 0): 1})
        consumer.commit(asynchronous=True)
        read_until(consumer, lambda _: bool(answers))
        assert answers == [None]
        assert committed(consumer, topic).offset == 1
        with pytest.raises(KafkaException) as nothing:
            consumer.commit(asynchronous=False)
        assert nothing.value.args[0].code() == KafkaError._NO_OFFSET
