"""The records of a partition, judged once more for who needs them one by one."""

from __future__ import annotations

from collections.abc import Iterator

from confluent_kafka import Message

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of
from epochfence.epochs.verdicts import Verdict
from epochfence.replay.audit import Audit
from epochfence.replay.checked_parts import PartRead, Records


def judged_again(
    audit: Audit, part: PartRead, records: Records, end: int
) -> Iterator[tuple[Message, Verdict]]:
    """Each record that was judged below an offset, with its verdict.

    Args:
        audit: What to judge by.
        part: What was read of the partition.
        records: The topic's records.
        end: The offset.
    """
    piece = part.piece
    place = (piece.topic, piece.partition)
    fence = PartitionFence(
        *place,
        audit.settings,
        audit.ledger,
        [one for one in audit.table if (one.topic, one.partition) == place],
    )
    fence.enter_life(piece.topic_id)
    needs_value = audit.settings.stamps.is_foreign
    for message in records.read(piece.partition, piece.start, min(end, part.reached)):
        verdict = fence.judge(
            message.leader_epoch(),
            message.offset() or 0,
            headers_of(message),
            message.value() if needs_value else None,
            ledger_complete=True,
        )
        assert verdict is not None  # the ledger is complete
        yield message, verdict
