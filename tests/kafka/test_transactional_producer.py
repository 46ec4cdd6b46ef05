"""Transactions under a leadership, on a real broker: nothing else fences or aborts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException

from epochfence import (
    Deposed,
    FencedProducer,
    FencedTransactionalProducer,
    Leadership,
    Ledger,
    LedgerClosed,
    MisconfiguredError,
    TopicUnavailable,
    TransactionAborted,
    TransactionUnknown,
)
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.transactions import TransactionalClient
from epochfence.producers import transaction_session
from support.brokers import KafkaBroker
from support.fenced_topic import fenced
from support.ledgers import LedgerTopics, unnamed_topics
from support.producing import doing, make_anew, records
from support.reading import read_all
from support.stream import read_until
from support.transactions import (
    SCOPE,
    Sleeper,
    after_commit,
    at,
    committed_values,
    open_producer,
    open_zombie,
    outcomes,
    take_id,
)
from support.waiting import wait_until

FENCED = KafkaException(KafkaError(KafkaError._FENCED, "fenced", True))


@pytest.fixture(scope="module")
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture(scope="module")
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


@pytest.fixture
def leadership(ledger: Ledger) -> Leadership:
    return ledger.claim(SCOPE, holder="a")


@pytest.fixture
def producer(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership, topic: str
) -> Iterator[FencedTransactionalProducer]:
    with open_producer(kafka, ledger, leadership) as opened:
        opened.take_over([topic])
        yield opened


@pytest.fixture
def zombie(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership, topic: str
) -> Iterator[FencedTransactionalProducer]:
    with open_zombie(kafka, ledger, leadership) as opened:
        opened.take_over([topic])
        yield opened


def write(producer: FencedTransactionalProducer, topic: str, *values: bytes) -> None:
    """Hand messages over, and see them acknowledged."""
    for value in values:
        producer.produce(topic, value, partition=0)
    assert producer.flush(30) == 0


def transact(
    producer: FencedTransactionalProducer,
    topic: str,
    *steps: bytes | Callable[[], object],
    timeout_s: float | None = None,
) -> None:
    """Write messages in one transaction, and do other things in between."""
    with producer.transaction(timeout_s=timeout_s):
        for step in steps:
            if isinstance(step, bytes):
                write(producer, topic, step)
            else:
                step()


def successor(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> FencedTransactionalProducer:
    opened = open_producer(kafka, ledger, ledger.claim(SCOPE, holder="successor"))
    opened.take_over([topic])
    return opened


# Transactions.


def test_all_of_it_or_nothing(
    kafka: KafkaBroker, topic: str, producer: FencedTransactionalProducer
) -> None:
    with producer.transaction():
        write(producer, topic, b"1", b"2")
    with pytest.raises(ValueError, match="mine"):
        transact(producer, topic, b"3", doing(ValueError("mine")))
    producer.begin_transaction()
    write(producer, topic, b"4")
    producer.abort_transaction()
    with producer.transaction():
        producer.produce(topic, b"5", partition=0)
    assert committed_values(kafka, topic) == [b"1", b"2", b"5"]
    receipts = producer.confirm()
    assert outcomes(receipts) == ["admitted"] * 2 + ["aborted"] * 2 + ["admitted"]
    assert not receipts.are_all_admitted
    assert len(producer.confirm()) == 0


def test_what_was_not_sent_when_it_was_aborted(
    topic: str, producer: FencedTransactionalProducer
) -> None:
    producer.begin_transaction()
    write(producer, topic, b"1")
    for _ in range(3):
        producer.produce(topic, b"2", partition=0)
    producer.abort_transaction()
    receipts = producer.confirm()
    failed = sum(one.messages for one in receipts.undelivered)
    assert set(outcomes(receipts)) == {"aborted"}
    assert failed + len(receipts) == 4
    with producer.transaction():
        write(producer, topic, b"3")
    assert outcomes(producer.confirm()) == ["admitted"]


def test_one_that_is_open_is_not_answered_for(
    topic: str, producer: FencedTransactionalProducer
) -> None:
    producer.begin_transaction()
    write(producer, topic, b"1")
    assert len(producer.confirm()) == 0
    write(producer, topic, b"2")
    producer.commit_transaction()
    assert outcomes(producer.confirm()) == ["admitted"] * 2


def test_calls_that_do_not_fit(
    topic: str, producer: FencedTransactionalProducer
) -> None:
    calls: list[Callable[[], None]] = [
        lambda: producer.produce(topic, b"1"),
        producer.commit_transaction,
        producer.abort_transaction,
        lambda: producer.send_offsets_to_transaction([at(topic, 1)], object()),
    ]

    def none_fits() -> None:
        for call in calls:
            with pytest.raises(RuntimeError, match="no transaction is open"):
                call()

    none_fits()
    producer.begin_transaction()
    with pytest.raises(RuntimeError, match="a transaction is open"):
        producer.begin_transaction()
    write(producer, topic, b"1")
    producer.commit_transaction()
    none_fits()
    producer.begin_transaction()
    producer.abort_transaction()
    none_fits()
    assert outcomes(producer.confirm()) == ["admitted"]


def test_a_message_that_is_refused(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    """By the client at once; or by the broker, which the transaction only mentions."""
    topic = kafka.create_topic("t", config={"max.message.bytes": "5000"})
    with open_producer(kafka, ledger, leadership) as producer:
        producer.take_over([topic])
        for size, name in ((2_000_000, "in the client"), (10_000, "at the broker")):
            too_large = partial(producer.produce, topic, bytes(size), partition=0)
            with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
                transact(producer, topic, name.encode(), too_large)
        with producer.transaction():
            write(producer, topic, b"fits")
        assert committed_values(kafka, topic) == [b"fits"]
        assert producer.confirm().counts["admitted"] == 1


def test_a_refusal_that_is_noticed_inside(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership
) -> None:
    topic = kafka.create_topic("t", config={"max.message.bytes": "5000"})
    with open_producer(kafka, ledger, leadership) as producer:
        producer.take_over([topic])
        with pytest.raises(KafkaException, match="MSG_SIZE_TOO_LARGE"):
            transact(producer, topic, bytes(10_000), b"next")
        assert committed_values(kafka, topic) == []


def test_offsets_of_a_group_go_with_it(
    kafka: KafkaBroker, topic: str, producer: FencedTransactionalProducer
) -> None:
    source = kafka.create_topic("source")
    config = {**kafka.config, "group.id": source, "enable.auto.commit": False}
    consumer = Consumer(config)
    consumer.subscribe([source])
    try:
        wait_until(
            lambda: consumer.poll(0.1) is None and consumer.assignment(),
            60,
            "it has joined",
        )

        def next_offset() -> int:
            (found,) = consumer.committed([at(source, 0)], 30)
            return found.offset

        generation = consumer.consumer_group_metadata()

        def send(offset: int) -> Callable[[], None]:
            return lambda: producer.send_offsets_to_transaction(
                [at(source, offset)], generation
            )

        with pytest.raises(ValueError, match="mine"):
            transact(producer, topic, send(3), doing(ValueError("mine")))
        assert next_offset() < 0
        transact(producer, topic, b"1", send(5))
        assert next_offset() == 5
        consumer.unsubscribe()
        wait_until(
            lambda: consumer.poll(0.1) is None and not consumer.memberid(),
            60,
            "it has left",
        )
        with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
            transact(producer, topic, b"2", send(9))
        assert next_offset() == 5
    finally:
        consumer.close()
    assert committed_values(kafka, topic) == [b"1"]


def test_it_is_closed_amid_a_transaction(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership, topic: str
) -> None:
    with open_producer(kafka, ledger, leadership) as producer:
        producer.take_over([topic])
        producer.begin_transaction()
        write(producer, topic, b"1")
        producer.produce(topic, b"2")
    assert committed_values(kafka, topic) == []
    with pytest.raises(RuntimeError, match="closed"):
        producer.begin_transaction()


def test_the_ledger_is_closed_amid_a_transaction(
    kafka: KafkaBroker, topics: LedgerTopics, topic: str
) -> None:
    with topics.open() as ledger:
        leadership = ledger.claim("closed", holder="a")
        with open_producer(kafka, ledger, leadership) as producer:
            producer.take_over([topic])
            with pytest.raises(LedgerClosed):
                transact(producer, topic, b"1", ledger.close)
            assert committed_values(kafka, topic) == []


def test_an_error_that_is_kept(
    topic: str, producer: FencedTransactionalProducer
) -> None:
    """With it, the frames that raised it: no report may be among what they hold."""
    with pytest.raises(RuntimeError) as outside:
        producer.produce(topic, b"1")
    producer.begin_transaction()
    with pytest.raises(KafkaException) as inside:
        producer.produce(topic, bytes(2_000_000))
    producer.abort_transaction()
    with producer.transaction():
        write(producer, topic, b"2")
    assert outcomes(producer.confirm(5)) == ["admitted"]
    assert outside.value
    assert inside.value


# Deposed.


def test_what_a_deposed_leader_left_open_is_aborted(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    zombie: FencedTransactionalProducer,
) -> None:
    """By the taking over alone: nobody waits for a zombie's transaction to time out."""
    with zombie.transaction():
        write(zombie, topic, b"in time")
    zombie.begin_transaction()
    write(zombie, topic, b"too late")
    with successor(kafka, ledger, topic) as leader:
        assert committed_values(kafka, topic) == [b"in time"]
        with leader.transaction():
            write(leader, topic, b"next")
        with pytest.raises(Deposed):
            zombie.commit_transaction()
        with pytest.raises(Deposed):
            zombie.begin_transaction()
        assert committed_values(kafka, topic) == [b"in time", b"next"]
        assert outcomes(zombie.confirm(30)) == ["admitted", "aborted"]
        assert outcomes(leader.confirm()) == ["admitted"]


def test_a_leader_that_hears_of_it_commits_nothing(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    producer: FencedTransactionalProducer,
) -> None:
    producer.begin_transaction()
    write(producer, topic, b"1")
    ledger.claim(SCOPE, holder="b")
    with pytest.raises(Deposed):
        producer.produce(topic, b"2")
    with pytest.raises(Deposed):
        producer.commit_transaction()
    assert committed_values(kafka, topic) == []
    assert outcomes(producer.confirm()) == ["aborted"]


def test_it_is_deposed_inside(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    zombie: FencedTransactionalProducer,
) -> None:
    """The client says no more than that it has failed; the ledger says why."""
    leaders: list[FencedTransactionalProducer] = []

    def depose() -> None:
        leaders.append(successor(kafka, ledger, topic))

    with pytest.raises(Deposed):
        transact(zombie, topic, b"1", depose, b"2", b"3")
    leaders[0].close()
    assert set(outcomes(zombie.confirm(30))) == {"aborted"}


def test_committed_behind_a_barrier(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    zombie: FencedTransactionalProducer,
) -> None:
    """A successor of another id does not abort it: so it is the stamps that decide."""
    with zombie.transaction():
        write(zombie, topic, b"in time")
        claimed = ledger.claim(SCOPE, holder="b")
        with FencedProducer(kafka.config, ledger, claimed) as leader:
            leader.take_over([topic])
            write(zombie, topic, b"too late")
    assert committed_values(kafka, topic) == [b"in time", b"too late"]
    assert outcomes(zombie.confirm()) == ["admitted", "fenced"]
    with FencedProducer(kafka.config, ledger, claimed) as leader:
        leader.take_over([topic])
        leader.produce(topic, b"end", partition=0)
        assert leader.confirm().are_all_admitted
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        seen = read_until(consumer, lambda got: bool(got) and got[-1].value() == b"end")
        assert [message.value() for message in seen] == [b"in time", b"end"]


# Zombies that wake up.


def test_zombies_that_take_the_id_do_not_lock_the_leader_out(
    kafka: KafkaBroker, ledger: Ledger, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was stopped between having asked the ledger and taking the id."""
    sleepers = [
        Sleeper(
            open_zombie(kafka, ledger, ledger.claim(SCOPE, holder=f"zombie {n}")),
            topic,
            monkeypatch,
        )
        for n in range(3)
    ]
    with successor(kafka, ledger, topic) as leader:
        for n, sleeper in enumerate(sleepers):
            with pytest.raises(TransactionAborted, match="woke up"):
                transact(leader, topic, b"aborted", sleeper.wake)
            transact(leader, topic, b"%d" % n)
            with pytest.raises(Deposed):
                sleeper.producer.begin_transaction()
        assert committed_values(kafka, topic) == [b"0", b"1", b"2"]
        assert outcomes(leader.confirm()) == ["aborted", "admitted"] * 3
        for sleeper in sleepers:
            sleeper.producer.close()
        # They have written nothing, no barrier either.
        assert [(r.value, r.is_barrier) for r in records(kafka, topic)] == [
            (None, True),
            *((value, False) for n in b"012" for value in (b"aborted", bytes([n]))),
        ]


def test_a_zombie_that_can_know_takes_the_id_from_nobody(
    kafka: KafkaBroker, ledger: Ledger, topic: str
) -> None:
    zombie = open_zombie(kafka, ledger, ledger.claim(SCOPE, holder="zombie"))
    with zombie, successor(kafka, ledger, topic) as leader:
        leader.begin_transaction()
        write(leader, topic, b"1")
        with pytest.raises(Deposed):
            zombie.take_over([topic])
        leader.commit_transaction()
    assert committed_values(kafka, topic) == [b"1"]


def test_a_zombie_that_wakes_up_between_two_transactions(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
) -> None:
    with producer.transaction():
        write(producer, topic, b"1")
    take_id(kafka, producer.transactional_id)
    with pytest.raises(TransactionAborted):
        transact(producer, topic, b"2")
    transact(producer, topic, b"3")
    assert committed_values(kafka, topic) == [b"1", b"3"]


def test_another_that_takes_the_id_time_and_again(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No zombie of ours does: the leader says so, and could go on all the same."""
    monkeypatch.setattr(transaction_session, "_LOST_TIMES", 2)
    take = partial(take_id, kafka, producer.transactional_id)
    with pytest.raises(TransactionAborted):
        transact(producer, topic, b"aborted", take)
    with pytest.raises(MisconfiguredError, match="2 times in a row"):
        transact(producer, topic, b"aborted", take)
    transact(producer, topic, b"1")
    with pytest.raises(TransactionAborted):
        transact(producer, topic, b"aborted", take)
    assert committed_values(kafka, topic) == [b"1"]


def test_one_that_lasts_too_long(
    kafka: KafkaBroker, ledger: Ledger, leadership: Leadership, topic: str
) -> None:
    settings = {"transaction.timeout.ms": 1000}
    with open_producer(kafka, ledger, leadership, **settings) as producer:
        producer.take_over([topic])
        producer.begin_transaction()
        write(producer, topic, b"too slow")
        with PartitionReader(kafka.config, topic, 0) as reader:
            # The barrier, the record, and the coordinator's word that it is aborted.
            wait_until(lambda: reader.bounds(30)[1] == 3, 60, "it is ended")
        with pytest.raises(TransactionAborted, match=r"lasted .* after 1 s"):
            producer.commit_transaction()
        with producer.transaction():
            write(producer, topic, b"quick")
        assert committed_values(kafka, topic) == [b"quick"]
        assert outcomes(producer.confirm()) == ["aborted", "admitted"]


# Commits whose answer is lost.


def test_fenced_though_committed(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The answer is lost, and a zombie takes the id before the client asks again."""

    def fence(_: float) -> None:
        take_id(kafka, producer.transactional_id)
        raise FENCED

    with after_commit(monkeypatch, fence):
        transact(producer, topic, b"1")
    with producer.transaction():
        write(producer, topic, b"2")
    assert committed_values(kafka, topic) == [b"1", b"2"]
    assert outcomes(producer.confirm()) == ["admitted"] * 2


def test_no_answer_in_time(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def time_out(deadline: float) -> None:
        wait_until(lambda: time.monotonic() > deadline, 60, "the time is over")
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "no answer"))

    with (
        after_commit(monkeypatch, time_out),
        pytest.raises(TransactionUnknown, match="no answer"),
    ):
        transact(producer, topic, b"1", timeout_s=2)
    with producer.transaction():
        write(producer, topic, b"2")
    assert outcomes(producer.confirm()) == ["admitted"] * 2


def test_an_exception_comes_between(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ctrl-C, or a callback's: nobody knows how far the commit was."""

    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    with after_commit(monkeypatch, interrupt), pytest.raises(KeyboardInterrupt):
        transact(producer, topic, b"1")
    assert outcomes(producer.confirm()) == ["admitted"]

    def fail(*_: object) -> None:
        raise ValueError("mine")

    hand_over = partial(producer.produce, topic, b"2", partition=0, on_delivery=fail)
    with pytest.raises(ValueError, match="mine"):
        transact(producer, topic, hand_over)
    told = outcomes(producer.confirm())
    assert told == ["admitted" if b"2" in committed_values(kafka, topic) else "aborted"]
    with producer.transaction():
        write(producer, topic, b"3")
    assert outcomes(producer.confirm()) == ["admitted"]


def test_nothing_tells_how_it_ended(
    kafka: KafkaBroker,
    topic: str,
    producer: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic was made anew, with all that was in it."""

    def fence(_: float) -> None:
        make_anew(kafka, topic)
        raise FENCED

    with after_commit(monkeypatch, fence), pytest.raises(TransactionUnknown):
        transact(producer, topic, b"1")
    assert outcomes(producer.confirm()) == ["indeterminate"]
    # Of offsets alone, nothing in a topic tells.
    with (
        after_commit(monkeypatch, doing(FENCED)),
        pytest.raises(TransactionUnknown, match="the group's commits"),
    ):
        transact(producer, topic)
    assert len(producer.confirm()) == 0


def test_a_deposed_leader_whose_commit_is_not_answered(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    zombie: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    opened: list[FencedTransactionalProducer] = []

    def depose(_: float) -> None:
        opened.append(successor(kafka, ledger, topic))
        raise FENCED

    with after_commit(monkeypatch, depose), pytest.raises(Deposed):
        transact(zombie, topic, b"1")
    assert committed_values(kafka, topic) == [b"1"]
    assert outcomes(zombie.confirm(30)) == ["admitted"]
    opened[0].close()


def test_a_deposed_leader_whose_transaction_is_still_open(
    kafka: KafkaBroker,
    ledger: Ledger,
    topic: str,
    zombie: FencedTransactionalProducer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its successor has another id: readers wait, and so does the answer."""
    with monkeypatch.context() as patched:
        patched.setattr(TransactionalClient, "commit", doing(FENCED))
        with pytest.raises(Deposed):
            transact(zombie, topic, b"1", partial(ledger.claim, SCOPE, holder="b"))
    with pytest.raises(TopicUnavailable, match=r"has not ended|nothing came"):
        zombie.confirm(timeout_s=2)
    take_id(kafka, zombie.transactional_id)
    assert outcomes(zombie.confirm(30)) == ["aborted"]


def test_plain_readers_wait_for_what_is_open(
    kafka: KafkaBroker, topic: str, producer: FencedTransactionalProducer
) -> None:
    producer.begin_transaction()
    write(producer, topic, b"1")
    with PartitionReader(kafka.config, topic, 0) as reader:
        assert reader.bounds(30)[1] == 1
    everything: Any = read_all(kafka, topic)
    assert [message.value() for message in everything] == [None, b"1"]
    producer.abort_transaction()
