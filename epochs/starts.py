"""Rows of the max-epoch table and commit metadata: one fact, one spelling.

A row's key is the fact itself, so a reader that writes it once more repeats what
stands there, and no writer can lower anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from epochfence.epochs import schemas
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import EpochStart, Position, Stamp, is_topic_id

#: Beyond this many bytes the commit metadata leaves out the epochs.
MAX_METADATA_EPOCHS_BYTES = 3500


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def row_key(start: EpochStart) -> bytes:
    """The record key of a row: compact JSON, non-ASCII escaped, null for unknown."""
    leader_epoch, offset = start.position
    return _compact(
        [
            start.topic,
            start.topic_id,
            start.partition,
            start.scope,
            start.epoch,
            start.grant_id,
            leader_epoch,
            offset,
        ]
    ).encode("ascii")


def decode_row_key(key: bytes | None) -> EpochStart:
    """The epoch start that a row's key spells.

    Raises:
        Undecodable: It is no row's key, or not in its one spelling.
    """
    try:
        fields = json.loads(key or b"")
        topic, topic_id, partition, scope, epoch, grant_id, leader, offset = fields
        Stamp(scope, epoch, grant_id)
    except (ValueError, TypeError, RecursionError, MisconfiguredError) as error:
        raise schemas.Undecodable("its key is no epoch start") from error
    start = EpochStart(
        topic, topic_id, partition, scope, epoch, grant_id, Position(leader, offset)
    )
    is_well_typed = (
        _is_name(topic)
        and (topic_id is None or is_topic_id(topic_id))
        and _is_number(partition, 2**31)
        and (leader is None or _is_number(leader, 2**31))
        and _is_number(offset, 2**63)
    )
    if not is_well_typed or row_key(start) != key:
        raise schemas.Undecodable("its key is not in the one spelling of its fact")
    return start


def _is_name(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_number(value: object, end: int) -> bool:
    return type(value) is int and 0 <= value < end


@dataclass(frozen=True, slots=True)
class RowInfo:
    """What goes with a row: who wrote it and when, and under which settings.

    Attributes:
        written_by: Names the writer, for people.
        written_at: Milliseconds since 1970 by the writer's clock, for people.
        settings_digest: `FenceSettings.digest()` of the writer.
    """

    written_by: str
    written_at: int
    settings_digest: str


def row_value(info: RowInfo) -> bytes:
    """The record value of a row."""
    return schemas.encode(
        schemas.EPOCH_START_ROW,
        {
            "written_by": info.written_by,
            "written_at": info.written_at,
            "settings_digest": info.settings_digest,
        },
    )


def decode_row_value(value: bytes | None) -> RowInfo:
    """What goes with a row.

    Raises:
        Undecodable: It is no row's value.
        UnknownFingerprint: A newer version wrote it.
    """
    schema, record = schemas.decode(value or b"")
    if schema is not schemas.EPOCH_START_ROW:
        raise schemas.Undecodable(f"it is a {schema.name}, not a row")
    return RowInfo(**record)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """What an offset commit says about the fence at the committed position.

    Attributes:
        topic_id: The life of the topic that the offset belongs to, None: unknown.
        starts: At least this many epoch starts count there, None where the commit
            lies beyond what was judged.
        epochs: The current epoch of each scope there, None where it is left out.
        copy_id: The life of the topic that what lies below was copied to, where the
            commit is a gate's.
    """

    topic_id: str | None
    starts: int | None = None
    epochs: Mapping[str, int] | None = None
    copy_id: str | None = None

    def encode(self, *, with_epochs: bool = True) -> str:
        """The metadata string of the commit.

        Args:
            with_epochs: False to leave out the epochs, where a broker refused the
                commit as too large.
        """
        content: dict[str, Any] = {"epochfence": 1, "t": self.topic_id}
        if self.copy_id is not None:
            content["d"] = self.copy_id
        if self.starts is not None:
            content["n"] = self.starts
        short = _compact(content)
        if self.epochs is None or self.starts is None or not with_epochs:
            return short
        full = _compact({**content, "e": dict(sorted(self.epochs.items()))})
        return full if len(full) <= MAX_METADATA_EPOCHS_BYTES else short


def decode_commit_metadata(metadata: str | None) -> CommitMetadata | None:
    """What a commit's metadata says, None where it is not ours or damaged."""
    try:
        content = json.loads(metadata or "")
    except (ValueError, RecursionError):
        return None
    if not isinstance(content, dict) or not _is_number(content.get("epochfence"), 2):
        return None
    topic_id, starts, epochs, copy_id = (content.get(name) for name in "tned")
    is_ours = (
        content["epochfence"] == 1
        and (topic_id is None or is_topic_id(topic_id))
        and (starts is None or _is_number(starts, 2**63))
        and (epochs is None or _are_epochs(epochs))
        and (copy_id is None or is_topic_id(copy_id))
    )
    return CommitMetadata(topic_id, starts, epochs, copy_id) if is_ours else None


def _are_epochs(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    epochs: dict[object, object] = value
    return all(_is_number(epoch, 2**63) for epoch in epochs.values())
