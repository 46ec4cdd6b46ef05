"""The checks beyond the fence on a real cluster: one broker, and PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Consumer, Message, TopicPartition

from epochfence import (
    FencedConsumer,
    FencedProducer,
    Leadership,
    Ledger,
    PostgresSink,
    SinkRunner,
    SqliteSink,
    Upsert,
)
from epochfence.consumers.sink import Sink
from epochfence.epochs.claims import claim_key, claim_value
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.starts import RowInfo, row_key, row_value
from epochfence.epochs.values import EpochStart, Position
from support.auditing import run
from support.brokers import KafkaBroker
from support.histories import claim
from support.ledgers import LedgerTopics, unnamed_topics, write_record
from support.postgres import Postgres
from support.sinks import apply_sqlite
from support.stamped import Writer, consumer_config, delete_records, read_to, stamp
from support.waiting import wait_until


class Scene(NamedTuple):
    """A topic with a takeover in it; the deposed leader wrote once more, at the end.

    Offsets: 0 barrier of old, 1 cup=1, 2 mug=2, 3 barrier of new, 4 cup=3 by new,
    5 cup=9 by old, 6 mug deleted by old.
    """

    topics: LedgerTopics
    ledger: Ledger
    topic: str
    writer: Writer
    old: Leadership
    new: Leadership

    @property
    def kafka(self) -> KafkaBroker:
        return self.topics.kafka

    def audit(self, *arguments: object) -> dict[str, Any]:
        """The report of an audit."""
        result = run(
            *("audit", "-t", self.topic, "-b", self.kafka.bootstrap_servers),
            *("--coordination-topic", self.topics.coordination_topic),
            *("--table-topic", self.topics.table_topic, "--scope", "s"),
            *("--format", "json", "--timeout", 20),
            *arguments,
        )
        assert result.exit_code == 0, result.output
        report: dict[str, Any] = json.loads(result.stdout)
        return report


def codes(report: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in report["findings"]]


def finding(report: dict[str, Any], code: str) -> dict[str, Any]:
    (found,) = [one for one in report["findings"] if one["code"] == code]
    return dict(found)


@pytest.fixture
def scene(kafka: KafkaBroker) -> Iterator[Scene]:
    topics = unnamed_topics(kafka)
    topic = kafka.create_topic("orders")
    with topics.open() as ledger:
        old = ledger.claim("s", holder="pod-7")
        writer = Writer(kafka, topic)
        with FencedProducer(kafka.config, ledger, old) as producer:
            producer.take_over([topic])
            producer.produce(topic, value=b"1", key=b"cup")
            producer.produce(topic, value=b"2", key=b"mug")
            producer.confirm(timeout_s=30)
        new = ledger.claim("s", holder="pod-8")
        with FencedProducer(kafka.config, ledger, new) as producer:
            producer.take_over([topic])
            producer.produce(topic, value=b"3", key=b"cup")
            producer.confirm(timeout_s=30)
        writer.write(stamp(old), b"9", key=b"cup")
        writer.write(stamp(old), None, key=b"mug")
        yield Scene(topics, ledger, topic, writer, old, new)


def read_fenced(scene: Scene, group: str, end: int, mode: str = "enforce") -> int:
    """Have a group read up to an offset, and commit; give how much it delivered."""
    with FencedConsumer(
        consumer_config(scene.kafka, group),
        scene.ledger,
        require={scene.topic: ["s"]},
        mode=mode,
    ) as consumer:
        consumer.subscribe([scene.topic])
        messages = read_to(consumer, {(scene.topic, 0): end})
        consumer.commit(asynchronous=False)
    return len(messages)


def test_groups_with_and_without_a_fence(scene: Scene) -> None:
    assert read_fenced(scene, f"{scene.topic}-fenced", 7) == 3
    assert read_fenced(scene, f"{scene.topic}-dry", 7, "dry-run") == 5
    plain = Consumer(consumer_config(scene.kafka, f"{scene.topic}-plain"))
    plain.commit(offsets=[TopicPartition(scene.topic, 0, 6)], asynchronous=False)
    plain.close()

    report = scene.audit("--group", f"{scene.topic}-plain")
    assert sorted(codes(report)) == ["stale-writes", "unfenced-commit"]
    passed = finding(report, "unfenced-commit")
    assert (passed["records"], passed["severity"]) == (1, "warning")
    assert passed["evidence"][0]["offset"] == 5
    assert passed["evidence"][0]["holder"] == "pod-7"
    for group in ("fenced", "dry"):
        report = scene.audit("--group", f"{scene.topic}-{group}")
        assert sorted(codes(report)) == ["fenced-commit", "stale-writes"]
        assert finding(report, "fenced-commit")["records"] == 2
    unknown = scene.audit("--group", f"{scene.topic}-nobody")
    assert "group-unknown" in codes(unknown)
    # Asking leaves nothing behind: a group that was made would be known now.
    assert "group-unknown" in codes(scene.audit("--group", f"{scene.topic}-nobody"))


def test_the_table_against_the_data(scene: Scene) -> None:
    unread = scene.audit()
    assert sorted(codes(unread)) == ["row-missing", "stale-writes"]
    assert "0 rows" in " ".join(unread["compared_with"])
    read_fenced(scene, f"{scene.topic}-fenced", 7)
    assert codes(scene.audit()) == ["stale-writes"]

    topic_id = unread["partitions"][0]["topic_ids"][0]
    false = EpochStart(
        scene.topic, topic_id, 0, "s", 2, scene.new.grant_id, Position(0, 2)
    )
    lost = EpochStart(scene.topic, topic_id, 0, "s", 9, "0" * 16, Position(0, 6))
    digest = "0123456789abcdef"
    for start in (false, lost):
        value = row_value(RowInfo("somebody", 0, digest))
        write_record(scene.kafka, scene.topics.table_topic, row_key(start), value)
    offset = write_record(scene.kafka, scene.topics.table_topic, b"x", b"x")
    report = scene.audit()
    assert sorted(codes(report)) == [
        *("ledger-regressed", "not-a-row", "row-of-other-settings", "stale-writes")
    ]
    assert finding(report, "not-a-row")["evidence"][0]["offset"] == offset
    assert "2 rows of them" in finding(report, "row-of-other-settings")["text"]
    regressed = finding(report, "ledger-regressed")
    assert (regressed["severity"], regressed["epoch"]) == ("critical", 9)
    assert regressed["evidence"][0]["topic"] == scene.topics.coordination_topic
    assert regressed["evidence"][0]["offset"] is not None


def test_a_false_row_under_the_same_settings(scene: Scene) -> None:
    read_fenced(scene, f"{scene.topic}-fenced", 7)
    topic_id = scene.audit()["partitions"][0]["topic_ids"][0]
    false = EpochStart(
        scene.topic, topic_id, 0, "s", 2, scene.new.grant_id, Position(0, 2)
    )
    digest = FenceSettings(["s"], unstamped="quarantine").digest()
    value = row_value(RowInfo("somebody", 0, digest))
    write_record(scene.kafka, scene.topics.table_topic, row_key(false), value)
    report = scene.audit()
    assert sorted(codes(report)) == ["false-row", "stale-writes"]
    row, place = finding(report, "false-row")["evidence"]
    assert row["topic"] == scene.topics.table_topic
    assert (place["topic"], place["offset"]) == (scene.topic, 2)


def test_rows_below_the_head_of_the_log_are_known(scene: Scene) -> None:
    read_fenced(scene, f"{scene.topic}-fenced", 7)
    delete_records(scene.kafka, scene.topic, 5)
    report = scene.audit()
    assert report["epoch_starts_known"] == 2
    assert sorted(codes(report)) == ["head-gone", "stale-writes"]
    # The default's name is another pair's: it is not read with these grants.
    result = run(
        *("audit", "-t", scene.topic, "-b", scene.kafka.bootstrap_servers),
        *("--coordination-topic", scene.topics.coordination_topic),
        *("--format", "json"),
    )
    without: dict[str, Any] = json.loads(result.stdout)
    assert without["epoch_starts_known"] == 0
    assert "stale-writes" not in codes(without)


def test_a_coordination_topic_that_may_lose_grants(kafka: KafkaBroker) -> None:
    """The audit tells of it, and goes on."""
    name = kafka.create_topic("c", config={"cleanup.policy": "delete"})
    topics = LedgerTopics(kafka, name, "no-such-table")
    first = topics.write(b"junk", b"junk")
    for one in (claim("s", 1), claim("s", 2, "b"), claim("s", 2, "c")):
        topics.write(claim_key(one), claim_value(one))
    topic = kafka.create_topic(
        "orders", config={"unclean.leader.election.enable": "true"}
    )
    writer = Writer(kafka, topic)
    for who, epoch in (("a", 1), ("b", 2), ("c", 2)):
        value = f"{epoch}:{claim('s', epoch, who).grant_id}:s".encode()
        writer.write([("epochfence-barrier", value)], None, key=None)
    result = run(
        *("audit", "-t", topic, "-b", kafka.bootstrap_servers, "--format", "json"),
        *("--coordination-topic", name, "--table-topic", topics.table_topic),
    )
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    assert codes(report)[0] == "coordination-settings"
    assert sorted(codes(report)) == [
        *("coordination-settings", "losing-claim-wrote", "not-a-claim"),
        *("table-missing", "unclean-election", "ungranted-writes"),
    ]
    assert finding(report, "not-a-claim")["evidence"][0]["offset"] == first
    won, lost, record = finding(report, "losing-claim-wrote")["evidence"]
    assert (won["offset"], lost["offset"]) == (first + 2, first + 3)
    assert won["timestamp"] <= lost["timestamp"]
    assert (record["topic"], record["offset"]) == (topic, 2)


# Sinks.


def fill(scene: Scene, sink: Sink, position: Callable[[], int]) -> None:
    """Have a sink come to the topic's end."""
    runner = SinkRunner(
        consumer_config(scene.kafka, f"{scene.topic}-sink"),
        scene.ledger,
        sink,
        require={scene.topic: ["s"]},
    )
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(runner.run, [scene.topic])
        try:
            wait_until(lambda: running.done() or position() == 7, 60, "it is there")
        finally:
            runner.stop()
        running.result(60)


def stored_offset(sink: Sink, topic: str) -> int:
    state = sink.load(topic, 0)
    return 0 if state is None else state.position.next_offset


def as_bytes(message: Message) -> dict[str, Any]:
    return {"level": message.value()}


def test_a_sink_in_sqlite(scene: Scene, tmp_path: Path) -> None:
    path = tmp_path / "stock.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, level BLOB)")
    upsert = Upsert("stock", lambda m: {"item": (m.key() or b"").decode()}, as_bytes)
    with SqliteSink(path, upsert) as sink, SqliteSink(path, upsert) as looked_at:
        fill(scene, sink, lambda: stored_offset(looked_at, scene.topic))
    options = (
        *("--sink", f"sqlite:{path}", "--sink-table", "stock"),
        *("--sink-key", "item", "--sink-value", "level"),
    )
    before = path.read_bytes()
    assert codes(scene.audit(*options)) == ["stale-writes"]
    assert path.read_bytes() == before

    with closing(sqlite3.connect(path)) as database, database:
        database.execute("UPDATE stock SET level = x'39' WHERE item = 'cup'")
        database.execute("INSERT INTO stock VALUES ('bowl', x'35')")
        database.execute("DELETE FROM stock WHERE item = 'mug'")
        database.execute("DELETE FROM epochfence_starts WHERE epoch = 2")
    report = scene.audit(*options)
    assert sorted(codes(report)) == [
        *("sink-lacks-start", "sink-rows-differ", "stale-applied", "stale-writes")
    ]
    applied = finding(report, "stale-applied")
    assert (applied["records"], applied["severity"]) == (2, "critical")
    assert [one["offset"] for one in applied["evidence"]] == [5, 6]
    assert {one["holder"] for one in applied["evidence"]} == {"pod-7"}
    others = finding(report, "sink-rows-differ")
    assert others["records"] == 1
    assert "'bowl' (extra)" in others["text"]


def test_a_sink_in_postgres(scene: Scene, postgres: Postgres) -> None:
    with postgres.database() as conninfo:
        with psycopg.connect(conninfo) as connection:
            connection.execute(
                'CREATE TABLE stock (item bytea PRIMARY KEY, "le%vel" text)'
            )
        upsert = Upsert(
            "public.stock",
            lambda m: {"item": m.key()},
            lambda m: {"le%vel": (m.value() or b"").decode()},
        )
        with (
            PostgresSink(conninfo, upsert, schema="of sink") as sink,
            PostgresSink(conninfo, upsert, schema="of sink") as looked_at,
        ):
            fill(scene, sink, lambda: stored_offset(looked_at, scene.topic))
        options = (
            *("--sink", f"postgres:{conninfo}", "--sink-schema", "of sink"),
            *("--sink-table", "public.stock"),
            *("--sink-key", "item", "--sink-value", "le%vel"),
        )
        assert codes(scene.audit(*options)) == ["stale-writes"]
        with psycopg.connect(conninfo) as connection:
            connection.execute("UPDATE stock SET \"le%vel\" = '9'")
            connection.execute(
                'UPDATE "of sink".positions SET next_offset = 99 WHERE partition = 0'
            )
        ahead = scene.audit(*options)
        assert sorted(codes(ahead)) == [
            *("sink-ahead", "sink-rows-not-compared", "stale-writes")
        ]
        with psycopg.connect(conninfo) as connection:
            connection.execute('UPDATE "of sink".positions SET next_offset = 7')
        report = scene.audit(*options)
        assert sorted(codes(report)) == [
            *("sink-rows-differ", "stale-applied", "stale-writes")
        ]
        assert "'mug' (different)" in finding(report, "sink-rows-differ")["text"]
        assert finding(report, "stale-applied")["evidence"][0]["offset"] == 5


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--sink-table", "nosuch", "--sink-key", "a", "--sink-value", "b"), "nosuch"),
        (("--sink-table", "stock", "--sink-key", "a", "--sink-value", "b"), "a"),
        (
            ("--sink-table", "stock", "--sink-key", "item", "--sink-value", "level"),
            "holds int",
        ),
    ],
)
def test_what_cannot_be_compared_is_said(
    kafka: KafkaBroker, tmp_path: Path, options: tuple[str, ...], words: str
) -> None:
    path = tmp_path / "stock.db"
    with closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE stock (item TEXT PRIMARY KEY, level INTEGER)")
        database.execute("INSERT INTO stock VALUES ('cup', 1)")
        database.commit()
    with SqliteSink(path, apply_sqlite):
        pass
    topic = kafka.create_topic("orders")
    result = run(
        *("audit", "-t", topic, "-b", kafka.bootstrap_servers),
        *("--sink", f"sqlite:{path}", *options),
    )
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_sinks(kafka: KafkaBroker, tmp_path: Path) -> None:
    topic = kafka.create_topic("orders")
    for name, content, words in (
        ("missing.db", None, "unable to open"),
        ("text.db", b"no database at all, " * 50, "not a database"),
        ("empty.db", b"", "no tables of epochfence"),
    ):
        path = tmp_path / name
        if content is not None:
            path.write_bytes(content)
        result = run(
            *("audit", "-t", topic, "-b", kafka.bootstrap_servers),
            *("--sink", f"sqlite:{path}"),
        )
        assert result.exit_code == 2, result.output
        assert words in result.stderr
    assert not (tmp_path / "missing.db").exists()
