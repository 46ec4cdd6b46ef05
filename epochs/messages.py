"""What a message of confluent-kafka holds, in the form that the rules take."""

from __future__ import annotations

from typing import cast

from confluent_kafka import TIMESTAMP_NOT_AVAILABLE, Message

from epochfence.epochs.stamps import UNREADABLE, Headers


def headers_of(message: Message) -> Headers:
    """The headers of a message that was read; `UNREADABLE` where they cannot be.

    confluent-kafka wants header names to be UTF-8 and fails on others with a
    `SystemError`, while Kafka takes any bytes. (A name that holds a NUL is cut there
    by librdkafka, so that `epochfence\\0x` arrives as `epochfence`.)
    """
    try:
        return cast("Headers", message.headers() or ())
    except (SystemError, UnicodeDecodeError):
        return UNREADABLE


def timestamp_of(message: Message) -> int | None:
    """When a message was written, in milliseconds since 1970; None: it does not say."""
    kind, at = message.timestamp()
    return None if kind == TIMESTAMP_NOT_AVAILABLE else at
