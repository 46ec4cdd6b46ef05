"""The runner of sinks, without a broker."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaException, TopicPartition

from epochfence import (
    EpochStart,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    Position,
    SinkBatch,
    SinkFenced,
    SinkPosition,
    SinkRunner,
    SinkState,
    SinkUnavailable,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.topics import Answer
from epochfence.testing import (
    MemoryLedger,
    MemoryLog,
    MemoryProducer,
    MemorySink,
)
from epochfence.testing.clients import MemoryKeeper
from epochfence.testing.plugin import Zombie
from support.running import Run, running
from support.waiting import wait_until

REQUIRE = {"orders": ["w"]}

NewRunner = Callable[..., SinkRunner]


@pytest.fixture
def producer(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    memory_log.create_topic("orders", partitions=2)
    leader = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="a"))
    leader.take_over(["orders"])
    return leader


class OverlappingMemorySink(MemorySink):
    """Writes in the runner's other thread."""

    def end(self, batches: Sequence[SinkBatch]) -> None:
        super().write(batches)

    def write(self, batches: Sequence[SinkBatch]) -> None:
        self.end(batches)

    def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
        return partial(self.end, batches)


@pytest.fixture(params=[MemorySink, OverlappingMemorySink])
def sink(request: pytest.FixtureRequest) -> MemorySink:
    made: MemorySink = request.param()
    return made


@pytest.fixture
def new_runner(
    producer: MemoryProducer, memory_ledger: MemoryLedger, sink: MemorySink
) -> NewRunner:
    def make(**options: Any) -> SinkRunner:
        config = {"group.id": options.pop("group", "g"), **options.pop("config", {})}
        given: dict[str, Any] = {
            "require": REQUIRE,
            "batch_wait_s": 0.01,
            "longest_wait_s": 0.1,
            **options,
        }
        of = given.pop("ledger", memory_ledger)
        return SinkRunner(config, of, given.pop("sink", sink), **given)

    return make


def write(producer: MemoryProducer, *values: str, partition: int = 0) -> None:
    for value in values:
        producer.produce("orders", value, partition=partition)


def next_offset(sink: MemorySink, partition: int = 0) -> int | None:
    state = sink.state("orders", partition)
    return None if state is None else state.position.next_offset


def wait_for(sink: MemorySink, offset: int, partition: int = 0) -> None:
    wait_until(
        lambda: next_offset(sink, partition) == offset,
        30,
        f"the sink comes to offset {offset}",
    )


def test_only_what_is_admitted_goes_in(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner, zombie: Zombie
) -> None:
    write(producer, "a", "b")
    write(producer, "c", partition=1)
    producer.hold()
    write(producer, "too late")
    zombie(producer)
    runner = new_runner()
    with running(runner, "orders"):
        wait_for(sink, 5)
        wait_for(sink, 3, partition=1)
    assert sink.values("orders") == [b"a", b"b"]
    assert sink.values("orders", 1) == [b"c"]
    state = sink.state("orders")
    assert state is not None
    assert [start.epoch for start in state.starts] == [1, 2]
    assert runner.progress.messages == 3
    assert runner.progress.counts["stale-epoch"] == 1


def test_where_the_sink_stands_counts_and_not_what_the_group_committed(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a", "b")
    with running(new_runner(), "orders"):
        wait_for(sink, 3)
    for group, offset in (("g", 1), ("other", 3)):
        memory_log.commit(group, TopicPartition("orders", 0, offset))
        write(producer, group)
        with running(new_runner(group=group), "orders"):
            wait_for(sink, producer_end(memory_log))
    assert sink.values("orders") == [b"a", b"b", b"g", b"other"]


def producer_end(log: MemoryLog, partition: int = 0) -> int:
    return len(log.records("orders", partition))


def test_offsets_are_committed_for_those_who_watch(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a")
    with running(new_runner(), "orders"):
        wait_for(sink, 2)
    assert memory_log.committed("g", "orders", 0).offset == 2


def test_what_passes_is_tried_again(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a", "b")
    sink.fail(times=3)
    memory_log.fail(LedgerUnavailable("x", "no broker answers"))
    with running(new_runner(), "orders"):
        wait_for(sink, 3)
        sink.fail(times=2)
        sink.lose_outcome()
        write(producer, "c")
        wait_for(sink, 4)
        write(producer, "d")
        wait_for(sink, 5)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d"]


def test_an_outcome_that_is_not_known_is_looked_up(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner
) -> None:
    sink.lose_outcome(times=3)
    write(producer, "a", "b")
    write(producer, "c", partition=1)
    runner = new_runner(batch_size=1)
    with running(runner, "orders"):
        wait_until(lambda: runner.progress.messages == 3, 30, "all are applied")
        assert runner.progress.positions["orders", 0].next_offset == 3
    assert sink.values("orders") == [b"a", b"b"]
    assert sink.values("orders", 1) == [b"c"]


def test_two_instances_on_one_store_apply_everything_once(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner
) -> None:
    """They are of different groups: both think that the partitions are theirs."""
    names = [str(number) for number in range(200)]
    runners = [new_runner(group=group, batch_size=3) for group in "ab"]
    with running(runners[0], "orders"), running(runners[1], "orders"):
        for name in names:
            write(producer, name)
        wait_for(sink, 201)
    assert sink.values("orders") == [name.encode() for name in names]


class Slow(OverlappingMemorySink):
    """Does not come to the end of a write before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may_end = threading.Event()
        self.has_begun = threading.Event()
        self.calls: list[str] = []

    def load(self, topic: str, partition: int) -> SinkState | None:
        self.calls.append("load")
        return super().load(topic, partition)

    def end(self, batches: Sequence[SinkBatch]) -> None:
        self.has_begun.set()
        assert self.may_end.wait(30)
        super().end(batches)
        self.calls.append("written")


def test_the_next_batch_is_read_while_one_is_written(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    write(producer, "a", "b", "c", "d")
    sink = Slow()
    runner = new_runner(sink=sink, batch_size=2)
    with running(runner, "orders"):
        assert sink.has_begun.wait(30)
        wait_until(lambda: runner.progress.counts.get("ok") == 4, 30, "all are judged")
        assert runner.progress.messages == 0
        assert next_offset(sink) is None
        sink.may_end.set()
        wait_for(sink, 5)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d"]


def test_partitions_are_given_up_once_the_write_has_ended(
    producer: MemoryProducer, memory_log: MemoryLog, new_runner: NewRunner
) -> None:
    """Else the next one to have them would begin before it."""
    write(producer, "a", "b")
    sink = Slow()
    with running(new_runner(sink=sink, batch_size=1), "orders"):
        assert sink.has_begun.wait(30)
        sink.calls.clear()
        memory_log.rebalance("g")
        write(producer, "c")
        # Time enough for what must not happen before.
        threading.Timer(0.3, sink.may_end.set).start()
        wait_for(sink, 4)
        wait_until(lambda: "load" in sink.calls, 30, "the partitions are loaded again")
    assert sink.calls[0] == "written"
    assert sink.values("orders") == [b"a", b"b", b"c"]


def test_a_partition_that_comes_meanwhile_is_loaded_once_the_write_has_ended(
    producer: MemoryProducer, memory_log: MemoryLog, new_runner: NewRunner
) -> None:
    """A sink does one thing at a time. (Cooperatively, others stay where they are.)"""
    memory_log.create_topic("payments")
    write(producer, "a", "b", "c")
    sink = Slow()
    runner = new_runner(
        sink=sink, batch_size=3, batch_wait_s=5, require={**REQUIRE, "payments": ["w"]}
    )
    consumer: Any = vars(runner)["_consumer"]
    with running(runner, "orders"):
        assert sink.has_begun.wait(30)
        sink.calls.clear()
        consumer.incremental_assign([TopicPartition("payments", 0)])
        # The runner is in the middle of gathering.
        threading.Timer(1, sink.may_end.set).start()
        wait_until(lambda: "load" in sink.calls, 30, "it is loaded")
    assert sink.calls[0] == "written"


def test_the_last_write_is_waited_for_as_well(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    class Broken(OverlappingMemorySink):
        def end(self, batches: Sequence[SinkBatch]) -> None:
            threading.Event().wait(0.2)  # it is not over when it was begun
            raise ZeroDivisionError

    write(producer, "a")
    with (
        pytest.raises(ZeroDivisionError),
        running(new_runner(sink=Broken(), batch_wait_s=3600), "orders") as run,
    ):
        wait_until(
            lambda: run.runner.progress.counts.get("ok") == 1, 30, "it is judged"
        )


def test_the_end_waits_for_what_is_being_written(
    producer: MemoryProducer, memory_log: MemoryLog, new_runner: NewRunner
) -> None:
    write(producer, "a")
    sink = Slow()
    run = Run(new_runner(sink=sink), ["orders"])
    assert sink.has_begun.wait(30)
    run.runner.stop()
    threading.Timer(0.1, sink.may_end.set).start()
    run.end()
    assert run.error is None
    assert sink.values("orders") == [b"a"]
    assert memory_log.committed("g", "orders", 0).offset == 2


class Failing(OverlappingMemorySink):
    """Fails to come to the end of its second write, and has the run stop meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = 0
        self.meanwhile: Callable[[], None] = lambda: None

    def end(self, batches: Sequence[SinkBatch]) -> None:
        self.writes += 1
        if self.writes == 2:
            self.meanwhile()
            raise SinkUnavailable("x", "it does not answer")
        super().end(batches)


def test_a_stop_while_a_write_fails_loses_nothing(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    write(producer, "a", "b", "c", "d", "e")
    sink = Failing()
    runner = new_runner(sink=sink, batch_size=2)
    sink.meanwhile = runner.stop
    runner.run(["orders"], handles_signals=False)
    assert sink.values("orders") == [b"a", b"b"]
    with running(new_runner(sink=sink), "orders"):
        wait_for(sink, 6)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d", b"e"]


def test_a_look_that_fails_before_a_write_is_tried_again(
    producer: MemoryProducer,
    sink: MemorySink,
    new_runner: NewRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write(producer, "a", "b")
    runner = new_runner()
    batches = vars(SinkRunner)["_batches"]
    failures = iter([TopicUnavailable("orders", "no broker answers")] * 2)

    def failing(of: SinkRunner) -> object:
        for error in failures:
            raise error
        return batches(of)

    monkeypatch.setattr(SinkRunner, "_batches", failing)
    with running(runner, "orders"):
        wait_for(sink, 3)
    assert sink.values("orders") == [b"a", b"b"]


def test_a_write_of_ones_own_around_a_sink_is_called(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    class Counting(OverlappingMemorySink):
        writes = 0

        def write(self, batches: Sequence[SinkBatch]) -> None:
            self.writes += 1
            super().write(batches)

        def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
            raise AssertionError("it goes past `write`")

    class Heir(Counting):
        def write(self, batches: Sequence[SinkBatch]) -> None:
            super().write(batches)

    write(producer, "a")
    sink = Heir()
    with running(new_runner(sink=sink), "orders"):
        wait_for(sink, 2)
    assert sink.writes > 0


def test_where_no_thread_is_to_be_had(
    producer: MemoryProducer, new_runner: NewRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "epochfence-sink":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refused)
    write(producer, "a")
    sink = OverlappingMemorySink()
    with running(new_runner(sink=sink), "orders"):
        wait_for(sink, 2)


def test_a_second_signal_ends_a_write_that_does_not_end(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    write(producer, "a")
    sink = Slow()

    def interrupt() -> None:
        sink.has_begun.wait(30)
        runner_is_stopped = threading.Event()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            runner_is_stopped.wait(0.5)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        new_runner(sink=sink).run(["orders"])
    thread.join()
    assert sink.values("orders") == []
    sink.may_end.set()


def test_an_error_of_the_last_write_is_told_where_another_ends_the_run(
    producer: MemoryProducer,
    new_runner: NewRunner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    reading_has_failed = threading.Event()

    class Broken(OverlappingMemorySink):
        def end(self, batches: Sequence[SinkBatch]) -> None:
            assert reading_has_failed.wait(30)
            raise ZeroDivisionError("in the store")

    write(producer, "a")
    runner = new_runner(sink=Broken())
    gather = vars(SinkRunner)["_gather_next"]

    def gathered(of: SinkRunner) -> None:
        if vars(of)["_in_hand"]:
            reading_has_failed.set()
            raise KafkaException("it cannot go on")
        gather(of)

    monkeypatch.setattr(SinkRunner, "_gather_next", gathered)
    with pytest.raises(KafkaException):
        runner.run(["orders"])
    assert "in the store" in caplog.text


class HalfDown(OverlappingMemorySink):
    """Can be read, and not written to while it is down."""

    def __init__(self) -> None:
        super().__init__()
        self.is_down = False
        self.refused = 0
        self.loaded: list[int] = []

    def load(self, topic: str, partition: int) -> SinkState | None:
        self.loaded.append(partition)
        return super().load(topic, partition)

    def end(self, batches: Sequence[SinkBatch]) -> None:
        if self.is_down:
            self.refused += 1
            raise SinkUnavailable("x", "it is down")
        super().end(batches)


def test_a_partition_that_comes_back_in_the_middle_of_a_write(
    producer: MemoryProducer, memory_log: MemoryLog, new_runner: NewRunner
) -> None:
    """Its batch is read again: the one in hand must not be written as well."""
    sink = HalfDown()
    write(producer, "a", "b", "c")
    with running(new_runner(sink=sink, longest_wait_s=30), "orders"):
        wait_for(sink, 4)
        wait_for(sink, 1, partition=1)
        sink.is_down = True
        write(producer, "d", "e")
        wait_until(lambda: sink.refused > 0, 30, "it is refused")
        memory_log.rebalance("g")
        sink.loaded.clear()
        # Of the batch in hand, only partition 0 is looked up: this is the new place.
        wait_until(lambda: 1 in sink.loaded, 60, "the partitions are loaded again")
        write(producer, "f")
        sink.is_down = False
        wait_for(sink, 7)
        write(producer, "g")
        wait_for(sink, 8)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d", b"e", b"f", b"g"]


def test_a_sink_that_knows_more_than_the_ledger(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    """A ledger that was lost, with its table: nothing is rejected in silence."""
    memory_ledger.depose(producer.leaderships[0])
    start = EpochStart("orders", None, 0, "w", 9, "0" * 16, Position(0, 0))
    stored = SinkPosition(memory_log.topic_id("orders"), None, 0)
    sink.write([SinkBatch("orders", 0, [], None, stored, [start])])
    with pytest.raises(LedgerRegressed) as regressed:
        new_runner().run(["orders"])
    assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (2, 9)


def test_a_log_that_was_cut_moves_no_position_back(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    """Else who slept, and expects that very position, writes once more."""
    write(producer, "a", "b", "c")
    runner = new_runner()
    with running(runner, "orders"):
        wait_for(sink, 4)
        memory_log.truncate("orders", 0, 1)
        wait_until(lambda: runner.progress.counts["ok"] == 3, 30, "as before")
        write(producer, "x", partition=1)
        wait_for(sink, 2, partition=1)
        assert next_offset(sink) == 4
        write(producer, "d")
        wait_for(sink, 2)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d"]


def test_what_was_taken_over_is_kept_while_its_partition_is_placed_anew(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    sink: MemorySink,
    new_runner: NewRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A broker dies with a batch in hand; what is cut lies behind that in part."""
    write(producer, *"abcde")  # behind the barrier: offsets 1 to 5
    runner = new_runner(longest_wait_s=0.4)
    consumer: Any = vars(runner)["_consumer"]
    gathered: dict[Any, Any] = vars(runner)["_gathered"]
    state, refresh = consumer.sink_state, memory_ledger.table.refresh
    looks, reads = iter(range(12)), iter(range(30))
    has_begun = threading.Event()
    is_over = threading.Event()

    def sink_state(tp: TopicPartition) -> SinkState | None:
        if gathered and next(looks, None) is not None:
            if not has_begun.is_set():
                memory_log.truncate("orders", 0, 4)
                has_begun.set()
            memory_log.fail(TopicUnavailable("orders", "no broker answers"))
        found: SinkState | None = state(tp)
        return found

    def refreshed(*arguments: Any) -> None:
        if has_begun.is_set() and not is_over.is_set():
            if next(reads, None) is not None:
                raise TableUnavailable("epochfence.starts", "no broker answers")
            is_over.set()
        refresh(*arguments)

    monkeypatch.setattr(consumer, "sink_state", sink_state)
    monkeypatch.setattr(memory_ledger.table, "refresh", refreshed)
    with running(runner, "orders"):
        wait_until(is_over.is_set, 30, "the trouble is over")
        write(producer, "f", "g")
        wait_until(lambda: b"g" in sink.values("orders"), 30, "it goes on")
    applied = sink.values("orders")
    assert [value for value in applied if value not in (b"d", b"e")] == [
        b"a", b"b", b"c", b"f", b"g",
    ]  # fmt: skip
    assert len(applied) == len(set(applied))


def test_a_sink_ahead_of_its_log_is_not_applied_to_again(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a")
    life = memory_log.topic_id("orders")
    stored = SinkPosition(life, None, 9)
    sink.write([SinkBatch("orders", 0, [], None, stored, [])])
    with pytest.raises(MisconfiguredError, match="no offset of the log"):
        new_runner().run(["orders"])
    assert sink.values("orders") == []


def test_a_sink_that_accuses_what_was_not_written(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    class Misspelling(OverlappingMemorySink):
        def end(self, batches: Sequence[SinkBatch]) -> None:
            raise SinkFenced("Orders", 0, (None, None, None), (None, None, 7))

    write(producer, "a")
    with pytest.raises(SinkFenced, match="Orders"):
        new_runner(sink=Misspelling()).run(["orders"])


def test_where_nothing_says_where_to_begin_the_run_ends(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    with pytest.raises(KafkaException, match="offset"):
        new_runner(config={"auto.offset.reset": "error"}).run(["orders"])


def test_a_long_batch_is_cut_short_by_the_end(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner
) -> None:
    write(producer, "a")
    with running(new_runner(batch_wait_s=3600), "orders") as run:
        wait_until(lambda: run.runner.progress.rebuilding == {}, 30, "it is at work")
    assert sink.values("orders") in ([], [b"a"])


def test_what_the_sink_raises_ends_the_run(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner
) -> None:
    class Broken(OverlappingMemorySink):
        def end(self, batches: Sequence[SinkBatch]) -> None:
            raise ZeroDivisionError

    write(producer, "a")
    with pytest.raises(ZeroDivisionError):
        new_runner(sink=Broken()).run(["orders"])


def test_rejected_records_are_not_read_again(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    for _ in range(3):
        memory_log.append("orders", "unstamped", partition=0)
    with running(new_runner(), "orders"):
        wait_for(sink, 4)
    assert sink.values("orders") == []
    again = new_runner()
    with running(again, "orders"):
        write(producer, "a")
        wait_for(sink, 5)
    assert again.progress.counts == {"ok": 1}


def begin_another_life(ledger: MemoryLedger) -> None:
    """The topic is deleted and created again, and somebody leads there."""
    ledger.log.recreate("orders")
    with MemoryProducer(ledger, ledger.claim("w", holder="b")) as second:
        second.take_over(["orders"])
        second.produce("orders", "d")


def test_another_life_of_the_topic_is_read_from_its_start(
    producer: MemoryProducer,
    memory_ledger: MemoryLedger,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a", "b", "c")
    with running(new_runner(), "orders"):
        wait_for(sink, 4)
    begin_another_life(memory_ledger)
    with running(new_runner(), "orders"):
        wait_for(sink, 2)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d"]


def test_a_topic_that_is_made_anew_meanwhile(
    producer: MemoryProducer,
    memory_ledger: MemoryLedger,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    write(producer, "a", "b", "c")
    with running(new_runner(), "orders"):
        wait_for(sink, 4)
        begin_another_life(memory_ledger)
        wait_for(sink, 2)
    assert sink.values("orders") == [b"a", b"b", b"c", b"d"]


def test_the_topic_id_is_asked_for_while_a_full_batch_is_judged(
    producer: MemoryProducer,
    sink: MemorySink,
    new_runner: NewRunner,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ask, asked = MemoryKeeper.ask, list[Sequence[str]]()

    def noted(keeper: MemoryKeeper, topics: Sequence[str]) -> dict[str, Answer]:
        asked.append(topics)
        return ask(keeper, topics)

    monkeypatch.setattr(MemoryKeeper, "ask", noted)
    write(producer, "a", "b", "c", "d")
    with running(new_runner(batch_size=2), "orders"):
        wait_for(sink, 5)
    assert asked
    assert all(topics == ["orders"] for topics in asked)


def test_a_signal_ends_the_run_in_order(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    sink: MemorySink,
    new_runner: NewRunner,
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    write(producer, "a")

    def end() -> None:
        wait_for(sink, 2)
        os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=end)
    thread.start()
    new_runner().run(["orders"])
    thread.join()
    assert memory_log.committed("g", "orders", 0).offset == 2
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_runner_that_cannot_reach_its_store_can_be_stopped(
    producer: MemoryProducer, sink: MemorySink, new_runner: NewRunner
) -> None:
    write(producer, "a")
    sink.fail(times=1_000_000)
    run = Run(new_runner(longest_wait_s=3600), ["orders"])
    wait_until(lambda: sink.failures > 1, 30, "a second try")
    run.end()
    assert run.error is None


def test_a_ledger_that_is_closed_ends_the_run(
    producer: MemoryProducer, memory_log: MemoryLog, new_runner: NewRunner
) -> None:
    with MemoryLedger(memory_log) as ledger:
        runner = new_runner(ledger=ledger)
    write(producer, "a")
    with pytest.raises(LedgerClosed):
        runner.run(["orders"])


def test_one_that_was_never_run_is_closed(new_runner: NewRunner) -> None:
    runner = new_runner()
    runner.close()
    with pytest.raises(RuntimeError):
        runner.run(["orders"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"sink": "orders.db"}, "sink = 'orders.db'"),
        ({"config": {"enable.auto.commit": True}}, "enable.auto.commit"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"batch_size": 1.5}, "batch_size = 1.5"),
        ({"batch_wait_s": -1}, "batch_wait_s = -1"),
        ({"commit_interval_s": "5"}, "commit_interval_s = '5'"),
        ({"timeout_s": 0}, "timeout_s = 0"),
        ({"require": {}}, "require"),
    ],
)
def test_settings_that_make_no_sense(
    new_runner: NewRunner, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        new_runner(**options)
    assert told in str(wrong.value)


def test_a_config_that_is_none(memory_ledger: MemoryLedger) -> None:
    with pytest.raises(MisconfiguredError, match="config"):
        SinkRunner("x", memory_ledger, MemorySink(), require=REQUIRE)  # type: ignore[arg-type]


def test_what_the_function_raises_ends_the_run_whatever_it_is(
    producer: MemoryProducer, new_runner: NewRunner
) -> None:
    """An error that passes, of the ledger, does not if it comes out of a sink.

    What was in hand would be gone, and the next batch be stored behind it.
    """

    class Asking(OverlappingMemorySink):
        def end(self, batches: Sequence[SinkBatch]) -> None:
            if not self.failures:
                self.failures += 1
                raise LedgerUnavailable("epochfence.coordination", "asked in vain")
            super().end(batches)

    write(producer, "a")
    sink = Asking()
    with (
        pytest.raises(LedgerUnavailable),
        running(new_runner(sink=sink), "orders") as run,
    ):
        wait_until(lambda: run.is_over, 30, "the run ends")
    assert sink.values("orders") == []
    with running(new_runner(sink=sink), "orders"):
        wait_for(sink, 2)
    assert sink.values("orders") == [b"a"]
