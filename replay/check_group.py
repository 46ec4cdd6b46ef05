"""What a consumer group has passed by, as its commits have it.

A consumer in dry-run mode leaves nothing behind but what any consumer leaves: the
group's committed offsets. Below them lies what it has delivered. Whether it was fenced,
the commit's metadata tells; whether it ran dry, nothing does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epochfence.epochs.starts import CommitMetadata, decode_commit_metadata
from epochfence.replay.audit import Audit
from epochfence.replay.checked_parts import PartRead, Records
from epochfence.replay.judged_again import judged_again
from epochfence.replay.report import Evidence, Finding
from epochfence.replay.texts import counted
from epochfence.replay.witness import Witness


class GroupCommit(NamedTuple):
    """What a group has committed of a partition.

    Attributes:
        offset: The offset.
        metadata: What was said with it.
    """

    offset: int
    metadata: str | None


@dataclass(frozen=True)
class GroupCommits:
    """What a group has committed of a topic, before the ends were captured.

    Attributes:
        name: The group.
        partitions: Its commits.
    """

    name: str
    partitions: Mapping[int, GroupCommit]


def check_group(
    group: GroupCommits, audit: Audit, parts: Sequence[PartRead], records: Records
) -> Iterator[Finding]:
    """How much that must not be applied lies below a group's commits.

    Args:
        group: The group's commits.
        audit: What the topic was judged by.
        parts: What was read of the partitions.
        records: The topic's records.
    """
    if not any(part.piece.partition in group.partitions for part in parts):
        yield Finding(
            severity="notice",
            code="group-unknown",
            text=f"Group {group.name!r} has committed nothing of this topic: there is "
            f"no such group, or its commits have expired.",
            topic=parts[0].piece.topic if parts else None,
            remedy="See that the group's name is right.",
        )
        return
    for part in parts:
        commit = group.partitions.get(part.piece.partition)
        if commit is not None:
            yield from _partition(group.name, commit, audit, part, records)


def _partition(
    name: str, commit: GroupCommit, audit: Audit, part: PartRead, records: Records
) -> Iterator[Finding]:
    said = decode_commit_metadata(commit.metadata)
    where = f"{part.where} up to offset {commit.offset}"
    piece = part.piece
    is_of_it = said is None or said.topic_id in (None, piece.topic_id)
    if not is_of_it and said is not None:
        yield Finding(
            severity="notice",
            code="commit-of-another-life",
            text=f"Group {name!r} has committed {where} in another life of the topic "
            f"({said.topic_id}; it is {piece.topic_id} now).",
            topic=piece.topic,
            partition=piece.partition,
            remedy="Its fenced consumers begin at 0 of the present life.",
        )
        return
    count, first = _rejected_below(commit.offset, audit, part, records)
    if count:
        yield _passed(name, where, part, said, count, first)
    if said is not None:
        yield from _knows_more(name, where, commit, said, part)


def _rejected_below(
    offset: int, audit: Audit, part: PartRead, records: Records
) -> tuple[int, Evidence | None]:
    """How many rejected records lie below an offset, and the first of them."""
    witness = Witness(audit.source)
    below = [one for one in part.state.rejections if one.first.offset < offset]
    if not below:
        return 0, None
    first = min(below, key=lambda one: one.first.offset)
    evidence = witness.record(
        "the first of them", part.state, first.first,
        (first.scope, first.epoch, first.grant_id),
    )  # fmt: skip
    if all(one.last.offset < offset for one in below):
        return sum(one.records for one in below), evidence
    # Some causes lie on both sides of it.
    judged = judged_again(audit, part, records, offset)
    return sum(verdict.is_rejected for _, verdict in judged), evidence


def _passed(
    name: str,
    where: str,
    part: PartRead,
    said: CommitMetadata | None,
    count: int,
    first: Evidence | None,
) -> Finding:
    records = counted(count, "rejected record")
    lie = "lies" if count == 1 else "lie"
    if said is None:
        return Finding(
            severity="warning",
            code="unfenced-commit",
            text=f"Group {name!r} has committed {where}, where {records} {lie}, and "
            f"its commit says nothing of a fence: a consumer without one has applied "
            f"{'it' if count == 1 else 'them'}.",
            topic=part.piece.topic,
            partition=part.piece.partition,
            records=count,
            evidence=() if first is None else (first,),
            remedy="Compare what it holds with a fenced replay; then read by a "
            "FencedConsumer, or a copy made by epochfence gate.",
        )
    return Finding(
        severity="notice",
        code="fenced-commit",
        text=f"Group {name!r} has committed {where}, where {records} {lie}, behind a "
        f"fence: mode enforce has kept them from it, mode dry-run has delivered them.",
        topic=part.piece.topic,
        partition=part.piece.partition,
        records=count,
        evidence=() if first is None else (first,),
        remedy="See in which mode its consumers ran: a dry run leaves nothing else "
        "behind.",
    )


def _knows_more(
    name: str, where: str, commit: GroupCommit, said: CommitMetadata, part: PartRead
) -> Iterator[Finding]:
    """A commit that tells of epochs which the replay has not found."""
    if said.starts is None or commit.offset > part.reached:
        return
    piece = part.piece
    below = [
        one
        for one in part.state.starts
        if one.topic_id != piece.topic_id or one.position.offset < commit.offset
    ]
    current: dict[str, int] = {}
    for one in below:
        current[one.scope] = max(one.epoch, current.get(one.scope, -1))
    ahead = {
        scope: epoch
        for scope, epoch in (said.epochs or {}).items()
        if epoch > current.get(scope, -1)
    }
    if not ahead and said.starts <= len(below):
        return
    told = ", ".join(f"epoch {epoch} of {scope!r}" for scope, epoch in ahead.items())
    what = f"{told} there, which this replay does not find"
    if not told:
        what = f"{said.starts} epoch starts there; this replay knows {len(below)}"
    yield Finding(
        severity="warning",
        code="commit-knows-more",
        text=f"Group {name!r} has committed {where} and knew of {what}.",
        topic=piece.topic,
        partition=piece.partition,
        remedy="The log's head is gone and no table was read (--table-topic, --table), "
        "records were lost, or its settings differ from this audit's.",
    )
