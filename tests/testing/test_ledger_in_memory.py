"""The testing kit's ledger: what is decided as ever, and what it can be told to do."""

from __future__ import annotations

import pytest

from epochfence import (
    Claim,
    ClaimLost,
    ClaimUnknown,
    Deposed,
    Ledger,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
)
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer

UNAVAILABLE = LedgerUnavailable("epochfence.coordination", "no broker answers")


def test_claims_follow_one_another_and_depose_the_one_before() -> None:
    with MemoryLedger() as ledger:
        assert isinstance(ledger, Ledger)
        assert ledger.leader("w") is None
        first = ledger.claim("w", holder="a", attributes={"url": "here"})
        first.verify()
        second = ledger.depose(first)
        assert (first.epoch, second.epoch, second.holder) == (1, 2, "successor")
        second.verify()
        with pytest.raises(Deposed) as deposed:
            first.verify()
        assert (deposed.value.held_epoch, deposed.value.seen_epoch) == (1, 2)
        with pytest.raises(ClaimLost):
            ledger.claim("w", holder="late", seen=1)
        assert ledger.claim("w", holder="b", at_least=9).epoch == 9
        assert [claim.epoch for claim, won in ledger.claims() if won] == [1, 2, 9]
    with pytest.raises(LedgerClosed):
        ledger.claim("w", holder="a")


def test_two_ledgers_on_one_log_are_two_processes() -> None:
    log = MemoryLog()
    with MemoryLedger(log) as mine, MemoryLedger(log) as theirs:
        granted: list[Claim] = []
        stop = theirs.watch(granted.append)
        leadership = mine.claim("w", holder="a")
        assert granted == [leadership.claim]
        assert theirs.leader("w") == leadership.claim
        theirs.verify(leadership)
        stop()
        mine.depose(leadership)
        assert len(granted) == 1
    with (
        MemoryLedger() as elsewhere,
        pytest.raises(MisconfiguredError, match="it was granted by"),
    ):
        elsewhere.verify(leadership)


def test_a_watcher_must_not_wait() -> None:
    with MemoryLedger() as ledger:
        met: list[str] = []

        def wait(_: Claim) -> None:
            try:
                ledger.refresh()
            except LedgerUnavailable as error:
                met.append(error.reason)

        ledger.watch(wait)
        ledger.claim("w", holder="a")
        assert met == ["a watcher must not wait for what it holds up"]


def test_it_fails_as_often_as_it_was_told_to() -> None:
    with MemoryLedger() as ledger:
        leadership = ledger.claim("w", holder="a")
        ledger.fail(UNAVAILABLE, times=2)
        for call in (leadership.verify, ledger.refresh):
            with pytest.raises(LedgerUnavailable, match="no broker answers") as met:
                call()
            assert met.value is not UNAVAILABLE
        ledger.fail(UNAVAILABLE)
        with pytest.raises(LedgerUnavailable):
            ledger.claim("w", holder="b")
        assert ledger.refresh().epoch_of("w") == 1, "nothing was claimed"


def test_the_table_fails_those_who_read_it() -> None:
    log = MemoryLog()
    log.create_topic("t")
    with MemoryLedger(log) as ledger:
        producer = MemoryProducer(ledger, ledger.claim("w", holder="a"))
        ledger.fail(TableUnavailable("epochfence.starts", "no broker answers"))
        ledger.refresh()
        with pytest.raises(TableUnavailable):
            producer.take_over(["t"])
        producer.take_over(["t"])


@pytest.mark.parametrize("granted", [True, False])
def test_the_outcome_of_a_claim_gets_lost(granted: bool) -> None:
    with MemoryLedger() as ledger:
        ledger.lose_outcome(granted=granted)
        with pytest.raises(ClaimUnknown) as unknown:
            ledger.claim("w", holder="a")
        assert ledger.refresh().epoch_of("w") == (1 if granted else 0)
        again = ledger.claim("w", holder="a")
        assert again.epoch == (2 if granted else 1)
        assert again.grant_id != unknown.value.grant_id


def test_lost_grants_are_noticed() -> None:
    with MemoryLedger() as ledger:
        leadership = ledger.claim("w", holder="a", at_least=7)
        ledger.lose_grants()
        for call in (ledger.refresh, leadership.verify):
            with pytest.raises(LedgerRegressed) as regressed:
                call()
            assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (0, 7)
        assert ledger.claim("w", holder="b", at_least=8).epoch == 8


def test_what_makes_no_sense() -> None:
    with MemoryLedger() as ledger:
        with pytest.raises(MisconfiguredError, match="no error that the library"):
            ledger.fail(OSError())  # type: ignore[arg-type]
        with pytest.raises(MisconfiguredError, match="times = 0"):
            ledger.lose_outcome(times=0)
        with pytest.raises(MisconfiguredError, match="it is none"):
            ledger.depose("w")  # type: ignore[arg-type]
