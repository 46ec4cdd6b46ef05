"""`epochfence watch` on a real cluster, as its user starts it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from typing import Any

import pytest
from confluent_kafka.admin import NewPartitions

from epochfence import FencedConsumer, Ledger
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.live_ledger import LiveLedger
from epochfence.replay.live_reader import Beginning, LiveReader
from epochfence.replay.watch_picture import Picture
from support.auditing import run
from support.brokers import KafkaBroker
from support.kafka_local import local_broker_behind
from support.ledgers import LedgerTopics, unnamed_topics
from support.producing import doing
from support.stamped import Writer, create_named, delete_records, made_up, stamp
from support.waiting import wait_until

_WAIT_S = 60
_SETTINGS = FenceSettings(["w"], unstamped="quarantine")

Look = Callable[[Picture], object]


@pytest.fixture
def topics(kafka: KafkaBroker) -> LedgerTopics:
    return unnamed_topics(kafka)


@pytest.fixture
def ledger(topics: LedgerTopics) -> Iterator[Ledger]:
    with topics.open() as opened:
        yield opened


class Watch:
    """The command at work, as a process."""

    def __init__(self, topics: LedgerTopics, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "epochfence", "watch"),
                *("-b", topics.kafka.bootstrap_servers, "--interval", "0.1"),
                *("--coordination-topic", topics.coordination_topic),
                *("--table-topic", topics.table_topic),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def wait_for(self, text: str) -> None:
        wait_until(lambda: any(text in line for line in self.lines), _WAIT_S, text)

    def end(self, number: int = signal.SIGINT) -> int:
        """Send a signal; give the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(_WAIT_S)
        self._thread.join(_WAIT_S)
        assert self.process.stderr is not None
        told = self.process.stderr.read()
        self.process.stderr.close()
        assert "Traceback" not in told, told
        return code

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


def _open(
    topics: LedgerTopics, *names: str, beginning: Beginning | None = None,
    servers: str | None = None,
) -> LiveReader:  # fmt: skip
    config = {**topics.kafka.config, "fetch.wait.max.ms": 20}
    if servers is not None:
        config["bootstrap.servers"] = servers
    return LiveReader(
        config, names, _SETTINGS, beginning or Beginning(), **topics.names
    )


def _see(reader: LiveReader, look: Look, what: str) -> Picture:
    """Wait until a picture is as wanted; give it."""

    def found() -> Picture | None:
        picture = reader.picture()
        return picture if look(picture) else None

    picture = wait_until(found, _WAIT_S, what)
    assert picture is not None
    return picture


def test_a_takeover_with_a_zombie_line_by_line(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders", partitions=2)
    writer = Writer(kafka, topic)
    pod_7 = ledger.claim("w", holder="pod-7")
    for partition in range(2):
        writer.barrier(pod_7, partition=partition)
    arguments = ("-t", topic, "--scope", "w", "--fail-on", "rejected")
    with Watch(topics, *arguments) as watch:
        watch.wait_for("epoch 1 of w is held by pod-7")
        pod_8 = ledger.claim("w", holder="pod-8")
        for partition in range(2):
            writer.barrier(pod_8, partition=partition)
        watch.wait_for("epoch 2 of w began at offset 1 with its barrier")
        writer.write(stamp(pod_8), b"in order")
        writer.write(stamp(pod_7), b"too late", b"too late")
        watch.wait_for("pod-7 (epoch 1 of w) still writes: 2 stale in the last minute")
        assert watch.end() == 1
        assert watch.lines[-1] == (
            "5 records: 1 admitted, 2 barriers, 2 stale, 0 quarantined.\n"
        )
    listed: Any = kafka.admin.list_consumer_groups()
    groups = [one.group_id for one in listed.result(_WAIT_S).valid]
    assert not [name for name in groups if name.startswith("epochfence-reader")]


def test_signals_end_it_in_order(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    for number in (signal.SIGINT, signal.SIGTERM):
        with Watch(topics, "-t", topic, "--json") as watch:
            watch.wait_for('"version":1')
            assert watch.end(number) == 0
            assert json.loads(watch.lines[-1])["topics"] == [topic]


def test_one_look_as_json(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    writer = Writer(kafka, topic)
    pod_7 = ledger.claim("w", holder="pod-7")
    pod_8 = ledger.claim("w", holder="pod-8")
    writer.write(stamp(pod_7), b"1")
    writer.barrier(pod_8)
    writer.write(stamp(pod_7), b"2")
    writer.write(made_up("w", 9), b"3")
    command = [
        *("watch", "-t", topic, "-b", kafka.bootstrap_servers, "--once"),
        *("--coordination-topic", topics.coordination_topic),
        *("--table-topic", topics.table_topic),
    ]
    done = run(*command, "--from-start", "--json", "--fail-on", "quarantined")
    assert done.exit_code == 1
    (line,) = done.stdout.splitlines()
    picture = json.loads(line)
    assert picture["ledger"]["synced"] is False
    (scope,) = picture["scopes"]
    assert (scope["epoch"], scope["holder"], scope["begun_on"]) == (2, "pod-8", 1)
    assert [(one["reason"], one["records"]) for one in picture["verdicts"]] == [
        *(("ok", 1), ("ok", 1), ("ungranted", 1), ("stale-epoch", 1)),
    ]
    assert [one["offset"] for one in picture["last_rejected"]] == [2, 3]
    table = run(*command, "--since", "2020-01-01T00:00")
    assert table.exit_code == 0
    assert "4 records: 1 admitted, 1 barrier, 1 stale, 1 quarantined." in table.stdout
    nothing = run(*command)
    assert (nothing.exit_code, "no record was read" in nothing.stderr) == (0, True)


def test_on_a_terminal_it_takes_the_screen(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    writer = Writer(kafka, topic)
    writer.barrier(ledger.claim("w", holder="pod-7"))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "epochfence", "watch", "-t", topic),
            *("-b", kafka.bootstrap_servers, "--from-start", "--interval", "0.1"),
            *("--coordination-topic", topics.coordination_topic),
            *("--table-topic", topics.table_topic),
        ],
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "COLUMNS": "120", "LINES": "30", "TERM": "xterm"},
    )
    os.close(theirs)
    shown = b""

    def is_shown() -> bool:
        nonlocal shown
        if select.select([ours], [], [], 0.1)[0]:
            with suppress(OSError):  # the other end is closed
                shown += os.read(ours, 65536)
        return b"pod-7" in shown

    def is_over() -> bool:
        is_shown()
        return b"\x1b[?1049l" in shown and process.poll() is not None

    try:
        wait_until(is_shown, _WAIT_S, "the holder is shown")
        assert b"\x1b[?1049h" in shown  # the alternate screen
        process.send_signal(signal.SIGINT)
        wait_until(is_over, _WAIT_S, "it ends")
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    assert process.returncode == 0
    assert b"pod-7" in shown.split(b"\x1b[?1049l")[-1]  # what was seen last stays


def test_what_began_before_it_is_known_from_the_table(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    writer = Writer(kafka, topic)
    pod_7 = ledger.claim("w", holder="pod-7")
    pod_8 = ledger.claim("w", holder="pod-8")
    writer.barrier(pod_8)
    group = {"group.id": topics.table_topic, "auto.offset.reset": "earliest"}
    with FencedConsumer(
        {**kafka.config, **group}, ledger, require={topic: _SETTINGS}
    ) as consumer:
        consumer.subscribe([topic])

        def is_written() -> bool:
            consumer.poll(0.1)
            ledger.table.refresh()
            return bool(list(ledger.table.starts(topic, 0)))

        wait_until(is_written, _WAIT_S, "the row is written")
    with _open(topics, topic) as reader:
        assert not reader.picture().notes
        writer.write(stamp(pod_7), b"too late")
        picture = _see(reader, lambda one: one.rejected, "the stale record")
        assert picture.rejected[0].reason == "stale-epoch"


def test_a_grant_is_looked_up_before_a_verdict(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic = kafka.create_topic("orders")
    writer = Writer(kafka, topic)
    # What is followed may come late: then it is read before anything is said.
    monkeypatch.setattr(LiveLedger, "follow", doing(None))
    with _open(topics, topic) as reader:
        writer.write(stamp(ledger.claim("w", holder="pod-7")), b"v")
        picture = _see(reader, lambda one: one.records, "the record")
        assert [one.verdict for one in picture.verdicts] == ["admitted"]
        assert picture.scopes[0].holder == "pod-7"


def test_partitions_and_lives_come_and_go(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    pod_7 = ledger.claim("w", holder="pod-7")
    Writer(kafka, topic).barrier(pod_7)
    with _open(topics, topic) as reader:
        admin: Any = kafka.admin
        admin.create_partitions([NewPartitions(topic, 2)])[topic].result(_WAIT_S)
        _see(reader, lambda one: len(one.partitions) == 2, "the new partition")
        writer = Writer(kafka, topic, **{"topic.metadata.refresh.interval.ms": 100})
        writer.write(stamp(pod_7), b"v", partition=1)
        _see(reader, lambda one: one.partitions[1].records == 1, "its record")

        kafka.delete_topic(topic)
        gone = f"there is no topic {topic} any more"
        _see(reader, lambda one: one.problem == gone, "the topic is gone")
        create_named(kafka, topic)
        Writer(kafka, topic).write(stamp(pod_7), b"v", b"w")
        picture = _see(
            reader,
            lambda one: one.problem is None and one.partitions[0].records == 2,
            "the new life",
        )
        assert any("made anew" in note for note in picture.notes)
        kafka.delete_topic(topic)


def test_what_was_deleted_before_it_was_read_is_said(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    pod_7 = ledger.claim("w", holder="pod-7")
    writer = Writer(kafka, topic)
    writer.write(stamp(pod_7), *[b"v"] * 5)
    reader = _open(topics, topic, beginning=Beginning(is_log_start=True))
    delete_records(kafka, topic, 3)
    with reader:
        picture = _see(reader, lambda one: one.records == 2, "what is left")
        note = f"{topic}[0]: offsets 0 to 2 were deleted before they were read"
        assert note in picture.notes


def test_a_ledger_made_anew_ends_it(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
) -> None:
    topic = kafka.create_topic("orders")
    ledger.claim("w", holder="pod-7")
    with Watch(topics, "-t", topic, "--scope", "w") as watch:
        watch.wait_for("epoch 1 of w is held by pod-7")
        ledger.close()
        kafka.delete_topic(topics.coordination_topic)
        assert watch.process.wait(_WAIT_S) == 2


def test_a_cluster_that_is_away_is_waited_for() -> None:
    with ExitStack() as stack:
        kafka, (network,) = local_broker_behind(stack, 1)
        topics = unnamed_topics(kafka)
        ledger = stack.enter_context(topics.open())
        topic = kafka.create_topic("orders")
        writer = Writer(kafka, topic)
        pod_7 = ledger.claim("w", holder="pod-7")
        servers = f"127.0.0.1:{network.port}"
        reader = stack.enter_context(_open(topics, topic, servers=servers))
        network.cut()
        _see(reader, lambda one: one.problem, "the cluster is away")
        pod_8 = ledger.claim("w", holder="pod-8")
        writer.barrier(pod_8)
        writer.write(stamp(pod_7), b"too late")
        network.mend()
        picture = _see(reader, lambda one: one.rejected, "it goes on")
        assert picture.scopes[0].holder == "pod-8"
        _see(reader, lambda one: one.problem is None, "all is well again")
