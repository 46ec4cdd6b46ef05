"""The clock of a process is set back by an hour: nothing goes by it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest

from epochfence import Deposed, FencedProducer, Leadership, Ledger, lead
from epochfence.elections import Election
from support.brokers import KafkaBroker
from support.candidate import opened
from support.elections import SOON, an_office
from support.ledgers import unnamed_topics
from support.producing import doing
from support.waiting import wait_until

_HOUR_S = 3600
#: Longer than any election of `SOON` lets a silent candidate keep its office.
_SILENCE_S = 4.0


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets the wall clock of this process back; the other one goes on."""
    now, now_ns = time.time, time.time_ns

    def do() -> None:
        monkeypatch.setattr(time, "time", lambda: now() - _HOUR_S)
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - _HOUR_S * 10**9)

    return do


@pytest.mark.parametrize("kind", SOON)
def test_a_clock_that_is_set_back(
    kind: str,
    kafka: KafkaBroker,
    request: pytest.FixtureRequest,
    set_back: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topics = unnamed_topics(kafka)
    told = {
        **an_office(kind, request),
        "servers": kafka.bootstrap_servers,
        **topics.names,
    }
    orders = kafka.create_topic("orders")
    zombies: list[FencedProducer] = []

    def never_told(leadership: Leadership) -> FencedProducer:
        with monkeypatch.context() as patched:
            patched.setattr(FencedProducer, "_on_grant", doing(None))
            zombies.append(FencedProducer(kafka.config, ledger, leadership))
        return zombies[-1]

    def leading(ledger: Ledger, election: Election, **options: Any) -> lead:
        return lead(
            kafka.config, ledger, election, told["scope"], [orders], holder="a",
            **options,
        )  # fmt: skip

    with (
        topics.open() as ledger,
        closing(opened(told)) as first,
        closing(opened(told)) as second,
        leading(ledger, first, new_producer=never_told) as tenure,
    ):
        tenure.producer.produce(orders, b"v")
        set_back()
        # It keeps the office, and what it is granted by.
        assert not tenure.wait(_SILENCE_S), tenure.reason
        tenure.verify()
        tenure.producer.produce(orders, b"v")
        assert tenure.producer.confirm(30).are_all_admitted
        first.resign()
        # The successor's claim seems to be older than its predecessor's.
        with leading(ledger, second) as successor:
            assert successor.leadership.epoch == tenure.leadership.epoch + 1
            assert wait_until(tenure.over.is_set, 30, "it does not hear of it")
            with pytest.raises(Deposed):
                tenure.verify()
            zombies[0].produce(orders, b"late")
            successor.producer.produce(orders, b"w")
            assert successor.producer.confirm(30).are_all_admitted
            assert zombies[0].confirm(30).counts["fenced"] == 1
