"""Takeover after takeover, on a real Kafka, by each kind of election."""

from __future__ import annotations

import random
import secrets
from contextlib import closing
from typing import Any

import pytest

from support.brokers import KafkaBroker
from support.elections import SOON
from support.leaders_storm import Storm
from support.ledgers import unnamed_topics

_CANDIDATES = 3
_SUCCESSIONS = 3


@pytest.mark.parametrize("kind", SOON)
def test_leaders_count_on_without_a_gap(
    kind: str, kafka: KafkaBroker, request: pytest.FixtureRequest
) -> None:
    told: dict[str, Any] = {
        "kind": kind,
        "times": SOON[kind],
        "scope": f"counter-{secrets.token_hex(6)}",
    }
    if kind == "postgres":
        told["conninfo"] = request.getfixturevalue("database")
    elif kind == "kubernetes":
        told["kubeconfig"] = request.getfixturevalue("kubernetes").kubeconfig
    elif kind != "kafka":
        told["server"] = f"127.0.0.1:{request.getfixturevalue(kind).port}"
    with closing(Storm(kafka, unnamed_topics(kafka), told, _CANDIDATES)) as storm:
        storm.play(random.Random(kind), _SUCCESSIONS)
        assert storm.check() > _SUCCESSIONS
