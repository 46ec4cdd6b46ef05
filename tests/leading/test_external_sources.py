"""Numbers that real systems give, and take back: none is led with twice."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from epochfence import ClaimLost, Leadership, Ledger, lead
from support.brokers import KafkaBroker
from support.external_sources import (
    EmptiedZookeeper,
    RecreatedNode,
    ResetSequence,
    RestartedRedis,
    RestoredEtcd,
    Source,
)
from support.ledgers import unnamed_topics

#: By a kind: its fixture.
_SERVERS: dict[Callable[[str, Any], Source], str] = {
    RestoredEtcd: "restorable_etcd",
    EmptiedZookeeper: "zookeeper",
    RecreatedNode: "zookeeper",
    ResetSequence: "database",
    RestartedRedis: "redis",
}

_LEADERS = 5


@pytest.fixture(params=_SERVERS, ids=lambda kind: kind.__name__)
def source(request: pytest.FixtureRequest) -> Source:
    kind: Callable[[str, Any], Source] = request.param
    server = request.getfixturevalue(_SERVERS[kind])
    return kind(f"office-{secrets.token_hex(6)}", server)


def test_a_number_that_was_taken_back_is_refused(
    source: Source, kafka: KafkaBroker
) -> None:
    with unnamed_topics(kafka).open() as ledger:
        held = [lead_once(source, kafka, ledger) for _ in range(_LEADERS)]
        epochs = [leadership.epoch for leadership in held]
        assert epochs == sorted(set(epochs))
        source.fall_back()
        number = source.number()
        assert number < epochs[-1]
        with pytest.raises(ClaimLost) as lost:
            ledger.claim("s", holder="after", exactly=number)
        numbers = (lost.value.claimed_epoch, lost.value.latest_epoch)
        assert numbers == (number, epochs[-1])
        assert f"set it above {epochs[-1]}" in str(lost.value)

        told = told_by_a_candidate(source, kafka, ledger)
        assert f"epoch {epochs[-1]} is held by 'before'" in told
        assert f"set it above {epochs[-1]}" in told
        assert "the claim to epoch " in told

        ledger.verify(held[-1])
        assert [claim.epoch for claim, _ in ledger.claims()] == epochs


def lead_once(source: Source, kafka: KafkaBroker, ledger: Ledger) -> Leadership:
    election = source.candidate()
    with lead(
        kafka.config, ledger, election, "s", [], holder="before",
        epoch=lambda: source.epoch(election), allow_jump=source.allow_jump,
    ) as tenure:  # fmt: skip
        leadership = tenure.leadership
    election.close()
    return leadership


def told_by_a_candidate(source: Source, kafka: KafkaBroker, ledger: Ledger) -> str:
    """What one that is elected tells, and stops."""
    told: list[str] = []

    def note(state: str, reason: str) -> None:
        if state == "waiting" and "the claim" in reason:
            told.append(reason)
            leading.stop()

    election = source.candidate()
    leading = lead(
        kafka.config, ledger, election, "s", [], holder="after", on_state=note,
        epoch=lambda: source.epoch(election), allow_jump=source.allow_jump,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match="told to stop"), leading:
        pass
    election.close()
    (reason,) = told
    return reason
