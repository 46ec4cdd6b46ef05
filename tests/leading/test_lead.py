"""The life of a leader, without a broker."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pytest
from confluent_kafka import Message, TopicPartition

from epochfence import (
    Deposed,
    ElectionUnavailable,
    FenceSettings,
    Leadership,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    Tenure,
    TopicUnavailable,
    lead,
)
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.clients import MemoryKeeper
from epochfence.testing.plugin import Zombie
from support.local_election import LocalElection, LocalOffice
from support.local_lead import SCOPE, NewLead
from support.producing import doing
from support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("topic")


class Service:
    """A leader that serves in a thread, and writes its epoch when it leads."""

    def __init__(self, leading: lead) -> None:
        self.leading = leading
        self.tenures: list[Tenure] = []
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.leading.serve(self._work)
        except BaseException as error:
            self.error = error

    def _work(self, tenure: Tenure) -> None:
        self.tenures.append(tenure)
        tenure.producer.produce("orders", str(tenure.leadership.epoch), partition=0)
        tenure.wait()

    @property
    def epochs(self) -> list[int]:
        return [tenure.leadership.epoch for tenure in self.tenures]

    def end(self) -> None:
        self.leading.stop()
        self._thread.join(30)
        assert not self._thread.is_alive()


@pytest.fixture
def serve() -> Iterator[Callable[[lead], Service]]:
    running: list[Service] = []

    def begin(leading: lead) -> Service:
        running.append(Service(leading))
        return running[-1]

    yield begin
    for one in running:
        one.end()


def values(log: MemoryLog, partition: int = 0) -> list[bytes | None]:
    return [record.value() for record in log.records("orders", partition)]


def test_it_leads_and_hands_over(
    memory_log: MemoryLog, new_lead: NewLead, election: LocalElection
) -> None:
    told: list[str] = []

    def note(state: str, _: str) -> None:
        told.append(state)

    leading = new_lead(on_state=note)
    for epoch in (1, 2):
        with leading as tenure:
            assert tenure.leadership.epoch == epoch
            assert tenure.leadership.holder == "a"
            assert set(tenure.barriers) == {("orders", 0), ("orders", 1)}
            assert election.is_elected
            assert not tenure.over.is_set()
            tenure.verify()
            tenure.producer.produce("orders", f"of {epoch}", partition=0)
            assert tenure.producer.confirm().are_all_admitted
        assert not election.is_elected
        assert tenure.over.is_set()
        with pytest.raises(RuntimeError):
            tenure.producer.produce("orders", "too late")
    assert told == ["waiting", "taking-over", "leading", "ended"] * 2
    assert values(memory_log) == [None, b"of 1", None, b"of 2"]


def test_one_leads_and_the_next_one_follows_at_once(
    office: LocalOffice, new_lead: NewLead, serve: Callable[[lead], Service]
) -> None:
    first = serve(new_lead(election=LocalElection(office), holder="a"))
    wait_until(lambda: first.tenures, 30, "the first leads")
    second = serve(new_lead(election=LocalElection(office), holder="b"))
    wait_until(lambda: len(office.line) == 2, 30, "the second waits")
    assert second.tenures == []
    first.end()
    wait_until(lambda: second.tenures, 30, "the second leads")
    assert (first.epochs, second.epochs) == ([1], [2])
    assert first.error is None


def test_a_deposed_leader_stands_again(
    memory_ledger: MemoryLedger,
    memory_log: MemoryLog,
    new_lead: NewLead,
    serve: Callable[[lead], Service],
) -> None:
    service = serve(new_lead())
    wait_until(lambda: service.tenures, 30, "it leads")
    (tenure,) = service.tenures
    memory_ledger.depose(tenure.leadership, holder="b")
    wait_until(lambda: len(service.tenures) == 2, 30, "it leads again")
    assert service.epochs == [1, 3]
    assert tenure.reason == "deposed by epoch 2 (b)"
    assert tenure.deposed is not None
    assert (tenure.deposed.held_epoch, tenure.deposed.seen_epoch) == (1, 2)
    assert values(memory_log) == [None, b"1", None, b"3"]


def test_who_is_deposed_within_a_context_hears_of_it(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    def write_on() -> None:
        with new_lead() as tenure:
            memory_ledger.depose(tenure.leadership)
            assert tenure.wait(30)
            tenure.producer.produce("orders", "x")

    with pytest.raises(Deposed):
        write_on()
    assert not election.is_elected


def test_an_election_that_is_lost_ends_a_tenure(
    office: LocalOffice, new_lead: NewLead, serve: Callable[[lead], Service]
) -> None:
    service = serve(new_lead())
    wait_until(lambda: service.tenures, 30, "it leads")
    office.expel()

    wait_until(lambda: len(service.tenures) == 2, 30, "it leads again")
    assert service.tenures[0].reason == "the election is lost"
    assert service.epochs == [1, 2]


def test_who_slept_between_election_and_claim_loses(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    """Whoever claimed meanwhile leads, and is deposed in order only."""
    told: list[tuple[str, str]] = []
    claims = iter([lambda: memory_ledger.claim(SCOPE, holder="quicker")])
    election.on_won = lambda: next(claims, lambda: None)()

    def note(state: str, reason: str) -> None:
        told.append((state, reason))

    with new_lead(on_state=note) as tenure:
        assert tenure.leadership.epoch == 2
        assert election.resignations == 1
    assert any(state == "waiting" and "quicker" in reason for state, reason in told), (
        told
    )


@pytest.mark.parametrize(
    "error",
    [
        LedgerUnavailable("epochfence.coordination", "no broker answers"),
        TableUnavailable("epochfence.starts", "no broker answers"),
    ],
)
def test_what_passes_is_tried_again(
    memory_ledger: MemoryLedger, new_lead: NewLead, error: LedgerUnavailable
) -> None:
    memory_ledger.fail(error, times=3)
    with new_lead() as tenure:
        tenure.producer.produce("orders", "x")
        assert tenure.producer.confirm().are_all_admitted


def test_a_takeover_that_does_not_get_through_needs_no_other_epoch(
    memory_log: MemoryLog, new_lead: NewLead
) -> None:
    def failing(state: str, _: str) -> None:
        if state == "taking-over" and not has_failed:
            has_failed.append(state)
            memory_log.fail(TopicUnavailable("orders", "no broker answers"), times=2)

    has_failed: list[str] = []
    with new_lead(on_state=failing, longest_wait_s=5) as tenure:
        assert tenure.leadership.epoch == 1
    assert has_failed


def test_a_claim_of_unknown_outcome_is_made_anew(
    memory_ledger: MemoryLedger, new_lead: NewLead
) -> None:
    memory_ledger.lose_outcome()
    with new_lead() as tenure:
        assert tenure.leadership.epoch == 2


def test_an_election_that_does_not_answer_is_asked_again(
    new_lead: NewLead, election: LocalElection
) -> None:
    failures = iter([ElectionUnavailable(SCOPE, "no server answers")] * 2)
    campaign = election.campaign

    def failing(timeout_s: float) -> bool:
        for error in failures:
            raise error
        return campaign(timeout_s)

    vars(election)["campaign"] = failing
    with new_lead() as tenure:
        assert tenure.leadership.epoch == 1


def test_an_operator_decides_where_grants_were_lost(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    with new_lead() as tenure:
        tenure.producer.produce("orders", "x")
    with MemoryConsumer(memory_ledger, require={"orders": [SCOPE]}) as consumer:
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer] == [b"x"]
    memory_ledger.lose_grants()
    with pytest.raises(LedgerRegressed), new_lead():
        pass
    assert not election.is_elected


def test_a_closed_ledger_ends_it(memory_log: MemoryLog, new_lead: NewLead) -> None:
    with MemoryLedger(memory_log) as ledger:
        leading = new_lead(ledger=ledger)
        with leading as tenure:
            ledger.close()
            assert tenure.wait(30)
        assert tenure.reason == "the ledger was closed"
    with pytest.raises(LedgerClosed), leading:
        pass


# Reading.


def write(
    producer: MemoryProducer, *written: str, partition: int = 0, cursor: str = ""
) -> None:
    for value in written:
        producer.produce(
            "orders", value, partition=partition, cursor=f"{cursor}{value}" or None
        )


def test_everything_admitted_is_recovered_first(
    memory_ledger: MemoryLedger,
    memory_log: MemoryLog,
    new_lead: NewLead,
    zombie: Zombie,
) -> None:
    first = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="z"))
    first.take_over(["orders"])
    write(first, "a", "b", cursor="at-")
    first.hold()
    write(first, "late", cursor="at-")
    zombie(first)
    memory_log.append("orders", "unstamped", partition=0)
    read: list[bytes | None] = []
    progress: list[dict[Any, tuple[int, int]]] = []

    def recover(messages: Sequence[Message]) -> None:
        read.extend(message.value() for message in messages)

    def note(at: Mapping[Any, tuple[int, int]]) -> None:
        progress.append(dict(at))

    with new_lead(recover=recover, cursors=True, on_progress=note) as tenure:
        assert read == [b"a", b"b"]
        assert tenure.recovered is not None
        assert tenure.recovered.messages == 2
        assert tenure.recovered.cursors == {
            ("orders", 0): b"at-b",
            ("orders", 1): None,
        }
        assert tenure.recovered.unknown == frozenset()
        end = tenure.barriers["orders", 0] + 1
        assert progress[-1]["orders", 0] == (end, end)


def test_a_cursor_that_retention_may_have_taken_is_unknown(
    new_lead: NewLead, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryKeeper, "is_compacted", doing(True))
    with new_lead(cursors=True) as tenure:
        assert tenure.recovered is not None
        assert tenure.recovered.cursors == {}
        assert tenure.recovered.unknown == {("orders", 0), ("orders", 1)}


def test_a_standby_has_read_what_was_there_before(
    memory_ledger: MemoryLedger, new_lead: NewLead, office: LocalOffice
) -> None:
    elected = LocalElection(office)
    assert elected.campaign(0)
    first = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="z"))
    first.take_over(["orders"])
    write(first, "a", "b", cursor="1")
    read: list[bytes | None] = []
    batches: list[int] = []

    def recover(messages: Sequence[Message]) -> None:
        read.extend(message.value() for message in messages)
        batches.append(len(messages))

    resets: list[str] = []
    leading = new_lead(
        recover=recover, reset=partial(resets.append, "it"), standby=True
    )
    tenures: list[Tenure] = []

    def begin() -> None:
        with leading as tenure:
            tenures.append(tenure)

    thread = threading.Thread(target=begin)
    thread.start()
    wait_until(lambda: read == [b"a", b"b"], 30, "it reads while it waits")
    assert tenures == []
    write(first, "c", partition=1)
    elected.resign()
    thread.join(30)
    (tenure,) = tenures
    assert read == [b"a", b"b", b"c"]
    assert tenure.recovered is not None
    assert tenure.recovered.messages == 3
    assert resets == ["it"]


def standing_by(
    memory_ledger: MemoryLedger, new_lead: NewLead, office: LocalOffice
) -> tuple[MemoryProducer, LocalElection, lead, list[bytes | None]]:
    """A leader that has written, and a standby that has read it."""
    elected = LocalElection(office)
    assert elected.campaign(0)
    first = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="z"))
    first.take_over(["orders"])
    write(first, *"abcdefghij", cursor="at-")
    read: list[bytes | None] = []

    def recover(messages: Sequence[Message]) -> None:
        read.extend(message.value() for message in messages)

    leading = new_lead(recover=recover, reset=read.clear, standby=True, cursors=True)
    return first, elected, leading, read


@pytest.mark.parametrize("change", ["truncated", "truncated and written to", "anew"])
def test_a_standby_begins_anew_where_what_it_read_is_gone(
    change: str,
    memory_ledger: MemoryLedger,
    memory_log: MemoryLog,
    new_lead: NewLead,
    office: LocalOffice,
) -> None:
    first, elected, leading, read = standing_by(memory_ledger, new_lead, office)
    tenures: list[Tenure] = []

    def begin() -> None:
        with leading as tenure:
            tenures.append(tenure)

    thread = threading.Thread(target=begin)
    thread.start()
    wait_until(lambda: len(read) == 10, 30, "it reads while it waits")
    if change == "anew":
        memory_log.recreate("orders")
        again = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="y"))
        again.take_over(["orders"])
        write(again, "x", cursor="now-")
        expected, cursor = [b"x"], b"now-x"
    else:
        memory_log.truncate("orders", 0, 4)
        expected, cursor = [b"a", b"b", b"c"], b"at-c"
        if change != "truncated":
            write(first, *"defghijklm", cursor="then-")
            expected, cursor = [bytes([n]) for n in b"abcdefghijklm"], b"then-m"
    elected.resign()
    thread.join(30)
    (tenure,) = tenures
    assert read == expected
    assert tenure.recovered is not None
    assert tenure.recovered.cursors["orders", 0] == cursor


def test_a_standby_that_was_deposed_knows_what_its_successor_wrote(
    memory_ledger: MemoryLedger, new_lead: NewLead, office: LocalOffice
) -> None:
    first, elected, leading, read = standing_by(memory_ledger, new_lead, office)
    elected.resign()
    found: list[object] = []

    def work(tenure: Tenure) -> None:
        assert tenure.recovered is not None
        found.append((list(read)[-1], tenure.recovered.cursors["orders", 0]))
        if len(found) == 1:
            held = memory_ledger.depose(tenure.leadership)
            with MemoryProducer(memory_ledger, held) as second:
                second.take_over(["orders"])
                write(second, "k", cursor="later-")
            assert tenure.wait(30)

    leading.serve(work)
    assert found == [(b"j", b"at-j"), (b"k", b"later-k")]
    assert read == [bytes([n]) for n in b"abcdefghijk"]
    assert first.leaderships


@pytest.mark.parametrize(
    "error",
    [TopicUnavailable("my-store", "it is down"), Deposed("other", 1, 2, "x")],
)
def test_what_recover_raises_is_not_taken_for_ours(
    memory_ledger: MemoryLedger,
    new_lead: NewLead,
    election: LocalElection,
    error: Exception,
) -> None:
    first = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="z"))
    first.take_over(["orders"])
    write(first, "a")

    def broken(_: Sequence[Message]) -> None:
        raise error from KeyError("why")

    with pytest.raises(type(error)) as raised, new_lead(recover=broken):
        pass
    assert isinstance(raised.value.__cause__, KeyError)
    with pytest.raises(type(error)):
        new_lead(recover=broken).serve(lambda _: None)
    assert memory_ledger.state.epoch_of(SCOPE) == 3
    assert not election.is_elected


def test_who_sleeps_after_a_claim_that_failed_loses_to_who_claimed(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    """The office is given up before the wait."""
    resigned_at: list[str] = []

    def note(state: str, _: str) -> None:
        if state == "taking-over" and not resigned_at:
            resigned_at.append(state)
            memory_ledger.fail(LedgerUnavailable("c", "no broker answers"))

    with new_lead(on_state=note) as tenure:
        assert tenure.leadership.epoch == 1
        assert election.resignations == 1


def test_an_election_that_is_won_and_lost_does_not_fill_the_ledger(
    memory_ledger: MemoryLedger, new_lead: NewLead, office: LocalOffice
) -> None:
    def work(tenure: Tenure) -> None:
        office.expel()
        assert tenure.wait(30)
        if len(waited) == 4:
            leading.stop()
        waited.append(time.monotonic())

    waited: list[float] = []
    leading = new_lead(longest_wait_s=30)
    leading.serve(work)
    # 0.1, 0.2, 0.4, 0.8 s, a quarter less at the least.
    assert waited[-1] - waited[0] > 1.0
    assert memory_ledger.state.epoch_of(SCOPE) == 5


def test_candidates_elected_in_turn_before_they_lead_do_not_fill_the_ledger(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    """That another one is elected in between is no sign that all is well."""

    def waits_for_the_other(_: float) -> bool:
        if is_others_turn:
            is_others_turn.clear()
            return False
        election.lost.clear()
        return True

    def lose_while_taking_over(*_: object) -> None:
        claimed.append(time.monotonic())
        is_others_turn.append(True)
        election.lost.set()
        if len(claimed) == 6:
            leading.stop()
        raise TopicUnavailable("orders", "it takes longer than the lease")

    def made(leadership: Leadership) -> MemoryProducer:
        producer = MemoryProducer(memory_ledger, leadership)
        vars(producer)["take_over"] = lose_while_taking_over
        return producer

    claimed: list[float] = []
    is_others_turn: list[bool] = []
    vars(election)["campaign"] = waits_for_the_other
    leading = new_lead(longest_wait_s=30, new_producer=made)
    leading.serve(lambda _: None)
    # 0.1, 0.2, 0.4, 0.8, 1.6 s, a quarter less at the least.
    assert claimed[-1] - claimed[0] > 2.3
    assert memory_ledger.state.epoch_of(SCOPE) == 6


def test_rows_of_before_the_rollout_are_recovered_as_consumers_see_them(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, new_lead: NewLead
) -> None:
    memory_log.append("orders", "old", partition=0)
    settings = FenceSettings([SCOPE], unstamped="admit-until-first-stamp")
    read: list[bytes | None] = []

    def recover(messages: Sequence[Message]) -> None:
        read.extend(message.value() for message in messages)

    make = partial(MemoryProducer, memory_ledger, settings=settings)
    with new_lead(recover=recover, settings=settings, new_producer=make):
        assert read == [b"old"]


def test_what_recovering_raises_ends_it(
    memory_ledger: MemoryLedger, new_lead: NewLead, election: LocalElection
) -> None:
    first = MemoryProducer(memory_ledger, memory_ledger.claim(SCOPE, holder="z"))
    first.take_over(["orders"])
    write(first, "a")

    def broken(_: Sequence[Message]) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), new_lead(recover=broken):
        pass
    assert not election.is_elected


# How it ends.


def test_it_is_told_to_stop_before_it_leads(
    new_lead: NewLead, office: LocalOffice
) -> None:
    assert LocalElection(office).campaign(0)
    leading = new_lead()
    timer = threading.Timer(0.1, leading.stop)
    timer.start()
    with pytest.raises(RuntimeError, match="told to stop"), leading:
        pass
    assert len(office.line) == 1


def test_a_signal_ends_it_in_order(
    memory_log: MemoryLog, new_lead: NewLead, election: LocalElection
) -> None:
    before = signal.getsignal(signal.SIGTERM)

    def work(tenure: Tenure) -> None:
        tenure.producer.produce("orders", "x", partition=0)
        os.kill(os.getpid(), signal.SIGTERM)
        assert tenure.wait(30)
        assert tenure.reason == "it was told to stop"

    new_lead().serve(work)
    assert values(memory_log) == [None, b"x"]
    assert not election.is_elected
    assert signal.getsignal(signal.SIGTERM) is before


def test_work_that_is_done_is_not_begun_again(new_lead: NewLead) -> None:
    epochs: list[int] = []

    def work(tenure: Tenure) -> None:
        epochs.append(tenure.leadership.epoch)

    new_lead().serve(work)
    assert epochs == [1]


def test_what_work_raises_ends_it(new_lead: NewLead, election: LocalElection) -> None:
    def work(_: Tenure) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        new_lead().serve(work)
    assert not election.is_elected


def test_a_deposed_leader_gives_up_what_it_has_not_sent(
    memory_ledger: MemoryLedger, memory_log: MemoryLog, new_lead: NewLead
) -> None:
    purged: list[str] = []
    with new_lead() as tenure:
        purge = tenure.producer.purge

        def noted() -> None:
            purged.append("it")
            purge()

        vars(tenure.producer)["purge"] = noted
        memory_ledger.depose(tenure.leadership)
        assert tenure.wait(30)
    assert purged == ["it"]


def test_one_tenure_at_a_time(new_lead: NewLead) -> None:
    leading = new_lead()
    with leading, pytest.raises(RuntimeError, match="one tenure"), leading:
        pass


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"election": "kafka"}, "election = 'kafka'"),
        ({"scope": "a b"}, "a b"),
        ({"topics": "orders"}, "topics = 'orders'"),
        ({"holder": 7}, "holder"),
        ({"recover": "x"}, "recover = 'x'"),
        ({"recover": print, "standby": True}, "reset"),
        ({"topics": [3]}, "topics = 3"),
        ({"settings": {}}, "settings"),
        ({"on_state": 1}, "on_state"),
        ({"standby": True}, "nothing to read for"),
        ({"timeout_s": -1}, "timeout_s"),
        ({"longest_wait_s": 0}, "longest_wait_s = 0"),
        ({"ledger": None}, "ledger"),
    ],
)
def test_settings_that_make_no_sense(
    new_lead: NewLead, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        new_lead(**options)
    assert told in str(wrong.value)


def test_a_topic_that_is_not_there(new_lead: NewLead, election: LocalElection) -> None:
    with pytest.raises(MisconfiguredError, match="no such topic"):
        new_lead(topics=["payments"]).__enter__()
    assert not election.is_elected


def test_single_partitions(new_lead: NewLead) -> None:
    one = TopicPartition("orders", 1)
    with new_lead(topics=[one], cursors=True) as tenure:
        assert set(tenure.barriers) == {("orders", 1)}
        tenure.producer.produce("orders", "x", partition=1)
