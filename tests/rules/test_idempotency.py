"""Idempotency keys: fixed for ever, and no two alike."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence import MisconfiguredError, command_key, message_key

LIFE = "KTgZ3vR0Q0-1_abcdefghi"
LARGEST = 2**63 - 1

_ALPHABET = "ABCXYZabcxyz0189-_"
topic_ids = st.text(_ALPHABET, min_size=22, max_size=22)
partitions = st.integers(0, 2**31 - 1)
numbers = st.integers(0, LARGEST)
scopes = st.text(_ALPHABET + "./", min_size=1, max_size=200)
messages = st.tuples(st.just(message_key), topic_ids, partitions, numbers)
commands = st.tuples(st.just(command_key), scopes, st.integers(1, LARGEST), numbers)


def key_of(made_of: tuple[Any, ...]) -> str:
    function, *arguments = made_of
    key: str = function(*arguments)
    return key


def test_these_keys_stay_as_they_are() -> None:
    """Receivers have them: a version that spells them otherwise repeats effects."""
    assert message_key(LIFE, 0, 7) == "KTgZ3vR0Q0-1_abcdefghi-0-7"
    assert message_key("-" * 22, 12, 0) == "-----------------------12-0"
    assert command_key("orders-writer", 34, 7) == "34:7:orders-writer"
    assert command_key("orders/3", 1, 0) == "1:0:orders/3"


def test_the_longest_ones() -> None:
    longest = message_key(LIFE, 2**31 - 1, LARGEST)
    assert longest == f"{LIFE}-2147483647-9223372036854775807"
    assert len(longest) == 53
    assert len(message_key(LIFE, 9, 9_999_999)) == 32
    assert len(command_key("x" * 200, LARGEST, LARGEST)) == 240


@given(messages)
def test_message_keys_fit_the_narrowest_receivers(made_of: tuple[Any, ...]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{26,53}", key_of(made_of))


@given(commands)
def test_command_keys_need_no_escaping(made_of: tuple[Any, ...]) -> None:
    assert re.fullmatch(r"[A-Za-z0-9._/:-]{5,240}", key_of(made_of))


@given(messages | commands, messages | commands)
def test_no_two_are_alike(one: tuple[Any, ...], other: tuple[Any, ...]) -> None:
    assert (key_of(one) == key_of(other)) == (one == other)


@given(st.data())
def test_none_is_like_another_that_is_cut_elsewhere(data: st.DataObject) -> None:
    """What a key is made of can be read from it: so it is made of nothing else."""
    made_of = data.draw(messages | commands)
    key = key_of(made_of)
    read: tuple[Any, ...]
    if ":" in key:
        epoch, sequence, scope = key.split(":")
        read = (command_key, scope, int(epoch), int(sequence))
    else:
        partition, offset = key[23:].split("-")
        read = (message_key, key[:22], int(partition), int(offset))
    assert read == made_of


@pytest.mark.parametrize("topic_id", [None, "", "orders", "x" * 23, "+" * 22, 7])
def test_without_the_topics_id_there_is_no_key(topic_id: Any) -> None:
    with pytest.raises(MisconfiguredError, match="made anew") as refused:
        message_key(topic_id, 0, 0)
    assert refused.value.setting == "topic_id"


@pytest.mark.parametrize("number", [-1, 2**63, True, 1.0, "1", None])
def test_numbers_that_are_none(number: Any) -> None:
    for arguments in ((LIFE, number, 0), (LIFE, 0, number)):
        with pytest.raises(MisconfiguredError, match="Use a whole number"):
            message_key(*arguments)
    for arguments in (("w", number, 0), ("w", 1, number)):
        with pytest.raises(MisconfiguredError, match="Use a whole number"):
            command_key(*arguments)


def test_what_a_leader_cannot_have() -> None:
    for scope in ("~generation", "a:b", "", "x" * 201):
        with pytest.raises(MisconfiguredError, match="no scope name"):
            command_key(scope, 1, 0)
    with pytest.raises(MisconfiguredError, match="no epoch"):
        command_key("w", 0, 0)
