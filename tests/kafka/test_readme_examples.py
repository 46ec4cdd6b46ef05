"""The README's examples, on a real broker."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Message

import epochfence
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics
from support.stream import Stream, stamp

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
    code = block_with("take_over")
    assert len([line for line in code.splitlines() if line]) <= 25
    play(code, {})
    assert capsys.readouterr().out == block_with("pod-8: ", "text")


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
            "Fence": epochfence.Fence,
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
