"""The fenced consumer where the table or the ledger is lost, and its commits."""

from __future__ import annotations

import pytest
from confluent_kafka import (
    Consumer,
    KafkaError,
    KafkaException,
    TopicPartition,
)

from epochfence import (
    Ledger,
    LedgerRegressed,
    TableMissing,
    TableUnavailable,
)
from epochfence.epochs.settings import FenceSettings
from support.brokers import KafkaBroker
from support.fenced_topic import (
    SCOPE,
    TAKEOVER_ADMITTED,
    TAKEOVER_END,
    Rebuilds,
    commit_takeover,
    committed,
    fenced,
    metadata_of,
    starts,
    write_takeover,
)
from support.ledgers import LedgerTopics
from support.stamped import (
    Place,
    Writer,
    consumer_config,
    delete_records,
    made_up,
    offsets_of,
    position_of,
    read_to,
    read_until,
    stamp,
)

# The table is lost.


def lose_table(kafka: KafkaBroker, topics: LedgerTopics) -> None:
    kafka.delete_topic(topics.table_topic)


def remake_table(topics: LedgerTopics) -> None:
    with topics.open():
        pass  # it creates what is missing


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
