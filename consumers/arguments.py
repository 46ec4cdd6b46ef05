"""What the calls of a consumer are given: checked, before anything is done with it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    OFFSET_INVALID,
    OFFSET_STORED,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence.epochs.errors import MisconfiguredError

T = TypeVar("T")

_LOGICAL = (OFFSET_BEGINNING, OFFSET_END, OFFSET_STORED, OFFSET_INVALID)

#: Offsets counted from the log's end are spelt from here on downwards.
TAIL_BASE = -2000

#: As long as confluent's own calls wait where nobody says.
FOREVER = -1.0


def checked_timeout(timeout: float | None) -> float:
    """How many seconds to wait, negative: for ever.

    Raises:
        MisconfiguredError: It is no number.
    """
    if timeout is None:
        return FOREVER
    if isinstance(timeout, bool) or not isinstance(timeout, int | float):
        raise MisconfiguredError(
            "timeout", timeout, "no number of seconds",
            "Use a number; None or a negative one: for ever.",
        )  # fmt: skip
    return timeout


def checked_count(count: int) -> int:
    """How many messages are wanted.

    Raises:
        ValueError: As confluent's own, where it is out of range.
        MisconfiguredError: It is no number.
    """
    if isinstance(count, bool) or not isinstance(count, int):
        raise MisconfiguredError(
            "num_messages", count, "no whole number", "Use one from 0 to 1000000."
        )
    if not 0 <= count <= 1_000_000:
        raise ValueError("num_messages must be between 0 and 1000000 (1M)")
    return count


def checked_list(
    name: str, values: Iterable[T], kind: type[T], expected: str, remedy: str
) -> list[T]:
    """The values of a list, all of one kind.

    Raises:
        MisconfiguredError: It is no list (a text is none), or holds another kind.
    """
    is_list = isinstance(values, Iterable) and not isinstance(values, str | bytes)
    found: list[Any] = list(values) if is_list else []
    if not is_list or not all(isinstance(one, kind) for one in found):
        problem = f"a list of {expected} is expected"
        raise MisconfiguredError(name, values, problem, remedy)
    return found


def checked_names(topics: Iterable[str]) -> list[str]:
    """Names of topics, or patterns.

    Raises:
        MisconfiguredError: They are no list of texts.
    """
    return checked_list("topics", topics, str, "names", "Use ['orders'].")


def checked_partitions(
    partitions: Iterable[TopicPartition], name: str = "partitions"
) -> list[TopicPartition]:
    """Partitions, each with an offset that there can be.

    Raises:
        MisconfiguredError: They are none.
    """
    found = checked_list(
        name,
        partitions,
        TopicPartition,
        "TopicPartition",
        "Use [TopicPartition('orders', 0)].",
    )
    for tp in found:
        if tp.offset < 0 and tp.offset not in _LOGICAL and tp.offset > TAIL_BASE:
            raise MisconfiguredError(
                "offset", tp.offset, f"no offset of {tp.topic}[{tp.partition}]",
                "Use a number from 0 on, or one of confluent_kafka's OFFSET_ "
                "constants.",
            )  # fmt: skip
    return found


def checked_flag(name: str, value: bool) -> bool:
    """A bool; no text counts as true.

    Raises:
        MisconfiguredError: It is none.
    """
    if not isinstance(value, bool):
        raise MisconfiguredError(
            name, value, "neither True nor False", "Use one of them."
        )
    return value


def check_message(name: str, value: object) -> None:
    """Return if a value is a message.

    Raises:
        MisconfiguredError: It is none.
    """
    if not hasattr(value, "leader_epoch"):
        raise MisconfiguredError(
            name, value, "it is no message", "Give what poll or consume gave."
        )


def places_to_commit(
    message: Message | None, offsets: list[TopicPartition] | None
) -> list[TopicPartition] | None:
    """What to commit or to store, None for all there is.

    Raises:
        KafkaException: The message is an event of the client.
        MisconfiguredError: An argument is of another kind.
    """
    if message is None:
        return None if offsets is None else checked_partitions(offsets, "offsets")
    check_message("message", message)
    if message.error() is not None:
        raise KafkaException(message.error())
    offset = message.offset()
    if offset is None:
        raise ValueError("the message has no offset")
    leader_epoch = message.leader_epoch()
    known = -1 if leader_epoch is None else leader_epoch
    place = message.topic() or "", message.partition() or 0
    return [TopicPartition(*place, offset + 1, leader_epoch=known)]
