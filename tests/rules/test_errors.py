"""Errors: one cause per type, the numbers involved, and what to do next."""

from __future__ import annotations

import pickle

import pytest

import epochfence
from epochfence import EpochfenceError

_ERRORS: list[tuple[EpochfenceError, list[str]]] = [
    (epochfence.Deposed("s", 34, 35, "pod-8"), ["34", "35", "'pod-8'", "Stop"]),
    (epochfence.ClaimLost("s", 34, 35, "pod-8"), ["34", "35", "'pod-8'", "Follow"]),
    (
        epochfence.ClaimUnknown("s", 34, "9f3a1c22d4e5b6a7", "no answer"),
        ["34", "9f3a1c22d4e5b6a7", "no answer", "claim again"],
    ),
    (
        epochfence.SinkFenced("t", 3, ("id", 1, 5), ("id", 1, 9)),
        ["t[3]", "5", "9", "Drop the batch"],
    ),
    (epochfence.LedgerUnavailable("c", "gone", 7), ["'c'", "gone", "7", "Nothing"]),
    (
        epochfence.SinkFenced("t", 3, ("id", 1, 5), (None, None, None)),
        ["t[3]", "5", "emptied", "Nothing was changed"],
    ),
    (
        epochfence.SinkUnavailable("orders.db", "database is locked"),
        ["orders.db", "locked", "Try again", "position"],
    ),
    (
        epochfence.TransactionAborted("c/w", "another has taken it"),
        ["'c/w'", "another has taken it", "the whole transaction again"],
    ),
    (
        epochfence.TransactionUnknown("c/w", "no answer"),
        ["'c/w'", "no answer", "not known", "confirm()"],
    ),
    (
        epochfence.ElectionUnavailable("of w at etcd", "connection refused"),
        ["of w at etcd", "connection refused", "Nothing was decided", "try again"],
    ),
    (
        epochfence.NotAssigned("t", 3, "it was revoked"),
        ["t[3]", "it was revoked", "Drop", "polling"],
    ),
    (
        epochfence.ClaimLost("s", 3, 7, "pod-7", is_exact=True),
        ["3", "'s'", "7", "'pod-7'", "fallen behind", "set it above 7"],
    ),
    (
        epochfence.EpochUnavailable("sequence billing_epoch", "connection refused"),
        ["sequence billing_epoch", "refused", "Nothing was claimed", "try again"],
    ),
    (epochfence.LedgerClosed("c"), ["'c'", "closed", "Nothing", "Open another"]),
    (epochfence.TableUnavailable("c", "gone"), ["'c'", "gone", "Nothing"]),
    (epochfence.TopicUnavailable("t", "gone", 3, 9), ["3", "'t'", "gone", "9"]),
    (epochfence.TopicUnavailable("t", "gone"), ["'t'", "gone"]),
    (
        epochfence.LedgerRegressed("s", 4, 9),
        ["4", "9", "epochfence ledger claim s --at-least 10"],
    ),
    (epochfence.LedgerRegressed("s", 0, 9), ["no epoch at all", "9"]),
    (epochfence.TableMissing("t", 3, 50, 4, 2), ["t[3]", "50", "4", "2", "Rebuild"]),
    (epochfence.EpochExhausted("s", 2**63 - 1), [str(2**63 - 1), "new scope"]),
    (
        epochfence.MisconfiguredError("acks", 1, "too few", "Leave it out."),
        ["acks", "1", "too few", "Leave it out."],
    ),
]


@pytest.mark.parametrize(
    ("error", "words"), _ERRORS, ids=[type(error).__name__ for error, _ in _ERRORS]
)
def test_message_names_numbers_and_remedy(
    error: EpochfenceError, words: list[str]
) -> None:
    text = str(error)
    assert [word for word in words if word not in text] == []


@pytest.mark.parametrize(
    "error", [error for error, _ in _ERRORS], ids=lambda error: type(error).__name__
)
def test_errors_can_be_pickled(error: EpochfenceError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert vars(again) == vars(error)
    assert str(again) == str(error)


def test_every_public_error_is_tried_here() -> None:
    public = {
        name
        for name in epochfence.__all__
        if isinstance(getattr(epochfence, name), type)
        and issubclass(getattr(epochfence, name), EpochfenceError)
    }
    tried = {type(error).__name__ for error, _ in _ERRORS}
    assert public - tried == {"EpochfenceError"}
