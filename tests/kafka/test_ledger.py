"""The ledger on real Kafka: who leads, whatever races, stops and cleaners do."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from epochfence import (
    Claim,
    ClaimLost,
    ClaimUnknown,
    Deposed,
    EpochStart,
    Leadership,
    Ledger,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    Position,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.claims import claim_key, claim_value
from epochfence.epochs.starts import RowInfo, row_key, row_value
from epochfence.epochs.synced_log import SyncedLog
from epochfence.epochs.topic_log import TopicLog
from epochfence.epochs.topics import TopicKeeper
from support.brokers import KafkaBroker
from support.compaction import force_compaction
from support.histories import claim, grant_id
from support.ledgers import (
    LedgerTopics,
    compactable_topics,
    unnamed_topics,
    write_record,
)
from support.reading import read_all
from support.waiting import wait_until

ROW_VALUE = row_value(RowInfo("test", 0, ""))


def syncs(topics: LedgerTopics) -> int:
    records = read_all(topics.kafka, topics.coordination_topic)
    return sum((record.key() or b"").startswith(b"sync/") for record in records)


def test_a_leadership(ledger: Ledger, topics: LedgerTopics) -> None:
    assert ledger.leader("s") is None
    first = ledger.claim("s", holder="pod-7", attributes={"url": "http://pod-7"})
    assert (first.scope, first.epoch, first.holder) == ("s", 1, "pod-7")
    first.verify()
    with topics.open() as other:
        leader = other.leader("s")
        assert leader == first.claim
        assert leader is not None
        assert leader.attributes == {"url": "http://pod-7"}
        second = other.claim("s", holder="pod-8")
    assert (second.epoch, second.claim.previous) == (2, 1)
    with pytest.raises(Deposed) as deposed:
        first.verify()
    seen = deposed.value
    assert (seen.held_epoch, seen.seen_epoch, seen.holder) == (1, 2, "pod-8")
    assert ledger.leader("s") == second.claim
    assert first.epoch == 1  # a leadership never changes


@pytest.mark.rule(12, 19)
def test_two_candidates_race_200_times(topics: LedgerTopics) -> None:
    with (
        topics.open() as one,
        topics.open() as two,
        ThreadPoolExecutor(max_workers=2) as pool,
    ):
        together = threading.Barrier(2)

        def race(ledger: Ledger, holder: str, seen: int) -> str | None:
            together.wait(30)
            try:
                return ledger.claim("s", holder=holder, seen=seen).grant_id
            except ClaimLost:
                return None

        for seen in range(200):
            racers = [
                pool.submit(race, ledger, holder, seen)
                for ledger, holder in ((one, "a"), (two, "b"))
            ]
            (winner,) = [id for racer in racers if (id := racer.result()) is not None]
            latest = one.refresh().latest("s")
            assert latest is not None
            assert (latest.epoch, latest.grant_id) == (seen + 1, winner)
        assert list(one.refresh().claims()) == list(two.refresh().claims())


STOPPED_CLAIMANT = """
import os, signal, sys
from epochfence import EpochfenceError, Ledger
from epochfence.epochs.topic_log import TopicLog
from epochfence.epochs.topics import TopicKeeper

servers, coordination, table, timeout_s = sys.argv[1:]
names = dict(coordination_topic=coordination, table_topic=table)
append_all = TopicLog.append_all

def append_and_stop(self, records, deadline, **more):
    offsets = append_all(self, records, deadline, **more)
    if records[0][0].startswith(b"claim/"):
        os.kill(os.getpid(), signal.SIGSTOP)
    return offsets

TopicLog.append_all = append_and_stop
with Ledger({"bootstrap.servers": servers}, **names) as ledger:
    try:
        won = ledger.claim("s", holder="stopped", timeout_s=float(timeout_s))
        print("won", won.epoch)
    except EpochfenceError as error:
        print(type(error).__name__)
"""


@pytest.mark.rule(19)
@pytest.mark.parametrize(
    ("is_deposed", "timeout_s", "outcomes"),
    [
        (True, 60.0, {"ClaimLost"}),
        (True, 1.0, {"ClaimLost", "ClaimUnknown"}),
        (False, 60.0, {"won 1"}),
    ],
)
def test_a_claimant_stopped_between_append_and_read_back(
    topics: LedgerTopics,
    ledger: Ledger,
    is_deposed: bool,
    timeout_s: float,
    outcomes: set[str],
) -> None:
    command = [
        *(sys.executable, "-c", STOPPED_CLAIMANT),
        topics.kafka.bootstrap_servers,
        *topics.names.values(),
        str(timeout_s),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            if is_deposed:
                assert ledger.claim("s", holder="awake").epoch == 2
            process.send_signal(signal.SIGCONT)
            output, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert output.strip() in outcomes


@pytest.mark.rule(6, 14)
def test_compaction_changes_no_answer(kafka: KafkaBroker) -> None:
    topics = compactable_topics(kafka)
    with topics.open() as ledger:
        for epoch in range(1, 6):
            ledger.claim("s", holder=f"h{epoch}")
            ledger.claim("r", holder=f"h{epoch}")
        # A loser, as a slow candidate would leave it.
        topics.write(claim_key(claim("s", 3)), claim_value(claim("s", 3)))
        before = list(ledger.refresh().claims())
        assert [won for _, won in before].count(False) == 1
    force_compaction(kafka, topics.coordination_topic)
    # The cleaner may have come by before, too: what counts is what is gone.
    left = read_all(kafka, topics.coordination_topic)
    assert (left[-1].offset() or 0) + 1 - len(left) > 10
    with topics.open() as ledger:
        assert list(ledger.claims()) == before
        assert list(ledger.refresh().claims()) == before
        assert ledger.claim("s", holder="next").epoch == 6


@pytest.mark.rule(6)
def test_an_open_transaction_holds_nothing_up(
    topics: LedgerTopics, ledger: Ledger
) -> None:
    from confluent_kafka import Producer

    rogue = Producer(
        {**topics.kafka.config, "transactional.id": topics.coordination_topic}
    )
    rogue.init_transactions(30)
    rogue.begin_transaction()
    rogue.produce(topics.coordination_topic, key=b"junk", value=b"junk", partition=0)
    rogue.flush(30)
    try:
        ledger.claim("s", holder="a").verify()
    finally:
        rogue.abort_transaction(30)


@pytest.mark.rule(6)
def test_only_partition_0_counts(
    kafka: KafkaBroker, caplog: pytest.LogCaptureFixture
) -> None:
    name = kafka.create_topic(
        "coordination", partitions=2, config={"cleanup.policy": "compact"}
    )
    topics = LedgerTopics(kafka, name, unnamed_topics(kafka).table_topic)
    rogue = claim("s", 7)
    write_record(kafka, name, claim_key(rogue), claim_value(rogue), partition=1)
    with topics.open() as ledger:
        assert ledger.refresh().latest("s") is None
    assert "only partition 0 is used" in caplog.text


@pytest.mark.rule(15)
def test_concurrent_callers_share_a_sync(topics: LedgerTopics, ledger: Ledger) -> None:
    leadership = ledger.claim("s", holder="a")
    before = syncs(topics)
    callers = 64
    together = threading.Barrier(callers)

    def verify() -> None:
        together.wait(30)
        leadership.verify(30)

    with ThreadPoolExecutor(max_workers=callers) as pool:
        for done in [pool.submit(verify) for _ in range(callers)]:
            done.result()
    assert 1 <= syncs(topics) - before <= callers // 4


@pytest.mark.rule(15)
def test_verify_is_never_older_than_its_call(topics: LedgerTopics) -> None:
    """Deposed in another process's ledger just before each call: always seen."""
    with topics.open() as mine, topics.open() as theirs:
        for _ in range(20):
            leadership = mine.claim("s", holder="mine")
            callers = [threading.Thread(target=mine.refresh) for _ in range(4)]
            for caller in callers:
                caller.start()
            theirs.claim("s", holder="theirs")
            with pytest.raises(Deposed):
                leadership.verify()
            for caller in callers:
                caller.join()


def test_grants_are_told_to_who_watches(topics: LedgerTopics, ledger: Ledger) -> None:
    ledger.claim("s", holder="before")
    told: list[Claim] = []

    def fail(_: Claim) -> None:
        raise RuntimeError("a watcher's own fault")

    end_failing = ledger.watch(fail)
    end = ledger.watch(told.append)
    with topics.open() as other:
        second = other.claim("s", holder="b")
        third = other.claim("r", holder="c")
        wait_until(lambda: len(told) == 2, 30, "both grants are told")
        end()
        end_failing()
        other.claim("s", holder="d")
    ledger.refresh()
    assert told == [second.claim, third.claim]


def test_export_is_a_ledger_file(topics: LedgerTopics, ledger: Ledger) -> None:
    ledger.claim("s", holder="ä", attributes={"url": "x"})
    topics.write(claim_key(claim("s", 1)), claim_value(claim("s", 1)))
    ledger.refresh()
    file = io.StringIO()
    assert ledger.export(file) == 2
    first, loser = [json.loads(line) for line in file.getvalue().splitlines()]
    assert (first["type"], first["holder"]) == ("claim", "ä")
    assert first["attributes"] == {"url": "x"}
    assert loser["grant_id"] == claim("s", 1).grant_id


@pytest.mark.rule(11)
def test_damaged_records_are_passed_over(
    topics: LedgerTopics, ledger: Ledger, caplog: pytest.LogCaptureFixture
) -> None:
    good = claim("s", 1)
    topics.write(b"junk", b"junk")
    topics.write(claim_key(good), claim_value(good)[:-1])
    offset = topics.write(claim_key(claim("s", 2)), claim_value(good))
    topics.write(b"", None)
    assert ledger.refresh().passed_over == 4
    assert ledger.claim("s", holder="a").epoch == 1
    text = f"{topics.coordination_topic} offset {offset} is passed over"
    assert f"{text}: its key and its value disagree" in caplog.text


@pytest.mark.rule(10)
def test_an_unknown_fingerprint_stops_every_reader(kafka: KafkaBroker) -> None:
    topics = compactable_topics(kafka)
    with topics.open() as ledger:
        leadership = ledger.claim("s", holder="a")
        offset = topics.write(b"claim/s/9/x", b"\xc3\x01" + bytes(8))
        for ask in (
            ledger.refresh,
            leadership.verify,
            lambda: ledger.claim("s", holder="b"),
            lambda: topics.open(),
            lambda: ledger.leader("s"),
        ):
            with pytest.raises(LedgerUnavailable, match="upgrade") as stopped:
                ask()
            assert stopped.value.offset == offset
        # It was garbage: a tombstone of its key, and the cleaner, are the way out.
        topics.write(b"claim/s/9/x", None)
        force_compaction(kafka, topics.coordination_topic)
        leadership.verify()
        assert ledger.claim("s", holder="b").epoch == 2


def made_anew(topics: LedgerTopics) -> None:
    topics.kafka.delete_topic(topics.coordination_topic)
    with topics.open():
        pass


@pytest.mark.rule(20)
def test_the_coordination_topic_made_anew(topics: LedgerTopics, ledger: Ledger) -> None:
    leadership, *_ = [ledger.claim("s", holder="a") for _ in range(3)][::-1]
    made_anew(topics)
    with pytest.raises(LedgerRegressed) as regressed:
        leadership.verify()
    assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (0, 3)
    with pytest.raises(LedgerRegressed):
        ledger.claim("s", holder="b")
    with pytest.raises(LedgerRegressed):
        ledger.claim("s", holder="b", at_least=3)
    # The operator's way out, as the message says it.
    assert ledger.claim("s", holder="b", at_least=4).epoch == 4
    with pytest.raises(Deposed):
        leadership.verify()


@pytest.mark.rule(20)
def test_a_topic_made_anew_is_compared_with_the_table(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    """The table knows of an epoch that this ledger has never seen."""
    ledger.claim("s", holder="a")
    row = EpochStart(
        "orders", "x" * 22, 0, "r", 7, claim("r", 7).grant_id, Position(0, 9)
    )
    foreign = EpochStart("orders", "x" * 22, 0, "~term", 99, None, Position(0, 9))
    for one in (row, foreign):
        write_record(kafka, topics.table_topic, row_key(one), ROW_VALUE)
    write_record(kafka, topics.table_topic, b"junk", ROW_VALUE)
    made_anew(topics)
    with topics.open() as other:
        other.claim("s", holder="b", at_least=2)
    with pytest.raises(LedgerRegressed) as regressed:
        ledger.refresh()
    seen = regressed.value
    assert (seen.scope, seen.ledger_epoch, seen.seen_epoch) == ("r", 0, 7)
    ledger.claim("r", holder="operator", at_least=8)
    assert ledger.refresh().epoch_of("s") == 2


@pytest.mark.rule(20)
def test_a_lost_ledger_takes_no_number_from_elsewhere(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    """Not even one that is above what was in use: an operator decides."""
    held = ledger.claim("r", holder="a", exactly=40)
    row = EpochStart("orders", "x" * 22, 0, "r", 40, held.grant_id, Position(0, 9))
    write_record(kafka, topics.table_topic, row_key(row), ROW_VALUE)
    kafka.delete_topic(topics.coordination_topic)
    with topics.open() as other:  # it has seen no grant: the table tells
        for number in (7, 40, 41):
            for one in (other, ledger):
                with pytest.raises(LedgerRegressed) as regressed:
                    one.claim("r", holder="b", exactly=number)
                numbers = (regressed.value.ledger_epoch, regressed.value.seen_epoch)
                assert numbers == (0, 40)
                assert "--at-least 41" in str(regressed.value)
        assert list(other.claims()) == []
        other.claim("r", holder="operator", at_least=41)
        with pytest.raises(ClaimLost):
            other.claim("r", holder="b", exactly=41)
        assert other.claim("r", holder="b", exactly=57).epoch == 57


def test_a_topic_made_anew_with_bad_settings_is_refused(
    topics: LedgerTopics, ledger: Ledger
) -> None:
    leadership = ledger.claim("s", holder="a")
    make_anew(topics, {"cleanup.policy": "delete"})
    for _ in range(2):
        with pytest.raises(MisconfiguredError, match=r"cleanup\.policy"):
            leadership.verify()
    with pytest.raises(MisconfiguredError, match=r"cleanup\.policy"):
        ledger.claim("s", holder="b", at_least=2)


def test_a_topic_made_anew_while_it_is_read_anew_is_not_taken_for_read(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = ledger.claim("s", holder="a")
    look = SyncedLog._is_made_anew  # pyright: ignore[reportPrivateUsage]
    looks: list[bool] = []

    def looks_new_twice(log: Any, deadline: float) -> bool:
        if log._topic != ledger.coordination_topic:
            return look(log, deadline)
        if len(looks) < 2:
            log._topic_id = "another"
        looks.append(look(log, deadline))
        return looks[-1]

    monkeypatch.setattr(SyncedLog, "_is_made_anew", looks_new_twice)
    with pytest.raises(LedgerUnavailable, match="once more"):
        leadership.verify()
    leadership.verify()
    assert looks == [True, True, False]


def make_anew(topics: LedgerTopics, config: dict[str, str]) -> None:
    name = topics.coordination_topic
    topics.kafka.delete_topic(name)
    new = NewTopic(name, num_partitions=1, replication_factor=1, config=config)
    topics.kafka.admin.create_topics([new])[name].result(30)
    keeper = TopicKeeper(topics.kafka.config, 10)
    wait_until(lambda: keeper.facts(name), 30, "the topic is there again")


@pytest.mark.rule(19)
def test_a_topic_made_anew_between_the_sync_and_the_claim(
    topics: LedgerTopics, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim lands in the new log, behind another's, while the old one is read."""
    ledger.claim("s", holder="a")
    append_all = TopicLog.append_all
    rivals: list[Leadership] = []

    def made_anew_before(
        log: TopicLog,
        records: Sequence[tuple[bytes, bytes | None]],
        deadline: float,
        **more: Any,
    ) -> Any:
        if records[0][0].startswith(b"claim/") and not rivals:
            monkeypatch.setattr(TopicLog, "append_all", append_all)
            topics.kafka.delete_topic(topics.coordination_topic)
            with topics.open() as rival:
                rivals.append(rival.claim("s", holder="rival", at_least=7))
                for _ in range(20):
                    rival.refresh()
        return append_all(log, records, deadline, **more)

    monkeypatch.setattr(TopicLog, "append_all", made_anew_before)
    with pytest.raises((ClaimLost, ClaimUnknown)):
        ledger.claim("s", holder="b", timeout_s=20)
    assert ledger.refresh().latest("s") == rivals[0].claim


@pytest.mark.rule(20)
def test_a_lost_coordination_topic_is_met_at_the_start(
    kafka: KafkaBroker, topics: LedgerTopics
) -> None:
    with topics.open() as ledger:
        ledger.claim("s", holder="a", at_least=7)
    row = EpochStart("t", "x" * 22, 0, "s", 7, grant_id(7), Position(0, 9))
    write_record(kafka, topics.table_topic, row_key(row), ROW_VALUE)
    kafka.delete_topic(topics.coordination_topic)
    with topics.open() as ledger:
        with pytest.raises(LedgerRegressed):
            ledger.claim("s", holder="b")
        assert ledger.claim("s", holder="b", at_least=8).epoch == 8


def test_a_row_of_a_newer_version_stops_the_reading_of_the_table(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    unknown = b"\xc3\x01" + bytes(8)
    offset = write_record(kafka, topics.table_topic, b'["of another form"]', unknown)
    with pytest.raises(TableUnavailable, match="pgrade") as stopped:
        ledger.table.refresh()
    assert stopped.value.offset == offset


def test_a_row_that_is_nested_without_end_is_passed_over(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    write_record(kafka, topics.table_topic, b"[" * 100_000, ROW_VALUE)
    ledger.table.refresh()
    assert ledger.table.all_starts() == []


def test_the_reading_goes_on_after_a_fault_of_its_own(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = ledger.claim("s", holder="a")

    def fail(*_: object) -> None:
        monkeypatch.undo()
        raise RuntimeError("once")

    monkeypatch.setattr("epochfence.epochs.topic_log.next_batch", fail)
    wait_until(lambda: has_failed(ledger), 10, "the reading has stopped")
    leadership.verify()
    assert ledger.leader("s") == leadership.claim


def has_failed(ledger: Ledger) -> bool:
    try:
        ledger.leader("s")
    except LedgerUnavailable:
        return True
    return False


def test_a_watcher_cannot_end_the_reading(ledger: Ledger) -> None:
    def leave(_: Claim) -> None:
        sys.exit("from a watcher")

    ledger.watch(leave)
    ledger.claim("s", holder="a").verify()


def test_one_callers_haste_spoils_nothing_for_others(ledger: Ledger) -> None:
    leadership = ledger.claim("s", holder="a")
    is_over = threading.Event()

    def hasty() -> None:
        while not is_over.is_set():
            with contextlib.suppress(LedgerUnavailable, ClaimUnknown):
                leadership.verify(timeout_s=0.0005)
            with contextlib.suppress(LedgerUnavailable, ClaimUnknown, ClaimLost):
                ledger.claim("hasty", holder="h", timeout_s=0.002)

    thread = threading.Thread(target=hasty)
    thread.start()
    try:
        for _ in range(50):
            ledger.claim("r", holder="b", timeout_s=30)
    finally:
        is_over.set()
        thread.join()


def test_a_fatal_client_is_replaced(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    leadership = ledger.claim("s", holder="a")
    synced: Any = ledger._log  # pyright: ignore[reportPrivateUsage]
    log = synced._log

    class Broken:
        def produce(self, *_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError._FATAL, "once", fatal=True))

    broken = Broken()
    monkeypatch.setattr(log, "_producer", broken)
    leadership.verify()
    assert log._producer is not broken


def test_time_limits_hold_where_the_broker_does_not_answer() -> None:
    """A listener that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        servers = f"127.0.0.1:{silent.getsockname()[1]}"
        begun = time.monotonic()
        with pytest.raises(LedgerUnavailable):
            Ledger({"bootstrap.servers": servers}, timeout_s=2)
        assert time.monotonic() - begun < 10


def test_the_users_error_callback_is_called_too() -> None:
    told: list[KafkaError] = []
    config = {"bootstrap.servers": "127.0.0.1:1", "error_cb": told.append}
    with pytest.raises(LedgerUnavailable, match="refused"):
        Ledger(config, timeout_s=2)
    assert told


def test_a_coordination_topic_that_is_gone(
    topics: LedgerTopics, ledger: Ledger
) -> None:
    leadership = ledger.claim("s", holder="a")
    topics.kafka.delete_topic(topics.coordination_topic)
    with pytest.raises(LedgerUnavailable):
        leadership.verify(timeout_s=3)


def test_a_ledger_leaves_no_thread_behind(topics: LedgerTopics) -> None:
    def names() -> Counter[str]:
        return Counter(thread.name for thread in threading.enumerate())

    before = names()
    ledger = topics.open()
    assert names() - before
    ledger.close()
    ledger.close()
    assert not names() - before
    with pytest.raises(LedgerUnavailable, match="closed"):
        ledger.refresh(timeout_s=3)


def test_a_ledger_in_a_process_forked_off_says_so(ledger: Ledger) -> None:
    ledger.claim("s", holder="a")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ledger.leader("s")
            answer = b"answered"
        except LedgerUnavailable as error:
            answer = str(error).encode()
        os.write(write, answer)
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read, "rb") as answers:
        assert b"before a fork" in answers.read()
    assert ledger.leader("s") is not None


def test_a_watcher_that_waits_is_told_at_once(ledger: Ledger) -> None:
    told: list[BaseException] = []

    def wait(_: Claim) -> None:
        try:
            ledger.refresh(timeout_s=5)
        except LedgerUnavailable as error:
            told.append(error)

    ledger.watch(wait)
    ledger.claim("s", holder="a")
    wait_until(lambda: told, 10, "the watcher is told")
    assert "watcher must not wait" in str(told[0])


@pytest.mark.rule(5)
def test_topic_ids_are_url_safe(kafka: KafkaBroker) -> None:
    keeper = TopicKeeper(kafka.config, 10)
    found = [keeper.facts(kafka.create_topic()) for _ in range(8)]
    ids = {facts.topic_id for facts in found if facts is not None}
    assert len(ids) == 8
    for topic_id in ids:
        assert len(topic_id) == 22
        assert not set(topic_id) & set("+/=")
    assert keeper.facts("no-such-topic") is None


def test_facts_are_asked_for_without_waiting(kafka: KafkaBroker) -> None:
    keeper = TopicKeeper(kafka.config, 10)
    topics = [kafka.create_topic(), kafka.create_topic(), "no-such-topic"]
    answers = keeper.ask(topics)
    assert [answers[topic](10) for topic in topics] == [*map(keeper.facts, topics)]
    nobody = TopicKeeper({"bootstrap.servers": "127.0.0.1:1"}, 10)
    answer = nobody.ask(topics)[topics[0]]
    with pytest.raises(TopicUnavailable):
        answer(0.2)
    # That there can be none of this name is told by the answer as well.
    misnamed = keeper.ask(["", topics[0]])
    with pytest.raises(MisconfiguredError):
        misnamed[""](10)
    assert misnamed[topics[0]](10) == keeper.facts(topics[0])
