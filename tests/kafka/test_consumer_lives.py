"""The fenced consumer on topics that are deleted and made anew.

Nothing comes out unjudged, nothing is skipped, and nothing comes twice unasked.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from epochfence import (
    Leadership,
    Ledger,
    TopicUnavailable,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from support.brokers import KafkaBroker
from support.fenced_topic import (
    QUARANTINE,
    SCOPE,
    TAKEOVER_ADMITTED,
    TAKEOVER_COUNTS,
    WAYS,
    commit_takeover,
    committed,
    fenced,
    metadata_of,
    topic_id,
    write_takeover,
)
from support.stamped import (
    Place,
    Reading,
    Writer,
    consumer_config,
    create_named,
    offsets_of,
    position_of,
    read_to,
    read_until,
    stamp,
)
from support.waiting import wait_until

# Topics made anew.


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
