"""What a message's headers become: the stamps, and the user's own behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.stamps import (
    CURSOR_HEADER,
    MAX_CURSOR_BYTES,
    RESERVED_PREFIX,
    STAMP_HEADER,
)

#: Headers as confluent-kafka takes them. Values are str, bytes or None: said so, a
#: checker would refuse a list of tuples of str and bytes.
Headers = dict[str, Any] | list[tuple[str, Any]]


def checked_leaderships(
    leaderships: Leadership | Iterable[Leadership],
) -> tuple[Leadership, ...]:
    """The leaderships that a message may be written under together.

    Raises:
        MisconfiguredError: There is none, or two are of one scope.
    """
    held = (leaderships,) if isinstance(leaderships, Leadership) else leaderships
    held = tuple(held) if isinstance(held, Iterable) else ()
    if not held or not all(isinstance(one, Leadership) for one in held):
        raise MisconfiguredError(
            "leaderships", leaderships, "a leadership, or a list of some, is expected",
            "Give what Ledger.claim returned.",
        )  # fmt: skip
    scopes = [one.scope for one in held]
    for scope in scopes:
        if scopes.count(scope) > 1:
            raise MisconfiguredError(
                "leaderships", scope, "a message carries one stamp of a scope",
                "Give one leadership for each scope: the latest.",
            )  # fmt: skip
    return held


def stamp_headers(leaderships: Sequence[Leadership]) -> list[tuple[str, Any]]:
    """The headers of a message that has no others."""
    return [(STAMP_HEADER, held.stamp_value) for held in leaderships]


def with_stamps(stamps: list[tuple[str, Any]], headers: Headers) -> Headers:
    """The headers of a message that has others: a new list, the stamps first.

    Raises:
        MisconfiguredError: A name is ours.
        TypeError: The client would not take these headers.
    """
    pairs: Any = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list):
        raise TypeError("headers are expected to be a dict or a list of tuples")
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError("headers are expected to be (name, value) tuples")
        if _is_reserved(pair[0]):
            raise MisconfiguredError(
                "headers", pair[0],
                f"names that begin with {RESERVED_PREFIX!r} are ours",
                "Choose another name; stamps are added to each message anyway.",
            )  # fmt: skip
    stamped: list[tuple[str, Any]] = [*stamps, *pairs]
    return stamped


def with_cursor(headers: Headers, cursor: str | bytes) -> list[tuple[str, Any]]:
    """Headers that are stamped already, and a cursor behind them: a new list.

    Raises:
        MisconfiguredError: It is no text, or too long.
    """
    value: object = cursor
    if isinstance(cursor, str):
        # What is no text goes the way of what is none.
        value = None if _is_broken(cursor) else cursor.encode()
    if not isinstance(value, bytes):
        raise MisconfiguredError(
            "cursor", cursor, "text or bytes are expected",
            "Give, for instance, str(row.id).",
        )  # fmt: skip
    if len(value) > MAX_CURSOR_BYTES:
        raise MisconfiguredError(
            "cursor", value[:20], f"it has {len(value)} bytes, and a cursor at most "
            f"{MAX_CURSOR_BYTES}",
            "Give a position in the source, not the data.",
        )  # fmt: skip
    pairs: list[tuple[str, Any]] = list(headers)  # type: ignore[arg-type]
    return [*pairs, (CURSOR_HEADER, value)]


def _is_broken(text: str) -> bool:
    """Whether there are halves of characters in a text."""
    return any("\ud800" <= char <= "\udfff" for char in text)


def _is_reserved(name: object) -> bool:
    """Whether a header name is ours, in whatever form the client would take it."""
    if isinstance(name, bytes | bytearray):
        name = name.decode("utf-8", "replace")
    return str(name).startswith(RESERVED_PREFIX)
