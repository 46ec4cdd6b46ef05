"""What may be asked of a ledger, and what may be claimed."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from epochfence import ClaimLost, Ledger, LedgerUnavailable, MisconfiguredError
from epochfence.testing import MemoryLedger


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
