"""What a report keeps of a single record: where it stands, and when it was written."""

from __future__ import annotations

import msgspec


class RecordPlace(msgspec.Struct, frozen=True, gc=False):
    """Where a record stands.

    Attributes:
        offset: Its offset.
        leader_epoch: The broker's leader epoch, None where unknown.
        timestamp: Milliseconds since 1970 as the record says, None where it does not.
            By the writer's clock or the broker's, as the topic is set; no rule uses it.
        life: Which of the topic's lives it is of: the index in `topic_ids`.
    """

    offset: int
    leader_epoch: int | None = None
    timestamp: int | None = None
    life: int = 0


def milliseconds_between(
    earlier: RecordPlace | None, later: RecordPlace | None
) -> int | None:
    """The time from one record to another, None where either has none."""
    if earlier is None or later is None:
        return None
    if earlier.timestamp is None or later.timestamp is None:
        return None
    return later.timestamp - earlier.timestamp
