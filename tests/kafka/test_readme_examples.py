"""The README's examples, on a real broker."""

from __future__ import annotations

import json
import re
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import epochfence
from support.brokers import KafkaBroker
from support.election_servers import Etcd
from support.ledgers import unnamed_topics
from support.reading import read_all
from support.stream import Stream, read_count, stamp, values_of
from support.waiting import wait_until

_README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")

Play = Callable[[str, dict[str, Any]], None]


def block_with(text: str, language: str = "python") -> str:
    """The one code block that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", _README, re.DOTALL)
    (block,) = [str(block) for block in blocks if text in block]
    return block


@pytest.fixture
def topic(kafka: KafkaBroker) -> str:
    return kafka.create_topic("orders")


@pytest.fixture
def play(kafka: KafkaBroker, topic: str, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Runs code on this broker, with topics and a group of its own."""
    names = unnamed_topics(kafka).names
    ledger = epochfence.Ledger

    def on_topics_of_its_own(config: dict[str, str]) -> epochfence.Ledger:
        return ledger(config, **names)

    monkeypatch.setattr(epochfence, "Ledger", on_topics_of_its_own)

    def run(code: str, names: dict[str, Any]) -> None:
        code = code.replace("localhost:9092", kafka.bootstrap_servers)
        code = code.replace('"orders"', repr(topic)).replace('"billing"', repr(topic))
        exec(compile(code, "README.md", "exec"), names)

    return run


def test_the_ledger(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    play(block_with("leadership.verify()"), {})
    assert capsys.readouterr().out == "1 http://pod-7:8080\n"


def test_the_takeover(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    code = block_with("zombie.take_over")
    assert len([line for line in code.splitlines() if line]) <= 25
    play(code, {})
    assert capsys.readouterr().out == block_with("pod-8: ", "text")


def test_transactions(
    kafka: KafkaBroker, topic: str, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    play(block_with("def transfer"), {})
    assert capsys.readouterr().out == "['admitted', 'admitted']\n"
    committed = read_all(kafka, topic, isolation_level="read_committed")
    assert [message.value() for message in committed] == [None, b"-10", b"+10"]


def test_one_leader_for_each_partition(kafka: KafkaBroker, play: Play) -> None:
    orders = kafka.create_topic("partitioned", partitions=4)
    code = block_with("by_partition").replace('"orders"', repr(orders))
    with unnamed_topics(kafka).open() as ledger:
        play(code, {"ledger": ledger, "kafka": kafka.config})
        config = {**kafka.config, "group.id": orders, "auto.offset.reset": "earliest"}
        with epochfence.FencedConsumer(
            config, ledger, require={orders: ["orders/{partition}"]}
        ) as consumer:
            consumer.subscribe([orders])
            assert values_of(consumer.consume(1, 30)) == [b"v"]


def test_a_relay_that_leads(
    kafka: KafkaBroker, topic: str, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block_with("def relay").replace(
        'KafkaElection(kafka, "relay")',
        f'KafkaElection(kafka, "relay-{topic}", topic={topic!r})',
    )
    play(code, {})
    play(code.replace('"third"', '"third", "fourth"'), {})
    assert capsys.readouterr().out == ("epoch 1: 3 admitted\nepoch 2: 1 admitted\n")
    values = [record.value() for record in read_all(kafka, topic)]
    written = [b"first", b"second", b"third", b"fourth"]
    assert [value for value in values if value is not None] == written


def test_a_leader_for_each_assigned_partition(
    kafka: KafkaBroker, play: Play, topic: str
) -> None:
    orders = kafka.create_topic("partitioned", partitions=3)
    prices = kafka.create_topic("prices", partitions=3)
    values = [f"order {number}".encode() for number in range(3)]
    earliest = {"auto.offset.reset": "earliest"}
    code = block_with("PartitionLeaderships(").replace('"pricing"', repr(topic))
    code = code.replace('"orders"', repr(orders)).replace('"prices"', repr(prices))
    code = code.replace("{**kafka,", f"{{**kafka, **{earliest},")
    stopping = threading.Event()

    def stop() -> None:
        def are_all_priced() -> bool:
            found = {record.value() for record in read_all(kafka, prices)}
            return found >= set(values)

        try:
            wait_until(are_all_priced, 60, "all is priced")
        finally:
            stopping.set()

    with epochfence.Ledger(kafka.config) as ledger:
        leader = ledger.claim("orders-writer", holder="pod")
        with epochfence.FencedProducer(kafka.config, ledger, leader) as producer:
            producer.take_over([orders])
            for number, value in enumerate(values):
                producer.produce(orders, value, partition=number)
            assert producer.confirm().are_all_admitted
        stopper = threading.Thread(target=stop)
        stopper.start()
        play(code, {"stopping": stopping})
        stopper.join()
        config = {**kafka.config, **earliest, "group.id": topic}
        with epochfence.FencedConsumer(
            config, ledger, require={prices: ["pricing/{partition}"], orders: []}
        ) as consumer:
            places = [TopicPartition(orders, number) for number in range(3)]
            committed = consumer.committed(places, timeout=30)
            consumer.subscribe([prices])
            assert set(values_of(consumer.consume(3, 30))) == set(values)
        # Behind the barrier, and the order.
        assert [place.offset for place in committed] == [2, 2, 2]


def test_epochs_that_etcd_counts(
    play: Play, etcd: Etcd, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block_with("office.revision").replace("http://localhost:2379", etcd.endpoint)
    play(code.replace('"billing"', repr(topic)), {})
    assert capsys.readouterr().out == "True\n"


def test_leading_on_an_event_loop(
    topic: str, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    code = block_with("async_lead(").replace(
        'KafkaElection(kafka, "writer")',
        f'KafkaElection(kafka, "writer-{topic}", topic={topic!r})',
    )
    play(code, {})
    assert capsys.readouterr().out == "in the log: 1\nadmitted\n"


@pytest.fixture
def stops_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Has a runner stop once so many messages are applied."""
    original = epochfence.SinkRunner.run

    def stops(count: int) -> None:
        def run(runner: epochfence.SinkRunner, topics: list[str]) -> None:
            def stop() -> None:
                wait_until(
                    lambda: runner.progress.messages == count, 60, "all is applied"
                )
                runner.stop()

            stopper = threading.Thread(target=stop)
            stopper.start()
            original(runner, topics)
            stopper.join()

        monkeypatch.setattr(epochfence.SinkRunner, "run", run)

    return stops


def test_a_sink(
    kafka: KafkaBroker,
    topic: str,
    play: Play,
    stops_after: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    producer = Producer(dict(kafka.config))
    with unnamed_topics(kafka).open() as ledger:
        leader = ledger.claim("orders-writer", holder="pod")
        for item, level in (("cup", 3), ("mug", 5), ("cup", 7)):
            value = json.dumps({"level": level})
            producer.produce(topic, value, item, headers=stamp(leader))
        producer.produce(topic, None, "mug", headers=stamp(leader))
        assert producer.flush(30) == 0
        stops_after(4)
        use(ledger, monkeypatch)
        play(block_with("SqliteSink("), {})
    with closing(sqlite3.connect("stock.db")) as database:
        assert database.execute("SELECT * FROM stock").fetchall() == [("cup", 7)]


def test_kafka_to_kafka(
    kafka: KafkaBroker,
    topic: str,
    play: Play,
    stops_after: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    invoices = kafka.create_topic("invoices")
    producer = Producer(dict(kafka.config))
    with unnamed_topics(kafka).open() as ledger:
        leader = ledger.claim("orders-writer", holder="pod")
        for count in (2, 3):
            order = json.dumps({"count": count, "price": 5})
            producer.produce(topic, order, "cup", headers=stamp(leader))
        assert producer.flush(30) == 0
        stops_after(2)
        use(ledger, monkeypatch)
        code = block_with("KafkaSink(").replace('"invoices"', repr(invoices))
        play(code.replace('"invoicing"', repr(topic)), {})
    written = read_all(kafka, invoices, isolation_level="read_committed")
    assert [record.key() for record in written] == [b"cup", b"cup"]
    assert [json.loads(record.value() or b"")["total"] for record in written] == [
        10,
        15,
    ]


def use(ledger: epochfence.Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the code that is played use a ledger."""

    def opened(_: object) -> nullcontext[epochfence.Ledger]:
        return nullcontext(ledger)

    monkeypatch.setattr(epochfence, "Ledger", opened)


def test_epoch_starts_as_json() -> None:
    start = epochfence.EpochStart(
        "t", "id", 0, "w", 7, "9f3a1c22d4e5b6a7", epochfence.Position(None, 5)
    )
    code = block_with("json.dumps(start)")
    exec(compile(code, "README.md", "exec"), {"start": start})


def test_topics_that_are_created_beforehand(kafka: KafkaBroker) -> None:
    """The settings that the README gives satisfy a ledger that creates nothing."""
    command = block_with("kafka-topics.sh", "sh")
    settings = dict(re.findall(r"--config (\S+)=(\S+)", command))
    names = unnamed_topics(kafka)
    with pytest.raises(epochfence.MisconfiguredError) as missing:
        names.open(create=False)
    for name, value in settings.items():
        # A message names what fits the brokers that are there.
        fits = name if name == "min.insync.replicas" else f"{name}={value}"
        assert f"--config {fits}" in str(missing.value)
    admin = AdminClient(dict(kafka.config))
    for topic in names.names.values():
        new = NewTopic(topic, 1, 1, config={**settings, "min.insync.replicas": "1"})
        admin.create_topics([new])[topic].result(30)
    with names.open(create=False) as ledger:
        assert ledger.claim("w", holder="pod").epoch == 1


def test_a_first_rollout(
    kafka: KafkaBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps, with history and a leader that is deposed in the second."""
    choice: dict[str, Any] = {"unstamped": "admit-until-first-stamp"}
    group = {**kafka.config, "auto.offset.reset": "earliest"}
    settings = epochfence.FenceSettings(["w"], **choice)
    require = {topic: ["w"]}
    stream = Stream(kafka, topic)
    history = stream.write([], 3)
    with unnamed_topics(kafka).open() as ledger:
        dry = epochfence.FencedConsumer(
            {**group, "group.id": topic}, ledger, require=require, mode="dry-run",
            **choice,
        )  # fmt: skip
        with dry:
            dry.subscribe([topic])
            assert values_of(read_count(dry, 3)) == history
            assert dry.counts == {"unstamped-admitted": 3}
            first, second = (ledger.claim("w", holder=holder) for holder in "ab")
            with epochfence.FencedProducer(
                kafka.config, ledger, second, settings=settings
            ) as leader:
                leader.take_over([topic])
                leader.produce(topic, b"good")
                assert leader.confirm().are_all_admitted
            bad = stream.write(stamp(first)) + stream.write([])
            assert values_of(read_count(dry, 3)) == [b"good", *bad]
            assert dry.counts == {
                "unstamped-admitted": 3,
                "barrier": 1,
                "ok": 1,
                "stale-epoch": 1,
                "unstamped": 1,
            }
        with epochfence.FencedConsumer(
            {**group, "group.id": f"{topic}-2"}, ledger, require=require, **choice
        ) as enforced:
            enforced.subscribe([topic])
            assert values_of(read_count(enforced, 4)) == [*history, b"good"]
    assert "other settings" not in caplog.text


def test_the_fence_alone(kafka: KafkaBroker, topic: str, play: Play) -> None:
    applied: list[bytes | None] = []
    stored: list[epochfence.EpochStart] = []

    def apply(message: Message) -> None:
        applied.append(message.value())

    with unnamed_topics(kafka).open() as ledger:
        leader = ledger.claim("orders-writer", holder="pod")
        written = Stream(kafka, topic).write(stamp(leader), 3)
        client = Consumer(
            {**kafka.config, "group.id": topic, "auto.offset.reset": "earliest"}
        )
        client.subscribe([topic])
        names: dict[str, Any] = {
            "ledger": ledger,
            "client": client,
            "stored_starts": (),
            "apply": apply,
            "store": stored.extend,
        }
        try:
            for _ in range(30):
                play(block_with("fence.filter"), names)
                if len(applied) == 3:
                    break
        finally:
            client.close()
    assert applied == written
    assert [start.epoch for start in stored] == [1]
