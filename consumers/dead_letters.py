"""Dead letters: rejected records, kept where an operator can look at them and decide.

What is rejected is lost to nobody: it stays in its topic. But retention takes it from
there in time, and nobody finds it among the rest.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from confluent_kafka import Message

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.messages import headers_of, timestamp_of
from epochfence.epochs.stamps import RESERVED_PREFIX, UNREADABLE, without_ours
from epochfence.epochs.verdicts import Verdict

#: In a dead-letter topic, what is known of the rejected record: JSON.
DEAD_LETTER_HEADER = "epochfence-dead-letter"
#: There, a record that says that one was sent again: its name (`DeadLetter.name`).
REDRIVEN_HEADER = "epochfence-redriven"

Headers = tuple[tuple[str, bytes | None], ...]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record that was rejected, and why.

    Attributes:
        topic: Where it was read from.
        topic_id: The life of that topic, None where topics have no ids.
        partition: The partition's number.
        leader_epoch: With the offset, its position; None: unknown.
        offset: Its offset.
        timestamp: Its timestamp in milliseconds since 1970, None for none.
        key: Its key.
        value: Its value.
        headers: All its headers; none, where their names are not UTF-8.
        verdict: `stale` or `quarantined`.
        reason: Why: see `FencedConsumer.counts`.
        scope: The scope of the stamp that decided, None where none did.
        epoch: The epoch that was seen in it.
        current_epoch: The epoch that was current there, None for none yet.
        holder: Who held the grant that it was written under, None where none is known.
        rejected_at: When it was rejected, in milliseconds since 1970, by the clock of
            who rejected it.
        left_out_bytes: How large its value was, where that did not fit into the
            dead-letter topic; None: it is there.
    """

    topic: str
    topic_id: str | None
    partition: int
    leader_epoch: int | None
    offset: int
    timestamp: int | None
    key: bytes | None
    value: bytes | None
    headers: Headers
    verdict: str
    reason: str
    scope: str | None
    epoch: int | None
    current_epoch: int | None
    holder: str | None
    rejected_at: int
    left_out_bytes: int | None = None

    @property
    def name(self) -> str:
        """Its one name: `topic id:partition:leader epoch:offset`.

        The topic's name stands for an id that is not known.
        """
        life = self.topic_id or self.topic
        leader_epoch = -1 if self.leader_epoch is None else self.leader_epoch
        return f"{life}:{self.partition}:{leader_epoch}:{self.offset}"


def dead_letter(
    message: Message, verdict: Verdict, topic_id: str | None, ledger: LedgerState
) -> DeadLetter:
    """The dead letter of a rejected message.

    Args:
        message: The message.
        verdict: Why it was rejected.
        topic_id: The life of its topic.
        ledger: Tells holders.
    """
    cause = verdict.cause
    claim = None
    if cause is not None:
        claim = ledger.find(cause.scope, cause.epoch, cause.grant_id)
    headers = headers_of(message)
    return DeadLetter(
        topic=message.topic() or "",
        topic_id=topic_id,
        partition=message.partition() or 0,
        leader_epoch=message.leader_epoch(),
        offset=message.offset() or 0,
        timestamp=timestamp_of(message),
        key=message.key(),
        value=message.value(),
        headers=() if headers is UNREADABLE else tuple(headers),
        verdict=verdict.kind,
        reason=verdict.reason,
        scope=None if cause is None else cause.scope,
        epoch=None if cause is None else cause.epoch,
        current_epoch=verdict.current_epoch,
        # A database's texts hold no NUL.
        holder=None if claim is None else claim.holder.replace("\0", "\ufffd"),
        rejected_at=time.time_ns() // 1_000_000,
    )


#: What a table holds of a dead letter, column by column.
COLUMNS = (
    "topic", "topic_id", "partition", "leader_epoch", "record_offset",
    "record_timestamp", "record_key", "record_value", "headers", "verdict", "reason",
    "scope", "epoch", "current_epoch", "holder", "rejected_at",
)  # fmt: skip


def row_of_letter(letter: DeadLetter) -> tuple[Any, ...]:
    """A dead letter as a row of `COLUMNS`."""
    return (
        letter.topic, letter.topic_id, letter.partition, letter.leader_epoch,
        letter.offset, letter.timestamp, letter.key, letter.value,
        headers_to_json(letter.headers), letter.verdict, letter.reason, letter.scope,
        letter.epoch, letter.current_epoch, letter.holder, letter.rejected_at,
    )  # fmt: skip


def letter_of_row(row: Sequence[Any]) -> DeadLetter:
    """The dead letter of such a row."""
    fields = list(row)
    at = COLUMNS.index("headers")
    fields[at] = headers_of_json(json.loads(fields[at]))
    return DeadLetter(*fields)


def headers_to_json(headers: Headers) -> str:
    """Headers as JSON: pairs of a name, and of bytes as base64, or null."""
    pairs = [(name, to_base64(value)) for name, value in headers]
    return json.dumps(pairs, separators=(",", ":"))


def to_base64(value: bytes | None) -> str | None:
    """Bytes as JSON has them; null stays null."""
    return None if value is None else base64.b64encode(value).decode()


def headers_of_json(pairs: Sequence[Sequence[Any]]) -> Headers:
    """The headers that such pairs spell.

    Raises:
        ValueError, TypeError: They spell none.
    """
    return tuple(
        (str(name), None if value is None else base64.b64decode(value, validate=True))
        for name, value in pairs
    )


# What travels beside key, value and headers.
_DETAILS = (
    "topic", "topic_id", "partition", "leader_epoch", "offset", "timestamp",
    "verdict", "reason", "scope", "epoch", "current_epoch", "holder", "rejected_at",
    "left_out_bytes",
)  # fmt: skip


def details_of(letter: DeadLetter) -> dict[str, Any]:
    """What is known of a dead letter but its key, value and headers."""
    return {name: getattr(letter, name) for name in _DETAILS}


def headers_of_letter(letter: DeadLetter) -> list[tuple[str, bytes | None]]:
    """The headers of a dead letter's record in a dead-letter topic.

    Our own of the rejected record go into the one that tells of it: nobody must take
    them for stamps of this record.
    """
    ours = tuple(h for h in letter.headers if h[0].startswith(RESERVED_PREFIX))
    details = {**details_of(letter), "headers": json.loads(headers_to_json(ours))}
    text = json.dumps(details, separators=(",", ":"))
    return [(DEAD_LETTER_HEADER, text.encode("ascii")), *without_ours(letter.headers)]


def fitting(letter: DeadLetter, limit_bytes: int) -> DeadLetter:
    """A dead letter that fits into a record of so many bytes.

    What does not is left out: a rejected record must keep nobody from going on, and it
    is still in its topic.
    """
    if _size(letter) <= limit_bytes:
        return letter
    value = letter.value or b""
    cut = replace(letter, value=None, left_out_bytes=len(value))
    return cut if _size(cut) <= limit_bytes else replace(cut, headers=(), key=None)


def _size(letter: DeadLetter) -> int:
    """At least as many bytes as its record takes."""
    headers = headers_of_letter(letter)
    told = sum(len(name.encode()) + len(value or b"") + 10 for name, value in headers)
    return len(letter.key or b"") + len(letter.value or b"") + told + 200


def letter_of_message(message: Message) -> DeadLetter | None:
    """The dead letter that a record of a dead-letter topic is; None: it is none."""
    headers = tuple(headers_of(message))
    told = [value for name, value in headers if name == DEAD_LETTER_HEADER]
    try:
        details: dict[str, Any] = json.loads(told[0] or b"")
        ours = headers_of_json(details["headers"])
        # A newer version may tell more.
        known = {name: details[name] for name in _DETAILS if name in details}
        letter = DeadLetter(
            key=message.key(),
            value=message.value(),
            headers=(*ours, *without_ours(headers)),
            **known,
        )
        return letter if _is_well_typed(letter) else None
    except (LookupError, ValueError, TypeError, AttributeError, RecursionError):
        return None


#: What may be null, and what may not.
_NUMBERS = ("partition", "offset", "rejected_at")
_TEXTS = ("topic", "verdict", "reason")
_NUMBERS_OR_NULL = (
    "leader_epoch", "timestamp", "epoch", "current_epoch", "left_out_bytes",
)  # fmt: skip
_TEXTS_OR_NULL = ("topic_id", "scope", "holder")


def _is_well_typed(letter: DeadLetter) -> bool:
    def are(names: Sequence[str], *kinds: type) -> bool:
        return all(type(getattr(letter, name)) in kinds for name in names)

    nothing = type(None)
    return (
        are(_NUMBERS, int)
        and are(_TEXTS, str)
        and are(_NUMBERS_OR_NULL, int, nothing)
        and are(_TEXTS_OR_NULL, str, nothing)
    )
