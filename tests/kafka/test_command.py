"""The command on a real cluster: `ledger show|claim|export` and `audit --topic`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer

from epochfence import Ledger
from epochfence.epochs.claims import claim_key, claim_value
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE
from support.demo import problems, running_demo
from support.histories import claim, stamp
from support.ledgers import LedgerTopics, unnamed_topics, write_record
from support.raw_produce import send_batch


class Command:
    """Runs the installed command as its user does: a process of its own."""

    def __init__(self, topics: LedgerTopics) -> None:
        self.topics = topics

    def __call__(
        self, *arguments: object, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "COLUMNS": "250"}
        environment.pop("EPOCHFENCE_BOOTSTRAP_SERVERS", None)
        done = subprocess.run(
            [sys.executable, "-m", "epochfence", *map(str, arguments)],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            env=environment,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def on_cluster(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self(
            *arguments,
            *("-b", self.topics.kafka.bootstrap_servers),
            *("--coordination-topic", self.topics.coordination_topic),
        )

    def claim(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        return self.on_cluster(
            *("ledger", "claim"),
            *arguments,
            *("--table-topic", self.topics.table_topic),
        )


@pytest.fixture
def command(kafka: KafkaBroker) -> Command:
    return Command(unnamed_topics(kafka))


def test_claim_show_export(command: Command, tmp_path: Path) -> None:
    first = command.claim("s", "--holder", "me", "--attribute", "url=http://x?a=b")
    assert first.returncode == 0, first.stderr
    grant = json.loads(first.stdout)
    assert (grant["epoch"], grant["holder"]) == (1, "me")
    assert grant["attributes"] == {"url": "http://x?a=b"}
    assert json.loads(command.claim("s", "--at-least", 9).stdout)["epoch"] == 9
    lost = command.claim("s", "--exactly", 9)
    assert (lost.returncode, lost.stdout) == (1, "")
    assert "epoch 9 is held by" in lost.stderr

    shown = command.on_cluster("ledger", "show")
    assert shown.returncode == 0
    assert "unsynced" in shown.stdout
    assert [line.split()[:2] for line in shown.stdout.splitlines()[3:]] == [["s", "9"]]
    as_json = command.on_cluster("ledger", "show", "s", "--format", "json")
    assert json.loads(as_json.stdout)["epoch"] == 9
    unknown = command.on_cluster("ledger", "show", "r")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "scope r" in unknown.stderr

    exported = command.on_cluster("ledger", "export")
    epochs = [json.loads(line)["epoch"] for line in exported.stdout.splitlines()]
    assert epochs == [1, 9]
    target = tmp_path / "ledger.jsonl"
    assert command.on_cluster("ledger", "export", "-o", target).returncode == 0
    assert target.read_text() == exported.stdout
    nowhere = command.on_cluster("ledger", "export", "-o", tmp_path / "no" / "file")
    assert nowhere.returncode == 2


def test_audit_of_a_topic(command: Command, tmp_path: Path) -> None:
    topics = command.topics
    kafka = topics.kafka
    with topics.open() as ledger:
        old = ledger.claim("s", holder="pod-7")
        new = ledger.claim("s", holder="pod-8")
    topic = kafka.create_topic("orders", partitions=2)
    for partition in range(2):
        for leadership in (old, new, old):
            headers: list[tuple[str, bytes | None]] = [
                ("trace", None),
                ("epochfence", leadership.stamp_value),
            ]
            write_record(kafka, topic, b"k", None, headers, partition)
    write_record(kafka, topic, b"k", b"v", [stamp(3, "s")], 1)
    write_record(kafka, topic, b"k", b"v", partition=1)

    verdicts = tmp_path / "verdicts.jsonl"
    done = command.on_cluster("audit", "-t", topic, "--verdicts", verdicts)
    assert done.returncode == 0, done.stderr
    assert "8 records: 4 admitted, 0 barriers, 2 stale, 2 quarantined." in done.stdout
    assert "as of offset" in done.stdout
    assert "unsynced" in done.stdout
    assert "pod-7" in done.stdout
    lines = [json.loads(line) for line in verdicts.read_text().splitlines()]
    assert [line["reason"] for line in lines] == [
        *("ok", "ok", "stale-epoch"),
        *("ok", "ok", "stale-epoch", "ungranted", "unstamped"),
    ]
    one = command.on_cluster("audit", "-t", topic, "-p", 0, "--fail-on", "rejected")
    assert one.returncode == 1
    assert "3 records" in one.stdout
    none = command.on_cluster("audit", "-t", topic, "-p", 2)
    assert none.returncode == 2
    assert "partitions 0 to 1" in none.stderr

    file = tmp_path / "ledger.jsonl"
    command.on_cluster("ledger", "export", "-o", file)
    with_file = command.on_cluster("audit", "-t", topic, "--ledger", file)
    assert with_file.stdout.splitlines()[-1] == done.stdout.splitlines()[-1]


def test_audit_of_an_empty_topic(command: Command) -> None:
    with command.topics.open():
        pass
    topic = command.topics.kafka.create_topic()
    done = command.on_cluster("audit", "-t", topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert "0 records" in done.stdout


def test_audit_sees_committed_records_only(command: Command) -> None:
    topics = command.topics
    with topics.open() as ledger:
        leadership = ledger.claim("s", holder="a")
    topic = topics.kafka.create_topic()
    headers: dict[str, str | bytes | None] = {"epochfence": leadership.stamp_value}
    producer = Producer(
        {**topics.kafka.config, "transactional.id": topics.coordination_topic}
    )
    producer.init_transactions(30)
    for end in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        producer.produce(topic, b"v", headers=headers)
        producer.flush(30)
        end(30)
    ended = command.on_cluster("audit", "-t", topic)
    assert "1 record: 1 admitted" in ended.stdout
    assert ended.stderr == ""
    producer.begin_transaction()
    producer.produce(topic, b"v", headers=headers)
    producer.flush(30)
    begun = time.monotonic()
    still_open = command.on_cluster("audit", "-t", topic, "--timeout", 5)
    assert time.monotonic() - begun < 30
    assert "1 record: 1 admitted" in still_open.stdout
    assert "open transaction" in still_open.stdout
    producer.abort_transaction(30)


def test_a_header_name_that_is_not_utf_8_is_malformed(command: Command) -> None:
    """Such a name stops confluent-kafka's own `Message.headers()`."""
    topics = command.topics
    with topics.open() as ledger:
        leadership = ledger.claim("s", holder="a")
    topic = topics.kafka.create_topic()
    write_raw_header(topics.kafka, topic, b"\xff\xfe")
    good = [("epochfence", leadership.stamp_value)]
    write_record(topics.kafka, topic, b"k", b"v", good)
    done = command.on_cluster("audit", "-t", topic)
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 admitted, 0 barriers, 0 stale, 1 quarantined" in done.stdout


def write_raw_header(kafka: KafkaBroker, topic: str, name: bytes) -> None:
    """Write a record with a header name that confluent-kafka would not take.

    Kafka's own tools are Java and take any name; here one made by a client that
    takes bytes is put together by hand: a record batch of message format 2.
    """
    send_batch(kafka.bootstrap_servers, topic, [(name, b"x")])


def test_audit_warns_where_the_head_of_the_log_is_gone(command: Command) -> None:
    from confluent_kafka import TopicPartition

    topics = command.topics
    with topics.open() as ledger:
        leadership = ledger.claim("s", holder="a")
    topic = topics.kafka.create_topic()
    for _ in range(4):
        headers = [("epochfence", leadership.stamp_value)]
        write_record(topics.kafka, topic, b"k", b"v", headers)
    for done in topics.kafka.admin.delete_records(
        [TopicPartition(topic, 0, 2)]
    ).values():
        done.result()
    audited = command.on_cluster("audit", "-t", topic)
    assert "2 records: 2 admitted" in audited.stdout
    assert "begins at offset 2" in audited.stdout


def test_missing_topics_are_named(command: Command) -> None:
    with command.topics.open():
        pass
    topic = command.topics.kafka.create_topic()
    nowhere = ("--coordination-topic", "nowhere")
    for arguments, name in (
        (("audit", "-t", "no-such-topic"), "no-such-topic"),
        (("ledger", "show", *nowhere), "nowhere"),
        (("audit", "-t", topic, *nowhere), "nowhere"),
    ):
        servers = command.topics.kafka.bootstrap_servers
        done = command(*arguments, "-b", servers)
        assert done.returncode == 2
        assert f"'{name}'" in done.stderr
        assert "no such topic" in done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("ledger", "show"),
        ("ledger", "claim", "s"),
        ("ledger", "export"),
        ("audit", "-t", "t"),
    ],
)
def test_a_wrong_address_is_said_within_seconds(
    command: Command, arguments: tuple[str, ...]
) -> None:
    begun = time.monotonic()
    done = command(*arguments, "-b", "127.0.0.1:1", "--timeout", 3)
    assert time.monotonic() - begun < 20
    assert (done.returncode, done.stdout) == (2, "")
    waiting, failed = done.stderr.splitlines()
    assert waiting.startswith("waiting for 127.0.0.1:1, up to 3 s")
    assert "127.0.0.1:1" in failed
    assert "refused" in failed


def test_a_coordination_topic_that_deletes(command: Command) -> None:
    kafka = command.topics.kafka
    name = kafka.create_topic("c", config={"cleanup.policy": "delete"})
    command.topics = LedgerTopics(kafka, name, command.topics.table_topic)
    done = command.claim("s")
    assert (done.returncode, done.stdout) == (2, "")
    for words in ("cleanup.policy", "'delete'", name, "cleanup.policy=compact"):
        assert words in done.stderr
    for reader in ("show", "export"):
        refused = command.on_cluster("ledger", reader)
        assert refused.returncode == 2
        assert "cleanup.policy" in refused.stderr


def test_a_topic_that_is_no_coordination_topic(command: Command) -> None:
    kafka = command.topics.kafka
    name = kafka.create_topic("c", config={"cleanup.policy": "compact"})
    for number in range(20):
        write_record(kafka, name, b"%d" % number, b"data")
    command.topics = LedgerTopics(kafka, name, command.topics.table_topic)
    done = command.on_cluster("ledger", "show")
    assert done.returncode == 0
    assert len(done.stderr.splitlines()) == 6
    assert "Is it a coordination topic?" in done.stderr


def test_a_grant_that_cannot_be_printed_is_told(command: Command) -> None:
    topics = command.topics
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "epochfence", "ledger", "claim", "s"),
                *("-b", topics.kafka.bootstrap_servers),
                *("--coordination-topic", topics.coordination_topic),
                *("--table-topic", topics.table_topic),
            ],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "granted, but it cannot be printed" in done.stderr
    with topics.open() as ledger:
        grant = ledger.leader("s")
    assert grant is not None
    assert grant.grant_id in done.stderr


def test_topics_may_have_to_be_there(command: Command) -> None:
    done = command.claim("s", "--no-create")
    assert done.returncode == 2
    assert f"--create --topic {command.topics.coordination_topic}" in done.stderr
    assert "cleanup.policy=compact" in done.stderr


def test_damaged_and_unknown_records(command: Command) -> None:
    kafka = command.topics.kafka
    name = kafka.create_topic("c", config=dict(COMPACTABLE))
    command.topics = topics = LedgerTopics(kafka, name, command.topics.table_topic)
    topics.write(claim_key(claim("s", 1)), claim_value(claim("s", 1))[:-1])
    topics.write(claim_key(claim("s", 2)), claim_value(claim("s", 2)))
    shown = command.on_cluster("ledger", "show")
    assert shown.returncode == 0
    assert "offset 0 is passed over" in shown.stderr
    assert "holder-a" in shown.stdout
    topics.write(b"x", b"\xc3\x01" + bytes(range(8)))
    for arguments in (("ledger", "show"), ("audit", "-t", name)):
        stopped = command.on_cluster(*arguments)
        assert (stopped.returncode, stopped.stdout) == (2, "")
        assert "0001020304050607" in stopped.stderr
        assert "offset 2" in stopped.stderr
        assert "pgrade" in stopped.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-X", "no.such.setting=1"], ["no.such.setting"]),
        (["-X", "security.protocol"], ["security.protocol", "name=value"]),
        (["-X", "acks=1"], ["acks", "'1'", "all"]),
        (["-X", "max.in.flight.requests.per.connection=5"], ["in.flight", "'5'"]),
        (["-X", "group.id=g"], ["group.id"]),
        (["-F", "no-such-file"], ["no-such-file"]),
        (["--timeout", "0"], ["--timeout"]),
        (["--timeout", "x"], ["--timeout"]),
        (["--attribute", "x"], ["--attribute", "NAME=VALUE"]),
        (["--at-least", "1", "--exactly", "2"], ["at_least and exactly"]),
        (["--exactly", str(2**63)], ["exactly", "2^63-1"]),
    ],
)
def test_bad_options(command: Command, options: list[str], words: list[str]) -> None:
    done = command.claim("s", *options)
    assert (done.returncode, done.stdout) == (2, "")
    text = " ".join(done.stderr.split())
    assert [word for word in words if word not in text] == []


def test_a_scope_with_a_blank(command: Command) -> None:
    done = command.claim("a b")
    assert done.returncode == 2
    assert "A-Z a-z 0-9" in done.stderr


def test_a_properties_file(command: Command, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    servers = command.topics.kafka.bootstrap_servers
    properties.write_text(f"# comment\n\nbootstrap.servers = {servers}\n")
    topics = command.topics
    names = ("--coordination-topic", topics.coordination_topic)
    with topics.open():
        pass
    assert command("ledger", "show", "-F", properties, *names).returncode == 0
    for bad in ("one=1\nsecret\n", "one=1\nsasl.password=se\\\ncret\n"):
        properties.write_text(bad)
        done = command("ledger", "show", "-F", properties, *names)
        assert done.returncode == 2
        assert "line 2" in done.stderr
        assert "cret" not in done.stderr


def test_a_secret_is_not_repeated(command: Command) -> None:
    done = command.claim("s", "-X", "sasl.passwrod=hunter2")
    assert done.returncode == 2
    assert "hunter2" not in done.stderr


def test_what_was_asked_for_cannot_be_spelt(command: Command) -> None:
    for options in (("--holder", "\udcff"), ("--attribute", "a=\udcff")):
        done = command.claim("s", *options)
        assert done.returncode == 2
        assert "UTF-8" in done.stderr


def test_a_scope_without_a_leader_among_others(command: Command) -> None:
    command.claim("s")
    done = command.on_cluster("ledger", "show", "no/such")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no epoch of scope no/such is granted" in done.stderr


def test_a_topic_name_that_cannot_be(command: Command) -> None:
    servers = ("-b", command.topics.kafka.bootstrap_servers)
    for name in ("a b", ""):
        done = command("ledger", "show", *servers, "--coordination-topic", name)
        assert done.returncode == 2
        assert "no topic can have this name" in done.stderr


def test_the_embedded_broker(caplog: pytest.LogCaptureFixture) -> None:
    """No admin calls, no topic ids: on purpose, and said."""
    parent = Producer({"test.mock.num.brokers": 1, "bootstrap.servers": ""})
    (broker,) = parent.list_topics(timeout=30).brokers.values()
    config = {"bootstrap.servers": f"{broker.host}:{broker.port}"}
    with Ledger(config, embedded=True) as ledger:
        first = ledger.claim("s", holder="a")
        first.verify()
        assert ledger.claim("s", holder="b").epoch == 2
    assert "embedded broker" in caplog.text


def test_the_demo_on_a_cluster(kafka: KafkaBroker) -> None:
    with running_demo("-b", kafka.bootstrap_servers, "--seed", "5") as demo:
        code = demo.ended()
        assert problems(demo.lines, code) == [], demo.lines
        assert kafka.bootstrap_servers in demo.lines[0]
    topics = kafka.admin.list_topics(timeout=10).topics
    assert [name for name in topics if name.startswith("epochfence-demo")] == []


def test_the_demo_on_no_cluster() -> None:
    with running_demo("-b", "127.0.0.1:1") as demo:
        assert demo.ended() == 2
        assert "127.0.0.1:1" in demo.lines[-1]
        assert "refused" in demo.lines[-1]
        assert "Traceback" not in "\n".join(demo.lines)


def test_the_demo_with_a_setting_that_there_is_not(kafka: KafkaBroker) -> None:
    with running_demo("-b", kafka.bootstrap_servers, "-X", "linger_ms=5") as demo:
        assert demo.ended() == 2
        assert "linger_ms" in demo.lines[-1]
        assert "Traceback" not in "\n".join(demo.lines)
