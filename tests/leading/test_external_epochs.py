"""Leading under numbers that another system gives, without a broker."""

from __future__ import annotations

import itertools
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from epochfence import (
    ClaimLost,
    EpochUnavailable,
    LedgerRegressed,
    MisconfiguredError,
    lead,
)
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from support.local_election import LocalElection, LocalOffice
from support.local_lead import SCOPE
from support.waiting import wait_until

_WAIT_S = 30


class Told:
    """What a candidate has told of its states."""

    def __init__(self) -> None:
        self.all: list[tuple[str, str]] = []

    def __call__(self, state: str, reason: str) -> None:
        self.all.append((state, reason))

    def has(self, *words: str) -> bool:
        return any(
            state == "waiting" and all(word in reason for word in words)
            for state, reason in self.all
        )


def new_lead(
    ledger: MemoryLedger,
    election: LocalElection,
    epoch: Callable[[], Any],
    **options: Any,
) -> lead:
    given: dict[str, Any] = {
        "topics": [],
        "holder": "a",
        "longest_wait_s": 0.2,
        "new_producer": partial(MemoryProducer, ledger),
        **options,
    }
    return lead({}, ledger, election, SCOPE, epoch=epoch, **given)


def numbers(*given: Any) -> Callable[[], Any]:
    """Gives these, one after the other; what is an error is raised."""
    left = iter(given)

    def next_one() -> Any:
        number = next(left)
        if isinstance(number, Exception):
            raise number
        return number

    return next_one


def waits_of(caplog: pytest.LogCaptureFixture) -> list[float]:
    return [float(text) for text in re.findall(r"again in ([0-9.]+) s", caplog.text)]


def test_the_number_that_is_given_is_the_epoch(
    memory_ledger: MemoryLedger, election: LocalElection
) -> None:
    leading = new_lead(memory_ledger, election, numbers(5, 9))
    for expected in (5, 9):
        with leading as tenure:
            assert tenure.leadership.epoch == expected
            tenure.verify()
    assert memory_ledger.state.epoch_of(SCOPE) == 9


def test_the_number_is_asked_for_with_the_office(
    memory_ledger: MemoryLedger, election: LocalElection
) -> None:
    """Before, it would be below that of whoever was elected meanwhile."""
    held: list[bool] = []

    def epoch() -> int:
        held.append(election.is_elected)
        return 1

    with new_lead(memory_ledger, election, epoch):
        assert held == [True]


def test_who_slept_before_it_got_a_number_loses(
    memory_ledger: MemoryLedger, election: LocalElection
) -> None:
    """A counter gives it one above its successor's, which would win by itself."""
    counter = itertools.count(4)
    told = Told()

    def claimed_meanwhile() -> None:
        memory_ledger.claim(SCOPE, holder="quicker", exactly=next(counter))
        election.on_won = lambda: None

    election.on_won = claimed_meanwhile
    with new_lead(
        memory_ledger, election, lambda: next(counter), on_state=told
    ) as tenure:
        assert tenure.leadership.epoch == 6
        assert election.resignations == 1
    assert told.has("epoch 5", "epoch 4 is held by 'quicker'")
    assert not told.has("fallen behind")
    assert [claim.epoch for claim, _ in memory_ledger.claims()] == [4, 6]


def test_numbers_that_have_fallen_behind_are_told_and_not_claimed(
    memory_ledger: MemoryLedger,
    election: LocalElection,
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory_ledger.claim(SCOPE, holder="z", exactly=9)
    given = numbers(3, 4, 5, 9, 10)
    told = Told()
    with new_lead(memory_ledger, election, given, on_state=told) as tenure:
        assert tenure.leadership.epoch == 10
        assert election.resignations == 4
    for number in (3, 4, 5, 9):
        words = (f"epoch {number} ", "epoch 9 is held by 'z'", "set it above 9")
        assert told.has(*words)
        assert all(word in caplog.text for word in words)
    assert waits_of(caplog) == [0.1, 0.2, 0.2, 0.2]
    assert [claim.epoch for claim, _ in memory_ledger.claims()] == [9, 10]


@pytest.mark.parametrize(
    ("other_claims", "waits"),
    [(True, [0.1, 0.2, 0.4, 0.1]), (False, [0.1, 0.2, 0.4, 0.8])],
)
def test_waits_are_short_again_once_somebody_has_led(
    memory_ledger: MemoryLedger,
    office: LocalOffice,
    election: LocalElection,
    caplog: pytest.LogCaptureFixture,
    other_claims: bool,
    waits: list[float],
) -> None:
    """And not when another was elected whose numbers have fallen behind, too."""
    memory_ledger.claim(SCOPE, holder="z", exactly=9)
    other = LocalElection(office)
    campaign = election.campaign
    unsuccessful: list[float] = []

    def counted(timeout_s: float) -> bool:
        is_elected = campaign(timeout_s)
        if not is_elected:
            unsuccessful.append(timeout_s)
        return is_elected

    vars(election)["campaign"] = counted

    def lead_for_a_while() -> None:
        wait_until(lambda: other.campaign(0), _WAIT_S, "the other is elected")
        if other_claims:
            memory_ledger.claim(SCOPE, holder="other", exactly=11)
        # The second begins after that claim.
        enough = len(unsuccessful) + 2
        wait_until(lambda: len(unsuccessful) >= enough, _WAIT_S, "the first waits")
        other.resign()

    thread = threading.Thread(target=lead_for_a_while)

    given = iter([3, 4, 5, 6, 20])

    def epoch() -> int:
        number = next(given)
        if number == 5:
            assert not other.campaign(0)  # it comes next
            thread.start()
        return number

    with new_lead(memory_ledger, election, epoch, longest_wait_s=5) as tenure:
        assert tenure.leadership.epoch == 20
    thread.join(_WAIT_S)
    assert waits_of(caplog) == waits


@pytest.mark.parametrize(
    ("nothing", "told_of_it"),
    [
        (None, "it gave None"),
        (EpochUnavailable("sequence s", "no server answers"), "no server answers"),
    ],
)
def test_where_there_is_no_number_now_it_is_asked_for_again(
    memory_ledger: MemoryLedger,
    election: LocalElection,
    nothing: object,
    told_of_it: str,
) -> None:
    told = Told()
    given = numbers(nothing, nothing, 7)
    with new_lead(memory_ledger, election, given, on_state=told) as tenure:
        assert tenure.leadership.epoch == 7
        assert election.resignations == 2
    assert told.has(told_of_it, "try again")


@pytest.mark.parametrize("error", [ZeroDivisionError(), ClaimLost("other", 1, 2, "x")])
def test_what_the_function_raises_ends_it(
    memory_ledger: MemoryLedger, election: LocalElection, error: Exception
) -> None:
    with (
        pytest.raises(type(error)) as raised,
        new_lead(memory_ledger, election, numbers(error)),
    ):
        pass
    assert raised.value is error
    assert not election.is_elected
    assert list(memory_ledger.claims()) == []


@pytest.mark.parametrize("number", [0, -3, "7", True, 2**63])
def test_what_is_no_epoch_ends_it(
    memory_ledger: MemoryLedger, election: LocalElection, number: object
) -> None:
    with (
        pytest.raises(MisconfiguredError, match=r"epoch = .*no epoch"),
        new_lead(memory_ledger, election, numbers(number)),
    ):
        pass
    assert not election.is_elected


def test_a_huge_number_is_meant_only_where_that_is_said(
    memory_ledger: MemoryLedger, election: LocalElection
) -> None:
    zxid = (7 << 32) + 1
    with (
        pytest.raises(MisconfiguredError, match="allow_jump=True"),
        new_lead(memory_ledger, election, numbers(zxid)),
    ):
        pass
    given = numbers(zxid)
    with new_lead(memory_ledger, election, given, allow_jump=True) as tenure:
        assert tenure.leadership.epoch == zxid


@pytest.fixture
def in_use(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> int:
    """An epoch under which a message was written, and admitted."""
    memory_log.create_topic("orders")
    leader = memory_ledger.claim(SCOPE, holder="z", exactly=40)
    with MemoryProducer(memory_ledger, leader) as producer:
        producer.take_over(["orders"])
        producer.produce("orders", "x")
    with MemoryConsumer(memory_ledger, require={"orders": [SCOPE]}) as consumer:
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer] == [b"x"]
    return leader.epoch


@pytest.mark.parametrize("number", [1, 40, 41])
def test_where_the_ledger_was_lost_no_number_is_good_enough(
    memory_ledger: MemoryLedger, election: LocalElection, in_use: int, number: int
) -> None:
    memory_ledger.lose_grants()
    for claim in (
        lambda: memory_ledger.claim(SCOPE, holder="b", exactly=number),
        new_lead(memory_ledger, election, numbers(number)).__enter__,
    ):
        with pytest.raises(LedgerRegressed) as regressed:
            claim()
        assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (0, 40)
    assert list(memory_ledger.claims()) == []
    # The operator's way out; from then on numbers have to be above that.
    memory_ledger.claim(SCOPE, holder="operator", at_least=in_use + 1)
    with pytest.raises(ClaimLost):
        memory_ledger.claim(SCOPE, holder="b", exactly=number)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"epoch": 7}, "epoch = 7"),
        ({"epoch": None, "allow_jump": True}, "allow_jump = True"),
    ],
)
def test_settings_that_make_no_sense(
    memory_ledger: MemoryLedger,
    election: LocalElection,
    options: dict[str, Any],
    told: str,
) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        new_lead(memory_ledger, election, **options)
    assert told in str(wrong.value)
