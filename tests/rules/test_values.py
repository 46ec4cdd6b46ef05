"""Values of docs/rules.md: what exists, exists only in a correct form."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from epochfence import Claim, MisconfiguredError, Position, Stamp
from support.histories import claim, grant_id

GOOD_ID = "9f3a1c22d4e5b6a7"


@pytest.mark.rule(1)
@pytest.mark.parametrize("scope", ["a", "orders/3", "A-z_0.9/-", "x" * 200])
def test_good_scopes(scope: str) -> None:
    assert Stamp(scope, 1, GOOD_ID).scope == scope


@pytest.mark.rule(1)
@pytest.mark.parametrize(
    "scope", ["", "x" * 201, "a b", "a:b", "ä", "a\n", "a\0", " a", "a{0}"]
)
def test_bad_scopes_name_the_alphabet(scope: str) -> None:
    with pytest.raises(MisconfiguredError, match="A-Z a-z 0-9"):
        Stamp(scope, 1, GOOD_ID)


@pytest.mark.rule(2)
def test_epochs_are_1_to_the_largest_64_bit_integer() -> None:
    assert Stamp("s", 1, GOOD_ID).epoch == 1
    assert Stamp("s", 2**63 - 1, GOOD_ID).epoch == 2**63 - 1
    for epoch in (0, -1, 2**63):
        with pytest.raises(MisconfiguredError, match="2\\^63-1"):
            Claim("s", epoch, 0, GOOD_ID, "h", 0)


@pytest.mark.rule(2)
@pytest.mark.parametrize("epoch", [True, 1.0, "1", None])
def test_an_epoch_is_a_whole_number(epoch: Any) -> None:
    with pytest.raises(MisconfiguredError, match="whole number"):
        Stamp("s", epoch, GOOD_ID)


@pytest.mark.rule(1)
@pytest.mark.parametrize("scope", [None, 7, b"s"])
def test_a_scope_is_a_text(scope: Any) -> None:
    with pytest.raises(MisconfiguredError, match="scope"):
        Stamp(scope, 1, GOOD_ID)


@pytest.mark.rule(3)
@pytest.mark.parametrize(
    "bad", ["", GOOD_ID[:-1], GOOD_ID + "0", GOOD_ID.upper(), GOOD_ID[:-1] + "\n"]
)
def test_grant_ids_are_16_lower_case_hex_digits(bad: str) -> None:
    with pytest.raises(MisconfiguredError, match="16 lower-case hex"):
        Claim("s", 1, 0, bad, "h", 0)


@pytest.mark.rule(4)
@pytest.mark.parametrize(
    ("first", "second", "is_at_or_before"),
    [
        (Position(3, 100), Position(5, 91), True),
        (Position(5, 91), Position(3, 100), False),
        (Position(3, 100), Position(3, 100), True),
        (Position(3, 100), Position(3, 99), False),
        (Position(None, 100), Position(5, 91), False),
        (Position(3, 100), Position(None, 100), True),
        (Position(None, 5), Position(None, 4), False),
    ],
)
def test_positions(first: Position, second: Position, is_at_or_before: bool) -> None:
    assert first.is_at_or_before(second) is is_at_or_before


def test_a_foreign_stamp_has_no_grant_id() -> None:
    assert Stamp("~epoch", 0, None).epoch == 0
    with pytest.raises(MisconfiguredError, match="foreign"):
        Stamp("~epoch", 1, GOOD_ID)


def test_values_are_immutable_and_can_be_pickled() -> None:
    value = claim("s", 3)
    with pytest.raises(AttributeError):
        value.epoch = 4  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(value)) == value
    assert value.stamp == Stamp("s", 3, grant_id(3))
