"""Idempotency keys: by them, a system that knows no epochs tells a repetition.

Written once, such a key is compared with for as long as its receiver keeps it, by
versions of this package to come as well: so its form is for ever.

What receivers take: Stripe and many others up to 255 characters, Adyen 64, Worldline
40, Amazon Pay 32 of `A-Z a-z 0-9 - _`. The header `Idempotency-Key` of
draft-ietf-httpapi-idempotency-key-header-07 is a string in double quotes; others want
the bare key. Nothing in a key has to be escaped there.
"""

from __future__ import annotations

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_epoch, check_scope, is_topic_id

_MAX_PARTITION = 2**31 - 1
_MAX_NUMBER = 2**63 - 1


def message_key(topic_id: str | None, partition: int, offset: int) -> str:
    """The key of one message: `<topic id>-<partition>-<offset>`.

    For example `KTgZ3vR0Q0-1_abcdefghi-0-7`. At most 53 of the characters
    `A-Z a-z 0-9 - _`; 32 up to offset 9,999,999 of partition 9. A topic id has 22
    characters, so no two messages have the same key, nor has a command (whose key has
    a colon). The same message has the same key for whoever reads it, whenever.

    A topic that is made anew has another id: its messages have other keys, whatever is
    in them. A record that an unclean election takes from the log, and the one that
    takes its place, have the same key.

    Args:
        topic_id: Kafka's id of this life of the topic, URL-safe and without padding.
        partition: The partition's number.
        offset: The message's offset.

    Raises:
        MisconfiguredError: An argument is no such thing. So too where the topic id is
            not known (the embedded broker has none): by the name, a message of a topic
            made anew would be taken for a repetition, and never be acted upon.
    """
    if not is_topic_id(topic_id):
        raise MisconfiguredError(
            "topic_id", topic_id,
            "no topic id: without it, messages of a topic that is made anew would be "
            "taken for repetitions",
            "Use Kafka's id of the topic (22 characters of URL-safe base64); where "
            "there is none, as on the embedded broker, take a key from the message's "
            "content.",
        )  # fmt: skip
    _check_number("partition", partition, 0, _MAX_PARTITION)
    _check_number("offset", offset, 0, _MAX_NUMBER)
    return f"{topic_id}-{partition}-{offset}"


def command_key(scope: str, epoch: int, sequence: int) -> str:
    """The key of a leader's own command: `<epoch>:<sequence>:<scope>`.

    For example `34:7:orders-writer`, as in a stamp. At most 240 printable ASCII
    characters. The scope, which may hold anything but a colon, comes last: so no two
    commands have the same key.

    A leader counts its commands, and repeats one with the number that it had. Who
    claims again begins anew, under its new epoch. Hence a deposed leader's command and
    its successor's never have the same key, also where they mean the same: such a key
    makes repetitions of one leadership harmless, and no others. For what is done
    because of a row or a message, take that one's identity (`message_key`) instead.

    Args:
        scope: What is led.
        epoch: The number of the leadership.
        sequence: The command's number within it, 0 to 2^63-1.

    Raises:
        MisconfiguredError: An argument is no such thing.
    """
    check_scope(scope)
    check_epoch(epoch)
    _check_number("sequence", sequence, 0, _MAX_NUMBER)
    return f"{epoch}:{sequence}:{scope}"


def _check_number(name: str, number: int, lowest: int, highest: int) -> None:
    # True is no number here, although Python has it so: it would be spelt "True".
    if type(number) is not int or not lowest <= number <= highest:
        raise MisconfiguredError(
            name, number, "out of range", f"Use a whole number, {lowest} to {highest}."
        )
