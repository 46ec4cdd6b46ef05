"""One partition judged by an audit's settings, and by others beside them."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import Message

from epochfence.consumers.pieces import share_headers
from epochfence.epochs.messages import headers_of, timestamp_of
from epochfence.epochs.stamps import Headers
from epochfence.replay.partition_audit import PartitionAudit
from epochfence.replay.sources import VerdictWriter
from epochfence.replay.what_if import Changes, Verdicts, WhatIfState

#: Fewer messages are judged one by one: looking whether they are alike costs more.
_FEW = 4


class PartitionReplay:
    """Judges the records of a partition, in order.

    Args:
        audit: The audit of the partition.
        others: The same under other settings, each with where it disagreed so far.
        verdicts: Takes the verdicts of the audit.
    """

    def __init__(
        self,
        audit: PartitionAudit,
        others: Sequence[tuple[PartitionAudit, Changes]] = (),
        verdicts: VerdictWriter | None = None,
    ) -> None:
        self.audit = audit
        self._others = others
        self._verdicts = verdicts

    def what_if(self) -> list[WhatIfState]:
        """What the other settings say so far."""
        return [
            WhatIfState(other.state(), changes.all) for other, changes in self._others
        ]

    def take(
        self,
        topic_id: str | None,
        leader_epoch: int | None,
        offset: int,
        timestamp: int | None,
        headers: Headers,
        value: bytes | None,
    ) -> None:
        """Judge the next record.

        Raises:
            OutOfOrderError: It does not stand behind the ones before it.
        """
        verdict = self.audit.judge(
            topic_id, leader_epoch, offset, timestamp, headers, value
        )
        if self._verdicts is not None:
            here = self.audit
            self._verdicts.write(here.topic, here.partition, (offset,), verdict)
        for other, changes in self._others:
            changes.take(
                offset,
                verdict,
                other.judge(topic_id, leader_epoch, offset, timestamp, headers, value),
            )

    def take_messages(self, topic_id: str | None, batch: list[Message]) -> None:
        """Judge the next messages of the client, all of this partition.

        Raises:
            OutOfOrderError: One does not stand behind the ones before it.
        """
        if not self._others:
            _judge(self.audit, topic_id, batch, self._verdicts)
            return
        found = Verdicts()
        _judge(self.audit, topic_id, batch, found)
        for other, changes in self._others:
            of_other = Verdicts()
            _judge(other, topic_id, batch, of_other)
            both = zip(found.offsets, found.verdicts, of_other.verdicts, strict=True)
            for offset, verdict, other_verdict in both:
                changes.take(offset, verdict, other_verdict)
        if self._verdicts is not None:
            here = self.audit
            for offset, verdict in zip(found.offsets, found.verdicts, strict=True):
                self._verdicts.write(here.topic, here.partition, (offset,), verdict)


def _judge(
    audit: PartitionAudit,
    topic_id: str | None,
    batch: list[Message],
    verdicts: VerdictWriter | None,
) -> None:
    rest = batch
    if len(batch) > _FEW and not audit.needs_value and share_headers(batch[1:]):
        _judge_one(audit, topic_id, batch[0], verdicts)
        rest = batch[1:]
        if _judge_alike(audit, topic_id, rest, verdicts):
            return
    for message in rest:
        _judge_one(audit, topic_id, message, verdicts)


def _judge_one(
    audit: PartitionAudit,
    topic_id: str | None,
    message: Message,
    verdicts: VerdictWriter | None,
) -> None:
    offset = message.offset()
    assert offset is not None
    verdict = audit.judge(
        topic_id,
        message.leader_epoch(),
        offset,
        timestamp_of(message),
        headers_of(message),
        message.value() if audit.needs_value else None,
    )
    if verdicts is not None:
        verdicts.write(audit.topic, audit.partition, (offset,), verdict)


def _judge_alike(
    audit: PartitionAudit,
    topic_id: str | None,
    messages: list[Message],
    verdicts: VerdictWriter | None,
) -> bool:
    """Judge messages that share their headers, all at once; False: one by one, then."""
    first, last = messages[0], messages[-1]
    leader_epoch = first.leader_epoch()
    begin, end = first.offset(), last.offset()
    assert begin is not None
    assert end is not None
    if last.leader_epoch() != leader_epoch:
        return False
    verdict = audit.judge_alike(
        topic_id,
        leader_epoch,
        (begin, end),
        (timestamp_of(first), timestamp_of(last)),
        headers_of(first),
        len(messages),
    )
    if verdict is None:
        return False
    if verdicts is not None:
        offsets = [message.offset() or 0 for message in messages]
        verdicts.write(audit.topic, audit.partition, offsets, verdict)
    return True
