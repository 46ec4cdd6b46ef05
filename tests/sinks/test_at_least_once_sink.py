"""The sink for any other store, without a broker: keys, calls, commits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from epochfence import (
    AtLeastOnceSink,
    EpochStart,
    MisconfiguredError,
    Position,
    Sink,
    SinkBatch,
    SinkFenced,
    SinkPosition,
    SinkRunner,
    SinkState,
    SinkUnavailable,
    message_key,
)
from epochfence.consumers.group_positions import GroupSink
from epochfence.epochs.starts import CommitMetadata, decode_commit_metadata
from epochfence.epochs.values import Place
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Zombie
from epochfence.testing.sink_contract import SinkContract
from support.running import running
from support.sinks import message
from support.waiting import wait_until

LIFE = "KTgZ3vR0Q0-1_abcdefghi"
OTHER_LIFE = LIFE[::-1]
Calls = list[tuple[str, bytes | None]]


class Receiver:
    """Keeps the calls that it gets; some of them fail."""

    def __init__(self) -> None:
        self.calls: Calls = []
        self.errors: dict[bytes, list[Exception]] = {}

    def __call__(self, key: str, message: Message) -> None:
        errors = self.errors.get(message.value() or b"")
        if errors:
            raise errors.pop(0)
        self.calls.append((key, message.value()))


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


# On a runner.


@pytest.fixture
def producer(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    memory_log.create_topic("orders", partitions=2)
    leader = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="a"))
    leader.take_over(["orders"])
    return leader


NewRunner = Callable[[], SinkRunner]


@pytest.fixture
def new_runner(memory_ledger: MemoryLedger, receiver: Receiver) -> NewRunner:
    def make() -> SinkRunner:
        return SinkRunner(
            {"group.id": "g"},
            memory_ledger,
            AtLeastOnceSink(receiver),
            require={"orders": ["w"]},
            batch_wait_s=0.01,
            longest_wait_s=0.1,
        )

    return make


def write(producer: MemoryProducer, *values: str) -> None:
    for value in values:
        producer.produce("orders", value, partition=0)


def wait_for(log: MemoryLog, offset: int) -> None:
    wait_until(
        lambda: log.committed("g", "orders", 0).offset == offset,
        30,
        f"offset {offset} is committed",
    )


def said(log: MemoryLog) -> CommitMetadata | None:
    return decode_commit_metadata(log.committed("g", "orders", 0).metadata)


def test_each_admitted_message_is_called_for_with_its_key(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    receiver: Receiver,
    new_runner: NewRunner,
    zombie: Zombie,
) -> None:
    write(producer, "a", "b")
    producer.hold()
    write(producer, "too late")
    zombie(producer)
    with running(new_runner(), "orders"):
        wait_for(memory_log, 5)
    life = memory_log.topic_id("orders")
    assert receiver.calls == [
        (message_key(life, 0, 1), b"a"),
        (message_key(life, 0, 2), b"b"),
    ]
    assert said(memory_log) == CommitMetadata(life, 2, {"w": 2})


def test_what_passes_is_called_for_again_and_nothing_else(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    receiver: Receiver,
    new_runner: NewRunner,
) -> None:
    write(producer, "a", "b", "c")
    receiver.errors[b"b"] = [SinkUnavailable("the API", "503") for _ in range(3)]
    with running(new_runner(), "orders"):
        wait_for(memory_log, 4)
    assert [value for _, value in receiver.calls] == [b"a", b"b", b"c"]


def test_what_was_called_before_an_error_is_not_called_again(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    receiver: Receiver,
    new_runner: NewRunner,
) -> None:
    """However often that is tried; and the epochs behind it are not told of yet."""
    write(producer, "a", "b")
    successor = memory_ledger.depose(producer.leaderships[0])
    with MemoryProducer(memory_ledger, successor) as leader:
        leader.take_over(["orders"])
        write(leader, "c")
    receiver.errors[b"c"] = [ValueError("no such account"), ValueError("again")]
    for error in ("no such account", "again"):
        with pytest.raises(ValueError, match=error):
            new_runner().run(["orders"])
        assert memory_log.committed("g", "orders", 0).offset == 3
        life = memory_log.topic_id("orders")
        assert said(memory_log) == CommitMetadata(life, 1, {"w": 1})
    with running(new_runner(), "orders"):
        wait_for(memory_log, len(memory_log.records("orders", 0)))
    assert [value for _, value in receiver.calls] == [b"a", b"b", b"c"]


def test_a_topic_that_is_made_anew_has_other_keys(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    receiver: Receiver,
    new_runner: NewRunner,
) -> None:
    write(producer, "a")
    with running(new_runner(), "orders"):
        wait_for(memory_log, 2)
        memory_log.recreate("orders")
        wait_until(lambda: memory_log.records("orders", 0) == [], 30, "it is made anew")
        producer.take_over(["orders"])
        write(producer, "a", "b")
        wait_for(memory_log, 3)
    (first, a), (second, b), (third, c) = receiver.calls
    assert (a, b, c) == (b"a", b"a", b"b")
    assert len({first, second, third}) == 3
    life = memory_log.topic_id("orders")
    assert (second, third) == (message_key(life, 0, 1), message_key(life, 0, 2))


# On a member that does as it is told.


class Member:
    """Commits, or refuses to, as a group's coordinator would have it."""

    def __init__(self) -> None:
        self.kept: dict[Place, TopicPartition] = {}
        self.commits: list[list[int]] = []
        self.errors: list[int | None] = []
        self.largest = 4096

    def committed(
        self, partitions: list[TopicPartition], timeout: float = -1
    ) -> list[TopicPartition]:
        return [self.kept.get((tp.topic, tp.partition), tp) for tp in partitions]

    def consumer_group_metadata(self) -> Any:
        raise AssertionError("of no use without a transaction")

    def commit_as_given(self, offsets: list[TopicPartition]) -> list[TopicPartition]:
        code = self.errors.pop(0) if self.errors else None
        if code is not None:
            raise KafkaException(KafkaError(code))
        if any(len(tp.metadata or "") > self.largest for tp in offsets):
            raise KafkaException(KafkaError(KafkaError.OFFSET_METADATA_TOO_LARGE))
        self.commits.append([tp.offset for tp in offsets])
        self.kept |= {(tp.topic, tp.partition): tp for tp in offsets}
        return offsets


@pytest.fixture
def member() -> Member:
    return Member()


@pytest.fixture
def sink(receiver: Receiver, member: Member) -> AtLeastOnceSink:
    made = AtLeastOnceSink(receiver)
    made.join(member)
    return made


def at(next_offset: int, topic_id: str | None = LIFE) -> SinkPosition:
    return SinkPosition(topic_id, 0, next_offset)


def batch(
    *offsets: int,
    expected: SinkPosition | None = None,
    position: SinkPosition | None = None,
    partition: int = 0,
    starts: tuple[EpochStart, ...] = (),
) -> SinkBatch:
    """Messages at these offsets, each with its offset as its value."""
    messages = [
        message(offset, b"%d" % offset, partition=partition) for offset in offsets
    ]
    end = position or at(offsets[-1] + 1)
    return SinkBatch("orders", partition, messages, expected, end, (), starts)


def began(epoch: int, offset: int, topic_id: str | None = LIFE) -> EpochStart:
    return EpochStart("orders", topic_id, 0, "w", epoch, "0" * 16, Position(0, offset))


def values(receiver: Receiver) -> list[bytes | None]:
    return [value for _, value in receiver.calls]


def test_the_runner_lets_it_join_and_ask(sink: AtLeastOnceSink) -> None:
    assert isinstance(sink, GroupSink)


def test_an_instance_that_is_behind_calls_nothing(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    sink.write([batch(0, 1)])
    with pytest.raises(SinkFenced) as fenced:
        sink.write([batch(3, partition=1), batch(0, 1)])
    assert (fenced.value.partition, fenced.value.found) == (0, at(2))
    assert values(receiver) == [b"0", b"1"]
    assert member.commits == [[2]]


@pytest.mark.parametrize(
    "code", [KafkaError.UNKNOWN_MEMBER_ID, KafkaError.ILLEGAL_GENERATION]
)
def test_who_is_no_member_any_more_calls_nothing(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver, code: int
) -> None:
    """Although its successor has committed nothing yet."""
    sink.write([batch(0)])
    member.errors = [code]
    with pytest.raises(SinkFenced, match="no more as the one that has"):
        sink.write([batch(1, expected=at(1))])
    assert values(receiver) == [b"0"]


def test_what_was_called_when_the_group_refuses_is_told(
    sink: AtLeastOnceSink,
    member: Member,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    member.errors = [KafkaError.UNKNOWN_MEMBER_ID]
    with pytest.raises(SinkFenced) as fenced:
        sink.write([batch(3, 4, 7)])
    assert fenced.value.found == fenced.value.expected == (None, None, None)
    assert values(receiver) == [b"3", b"4", b"7"]
    assert "orders[0]: calls were made for offsets 3 to 7" in caplog.text
    assert member.kept == {}


def test_to_be_asked_changes_nothing(sink: AtLeastOnceSink, member: Member) -> None:
    sink.write([batch(0, starts=(began(1, 0),))])
    (before,) = member.kept.values()
    sink.ask("orders", 0)
    (after,) = member.kept.values()
    assert member.commits == [[1], [1]]
    assert (after.offset, after.leader_epoch) == (1, 0)
    assert after.metadata == before.metadata
    member.errors = [KafkaError.FENCED_INSTANCE_ID]
    with pytest.raises(KafkaException, match="FENCED_INSTANCE_ID"):
        sink.ask("orders", 0)
    member.errors = [KafkaError.NOT_COORDINATOR]
    with pytest.raises(SinkUnavailable, match="Not coordinator"):
        sink.ask("orders", 0)


def test_where_nothing_stands_it_gives_the_last_answer_once(
    sink: AtLeastOnceSink, member: Member
) -> None:
    sink.ask("orders", 0)
    member.errors = [KafkaError.UNKNOWN_MEMBER_ID]
    with pytest.raises(SinkFenced):
        sink.write([batch(0)])
    with pytest.raises(KafkaException, match="UNKNOWN_MEMBER_ID"):
        sink.ask("orders", 0)
    sink.ask("orders", 0)
    assert member.commits == []


def test_a_commit_that_fails_leaves_the_calls_made(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    written = batch(0, 1)
    member.errors = [KafkaError._TIMED_OUT]
    with pytest.raises(SinkUnavailable, match="Timed out"):
        sink.write([written])
    sink.write([written])
    assert values(receiver) == [b"0", b"1"]
    assert member.commits == [[2]]


def test_nothing_is_committed_before_all_is_called(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    """Half of a batch would look like another instance's commit."""
    receiver.errors[b"1"] = [SinkUnavailable("the API", "503")]
    with pytest.raises(SinkUnavailable, match="the API"):
        sink.write([batch(0, 1)])
    assert values(receiver) == [b"0"]
    assert member.commits == []


def test_what_is_read_again_is_called_again(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    """It may be another message than that which had the offset before."""
    member.errors = [KafkaError._TIMED_OUT]
    with pytest.raises(SinkUnavailable):
        sink.write([batch(0, 1)])
    sink.write([batch(0, 1)])
    assert values(receiver) == [b"0", b"1", b"0", b"1"]


def test_of_several_partitions_each_is_committed_as_far_as_it_came(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    receiver.errors[b"5"] = [ValueError("no")]
    other_life = EpochStart("orders", OTHER_LIFE, 1, "w", 1, "0" * 16, Position(9, 99))
    with pytest.raises(ValueError, match="no"):
        sink.write(
            [
                batch(0, 1, position=at(3)),
                batch(2, 5, partition=1, starts=(other_life, began(2, 2), began(3, 4))),
                batch(8, partition=2),
            ]
        )
    assert values(receiver) == [b"0", b"1", b"2"]
    first, second = member.kept.values()
    assert (first.offset, second.offset) == (3, 3)
    said = decode_commit_metadata(second.metadata)
    assert said == CommitMetadata(LIFE, 2, {"w": 2})
    assert second.leader_epoch == 0


@pytest.mark.parametrize("code", [KafkaError._TIMED_OUT, KafkaError.UNKNOWN_MEMBER_ID])
def test_an_error_of_the_function_is_told_though_the_commit_fails_as_well(
    sink: AtLeastOnceSink,
    member: Member,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    receiver.errors[b"1"] = [ValueError("no")]
    member.errors = [code]
    with pytest.raises(ValueError, match="no"):
        sink.write([batch(0, 1)])
    assert "the calls that were made are not committed" in caplog.text


def test_metadata_that_are_too_large_go_without_epochs(
    sink: AtLeastOnceSink, member: Member
) -> None:
    member.largest = 60
    sink.write([batch(0, starts=(began(1, 0),))])
    (kept,) = member.kept.values()
    assert decode_commit_metadata(kept.metadata) == CommitMetadata(LIFE, 1)


def test_without_a_topic_id_nothing_is_called(
    sink: AtLeastOnceSink, member: Member, receiver: Receiver
) -> None:
    with pytest.raises(MisconfiguredError, match="embedded broker") as refused:
        sink.write([batch(0, partition=1), batch(0, position=at(1, None))])
    assert refused.value.setting == "topic_id"
    assert (receiver.calls, member.commits) == ([], [])


async def later(key: str, message: Message) -> None:
    raise AssertionError


@pytest.mark.parametrize("call", [None, "https://api", later])
def test_functions_that_are_none(call: Any) -> None:
    with pytest.raises(MisconfiguredError) as refused:
        AtLeastOnceSink(call)
    assert refused.value.setting == "call"


def test_a_sink_that_nobody_drives(receiver: Receiver) -> None:
    with pytest.raises(MisconfiguredError, match="SinkRunner"):
        AtLeastOnceSink(receiver).load("orders", 0)


class _WithTable:
    """The sink, and the table in which the starts stand before it is called."""

    def __init__(self, sink: AtLeastOnceSink, table: list[EpochStart]) -> None:
        self._sink = sink
        self._table = table

    def load(self, topic: str, partition: int) -> SinkState | None:
        state = self._sink.load(topic, partition)
        if state is None:
            return None
        starts = self._starts_of(topic, partition)
        assert state.said is not None
        assert state.said.starts == len(starts)
        return SinkState(state.position, starts)

    def _starts_of(self, topic: str, partition: int) -> tuple[EpochStart, ...]:
        return tuple(one for one in self._table if one[0:3:2] == (topic, partition))

    def write(self, batches: Sequence[SinkBatch]) -> None:
        known = list(self._table)
        for one in batches:
            new = [start for start in one.new_starts if start not in self._table]
            self._table += new
        try:
            self._sink.write(
                [replace(one, starts=self._starts_of(*one.place)) for one in batches]
            )
        except SinkFenced:
            self._table[:] = known  # those of a batch that nobody was to see
            raise


class TestContract(SinkContract):
    """What is stored and compared is as with any sink; how often is called is not."""

    @pytest.fixture(autouse=True)
    def store(self) -> None:
        self.member = Member()
        self.receiver = Receiver()
        self.table: list[EpochStart] = []

    def open(self) -> Sink:
        sink = AtLeastOnceSink(self.receiver)
        sink.join(self.member)
        return _WithTable(sink, self.table)

    def applied(self) -> list[bytes]:
        return [value for value in values(self.receiver) if value is not None]

    # Both may call: it is the group that takes the commit of one.
    test_of_two_instances_at_once_one_wins = None  # type: ignore[assignment]

    # What was called before it is committed: see
    # test_of_several_partitions_each_is_committed_as_far_as_it_came.
    test_what_cannot_be_applied_changes_nothing = None  # type: ignore[assignment]
