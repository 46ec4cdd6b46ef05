"""A leadership for each assigned partition, on a real Kafka."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from epochfence import (
    Deposed,
    FencedProducer,
    FenceSettings,
    Ledger,
    MisconfiguredError,
    NotAssigned,
    PartitionLeaderships,
)
from epochfence.producers import partition_watch
from support.brokers import KafkaBroker
from support.fenced_topic import fenced
from support.forking import told_in_child
from support.groups import expel
from support.ledgers import LedgerTopics
from support.producing import add_partitions, barriers, records
from support.stamped import consumer_config
from support.waiting import wait_until

SCOPE = "orders/{partition}"
MANY = 500
#: A topic of so many partitions does not keep a broker busy.
FEWER = 50

New = Callable[..., PartitionLeaderships]


@pytest.fixture
def new(kafka: KafkaBroker, ledger: Ledger) -> Iterator[New]:
    opened: list[PartitionLeaderships] = []

    def make(topic: str, **options: Any) -> PartitionLeaderships:
        given: dict[str, Any] = {"holder": "a", "scope": SCOPE, **options}
        config = given.pop("config", kafka.config)
        by = given.pop("ledger", ledger)
        opened.append(PartitionLeaderships(config, by, topic, **given))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def other_ledger(topics: LedgerTopics, ledger: Ledger) -> Iterator[Ledger]:
    """That of another process."""
    with topics.open() as opened:
        yield opened


def claimed(ledger: Ledger) -> dict[str, list[int]]:
    """The epochs of each scope, in the order of the log."""
    ledger.refresh()
    found: dict[str, list[int]] = {}
    for claim, _ in ledger.claims():
        found.setdefault(claim.scope, []).append(claim.epoch)
    return found


def admitted(
    kafka: KafkaBroker, ledger: Ledger, topic: str, count: int
) -> list[tuple[int | None, bytes | None]]:
    """What a fenced consumer is given: partitions and values, sorted."""
    settings = FenceSettings([SCOPE])
    with fenced(kafka, ledger, topic, settings=settings) as consumer:
        consumer.subscribe([topic])
        found: list[tuple[int | None, bytes | None]] = []
        deadline = time.monotonic() + 60
        while len(found) < count and time.monotonic() < deadline:
            batch = consumer.consume(count, 1)
            found += [(message.partition(), message.value()) for message in batch]
        # And nothing more, in what is there.
        found += [(one.partition(), one.value()) for one in consumer.consume(100, 1)]
    return sorted(found, key=str)


@pytest.mark.parametrize(
    ("kind", "many"), [("shared_outputs", MANY), ("outputs", FEWER)]
)
def test_hundreds_of_partitions(
    kafka: KafkaBroker,
    ledger: Ledger,
    other_ledger: Ledger,
    new: New,
    kind: str,
    many: int,
) -> None:
    is_shared = kind == "shared_outputs"
    output = kafka.create_topic("prices", partitions=1 if is_shared else many)
    told: list[int] = []

    def on_deposed(partition: int, error: Deposed) -> None:
        told.append(partition)

    led = new("orders", on_deposed=on_deposed, timeout_s=60, **{kind: [output]})
    begun = time.monotonic()
    assert led.assigned(range(many)) == {}
    print(f"{many} claimed and taken over in {time.monotonic() - begun:.2f} s")
    assert led.led == list(range(many))
    assert claimed(ledger) == {f"orders/{number}": [1] for number in range(many)}
    assert len(barriers(kafka, output)) == many
    other_ledger.claim("orders/7", holder="b")
    wait_until(lambda: told == [7], 30, "it is told of the one that it has lost")
    others = [number for number in range(many) if number != 7]
    assert led.led == others
    for number in others:
        led.of(number).produce(output, b"v", partition=0 if is_shared else number)
    with pytest.raises(Deposed):
        led.of(7)
    assert led.confirm(60).counts["admitted"] == many - 1
    begun = time.monotonic()
    led.revoked(range(many))
    assert led.assigned(others) == {}
    print(f"{many - 1} came back in {time.monotonic() - begun:.2f} s")
    wanted = {f"orders/{number}": [1] for number in others} | {"orders/7": [1, 2]}
    assert claimed(ledger) == wanted
    assert len(barriers(kafka, output)) == many


def test_claims_behind_one_another(ledger: Ledger, other_ledger: Ledger) -> None:
    """They lie in the log in their order, and two who claim at once never both win."""
    scopes = [f"s/{number}" for number in range(50)]
    seen = dict.fromkeys(scopes, 0)
    first = ledger.claim_all(scopes, holder="a", seen=seen)
    assert list(first.won) == scopes
    assert [claim.scope for claim, _ in ledger.claims()] == scopes
    second = other_ledger.claim_all(["s/new", *scopes], holder="b", seen=seen)
    assert list(second.won) == ["s/new"]
    assert sorted(second.failed) == sorted(scopes)
    again = other_ledger.claim_all(scopes, holder="b")
    assert {one.epoch for one in again.won.values()} == {2}


GROUPS: list[dict[str, Any]] = [
    {"partition.assignment.strategy": "range"},
    {"partition.assignment.strategy": "cooperative-sticky"},
    {"group.protocol": "consumer"},
]


class Processor:
    """One process of a stream processor: a member of a group, and what it leads.

    Args:
        kafka: The cluster.
        led: What it leads.
        client: Settings for its consumer.
        is_hasty: Whether it waits for nothing when partitions are revoked.
    """

    def __init__(
        self,
        kafka: KafkaBroker,
        led: PartitionLeaderships,
        client: dict[str, Any],
        *,
        is_hasty: bool = False,
    ) -> None:
        self.led = led
        config = consumer_config(kafka, f"group-{led.topic}", "earliest", client)
        self.consumer = Consumer(config)
        self.consumer.subscribe(
            [led.topic],
            on_assign=led.on_assign,
            on_revoke=led.on_lost if is_hasty else led.on_revoke,
            on_lost=led.on_lost,
        )

    def poll(self) -> None:
        self.consumer.poll(0.1)
        self.led.poll(0)


def poll_until(
    processors: list[Processor], condition: Callable[[], bool], message: str
) -> None:
    def is_so() -> bool:
        for processor in processors:
            processor.poll()
        return condition()

    wait_until(is_so, 60, message)


@pytest.mark.parametrize("client", GROUPS, ids=["eager", "cooperative", "kip-848"])
def test_a_rebalance_with_a_zombie(
    kafka: KafkaBroker,
    ledger: Ledger,
    other_ledger: Ledger,
    new: New,
    client: dict[str, Any],
) -> None:
    source = kafka.create_topic("orders", partitions=4)
    output = kafka.create_topic("prices", partitions=4)
    group = f"group-{source}"
    # Its messages wait in its client, unless somebody flushes.
    slow = Producer({**kafka.config, "linger.ms": 250_000, "enable.idempotence": True})
    settings: dict[str, Any] = {"outputs": [output], "group": group}
    sleeper = Processor(
        kafka, new(source, config=slow, **settings), client, is_hasty=True
    )
    try:
        poll_until([sleeper], lambda: len(sleeper.led.led) == 4, "it has all")
        for number in range(4):
            (leadership,) = sleeper.led.of(number).leaderships
            # As if a thread of its had handed it over just before it was revoked.
            slow.produce(
                output,
                b"too late",
                partition=number,
                headers=[("epochfence", leadership.stamp_value)],
            )
        awake = Processor(
            kafka, new(source, ledger=other_ledger, holder="b", **settings), client
        )
        try:
            both = [sleeper, awake]
            poll_until(
                both,
                lambda: len(awake.led.led) == 2 and len(sleeper.led.led) == 2,
                "each has two",
            )
            moved, stayed = awake.led.led, sleeper.led.led
            assert sorted(moved + stayed) == list(range(4))
            slow.flush(30)
            for number in moved:
                awake.led.of(number).produce(output, b"in order", partition=number)
                with pytest.raises(NotAssigned):
                    sleeper.led.of(number)
            assert awake.led.confirm().counts["admitted"] == 2
        finally:
            awake.consumer.close()
    finally:
        sleeper.consumer.close()
    epochs = claimed(ledger)
    for number in range(4):
        wanted = [1, 2] if number in moved else [1]
        assert epochs[f"orders/{number}"] == wanted
    found = admitted(kafka, ledger, output, 4)
    wanted_records = [(number, b"in order") for number in moved] + [
        (number, b"too late") for number in stayed
    ]
    assert found == sorted(wanted_records, key=str)
    assert len(records(kafka, output)) == 4 + 2 + 4 + 2


@pytest.mark.parametrize("client", GROUPS, ids=["eager", "cooperative", "kip-848"])
def test_nobody_in_between(
    kafka: KafkaBroker, ledger: Ledger, new: New, client: dict[str, Any]
) -> None:
    source = kafka.create_topic("orders", partitions=4)
    output = kafka.create_topic("prices", partitions=4)
    led = new(source, outputs=[output], group=f"group-{source}")
    processor = Processor(kafka, led, client)
    try:
        poll_until([processor], lambda: len(led.led) == 4, "it has all")
        processor.consumer.unsubscribe()
        poll_until([processor], lambda: led.led == [], "it has none")
        callbacks = {"on_assign": led.on_assign, "on_revoke": led.on_revoke}
        processor.consumer.subscribe([source], **callbacks)
        poll_until([processor], lambda: len(led.led) == 4, "it has all again")
    finally:
        processor.consumer.close()
    assert led.led == []
    assert claimed(ledger) == {f"orders/{number}": [1] for number in range(4)}
    assert len(barriers(kafka, output)) == 4


@pytest.mark.parametrize("client", GROUPS, ids=["eager", "cooperative", "kip-848"])
def test_who_was_put_out_of_the_group_claims_nothing(
    kafka: KafkaBroker, ledger: Ledger, new: New, client: dict[str, Any]
) -> None:
    """As if it had slept between the group's answer and its claims."""
    source = kafka.create_topic("orders", partitions=2)
    group = f"group-{source}"
    led = new(source, group=group)
    met: list[dict[int, type[Exception]]] = []

    def slept(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        expel(kafka.bootstrap_servers, group, consumer.memberid() or "")
        led.on_assign(consumer, partitions)
        met.append({number: type(one) for number, one in led.failures.items()})

    config = consumer_config(kafka, group, "earliest", client)
    consumer = Consumer(config)
    try:
        consumer.subscribe(
            [source], on_assign=slept, on_revoke=led.on_revoke, on_lost=led.on_lost
        )

        def is_told() -> bool:
            consumer.poll(0.1)
            return bool(met)

        wait_until(is_told, 60, "partitions are assigned")
        assert met[0] == {0: NotAssigned, 1: NotAssigned}
        assert led.led == []
        assert claimed(ledger) == {}
    finally:
        consumer.close()


@pytest.mark.parametrize("client", GROUPS, ids=["eager", "cooperative", "kip-848"])
def test_who_is_expelled_while_it_leads(
    kafka: KafkaBroker,
    ledger: Ledger,
    other_ledger: Ledger,
    new: New,
    client: dict[str, Any],
) -> None:
    """Its partitions are another's before it hears of anything; then it comes back."""
    source = kafka.create_topic("orders", partitions=2)
    output = kafka.create_topic("prices", partitions=2)
    group = f"group-{source}"
    settings: dict[str, Any] = {"outputs": [output], "group": group}
    late = Producer(dict(kafka.config))
    with ExitStack() as members:
        sleeper = Processor(kafka, new(source, **settings), client)
        members.callback(sleeper.consumer.close)
        poll_until([sleeper], lambda: sleeper.led.led == [0, 1], "it has both")
        held = [sleeper.led.of(number).leaderships[0] for number in range(2)]
        expel(kafka.bootstrap_servers, group, sleeper.consumer.memberid() or "")
        other = new(source, ledger=other_ledger, holder="b", **settings)
        awake = Processor(kafka, other, client)
        members.callback(awake.consumer.close)
        poll_until([awake], lambda: awake.led.led == [0, 1], "the other has both")
        for number, leadership in enumerate(held):
            # As if it had handed them over before, and gone on without polling.
            late.produce(
                output,
                b"too late",
                partition=number,
                headers=[("epochfence", leadership.stamp_value)],
            )
            awake.led.of(number).produce(output, b"in order", partition=number)
            # It asks the group before it would claim again.
            with pytest.raises((Deposed, NotAssigned)):
                sleeper.led.of(number)
        late.flush(30)
        assert awake.led.confirm().counts["admitted"] == 2
        poll_until(
            [sleeper, awake],
            lambda: len(sleeper.led.led) == len(awake.led.led) == 1,
            "it hears of it, and each has one",
        )
        (again,), (stayed,) = sleeper.led.led, awake.led.led
        sleeper.led.of(again).produce(output, b"in order", partition=again)
        assert sleeper.led.confirm().counts["admitted"] == 1
    epochs = claimed(ledger)
    assert epochs == {f"orders/{again}": [1, 2, 3], f"orders/{stayed}": [1, 2]}
    wanted = [(number, b"in order") for number in (0, 1, again)]
    assert admitted(kafka, ledger, output, 3) == sorted(wanted, key=str)


def test_partitions_that_are_added_to_a_shared_output(
    kafka: KafkaBroker, ledger: Ledger, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_watch, "_LOOK_EVERY_S", 0.2)
    output = kafka.create_topic("totals", partitions=1)
    led = new("orders", shared_outputs=[output])
    led.assigned([0, 1, 2])
    assert len(barriers(kafka, output)) == 3
    led.revoked([2])
    add_partitions(kafka, output, 2)
    wait_until(lambda: len(barriers(kafka, output)) == 5, 30, "barriers of two leaders")
    led.assigned([2])
    assert len(barriers(kafka, output)) == 6
    for number in range(3):
        led.of(number).produce(output, b"v", partition=1)
    assert led.confirm().counts["admitted"] == 3


def test_a_producer_of_an_earlier_assignment_hears_of_its_successor(
    kafka: KafkaBroker, ledger: Ledger, other_ledger: Ledger, new: New
) -> None:
    """What it wrote, and nobody has asked about, is answered exactly."""
    output = kafka.create_topic("prices", partitions=2)
    led = new("orders", outputs=[output])
    theirs = new("orders", outputs=[output], ledger=other_ledger, holder="b")
    led.assigned([0, 1])
    stamped = FenceSettings([SCOPE])
    with FencedProducer(
        kafka.config, ledger, led.of(0).leaderships, settings=stamped
    ) as zombie:
        zombie.take_over([TopicPartition(output, 0)])
        led.of(0).produce(output, b"mine", partition=0)
        led.flush()
        led.lost([0])
        theirs.assigned([0])
        theirs.of(0).produce(output, b"theirs", partition=0)
        theirs.lost([0])
        led.assigned([0])
        led.of(0).produce(output, b"mine again", partition=0)
        assert led.confirm(30).counts["admitted"] == 2
        assert theirs.confirm(30).counts["admitted"] == 1
        with pytest.raises(Deposed):
            zombie.produce(output, b"late", partition=0)
    with pytest.raises(MisconfiguredError, match="partitions 0 to 1"):
        led.assigned([2])
    assert led.led == [0, 1]


def test_a_forked_process_leads_nothing(
    kafka: KafkaBroker, ledger: Ledger, new: New
) -> None:
    output = kafka.create_topic("prices")
    led = new("orders", outputs=[output])
    led.assigned([0])
    producer = led.of(0)
    calls: list[Callable[[], object]] = [
        lambda: producer.produce(output, b"v", partition=0),
        lambda: led.assigned([0]),
        lambda: led.of(1),
        led.confirm,
        lambda: led.lost([0]),
        lambda: led.revoked([0]),
        lambda: led.failures,
        led.close,
    ]
    told = told_in_child(calls)
    assert len(told) == 7
    assert all("in each process" in one for one in told)
    led.of(0).produce(output, b"v", partition=0)
    assert led.confirm().are_all_admitted
