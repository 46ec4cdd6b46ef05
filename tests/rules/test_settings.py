"""The settings of a fence: what is misspelt is an error, never "off"."""

from __future__ import annotations

from typing import Any

import pytest

from epochfence import ForeignHeader as FH
from epochfence import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"unstamped": "quarantene"}, ["unstamped", "quarantene", "'admit'"]),
        ({"authority": "legder"}, ["authority", "legder", "'max-seen'"]),
        ({"require": "orders"}, ["require", "['orders']"]),
        ({"require": ["a b"]}, ["scope", "a b", "A-Z a-z 0-9"]),
        ({"require": [7]}, ["require", "7"]),
        ({"require": None}, ["require", "None", "list"]),
        ({"require": ["x" * 195 + "/{partition}"]}, ["scope", "1 to 200"]),
        ({"max_jump": 10}, ["max_jump", "authority ledger", "max-seen"]),
        ({"max_jump": 0, "authority": "max-seen"}, ["max_jump", "0"]),
        ({"max_jump": "9", "authority": "max-seen"}, ["max_jump", "'9'"]),
        (
            {"stamps": stamp_reader("e:decimal"), "authority": "ledger"},
            ["authority", "e:decimal", "max-seen"],
        ),
        (
            {"stamps": stamp_reader("e:decimal"), "require": ["orders"]},
            ["require", "orders", "~e"],
        ),
        ({"stamps": "e:decimal"}, ["stamps", "ForeignHeader"]),
    ],
)
def test_wrong_settings(settings: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(MisconfiguredError) as refused:
        FenceSettings(**settings)
    text = str(refused.value)
    assert [word for word in words if word not in text] == []


def test_a_misspelt_name_is_an_error() -> None:
    with pytest.raises(TypeError, match="unstampd"):
        FenceSettings(unstampd="admit")  # type: ignore[call-arg]


def test_a_scope_for_each_partition() -> None:
    settings = FenceSettings(["orders/{partition}", "orders/3", "all"])
    assert settings.required_scopes(2) == ("orders/2", "orders/3", "all")
    assert settings.required_scopes(3) == ("orders/3", "all")


def test_defaults() -> None:
    ours = FenceSettings()
    assert (ours.require, ours.authority, ours.unstamped) == ((), "ledger", None)
    assert FenceSettings(stamps=stamp_reader("e:decimal")).authority == "max-seen"


def test_settings_are_immutable() -> None:
    with pytest.raises(ValueError, match="frozen"):
        FenceSettings().authority = "max-seen"


def test_the_digest_tells_settings_apart() -> None:
    some = [
        FenceSettings(),
        FenceSettings(["a"]),
        FenceSettings(["a", "b"]),
        FenceSettings(unstamped="admit"),
        FenceSettings(authority="max-seen"),
        FenceSettings(authority="max-seen", max_jump=3),
        FenceSettings(stamps=stamp_reader("e:decimal")),
        FenceSettings(stamps=stamp_reader("e:int64be")),
    ]
    assert len({one.digest() for one in some}) == len(some)
    assert FenceSettings(["b", "a"]).digest() == FenceSettings(["a", "b", "a"]).digest()
    # What nobody has decided on, nobody goes on with: the same epochs begin.
    assert (
        FenceSettings(["a"]).digest()
        == FenceSettings(["a"], unstamped="quarantine").digest()
    )
    # Spelt out: rows of the table carry it.
    assert FenceSettings().digest() == "59dcb38bcd939915"


def test_settings_are_shown_as_they_are_given() -> None:
    for shown in (
        "FenceSettings(['a'])",
        "FenceSettings([], unstamped='admit')",
        "FenceSettings(['~e'], stamps=ForeignHeader('e', 'decimal'), max_jump=9)",
        "FenceSettings([], authority='max-seen')",
    ):
        again = eval(shown, {"FenceSettings": FenceSettings, "ForeignHeader": FH})
        assert repr(again) == str(again) == shown


def test_what_is_decided_stays_so() -> None:
    assert FenceSettings(["a"]).decided().unstamped == "quarantine"
    for one in ("admit", "quarantine", "admit-until-first-stamp"):
        assert FenceSettings(["a"], unstamped=one).decided().unstamped == one


@pytest.mark.parametrize(
    ("scope", "told"),
    [
        ("~gen", "ForeignHeader('gen', 'decimal')"),
        ("orders/{part}", "{partition} stands for the partition's number"),
        ("{}", "{partition} stands for"),
        ("orders/{partition", "no scope name"),
    ],
)
def test_scopes_that_are_mistaken_for_something_else(scope: str, told: str) -> None:
    with pytest.raises(MisconfiguredError) as wrong:
        FenceSettings([scope])
    assert told in str(wrong.value)
