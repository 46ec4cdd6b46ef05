"""The README's ledger example, on a real broker."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import epochfence
from support.brokers import KafkaBroker
from support.ledgers import unnamed_topics

_README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_example(
    kafka: KafkaBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
    assert "localhost:9092" in code
    code = code.replace("localhost:9092", kafka.bootstrap_servers)
    topics = unnamed_topics(kafka)

    ledger = epochfence.Ledger

    def on_topics_of_its_own(config: dict[str, str]) -> epochfence.Ledger:
        return ledger(config, **topics.names)

    monkeypatch.setattr(epochfence, "Ledger", on_topics_of_its_own)
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out == "1 http://pod-7:8080\n"
