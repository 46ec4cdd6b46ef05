"""From every restart point and every seek, the verdicts of a full reading."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from confluent_kafka import (
    OFFSET_END,
    Consumer,
    TopicPartition,
)

from epochfence import (
    Leadership,
    Ledger,
)
from epochfence.consumers.fenced_consumer import FencedConsumer
from support.brokers import KafkaBroker
from support.fenced_topic import (
    QUARANTINE,
    SCOPE,
    TAKEOVER_ADMITTED,
    TAKEOVER_END,
    Rebuilds,
    fenced,
    starts,
    write_takeover,
)
from support.ledgers import LedgerTopics
from support.stamped import (
    Header,
    Place,
    Writer,
    consumer_config,
    judged_in_full,
    made_up,
    offsets_of,
    read_to,
    read_until,
    stamp,
    write_aborted,
)

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
