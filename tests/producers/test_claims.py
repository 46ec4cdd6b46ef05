"""What may be asked of a ledger, and what may be claimed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from epochfence import (
    Claimed,
    ClaimLost,
    ClaimUnknown,
    Ledger,
    LedgerUnavailable,
    MisconfiguredError,
)
from epochfence.testing import MemoryLedger
from epochfence.testing.clients import MemorySyncedLog


@pytest.mark.rule(16)
def test_the_epoch_may_be_asked_for(memory_ledger: MemoryLedger) -> None:
    claim = memory_ledger.claim
    assert claim("s", holder="a", seen=0).epoch == 1
    with pytest.raises(ClaimLost):
        claim("s", holder="b", seen=0)
    assert claim("s", holder="b", at_least=100).epoch == 100
    assert claim("s", holder="c", exactly=200).epoch == 200
    assert claim("s", holder="c", at_least=150).epoch == 201
    with pytest.raises(ClaimLost) as lost:
        claim("s", holder="d", exactly=201)
    assert (lost.value.latest_epoch, lost.value.holder) == (201, "c")
    with pytest.raises(MisconfiguredError, match="allow_jump"):
        claim("s", holder="d", at_least=2**60)
    far = claim("s", holder="d", at_least=2**60, allow_jump=True)
    assert far.epoch == 2**60
    assert claim("other/3", holder="d").epoch == 1


@pytest.mark.parametrize(
    ("scope", "more", "words"),
    [
        ("a b", {}, "A-Z a-z 0-9"),
        ("s", {"exactly": 2**63}, "2\\^63-1"),
        ("s", {"attributes": {"a": "x" * 200_000}}, "attributes"),
        ("s", {"attributes": {"a": 7}}, "attributes.'a'"),
        ("s", {"attributes": ["a"]}, "attributes"),
        ("s", {"holder": "\ud800"}, "holder"),
        ("s", {"holder": None}, "holder"),
        ("s", {"at_least": 50.0}, "at_least"),
        ("s", {"seen": "3"}, "seen"),
        ("s", {"exactly": True}, "exactly"),
        ("s", {"timeout_s": float("inf")}, "timeout_s"),
        ("s", {"timeout_s": float("nan")}, "timeout_s"),
        ("s", {"timeout_s": -1}, "timeout_s"),
        (None, {}, "scope"),
    ],
)
def test_a_claim_that_makes_no_sense(
    memory_ledger: MemoryLedger, scope: Any, more: dict[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {"holder": "a", **more}
    with pytest.raises(MisconfiguredError, match=words):
        memory_ledger.claim(scope, **arguments)
    assert list(memory_ledger.claims()) == []


@pytest.mark.parametrize("config", ["localhost:9092", None, ["a"], {}])
def test_a_config_that_is_none(config: Any) -> None:
    with pytest.raises(MisconfiguredError, match=r"bootstrap\.servers"):
        Ledger(config)


def test_what_a_ledger_cannot_do(memory_ledger: MemoryLedger) -> None:
    watcher: Any = 5
    with pytest.raises(MisconfiguredError, match="on_grant"):
        memory_ledger.watch(watcher)
    with pytest.raises(TypeError, match="in each process"):
        pickle.dumps(memory_ledger)
    leadership = memory_ledger.claim("s", holder="a", attributes={"a": "b"})
    attributes: Any = leadership.attributes
    with pytest.raises(TypeError):
        attributes["a"] = "c"
    memory_ledger.close()
    with pytest.raises(LedgerUnavailable, match="closed"):
        memory_ledger.watch(print)


# Many claims at once.


@pytest.mark.rule(16)
def test_many_scopes_are_claimed_at_once(memory_ledger: MemoryLedger) -> None:
    memory_ledger.claim("orders/1", holder="a")
    memory_ledger.claim("orders/2", holder="a")
    claimed = memory_ledger.claim_all(
        ["orders/0", "orders/1", "orders/2", "orders/0"],
        holder="b",
        seen={"orders/0": 0, "orders/1": 0},
        attributes={"url": "here"},
    )
    assert {scope: one.epoch for scope, one in claimed.won.items()} == {
        "orders/0": 1,
        "orders/2": 2,
    }
    for one in claimed.won.values():
        one.verify()
        assert (one.holder, dict(one.attributes)) == ("b", {"url": "here"})
    assert len({one.grant_id for one in claimed.won.values()}) == 2
    (lost,) = claimed.failed.values()
    assert isinstance(lost, ClaimLost)
    assert (lost.scope, lost.claimed_epoch, lost.latest_epoch) == ("orders/1", 1, 1)
    assert len(list(memory_ledger.claims())) == 4, "who has lost already asks nobody"
    assert memory_ledger.claim_all([], holder="b") == Claimed({}, {})


def test_one_claim_of_many_is_not_known(memory_ledger: MemoryLedger) -> None:
    memory_ledger.lose_outcome()
    memory_ledger.lose_outcome(granted=False)
    claimed = memory_ledger.claim_all(["a", "b", "c"], holder="x")
    assert list(claimed.won) == ["c"]
    assert list(map(type, claimed.failed.values())) == [ClaimUnknown] * 2
    assert list(claimed.failed) == ["a", "b"]
    assert [claim.scope for claim, _ in memory_ledger.claims()] == ["a", "c"]


def test_many_claims_that_nobody_can_read_back(memory_ledger: MemoryLedger) -> None:
    error = LedgerUnavailable(memory_ledger.coordination_topic, "no broker answers")
    memory_ledger.fail(error)
    with pytest.raises(LedgerUnavailable):
        memory_ledger.claim_all(["a", "b"], holder="x")
    assert list(memory_ledger.claims()) == []


def test_some_time_is_kept_for_reading_claims_back(
    memory_ledger: MemoryLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nothing would be known of what was granted before the time was over."""
    append_all, read_to_end = MemorySyncedLog.append_all, MemorySyncedLog.read_to_end
    deadlines: list[float] = []

    def appending(
        log: MemorySyncedLog, records: Any, deadline: float, **options: Any
    ) -> Any:
        deadlines.append(deadline)
        return append_all(log, records, deadline, **options)

    def reading(log: MemorySyncedLog, deadline: float) -> None:
        deadlines.append(deadline)
        read_to_end(log, deadline)

    monkeypatch.setattr(MemorySyncedLog, "append_all", appending)
    monkeypatch.setattr(MemorySyncedLog, "read_to_end", reading)
    memory_ledger.claim_all(["a", "b"], holder="x", timeout_s=60)
    read_before_by, append_by, read_by = deadlines
    assert read_before_by == read_by
    assert 10 < read_by - append_by <= 15


@pytest.mark.parametrize(
    ("scopes", "more", "words"),
    [
        ("orders/3", {}, r"Use .'orders/3'."),
        (7, {}, "a list of scopes"),
        (["a b"], {}, "A-Z a-z 0-9"),
        (["a", None], {}, "scope"),
        (["a"], {"seen": 3}, "a mapping of scopes"),
        (["a"], {"seen": {"a": "3"}}, "seen"),
        (["a"], {"seen": {"a": 2**40}}, r"this scope alone.*allow_jump"),
        (["a"], {"seen": {"b": 0}}, "none of the scopes"),
        (["a"], {"holder": None}, "holder"),
        (["a"], {"attributes": {"a": "x" * 200_000}}, "attributes"),
        (["a"], {"timeout_s": -1}, "timeout_s"),
    ],
)
def test_many_claims_that_make_no_sense(
    memory_ledger: MemoryLedger, scopes: Any, more: dict[str, Any], words: str
) -> None:
    arguments: dict[str, Any] = {"holder": "a", **more}
    with pytest.raises(MisconfiguredError, match=words):
        memory_ledger.claim_all(scopes, **arguments)
    assert list(memory_ledger.claims()) == []
