"""Cutting a batch of the client: by partitions, and at its events."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import KafkaError, Message
from hypothesis import given
from hypothesis import strategies as st

from epochfence.consumers.pieces import Piece, cut, share_headers

Header = tuple[str, str | bytes | None]
STAMP: list[Header] = [("epochfence", b"s")]


def at(
    partition: int, topic: str = "t", headers: list[Header] | None = None
) -> Message:
    return Message(topic=topic, partition=partition, headers=headers)


def event(partition: int = 0) -> Message:
    error = KafkaError(KafkaError._PARTITION_EOF)
    return Message(topic="t", partition=partition, error=error)


@pytest.mark.parametrize("headers", [None, STAMP])
@pytest.mark.parametrize("is_one_topic", [True, False])
def test_where_the_partition_changes(
    is_one_topic: bool, headers: list[Header] | None
) -> None:
    assert list(cut([], is_one_topic=is_one_topic)) == []
    one = [at(1, headers=headers), at(1, headers=headers)]
    (piece,) = cut(one, is_one_topic=is_one_topic, are_alike=True)
    assert (piece.place, piece.are_alike) == (("t", 1), True)
    assert piece.messages is one
    mixed = [at(0), at(1), at(1), at(0)]
    assert list(cut(mixed, is_one_topic=is_one_topic, are_alike=True)) == [
        Piece(("t", 0), mixed[:1], True),
        Piece(("t", 1), mixed[1:3], True),
        Piece(("t", 0), mixed[3:], True),
    ]
    if not is_one_topic:
        two = [at(0), at(0, "u"), at(0, "u")]
        assert list(cut(two)) == [
            Piece(("t", 0), two[:1], None),
            Piece(("u", 0), two[1:], None),
        ]


def test_what_is_known_is_not_asked() -> None:
    batch = [at(0), at(0)]
    pieces = list(cut(batch, only=("t", 7), are_alike=True))
    assert pieces == [Piece(("t", 7), batch, True)]


def test_an_error_is_true() -> None:
    """Events are looked for by the truth of `Message.error()`."""
    assert bool(KafkaError(KafkaError._PARTITION_EOF))


KINDS: dict[str, Callable[[], Message]] = {
    "stamped": lambda: at(0, headers=STAMP),
    "other": lambda: at(0, headers=[("epochfence", b"r")]),
    "bare": lambda: at(0),
    "elsewhere": lambda: at(1, headers=STAMP),
    "event": event,
}


@given(
    st.lists(st.sampled_from(sorted(KINDS)), max_size=8), st.booleans(), st.booleans()
)
def test_nothing_is_lost_and_no_event_is_taken_for_a_record(
    kinds: list[str], is_one_topic: bool, has_compared: bool
) -> None:
    batch = [KINDS[kind]() for kind in kinds]
    are_alike = share_headers(batch) if has_compared else None
    pieces = list(cut(batch, is_one_topic=is_one_topic, are_alike=are_alike))
    assert [m for piece in pieces for m in piece.messages] == batch
    for piece in pieces:
        assert piece.messages
        if piece.place is None:
            assert all(m.error() is not None for m in piece.messages)
            continue
        assert {(m.topic(), m.partition()) for m in piece.messages} == {piece.place}
        assert all(m.error() is None for m in piece.messages)
        if piece.are_alike:
            assert share_headers(piece.messages)
