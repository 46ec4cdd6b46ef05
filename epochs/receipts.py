"""The answer of `confirm()`: what became of each message that was acknowledged."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, NamedTuple, get_args

from epochfence.epochs.offset_ranges import OffsetRanges

#: What may become of an acknowledged message.
Outcome = Literal["admitted", "fenced", "lost", "aborted", "indeterminate"]
OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
#: What may become of a message that was handed over.
Fate = Outcome | Literal["undelivered"]


class Receipt(NamedTuple):
    """What became of one message.

    Attributes:
        topic: Its topic.
        partition: Its partition's number.
        offset: The offset it was acknowledged with, None where none was told.
        outcome: `admitted` (every reader lets it in), `fenced` (none does: a later
            leadership began before it), `lost` (acknowledged, but an unclean election
            took it from the log), `aborted` (its transaction was) or `indeterminate`
            (nobody can tell any more). One that was asked for with the message may be
            `undelivered`, too: after a time-out, such a message may be in the log all
            the same.
        error: The name of the client's error where its delivery failed, such as
            `_MSG_TIMED_OUT`; else empty.
    """

    topic: str
    partition: int
    offset: int | None
    outcome: Fate
    error: str = ""


class Undelivered(NamedTuple):
    """Messages whose delivery was reported as failed, counted by cause.

    After a time-out, such a message may be in the log all the same.

    Attributes:
        topic: Their topic.
        partition: Their partition's number, -1 where none was chosen yet.
        error: The error's name, such as `_MSG_TIMED_OUT`.
        reason: What the client said the first time.
        messages: How many.
    """

    topic: str
    partition: int
    error: str
    reason: str
    messages: int


#: Failures by topic, partition and the error's name.
Failures = dict[tuple[str, int, str], Undelivered]


def add_failure(failures: Failures, failed: Undelivered) -> None:
    """Count a failure together with those that have the same cause."""
    cause = failed[:3]
    first = failures.get(cause, failed._replace(messages=0))
    failures[cause] = first._replace(messages=first.messages + failed.messages)


class Part(NamedTuple):
    """Messages of one partition that share an outcome.

    Attributes:
        topic: Their topic.
        partition: Their partition's number.
        outcome: What became of them.
        offsets: Where they were acknowledged.
        without_offset: How many more were acknowledged without an offset.
    """

    topic: str
    partition: int
    outcome: Outcome
    offsets: OffsetRanges
    without_offset: int = 0

    @property
    def messages(self) -> int:
        """How many."""
        return len(self.offsets) + self.without_offset


class Parts:
    """Parts that are told one after the other, as few of them as can be.

    Two messages at one offset are two: what holds the second is a part of its own.
    """

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._last: dict[tuple[str, int, Outcome], int] = {}

    def add(self, parts: Iterable[Part]) -> None:
        """Take in parts that are told behind those here."""
        for part in parts:
            kind = part[:3]
            found = self._last.get(kind)
            if found is None or _overlap(self._parts[found], part):
                found = self._last[kind] = len(self._parts)
                # With offsets of its own: they change here.
                self._parts.append(Part(*kind, OffsetRanges()))
            known = self._parts[found]
            known.offsets.update(part.offsets)
            count = known.without_offset + part.without_offset
            self._parts[found] = known._replace(without_offset=count)

    def __iter__(self) -> Iterator[Part]:
        return iter(self._parts)


class Receipts:
    """What became of every message that was acknowledged since the last answer.

    Iterates over a `Receipt` for each message; `len` is their number. Inside, messages
    with consecutive offsets and one outcome take no more room than one.

    Args:
        parts: The messages.
        undelivered: What was not acknowledged, but reported as failed.
    """

    def __init__(
        self, parts: Iterable[Part] = (), undelivered: Iterable[Undelivered] = ()
    ) -> None:
        self._parts = tuple(part for part in parts if part.messages)
        self.undelivered = tuple(undelivered)

    @classmethod
    def joined(cls, several: Iterable[Receipts]) -> Receipts:
        """One answer that tells what several told, one after the other."""
        parts = Parts()
        undelivered: Failures = {}
        for receipts in several:
            parts.add(receipts._parts)
            for failed in receipts.undelivered:
                add_failure(undelivered, failed)
        return cls(sorted(parts, key=lambda part: part[:2]), undelivered.values())

    @property
    def counts(self) -> Mapping[Outcome, int]:
        """How many messages there are of each outcome; every one is named."""
        counts: dict[Outcome, int] = dict.fromkeys(OUTCOMES, 0)
        for part in self._parts:
            counts[part.outcome] += part.messages
        return counts

    @property
    def are_all_admitted(self) -> bool:
        """Whether everything was admitted, and no delivery failed."""
        is_admitted = all(part.outcome == "admitted" for part in self._parts)
        return is_admitted and not self.undelivered

    def outcome(self, topic: str, partition: int, offset: int) -> Outcome | None:
        """What became of the message acknowledged at an offset.

        None where this answer is not about it. Where two messages were acknowledged
        at one offset, the first of them was lost, and `lost` it is.
        """
        found: Outcome | None = None
        for part in self._parts:
            is_there = (part.topic, part.partition) == (topic, partition)
            if is_there and offset in part.offsets:
                if part.outcome == "lost":
                    return "lost"
                found = part.outcome
        return found

    def __iter__(self) -> Iterator[Receipt]:
        for topic, partition, outcome, offsets, without_offset in self._parts:
            for offset in offsets:
                yield Receipt(topic, partition, offset, outcome)
            for _ in range(without_offset):
                yield Receipt(topic, partition, None, outcome)

    def __len__(self) -> int:
        return sum(part.messages for part in self._parts)

    def __bool__(self) -> bool:
        # An answer about no message is an answer.
        return True

    def __repr__(self) -> str:
        shown = [f"{outcome}={count}" for outcome, count in self.counts.items()]
        undelivered = sum(failed.messages for failed in self.undelivered)
        return f"Receipts({', '.join(shown)}, undelivered={undelivered})"


def _overlap(one: Part, other: Part) -> bool:
    """Whether they share an offset."""
    ranges = other.offsets.ranges()
    return any(one.offsets.between(start, end) for start, end in ranges)
