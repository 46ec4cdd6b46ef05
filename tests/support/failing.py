"""A message that cannot be applied: for `SinkContract`, which needs pytest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from confluent_kafka import Message

from epochfence.testing.sink_contract import FAILING

C = TypeVar("C")


def failing(
    apply: Callable[[C, Sequence[Message]], object],
) -> Callable[[C, Sequence[Message]], object]:
    """The same function, which fails at such a message, having applied the others."""

    def apply_or_fail(cursor: C, messages: Sequence[Message]) -> None:
        for one in messages:
            if one.value() == FAILING:
                raise ZeroDivisionError
            apply(cursor, [one])

    return apply_or_fail
