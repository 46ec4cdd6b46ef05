"""A leadership for each assigned partition, without a broker."""

from __future__ import annotations

import gc
import pickle
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from epochfence import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    ElectionUnavailable,
    FencedConsumer,
    FencedProducer,
    FenceSettings,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    NotAssigned,
    PartitionLeaderships,
    Receipts,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.messages import headers_of
from epochfence.producers.barriers import BarrierWriter
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.clients import MemoryClients
from epochfence.testing.sender import MemorySender
from support.producing import doing

PARTITIONS = 4

New = Callable[..., PartitionLeaderships]


@pytest.fixture(autouse=True)
def topics(memory_log: MemoryLog) -> None:
    for topic in ("orders", "prices", "totals"):
        memory_log.create_topic(topic, partitions=PARTITIONS)


@pytest.fixture
def new(memory_ledger: MemoryLedger) -> Iterator[New]:
    opened: list[PartitionLeaderships] = []

    def make(**options: Any) -> PartitionLeaderships:
        given: dict[str, Any] = {"holder": "a", "outputs": ["prices"], **options}
        ledger = given.pop("ledger", memory_ledger)
        topic = given.pop("topic", "orders")
        opened.append(PartitionLeaderships({}, ledger, topic, **given))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.fixture
def led(new: New) -> PartitionLeaderships:
    return new()


@pytest.fixture
def other(memory_log: MemoryLog, new: New) -> Iterator[PartitionLeaderships]:
    """Another process."""
    with MemoryLedger(memory_log) as ledger:
        yield new(ledger=ledger, holder="b")


def epochs(ledger: MemoryLedger) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for claim, _ in ledger.claims():
        found.setdefault(claim.scope, []).append(claim.epoch)
    return found


def stamps(log: MemoryLog, topic: str, partition: int) -> list[tuple[str, str]]:
    """The names of the headers, and what they say, without grant ids."""
    return [
        (name, f"{value.split(b':')[0].decode()}:{value.split(b':')[2].decode()}")
        for record in log.records(topic, partition)
        for name, value in headers_of(record)
        if value is not None
    ]


def admitted(ledger: MemoryLedger, topic: str, *require: str) -> list[bytes | None]:
    with MemoryConsumer(ledger, require={topic: list(require)}) as consumer:
        consumer.subscribe([topic])
        return [message.value() for message in consumer]


# What is led.


def test_each_partition_has_a_leader_of_its_own(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    assert led.assigned([0, 2, 0]) == {}
    assert led.led == [0, 2]
    assert epochs(memory_ledger) == {"orders/0": [1], "orders/2": [1]}
    led.of(2).produce("prices", b"v", partition=2)
    assert stamps(memory_log, "prices", 0) == [("epochfence-barrier", "1:orders/0")]
    assert stamps(memory_log, "prices", 2) == [
        ("epochfence-barrier", "1:orders/2"),
        ("epochfence", "1:orders/2"),
    ]
    assert memory_log.records("prices", 1) == []
    assert led.confirm().counts["admitted"] == 1
    assert admitted(memory_ledger, "prices", "orders/{partition}") == [b"v"]
    with pytest.raises(
        MisconfiguredError, match=r"only partitions .2. were taken over"
    ):
        led.of(2).produce("prices", b"v", partition=0)
    with pytest.raises(NotAssigned, match="never assigned"):
        led.of(1)


def test_partitions_come_one_by_one(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0])
    first = led.of(0)
    led.assigned([1])
    led.assigned([0, 1])
    led.assigned([])
    # Of what is led, nothing has to be asked.
    memory_ledger.fail(LedgerUnavailable("c", "no broker answers"))
    assert led.assigned([0, 1]) == {}
    with pytest.raises(LedgerUnavailable):
        memory_ledger.refresh()
    assert led.led == [0, 1]
    assert led.of(0) is first
    assert epochs(memory_ledger) == {"orders/0": [1], "orders/1": [1]}


def test_any_partition_of_a_shared_output(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new: New
) -> None:
    led = new(outputs=[], shared_outputs=["totals"])
    led.assigned([0, 1])
    for number in (0, 1):
        led.of(number).produce("totals", str(number), partition=3)
    assert stamps(memory_log, "totals", 3) == [
        ("epochfence-barrier", "1:orders/0"),
        ("epochfence-barrier", "1:orders/1"),
        ("epochfence", "1:orders/0"),
        ("epochfence", "1:orders/1"),
    ]
    assert len(memory_log.records("totals", 2)) == 2
    assert led.confirm().are_all_admitted
    assert admitted(memory_ledger, "totals") == [b"0", b"1"]


def test_one_that_only_leads(memory_ledger: MemoryLedger, new: New) -> None:
    led = new(outputs=[], scope="pricing/{partition}", attributes={"url": "here"})
    led.assigned([3])
    (leadership,) = led.of(3).leaderships
    assert (leadership.scope, leadership.holder) == ("pricing/3", "a")
    leader = memory_ledger.leader("pricing/3")
    assert leader is not None
    assert leader.attributes == {"url": "here"}
    led.lost([3])
    led.assigned([3])
    assert led.of(3).leaderships == (leadership,)


# Giving up, and coming back.


@pytest.mark.parametrize("by", ["revoked", "lost"])
def test_nothing_is_written_once_a_partition_is_given_up(
    memory_log: MemoryLog, led: PartitionLeaderships, by: str
) -> None:
    led.assigned([0, 1])
    producer = led.of(0)
    getattr(led, by)([0])
    assert led.led == [1]
    with pytest.raises(NotAssigned, match=by):
        led.of(0)
    with pytest.raises(NotAssigned, match=by):
        producer.produce("prices", b"late", partition=0)
    with pytest.raises(MisconfiguredError, match=r"Add the topic to outputs"):
        led.of(1).produce("totals", b"v", partition=1)
    with pytest.raises(MisconfiguredError, match=r"partition of the led one's number"):
        led.of(1).produce("prices", b"v", partition=2)
    led.of(1).produce("prices", b"v", partition=1)
    assert len(memory_log.records("prices", 0)) == 1


def test_one_that_comes_back_needs_no_claim_and_no_barrier(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0, 1])
    led.of(0).produce("prices", b"first", partition=0)
    led.revoked([0, 1])
    led.assigned([0, 1])
    led.of(0).produce("prices", b"second", partition=0)
    assert epochs(memory_ledger) == {"orders/0": [1], "orders/1": [1]}
    assert len(memory_log.records("prices", 0)) == 3
    assert len(memory_log.records("prices", 1)) == 1
    assert led.confirm().counts["admitted"] == 2


def test_one_that_comes_back_to_a_topic_made_anew_needs_a_barrier(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0])
    led.revoked([0])
    memory_log.recreate("prices")
    led.assigned([0])
    assert stamps(memory_log, "prices", 0) == [("epochfence-barrier", "1:orders/0")]
    assert epochs(memory_ledger) == {"orders/0": [1]}


def test_one_that_another_had_meanwhile_is_claimed_anew(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    other: PartitionLeaderships,
) -> None:
    led.assigned([0, 1])
    earlier = led.of(0)
    earlier.produce("prices", b"mine", partition=0)
    led.revoked([0])
    other.assigned([0])
    other.of(0).produce("prices", b"theirs", partition=0)
    other.revoked([0])
    led.assigned([0])
    led.of(0).produce("prices", b"mine again", partition=0)
    assert epochs(memory_ledger) == {"orders/0": [1, 2, 3], "orders/1": [1]}
    # Of both of its leaderships of that partition.
    assert led.confirm().counts["admitted"] == 2
    with pytest.raises(RuntimeError, match="closed"):
        earlier.confirm()  # answered for, and parted with
    assert other.confirm().counts["admitted"] == 1
    wanted = [b"mine", b"theirs", b"mine again"]
    assert admitted(memory_ledger, "prices", "orders/{partition}") == wanted
    assert len(led.confirm()) == len(other.confirm()) == 0


def test_a_zombie_of_a_lost_partition_is_stale(
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    other: PartitionLeaderships,
) -> None:
    led.assigned([0, 1])
    sleeper = MemoryProducer(
        memory_ledger,
        led.of(0).leaderships,
        settings=FenceSettings(["orders/{partition}"]),
    )
    sleeper.take_over([TopicPartition("prices", 0)])
    sleeper.hold()
    sleeper.produce("prices", b"too late", partition=0)
    other.assigned([0])
    sleeper.release()
    other.of(0).produce("prices", b"in order", partition=0)
    led.of(1).produce("prices", b"as ever", partition=1)
    found = admitted(memory_ledger, "prices", "orders/{partition}")
    assert sorted(value or b"" for value in found) == [b"as ever", b"in order"]


# Deposed.


def test_one_of_many_that_is_deposed(
    memory_ledger: MemoryLedger, new: New, other: PartitionLeaderships
) -> None:
    told: list[tuple[int, int, str]] = []

    def on_deposed(partition: int, error: Deposed) -> None:
        told.append((partition, error.seen_epoch, error.holder))

    led = new(on_deposed=on_deposed)
    led.assigned(range(PARTITIONS))
    producer = led.of(1)
    producer.produce("prices", b"v", partition=1)
    other.assigned([1])
    assert told == [(1, 2, "b")]
    assert led.led == [0, 2, 3]
    assert isinstance(led.failures[1], Deposed)
    with pytest.raises(Deposed):
        producer.produce("prices", b"late", partition=1)
    for _ in range(2):
        with pytest.raises(Deposed) as deposed:
            led.of(1)
        assert deposed.value.seen_epoch == 2
    for number in led.led:
        led.of(number).produce("prices", b"v", partition=number)
    assert led.confirm().counts["admitted"] == PARTITIONS
    # It is still assigned: the other was the zombie.
    assert led.assigned([1]) == {}
    assert led.led == [0, 1, 2, 3]
    assert epochs(memory_ledger)["orders/1"] == [1, 2, 3]
    assert told == [(1, 2, "b")]
    other.lost([1])
    memory_ledger.claim("elsewhere", holder="c")
    assert told == [(1, 2, "b")]


@pytest.mark.parametrize("is_watched", [True, False])
def test_who_pauses_between_claim_and_use_hears_of_it(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    monkeypatch: pytest.MonkeyPatch,
    is_watched: bool,
) -> None:
    """Its barriers go out when another leads: they are stale, and it does not lead."""
    if not is_watched:  # what is left is what guards
        monkeypatch.setattr(FencedProducer, "_on_grant", doing(None))
    write_all = BarrierWriter.write_all

    def paused(writer: BarrierWriter, *arguments: Any) -> Any:
        monkeypatch.setattr(BarrierWriter, "write_all", write_all)
        with MemoryLedger(memory_log) as ledger:
            leadership = ledger.claim("orders/1", holder="b")
            with MemoryProducer(
                ledger, leadership, settings=FenceSettings(["orders/{partition}"])
            ) as successor:
                successor.take_over([TopicPartition("prices", 1)])
                successor.produce("prices", b"theirs", partition=1)
        return write_all(writer, *arguments)

    monkeypatch.setattr(BarrierWriter, "write_all", paused)
    failures = led.assigned([0, 1, 2])
    assert list(failures) == [1]
    assert isinstance(failures[1], Deposed)
    assert led.led == [0, 2]
    with pytest.raises(Deposed):
        led.of(1)
    found = admitted(memory_ledger, "prices", "orders/{partition}")
    assert found == [b"theirs"]


def test_who_is_deposed_as_soon_as_it_has_taken_over(
    memory_log: MemoryLog,
    led: PartitionLeaderships,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    take_over_all = FencedProducer.take_over_all

    def deposed(*arguments: Any, **options: Any) -> Any:
        outcome = take_over_all(*arguments, **options)
        with MemoryLedger(memory_log) as elsewhere:
            elsewhere.claim("orders/1", holder="b")
        return outcome

    monkeypatch.setattr(FencedProducer, "take_over_all", staticmethod(deposed))
    assert [type(one) for one in led.assigned([0, 1]).values()] == [Deposed]
    assert led.led == [0]


def test_who_sleeps_before_the_claim_loses_it(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The latest grant is read before the group is asked: what comes later, wins."""
    claim_all = MemoryLedger.claim_all

    def slept(ledger: MemoryLedger, *scopes: Any, **options: Any) -> Any:
        with MemoryLedger(memory_log) as elsewhere:
            elsewhere.claim("orders/1", holder="b")
        return claim_all(ledger, *scopes, **options)

    monkeypatch.setattr(MemoryLedger, "claim_all", slept)
    failures = led.assigned([0, 1])
    assert [type(error) for error in failures.values()] == [ClaimLost]
    assert led.led == [0]
    with pytest.raises(ClaimLost):
        led.of(1)
    assert epochs(memory_ledger)["orders/1"] == [1]


# What was written under leaderships that are over.


def test_every_leadership_is_answered_for(
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    other: PartitionLeaderships,
) -> None:
    for _ in range(4):
        led.assigned([0])
        for _ in range(3):
            led.of(0).produce("prices", b"v", partition=0)
        led.revoked([0])
        other.assigned([0])
        other.revoked([0])
    assert led.confirm().counts["admitted"] == 12
    assert len(led.confirm()) == 0


def test_a_message_of_long_ago_that_was_not_delivered_is_told_of(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new: New
) -> None:
    sender = MemorySender(memory_log)
    sender.fail_deliveries(KafkaError._MSG_TIMED_OUT, 1, arrives=False)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryClients, "writing_producer", doing(sender))
        led = new()
    led.assigned([0])
    led.of(0).produce("prices", b"v", partition=0)
    for _ in range(3):
        memory_ledger.claim("orders/0", holder="b")
        led.assigned([0])
    receipts = led.confirm()
    assert not receipts.are_all_admitted
    assert [one.messages for one in receipts.undelivered] == [1]


def test_a_leadership_that_wrote_nothing_is_forgotten(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0])
    idle = led.of(0)
    for _ in range(2):
        assert not idle.is_closed
        memory_ledger.claim("orders/0", holder="b")
        led.assigned([0])
        if idle.is_closed:
            break
    assert idle.is_closed


def in_another_thread(call: Callable[[], object]) -> tuple[threading.Thread, list[Any]]:
    """A thread that calls, and where its result, or error, is put."""
    results: list[Any] = []

    def run() -> None:
        try:
            results.append(call())
        except Exception as error:
            results.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, results


@pytest.mark.parametrize("meanwhile", ["confirm", "assigned"])
def test_two_threads_confirm(
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    monkeypatch: pytest.MonkeyPatch,
    meanwhile: str,
) -> None:
    led.assigned([0, 1])
    for number in (0, 1):
        led.of(number).produce("prices", b"v", partition=number)
    memory_ledger.claim("orders/0", holder="b")
    confirm_all = FencedProducer.confirm_all
    is_there, may_go_on = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Receipts:
        if not is_there.is_set():
            is_there.set()
            assert may_go_on.wait(60)
        return confirm_all(*arguments)

    monkeypatch.setattr(FencedProducer, "confirm_all", staticmethod(slow))
    first, told_first = in_another_thread(lambda: led.confirm(60))
    assert is_there.wait(60)
    if meanwhile == "assigned":
        for _ in range(3):
            led.assigned([0])
            memory_ledger.claim("orders/0", holder="b")
        may_go_on.set()
        first.join()
        (receipts,) = told_first
        assert receipts.counts["admitted"] == 2
        return
    with pytest.raises(TopicUnavailable, match=r"prices.*still confirming"):
        led.confirm(0.1)
    second, told_second = in_another_thread(lambda: led.confirm(60))
    may_go_on.set()
    first.join()
    second.join()
    counts = [one.counts["admitted"] for one in (*told_first, *told_second)]
    assert sorted(counts) == [0, 2]


# What goes wrong, and what passes.


@pytest.mark.parametrize("step", ["claim", "table"])
def test_what_passes_is_tried_again_when_it_is_asked_for(
    memory_ledger: MemoryLedger, led: PartitionLeaderships, step: str
) -> None:
    error = (
        LedgerUnavailable(memory_ledger.coordination_topic, "no broker answers")
        if step == "claim"
        else TableUnavailable(memory_ledger.table_topic, "no broker answers")
    )
    memory_ledger.fail(error, times=2)
    failures = led.assigned([0, 1])
    assert [type(one) for one in failures.values()] == [type(error)] * 2
    assert led.led == []
    with pytest.raises(type(error)):
        led.of(0)
    led.of(0).produce("prices", b"v", partition=0)
    # What kept it from being led had kept the other, too.
    assert led.led == [0, 1]
    assert led.failures == {}
    wanted = {"orders/0": [1], "orders/1": [1]}
    assert epochs(memory_ledger) == wanted, "each was claimed once"


def test_a_claim_of_unknown_outcome_concerns_one(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    memory_ledger.lose_outcome()
    failures = led.assigned([0, 1])
    assert [type(one) for one in failures.values()] == [ClaimUnknown]
    assert led.led == [1]
    led.of(0).produce("prices", b"v", partition=0)
    assert epochs(memory_ledger) == {"orders/0": [1, 2], "orders/1": [1]}


class _Gone:
    """A consumer that was closed."""

    def memberid(self) -> str:
        raise RuntimeError("Consumer closed")


def test_a_consumer_that_was_closed(new: New) -> None:
    led = new(group="pricing")
    led.on_assign(_Gone(), [TopicPartition("orders", 0)])
    with pytest.raises(ElectionUnavailable, match="Consumer closed"):
        led.of(0)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_what_else_comes_in_the_way_is_tried_again(
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    error: type[BaseException],
) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FencedProducer, "take_over_all", staticmethod(doing(error())))
        with pytest.raises(error):
            led.assigned([0])
    assert led.led == []
    failure = led.failures[0]
    assert isinstance(failure, ElectionUnavailable)
    assert error.__name__ in failure.reason
    led.of(0).produce("prices", b"v", partition=0)
    assert epochs(memory_ledger) == {"orders/0": [1]}


def test_whoever_finds_no_producer_finds_the_reason(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    """At each line of what happens on the ledger's thread."""
    led.assigned([0])
    found: list[str] = []

    def look() -> None:
        try:
            led.of(0)
        except BaseException as error:
            found.append(type(error).__name__)

    def traced(frame: Any, event: str, _: Any) -> Any:
        if frame.f_code.co_filename.endswith("partition_leaderships.py"):
            sys.settrace(None)
            look()
            sys.settrace(traced)
            return traced
        return traced if event == "call" else None

    before = sys.gettrace()
    sys.settrace(traced)
    try:
        memory_ledger.claim("orders/0", holder="b")
    finally:
        sys.settrace(before)
    assert set(found) == {"Deposed"}


def test_a_failure_keeps_nothing_alive(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client:
        pass

    seen: list[weakref.ref[Client]] = []

    def has_member(*_: Any) -> bool:
        client = Client()
        seen.append(weakref.ref(client))
        raise KafkaException(KafkaError(29))

    monkeypatch.setattr(MemoryClients, "has_member", has_member)
    led = new(group="pricing")
    led.on_assign(_Sleeper(), [TopicPartition("orders", 0)])
    gc.collect()
    assert isinstance(led.failures[0], ElectionUnavailable)
    assert [client() for client in seen] == [None]


def test_who_is_a_member_still_claims_again_what_a_sleeper_took(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new: New
) -> None:
    """Else nobody would lead: the group gives the partition to nobody else."""
    claim_all = MemoryLedger.claim_all

    def slept(ledger: MemoryLedger, *scopes: Any, **options: Any) -> Any:
        with MemoryLedger(memory_log) as elsewhere:
            elsewhere.claim("orders/0", holder="sleeper")
        return claim_all(ledger, *scopes, **options)

    led = new(group="pricing")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryLedger, "claim_all", slept)
        led.on_assign(_Sleeper(), [TopicPartition("orders", 0)])
        assert isinstance(led.failures[0], ClaimLost)
        with pytest.raises(ClaimLost):
            led.of(0)
    led.of(0).produce("prices", b"v", partition=0)
    memory_ledger.claim("orders/0", holder="sleeper")
    assert isinstance(led.failures[0], Deposed)
    led.of(0).produce("prices", b"v", partition=0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(MemoryClients, "has_member", doing(False))
        memory_ledger.claim("orders/0", holder="successor")
        with pytest.raises(NotAssigned, match="among its members"):
            led.of(0)
    claims = [claim.holder for claim, _ in memory_ledger.claims()]
    assert claims[-1] == "successor"


class _Slow(MemorySender):
    """A client that tells, when flushed, of no message."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.flushed = 0

    def flush(self, timeout: float = -1) -> int:
        self.flushed += 1
        return super().flush(timeout)


def test_who_is_revoked_waits_for_its_own_messages_only(
    memory_log: MemoryLog, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    sender = _Slow(memory_log)
    monkeypatch.setattr(MemoryClients, "writing_producer", doing(sender))
    led = new()
    led.assigned([0, 1])
    led.of(1).produce("prices", b"v", partition=1)
    led.revoked([0])
    assert sender.flushed == 0
    led.revoked([1])
    assert sender.flushed > 0


def test_on_deposed_may_ask_why(memory_ledger: MemoryLedger, new: New) -> None:
    told: list[Any] = []
    opened: list[PartitionLeaderships] = []

    def on_deposed(partition: int, _: Deposed) -> None:
        # As the ledger's thread does, while another has the lock.
        thread, results = in_another_thread(lambda: dict(opened[0].failures))
        thread.join(10)
        told.extend(results)

    led = new(on_deposed=on_deposed)
    opened.append(led)
    led.assigned([0, 1])
    take_over_all = FencedProducer.take_over_all

    def deposed(*arguments: Any, **options: Any) -> Any:
        memory_ledger.claim("orders/0", holder="b")
        return take_over_all(*arguments, **options)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(FencedProducer, "take_over_all", staticmethod(deposed))
        led.assigned([2])
    assert [list(failures) for failures in told] == [[0]]


def test_barriers_of_a_schema_of_ones_own(
    new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = BarrierWriter.__init__
    given: list[Any] = []

    def make(writer: BarrierWriter, *arguments: Any) -> None:
        given.extend(arguments)
        made(writer, *arguments)

    monkeypatch.setattr(BarrierWriter, "__init__", make)
    new(barrier_key=doing(b"key"), barrier_value=b"value")
    _, _, barrier_key, barrier_value, _ = given
    assert barrier_key() == b"key"
    assert barrier_value == b"value"


class _Unwilling(MemorySender):
    """A client that is full at first, and does not get its first message through."""

    def __init__(self, log: MemoryLog) -> None:
        super().__init__(log)
        self.is_full = True
        self.fail_deliveries(KafkaError._MSG_TIMED_OUT, 1, arrives=False)

    def produce(self, *arguments: Any, **options: Any) -> None:
        if self.is_full:
            raise BufferError("full")
        super().produce(*arguments, **options)

    def poll(self, timeout: float = -1) -> int:
        self.is_full = False
        return super().poll(timeout)


def test_a_barrier_that_does_not_get_through_concerns_one(
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    led: PartitionLeaderships,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patched:
        unwilling = _Unwilling(memory_log)
        patched.setattr(MemoryClients, "appending_producer", doing(unwilling))
        failures = led.assigned([0, 1])
    assert [type(one) for one in failures.values()] == [TopicUnavailable]
    assert led.led == [1]
    led.of(0).produce("prices", b"v", partition=0)
    assert led.led == [0, 1]
    assert epochs(memory_ledger) == {"orders/0": [1], "orders/1": [1]}
    assert [len(memory_log.records("prices", number)) for number in (0, 1)] == [2, 1]


def test_an_output_that_has_too_few_partitions(memory_log: MemoryLog, new: New) -> None:
    memory_log.create_topic("small", partitions=1)
    led = new(outputs=["small"])
    with pytest.raises(MisconfiguredError, match=r"small\[1\]"):
        led.assigned([0, 1])
    assert led.led == [0]


def test_lost_grants_are_for_an_operator(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0])
    memory_ledger.lose_grants()
    with pytest.raises(LedgerRegressed):
        led.assigned([1])
    with pytest.raises(LedgerRegressed):
        led.of(1)
    led.lost([0, 1])


def test_a_closed_ledger(
    memory_ledger: MemoryLedger, led: PartitionLeaderships
) -> None:
    led.assigned([0])
    producer = led.of(0)
    memory_ledger.close()
    with pytest.raises(LedgerClosed):
        producer.produce("prices", b"v", partition=0)
    with pytest.raises(LedgerClosed):
        led.assigned([1])


def test_the_end(led: PartitionLeaderships) -> None:
    led.assigned([0])
    producer = led.of(0)
    with led:
        pass
    led.close()
    for call in (lambda: led.of(1), lambda: led.assigned([1]), led.confirm):
        with pytest.raises(RuntimeError, match="closed"):
            call()
    with pytest.raises(RuntimeError, match="closed"):
        producer.produce("prices", b"v", partition=0)
    with pytest.raises(TypeError, match="in each process"):
        pickle.dumps(led)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"topic": 5}, "topic"),
        ({"topic": ""}, "topic"),
        ({"topic": "a b"}, "scope"),
        ({"scope": "pricing"}, "all partitions would have one leader"),
        ({"scope": "pricing/{partition}/{zone}"}, "scope"),
        ({"scope": 7}, "one leader"),
        ({"outputs": "prices"}, r"Use .'prices'."),
        ({"outputs": [7]}, "outputs"),
        ({"shared_outputs": ["prices"]}, "among the outputs, too"),
        ({"holder": None}, "holder"),
        ({"on_deposed": 7}, "on_deposed"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"group": 7}, "group"),
        ({"group": ""}, "names no group"),
        ({"ledger": 7}, "no Ledger"),
    ],
)
def test_what_makes_no_sense(new: New, options: dict[str, Any], words: str) -> None:
    with pytest.raises(MisconfiguredError, match=words):
        new(**options)


@pytest.mark.parametrize("partition", [-1, 2**31, "3", True, None])
def test_what_is_no_partition(led: PartitionLeaderships, partition: Any) -> None:
    led.assigned([1])
    for call in (led.assigned, led.revoked, led.lost):
        with pytest.raises(MisconfiguredError, match="no partition's number"):
            call([partition])
    with pytest.raises(MisconfiguredError, match="no partition's number"):
        led.of(partition)


@pytest.mark.parametrize("partitions", [3, "3", None, TopicPartition("orders", 3)])
def test_what_is_no_list_of_partitions(
    led: PartitionLeaderships, partitions: Any
) -> None:
    for call in (led.assigned, led.revoked, led.lost):
        with pytest.raises(MisconfiguredError, match="a list of numbers"):
            call(partitions)


# As callbacks.


def test_wired_to_a_consumer(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new: New
) -> None:
    led = new(group="pricing")
    for number in range(PARTITIONS):
        memory_log.append("orders", f"order {number}", partition=number)
    config = {"group.id": "pricing"}
    with MemoryConsumer(
        memory_ledger, require={"orders": []}, config=config, unstamped="admit"
    ) as consumer:
        consumer.subscribe(
            ["orders"],
            on_assign=led.on_assign,
            on_revoke=led.on_revoke,
            on_lost=led.on_lost,
        )
        for message in consumer:
            part = message.partition()
            assert part is not None
            led.of(part).produce("prices", message.value(), partition=part)
        assert led.led == [0, 1, 2, 3]
        assert led.confirm().counts["admitted"] == PARTITIONS
        memory_log.rebalance("pricing")
        assert list(consumer) == []
        assert led.led == [0, 1, 2, 3]
    assert led.led == []
    assert set(map(tuple, epochs(memory_ledger).values())) == {(1,)}
    assert len(admitted(memory_ledger, "prices", "orders/{partition}")) == PARTITIONS


class _Sleeper:
    """A member of a group that has forgotten it."""

    def __init__(self, member_id: str = "sleeper-1") -> None:
        self.member_id = member_id

    def memberid(self) -> str:
        return self.member_id


def test_who_was_put_out_of_its_group_claims_nothing(
    memory_ledger: MemoryLedger, new: New, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, str]] = []
    answers: list[Any] = [False, False, KafkaException(KafkaError(29)), True]

    def has_member(
        _: MemoryClients, config: Any, group: str, member_id: str, timeout_s: float
    ) -> bool:
        asked.append((group, member_id))
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast("bool", answer)

    monkeypatch.setattr(MemoryClients, "has_member", has_member)
    led = new(group="pricing")
    places = [TopicPartition("orders", 1), TopicPartition("others", 2)]
    led.on_assign(_Sleeper(), places)
    assert asked == [("pricing", "sleeper-1")]
    assert isinstance(led.failures[1], NotAssigned)
    with pytest.raises(NotAssigned, match=r"orders\[1\].*among its members"):
        led.of(1)
    with pytest.raises(ElectionUnavailable, match="'pricing'"):
        led.of(1)
    assert epochs(memory_ledger) == {}
    assert isinstance(led.of(1), FencedProducer)
    assert led.led == [1]
    led.on_lost(_Sleeper(), places)
    assert led.led == []


def test_a_group_is_needed_to_be_asked(led: PartitionLeaderships) -> None:
    with pytest.raises(MisconfiguredError, match=r"group\.id"):
        led.on_assign(_Sleeper(), [TopicPartition("orders", 0)])
    assert led.led == []


def test_the_plain_consumer_of_the_library_may_be_given(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new: New
) -> None:
    """A type checker takes both kinds of consumers; and several topics of one."""
    led, others = new(group="g"), new(topic="totals", outputs=[], group="g")
    with FencedConsumer(
        {"group.id": "g"}, memory_ledger, require={"orders": [], "totals": []}
    ) as consumer:
        places = [TopicPartition("orders", 0), TopicPartition("totals", 1)]
        for one in (led, others):
            one.on_assign(consumer, places)
    assert (led.led, others.led) == ([0], [1])
