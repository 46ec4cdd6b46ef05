"""Dead letters: kept by each sink, listed, and sent again by the command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from epochfence import (
    KafkaSink,
    Leadership,
    Ledger,
    PostgresSink,
    SinkRunner,
    SqliteSink,
)
from epochfence.cli import app
from epochfence.consumers.sink import Sink
from support.brokers import KafkaBroker
from support.fenced_topic import write_takeover
from support.ledgers import LedgerTopics
from support.postgres import Postgres
from support.reading import read_all
from support.running import running
from support.stamped import Writer
from support.waiting import wait_until

#: As `write_takeover` writes it, with two more behind: unstamped, and damaged.
STALE, UNGRANTED, UNSTAMPED, MALFORMED = [4, 7], [6], [9], [10]
END = 11


class Place:
    """A topic with rejected records, and the options that name where they are kept."""

    def __init__(
        self, kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str
    ) -> None:
        self.kafka = kafka
        self.topics = topics
        self.ledger = ledger
        self.topic = topic
        self.options: list[str] = []
        self.leader: Leadership = self._write()

    def _write(self) -> Leadership:
        a, b = (self.ledger.claim("w", holder=name) for name in ("a\0b", "pod-b"))
        writer = Writer(self.kafka, self.topic)
        write_takeover(writer, a, b)
        headers: Any = [("trace", b"1"), ("trace", None)]
        writer.write(headers, b"unstamped")
        writer.write([("epochfence", b"no stamp")], b"damaged")
        return b

    def apply(self, sink: Sink) -> None:
        """Have a sink apply what is there."""
        runner = SinkRunner(
            {**self.kafka.config, "group.id": f"g-{self.topic}"},
            self.ledger,
            sink,
            require={self.topic: ["w"]},
            unstamped="quarantine",
            batch_wait_s=0.02,
        )

        def is_there() -> bool:
            at = runner.progress.positions.get((self.topic, 0))
            return at is not None and at.next_offset == END

        with running(runner, self.topic):
            wait_until(is_there, 60, "all is applied")

    def command(self, *arguments: str, code: int = 0) -> str:
        """Run `epochfence deadletters`; what it prints."""
        verb, *rest = arguments
        ran = CliRunner().invoke(
            app, ["deadletters", verb, *self.options, *rest], catch_exceptions=False
        )
        assert ran.exit_code == code, ran.output
        return ran.output

    def listed(self, *arguments: str) -> list[dict[str, Any]]:
        lines = self.command("list", "--format", "json", *arguments).splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    @property
    def cluster(self) -> list[str]:
        return [
            "-b", self.kafka.bootstrap_servers,
            "--coordination-topic", self.topics.coordination_topic,
            "--table-topic", self.topics.table_topic,
        ]  # fmt: skip


def nothing(*_: object) -> None:
    """What is applied does not matter here."""


@pytest.fixture(params=["sqlite", "postgres", "kafka"])
def place(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    topic: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Place:
    place = Place(kafka, topics, ledger, topic)
    if request.param == "sqlite":
        path = tmp_path / "orders.db"
        with SqliteSink(path, nothing, dead_letters=True) as sqlite:
            place.apply(sqlite)
        place.options = ["--sqlite", str(path)]
    elif request.param == "postgres":
        postgres: Postgres = request.getfixturevalue("postgres")
        conninfo = request.getfixturevalue("database_of_letters")(postgres)
        with PostgresSink(conninfo, nothing, dead_letters=True) as sink:
            place.apply(sink)
        place.options = ["--postgres", conninfo]
    else:
        dead = kafka.create_topic("dead", 2)
        with KafkaSink(kafka.config, nothing, dead_letters=dead) as to_kafka:
            place.apply(to_kafka)
        place.options = ["--from-topic", dead]
        if "-b" not in place.options:
            place.options += ["-b", kafka.bootstrap_servers]
    return place


@pytest.fixture
def database_of_letters(
    request: pytest.FixtureRequest,
) -> Callable[[Postgres], str]:
    def make(postgres: Postgres) -> str:
        database = postgres.database()
        conninfo = database.__enter__()
        request.addfinalizer(lambda: database.__exit__(None, None, None))
        return conninfo

    return make


def test_what_was_rejected_is_listed_with_why(place: Place) -> None:
    found = place.listed()
    assert [one["offset"] for one in found] == sorted(
        STALE + UNGRANTED + UNSTAMPED + MALFORMED
    )
    stale, ungranted, _, unstamped, damaged = found
    assert (stale["verdict"], stale["reason"]) == ("stale", "stale-epoch")
    assert (stale["scope"], stale["epoch"], stale["current_epoch"]) == ("w", 1, 2)
    assert stale["holder"] == "a\ufffdb"
    assert stale["topic"] == place.topic
    assert stale["name"] == f"{stale['topic_id']}:0:0:4"
    assert len(stale["topic_id"]) == 22
    assert stale["timestamp"] > 0
    assert (ungranted["epoch"], ungranted["holder"]) == (77, None)
    assert (unstamped["scope"], unstamped["epoch"]) == (None, None)
    assert unstamped["headers"] == [["trace", "MQ=="], ["trace", None]]
    assert (unstamped["key"], unstamped["value"]) == ("aw==", "dW5zdGFtcGVk")
    assert damaged["headers"] == [["epochfence", "bm8gc3RhbXA="]]
    assert {one["redriven_at"] for one in found} == {None}
    assert [one["offset"] for one in place.listed("--reason", "stale-epoch")] == STALE
    assert [one["offset"] for one in place.listed("--scope", "w")] == [4, 6, 7]
    assert place.listed("--topic", "another") == []
    assert place.listed("--partition", "1") == []
    shown = place.command("list")
    assert "stale-epoch" in shown
    assert "unstamped" in shown


def test_sent_again_under_a_new_leadership(place: Place) -> None:
    (name,) = [one["name"] for one in place.listed("--reason", "unstamped")]
    refused = place.command("redrive", name, "--as-leader", "w", *place.cluster, code=2)
    assert "--yes" in refused
    assert "epoch 2, pod-b" in refused
    said = place.command("redrive", name, "--as-leader", "w", "-y", *place.cluster)
    assert "1 of 1 sent again" in said
    *_, last = read_all(place.kafka, place.topic)
    assert (last.key(), last.value()) == (b"k", b"unstamped")
    headers: Any = last.headers()
    assert [header for header in headers if header[0] == "trace"] == [
        ("trace", b"1"),
        ("trace", None),
    ]
    latest = place.ledger.refresh().latest("w")
    assert latest is not None
    assert latest.epoch == 3
    stamp = f"3:{latest.grant_id}:w".encode()
    assert [value for name, value in headers if name == "epochfence"] == [stamp]
    assert len(place.listed()) == 4
    again = place.listed("--redriven")
    assert [one["offset"] for one in again if one["redriven_at"]] == UNSTAMPED
    gone = place.command(
        "redrive", name, "--as-leader", "w", "-y", *place.cluster, code=2
    )
    assert "no such dead letter is waiting" in gone


def test_sent_again_to_where_nobody_judges(place: Place) -> None:
    to = place.kafka.create_topic("by-hand", 3)
    said = place.command(
        "redrive", "--all", "--reason", "stale-epoch", "--unstamped", "--to", to, "-y",
        "-b", place.kafka.bootstrap_servers,
    )  # fmt: skip
    assert "2 of 2 sent again" in said
    records = read_all(place.kafka, to)
    assert [(record.value(), record.headers() or []) for record in records] == [
        (b"v", []),
        (b"v", []),
    ]
    assert [one["offset"] for one in place.listed()] == [6, 9, 10]
    nothing_left = place.command(
        "redrive", "--all", "--reason", "stale-epoch", "--unstamped", "--to", to, "-y",
        "-b", place.kafka.bootstrap_servers,
    )  # fmt: skip
    assert "No dead letters are waiting that fit" in nothing_left


def test_what_cannot_be_sent_is_not_marked(place: Place) -> None:
    said = place.command(
        "redrive", "--all", "--unstamped", "--to", "there-is-no-such-topic", "-y",
        "-X", "message.timeout.ms=1000", "-b", place.kafka.bootstrap_servers, code=1,
    )  # fmt: skip
    assert "0 of 5 sent again" in said
    assert len(place.listed()) == 5


@pytest.fixture
def in_topic(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, topic: str
) -> Place:
    """Dead letters that a topic keeps."""
    place = Place(kafka, topics, ledger, topic)
    dead = kafka.create_topic("dead")
    with KafkaSink(kafka.config, nothing, dead_letters=dead) as sink:
        place.apply(sink)
    place.options = ["--from-topic", dead, "-b", kafka.bootstrap_servers]
    return place


def test_one_that_cannot_be_sent_holds_nothing_up(in_topic: Place) -> None:
    """The others are marked, and not sent once more."""
    to = in_topic.kafka.create_topic("by-hand")
    options = ["--all", "--unstamped", "--to", to, "-y"]
    said = in_topic.command("redrive", *options, "-X", "message.max.bytes=1000")
    assert "5 of 5 sent again" in said
    again = in_topic.command("redrive", *options)
    assert "No dead letters are waiting that fit" in again
    assert len(read_all(in_topic.kafka, to)) == 5


def test_one_that_is_too_large_to_be_sent(in_topic: Place) -> None:
    dead = in_topic.options[1]
    producer = Producer({**in_topic.kafka.config})
    record: Any = read_all(in_topic.kafka, dead)[0]
    details = json.loads(dict(record.headers())["epochfence-dead-letter"])
    details["offset"] = 99
    headers: Any = [("epochfence-dead-letter", json.dumps(details))]
    producer.produce(dead, bytes(5000), headers=headers)
    assert producer.flush(30) == 0
    to = in_topic.kafka.create_topic("by-hand")
    options = ["--all", "--unstamped", "--to", to, "-y", "-X", "message.max.bytes=2000"]
    said = in_topic.command("redrive", *options, code=1)
    assert "5 of 6 sent again" in said
    assert "1 not: " in said
    in_topic.command("redrive", *options, code=1)
    assert len(read_all(in_topic.kafka, to)) == 5


def test_marks_behind_an_open_transaction_are_seen(in_topic: Place) -> None:
    """A gate that writes letters has one open most of the time."""
    to = in_topic.kafka.create_topic("by-hand")
    config = {
        **in_topic.kafka.config,
        "transactional.id": f"gate-{in_topic.topic}",
        "log_level": 2,
    }
    producer = Producer(config)
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(in_topic.options[1], b"a letter that is being written")
    assert producer.flush(30) == 0
    options = ["--all", "--unstamped", "--to", to, "-y"]
    assert "5 of 5 sent again" in in_topic.command("redrive", *options)
    assert "No dead letters are waiting" in in_topic.command("redrive", *options)
    producer.abort_transaction(30)
    assert len(read_all(in_topic.kafka, to)) == 5


def test_records_that_are_no_letters_are_told_of(in_topic: Place) -> None:
    dead = in_topic.options[1]
    producer = Producer({**in_topic.kafka.config})
    record: Any = read_all(in_topic.kafka, dead)[0]
    details = json.loads(dict(record.headers())["epochfence-dead-letter"])
    for changed in (
        {"rejected_at": "yesterday"},
        {"partition": None},
        {"topic": 7},
        {"of a newer version": 1},  # this one is a letter, which is there already
    ):
        text = json.dumps({**details, **changed})
        headers: Any = [("epochfence-dead-letter", text)]
        producer.produce(dead, b"v", headers=headers)
    producer.produce(dead, b"foreign")
    assert producer.flush(30) == 0
    said = in_topic.command("list")
    assert "4 records of it are no dead letters" in said
    assert len(in_topic.listed()) == 5


def test_a_letter_of_no_time(in_topic: Place) -> None:
    """A clock may say anything; so may whoever writes to the topic."""
    dead = in_topic.options[1]
    record: Any = read_all(in_topic.kafka, dead)[0]
    details = json.loads(dict(record.headers())["epochfence-dead-letter"])
    text = json.dumps({**details, "offset": 99, "rejected_at": 2**62})
    headers: Any = [("epochfence-dead-letter", text)]
    producer = Producer({**in_topic.kafka.config})
    producer.produce(dead, b"v", headers=headers)
    assert producer.flush(30) == 0
    assert str(2**62) in in_topic.command("list")


def test_a_scope_that_its_readers_do_not_know(in_topic: Place) -> None:
    said = in_topic.command(
        "redrive", "--all", "--as-leader", "another", "-y", *in_topic.cluster, code=2
    )
    assert "no epoch of it has begun" in said
    assert "Give one of: w" in said
    assert in_topic.ledger.refresh().latest("another") is None
