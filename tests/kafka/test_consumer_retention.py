"""The fenced consumer where retention, a reset or a commit beyond the end moves it."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    KafkaError,
    Message,
    TopicPartition,
)

from epochfence import (
    Ledger,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from support.brokers import KafkaBroker
from support.fenced_topic import (
    SCOPE,
    TAKEOVER_ADMITTED,
    TAKEOVER_END,
    WAYS,
    commit_takeover,
    committed,
    fenced,
    metadata_of,
    write_takeover,
)
from support.ledgers import LedgerTopics
from support.stamped import (
    Place,
    Writer,
    delete_records,
    made_up,
    offsets_of,
    position_of,
    read_to,
    read_until,
    stamp,
)
from support.waiting import wait_until

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
