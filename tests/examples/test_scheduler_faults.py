"""What the scheduler does where something goes wrong, or late: without a broker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from command_line import Stopped
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.clients import MemoryKeeper
from scheduler import Schedule, Scheduler
from support.example_service import SCOPE, TOPIC, Paused, Service
from support.producing import doing

_NOON = datetime(2026, 12, 1, 12, tzinfo=timezone.utc)
_LONG_AGO = datetime(2020, 1, 1, tzinfo=timezone.utc)


@pytest.fixture(autouse=True)
def topic(memory_log: MemoryLog) -> None:
    memory_log.create_topic(TOPIC)


@pytest.fixture
def service(memory_ledger: MemoryLedger) -> Iterator[Service]:
    made = Service(memory_ledger)
    yield made
    made.end()


def fire(service: Service, last: int, **options: Any) -> None:
    """Fire ticks that were all due long ago, until the last one."""
    given: dict[str, Any] = {"skips_missed": False, "resume_after": None, **options}
    schedule = Schedule(_LONG_AGO, 1.0, last)
    service.start(Scheduler(TOPIC, schedule, service.election, **given).work)
    service.wait()


def fired(ledger: MemoryLedger) -> list[int]:
    consumer = MemoryConsumer(ledger, require={TOPIC: [SCOPE]})
    consumer.subscribe([TOPIC])
    return [json.loads(message.value() or b"")["tick"] for message in consumer]


def write_tick(ledger: MemoryLedger, number: int) -> None:
    write_cursor(ledger, Schedule(_LONG_AGO, 1.0).cursor(number))


def write_cursor(ledger: MemoryLedger, cursor: str) -> None:
    with MemoryProducer(ledger, ledger.claim(SCOPE, holder="other")) as other:
        other.take_over([TOPIC])
        other.produce(TOPIC, json.dumps({"tick": cursor}), cursor=cursor)


def test_when_ticks_are_due() -> None:
    schedule = Schedule(_NOON, 0.1, last=30)
    ms = timedelta(milliseconds=1)
    for after, number in ((-1, 0), (0, 1), (99, 1), (100, 2), (2900, 30), (9000, 30)):
        assert schedule.number_at(_NOON + after * ms) == number
    assert schedule.due(1) == _NOON
    assert schedule.due(4) == _NOON + 300 * ms


def test_ticks_that_were_missed(memory_ledger: MemoryLedger, service: Service) -> None:
    write_tick(memory_ledger, 2)
    fire(service, 5)
    assert fired(memory_ledger)[1:] == [3, 4, 5]


def test_ticks_that_were_missed_and_are_skipped(
    memory_ledger: MemoryLedger, service: Service
) -> None:
    write_tick(memory_ledger, 2)
    fire(service, 5, skips_missed=True)
    assert fired(memory_ledger)[1:] == [5]


def test_more_ticks_than_are_fired_at_once(
    memory_ledger: MemoryLedger, service: Service
) -> None:
    fire(service, 2500)
    assert fired(memory_ledger) == list(range(1, 2501))


@pytest.mark.parametrize("arrives", [True, False])
def test_a_tick_of_which_nobody_knows_is_looked_for(
    memory_ledger: MemoryLedger,
    service: Service,
    capsys: pytest.CaptureFixture[str],
    arrives: bool,
) -> None:
    def prepare(producer: Paused) -> None:
        if len(service.producers) == 1:
            producer.fail_deliveries(arrives=arrives)

    service.prepare = prepare
    fire(service, 1)
    assert fired(memory_ledger) == [1]
    assert f"epoch 2: goes on after tick {int(arrives)}" in capsys.readouterr().out


class SetBack(Schedule):
    """A schedule by a clock that says 3 for a while, where 5 was before."""

    def number_at(self, now: datetime) -> int:
        """The tick that is due by that clock."""
        looks.append(now)
        return 3 if len(looks) < 4 else 7


looks: list[datetime] = []


def test_a_clock_that_was_set_back(
    memory_ledger: MemoryLedger, service: Service
) -> None:
    """What was fired by a clock that is ahead is not fired again."""
    looks.clear()
    write_tick(memory_ledger, 5)
    schedule = SetBack(_LONG_AGO, 1.0, 7)
    scheduler = Scheduler(
        TOPIC, schedule, service.election, skips_missed=False, resume_after=None
    )
    service.start(scheduler.work)
    service.wait()
    assert len(looks) == 4
    assert fired(memory_ledger)[1:] == [6, 7]


def test_a_cursor_that_is_gone(
    memory_ledger: MemoryLedger, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemoryKeeper, "is_compacted", doing(True))
    fire(service, 5)
    assert isinstance(service.error, Stopped)
    assert "--resume-after" in str(service.error)
    assert fired(memory_ledger) == []
    fire(service, 5, resume_after=3)
    assert fired(memory_ledger) == [4, 5]


@pytest.mark.parametrize("cursor", ["7", "7:19", "7:19:x", f"7:{10**30}:1"])
def test_a_cursor_of_another_program(
    memory_ledger: MemoryLedger, service: Service, cursor: str
) -> None:
    write_cursor(memory_ledger, cursor)
    fire(service, 5)
    assert isinstance(service.error, Stopped)
    assert "not one of this program's" in str(service.error)


@pytest.mark.parametrize("last", [3, 2])
def test_a_last_tick_that_was_fired_already(
    memory_ledger: MemoryLedger, service: Service, last: int
) -> None:
    """`--last` may be lower than before."""
    write_tick(memory_ledger, 3)
    fire(service, last)
    assert service.error is None
    assert len(fired(memory_ledger)) == 1


@pytest.mark.parametrize(
    "before",
    [Schedule(_LONG_AGO, 2.0), Schedule(_LONG_AGO + timedelta(microseconds=1), 1.0)],
)
def test_a_schedule_that_was_changed(
    memory_ledger: MemoryLedger, service: Service, before: Schedule
) -> None:
    """By the new one, the number of the last tick means another time."""
    write_cursor(memory_ledger, before.cursor(3))
    fire(service, 5)
    assert isinstance(service.error, Stopped)
    assert "tick 3 was fired by another schedule" in str(service.error)
    assert "a topic of its own" in str(service.error)
    assert len(fired(memory_ledger)) == 1


def test_a_tick_that_slept_between_its_plan_and_the_topic(
    memory_ledger: MemoryLedger, service: Service
) -> None:
    """A successor has fired it meanwhile: what comes late is not admitted."""

    def prepare(producer: Paused) -> None:
        if len(service.producers) > 1:
            return
        produce = producer.produce

        def slept(*arguments: Any, **options: Any) -> None:
            successor = memory_ledger.depose(producer.leaderships[0])
            with MemoryProducer(memory_ledger, successor) as other:
                other.take_over([TOPIC])
                schedule = Schedule(_LONG_AGO, 1.0)
                tick = json.dumps({"tick": 1})
                other.produce(TOPIC, tick, partition=0, cursor=schedule.cursor(1))
            vars(producer)["produce"] = produce
            produce(*arguments, **options)

        vars(producer)["produce"] = slept

    service.prepare = prepare
    fire(service, 2)
    assert service.error is None
    assert fired(memory_ledger) == [1, 2]
