"""Judging messages of the client in bulk: the hot path of every consumer.

Nearly all messages of a batch belong to one partition, have one leader epoch and
carry the same headers. Then the first and the last get a verdict, and where it is
the very same one, so do all between (see `PartitionFence`: a verdict is remembered
until something changes). Nothing else happens for each message in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from confluent_kafka import Message

from epochfence.consumers.pieces import share_headers
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of
from epochfence.epochs.values import EpochStart
from epochfence.epochs.verdicts import Verdict

#: Kinds of which the verdict does not rest on what the ledger lacks.
_LASTING = frozenset(("admitted", "stale"))


@dataclass(slots=True)
class Sifted:
    """What came of some messages.

    Attributes:
        is_dry_run: Whether rejected messages pass all the same.
        passed: Those to deliver, in order.
        rejected: Those that must not be applied, with their verdicts.
        starts: The epochs that began with them.
        judged: How many there were in all.
        barriers: How many were barriers.
        unstamped: How many were let in without a required stamp.
    """

    is_dry_run: bool = False
    passed: list[Message] = field(default_factory=list[Message])
    rejected: list[tuple[Message, Verdict]] = field(
        default_factory=list[tuple[Message, Verdict]]
    )
    starts: list[EpochStart] = field(default_factory=list[EpochStart])
    judged: int = 0
    barriers: int = 0
    unstamped: int = 0

    @property
    def in_order(self) -> int:
        """How many were admitted, and carried every required stamp."""
        return self.judged - self.barriers - self.unstamped - len(self.rejected)

    def add_all(self, messages: list[Message], verdict: Verdict) -> None:
        """Add messages that share a verdict, which opens nothing."""
        self.judged += len(messages)
        if verdict.kind == "admitted":
            if verdict.reason == "unstamped":
                self.unstamped += len(messages)
        else:
            self.rejected += [(message, verdict) for message in messages]
            if not self.is_dry_run:
                return
        if self.passed:
            self.passed += messages
        else:
            self.passed = messages

    def add(self, message: Message, verdict: Verdict) -> None:
        """Add a message."""
        self.judged += 1
        self.starts += verdict.starts
        if verdict.kind == "barrier":
            self.barriers += 1
            return
        if verdict.kind == "admitted":
            self.unstamped += verdict.reason == "unstamped"
        else:
            self.rejected.append((message, verdict))
            if not self.is_dry_run:
                return
        self.passed.append(message)


def sift(
    fence: PartitionFence,
    messages: list[Message],
    sifted: Sifted,
    *,
    ledger_complete: bool,
    are_alike: bool | None = None,
) -> bool:
    """Judge the messages of one partition, in order, and add them to `sifted`.

    Args:
        fence: The partition's fence.
        messages: Its messages.
        sifted: Takes what comes of them.
        ledger_complete: Whether the ledger was read to its end after they came.
        are_alike: Whether they share their headers, None: not known.

    Returns:
        Whether all of them were judged; else it takes a ledger that was read to its
        end after they were received, and `sifted.judged` tells where to go on.

    Raises:
        MisconfiguredError: As `PartitionFence.judge`; `sifted` then holds what was
            judged before.
    """
    judged = 0
    if len(messages) > 2 and (
        share_headers(messages) if are_alike is None else are_alike
    ):
        judged = _sift_alike(fence, messages, sifted, ledger_complete)
    needs_value = fence.settings.stamps.is_foreign
    for number in range(judged, len(messages)):
        message = messages[number]
        offset = message.offset()
        assert offset is not None
        verdict = fence.judge(
            message.leader_epoch(),
            offset,
            headers_of(message),
            message.value() if needs_value else None,
            ledger_complete=ledger_complete,
        )
        if verdict is None:
            return False
        sifted.add(message, verdict)
    return True


def _sift_alike(
    fence: PartitionFence,
    messages: list[Message],
    sifted: Sifted,
    ledger_complete: bool,
) -> int:
    """Judge messages that are all alike; give how many were: all, the first, or none.

    The first may open an epoch: then what matters are those behind it.
    """
    first, last = messages[0], messages[-1]
    leader_epoch = first.leader_epoch()
    if fence.settings.stamps.is_foreign or last.leader_epoch() != leader_epoch:
        return 0
    carried = headers_of(first)

    def judge(message: Message) -> Verdict | None:
        offset = message.offset()
        assert offset is not None
        return fence.judge(
            leader_epoch, offset, carried, ledger_complete=ledger_complete
        )

    verdict, begin = judge(first), 0
    if verdict is not None and verdict.starts:
        sifted.add(first, verdict)  # a start is told once
        verdict, begin = judge(messages[1]), 1
    if verdict is None or verdict.kind not in _LASTING:
        return begin
    # Only a verdict that stood all the way is the same object at the end.
    if judge(last) is not verdict:
        return begin
    sifted.add_all(messages[begin:] if begin else messages, verdict)
    return len(messages)
