"""What a transactional sink has stored, against the replay of its topic."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from confluent_kafka import Message

from epochfence.epochs.values import EpochStart, SinkState
from epochfence.epochs.verdicts import Verdict
from epochfence.replay.audit import Audit
from epochfence.replay.checked_parts import SHOWN, PartRead, Records, StartIndex, some
from epochfence.replay.judged_again import judged_again
from epochfence.replay.report import Evidence, Finding
from epochfence.replay.sink_rows import Difference, SinkRows
from epochfence.replay.stored_sinks import SinkSnapshot
from epochfence.replay.texts import counted
from epochfence.replay.witness import Witness


def check_sink(
    sink: SinkSnapshot, audit: Audit, parts: Sequence[PartRead], records: Records
) -> Iterator[Finding]:
    """Positions and epoch starts that a sink has stored, against the replay.

    Args:
        sink: What it had stored, before the ends of the partitions were captured.
        audit: What the topic was judged by.
        parts: What was read of the partitions.
        records: The topic's records.
    """
    checked = _Checked(sink, Witness(audit.source))
    if not sink.partitions:
        yield Finding(
            severity="notice",
            code="sink-holds-nothing",
            text=f"The sink ({sink.name}) has stored nothing of {parts[0].piece.topic}."
            if parts
            else f"The sink ({sink.name}) has stored nothing of this topic.",
            remedy="See that it is the right one, and that the topic's name is.",
        )
    for part in parts:
        state = sink.partitions.get(part.piece.partition)
        if state is None:
            continue
        finding = checked.position(part, state, records)
        if finding is not None:
            yield finding
        if state.position.topic_id == part.piece.topic_id:
            yield from checked.starts(part, state)


class _Checked:
    def __init__(self, sink: SinkSnapshot, witness: Witness) -> None:
        self._sink = sink
        self._witness = witness

    def position(
        self, part: PartRead, state: SinkState, records: Records
    ) -> Finding | None:
        """What is wrong with a position; None: nothing that can be seen."""
        topic_id, leader_epoch, next_offset = state.position
        piece = part.piece
        stands = f"The sink ({self._sink.name}) stands at offset {next_offset} of "
        if topic_id != piece.topic_id:
            return Finding(
                severity="warning",
                code="sink-of-another-life",
                text=f"{stands}{part.where} in another life of the topic "
                f"({topic_id}; it is {piece.topic_id} now): what it holds comes from "
                f"there.",
                topic=piece.topic,
                partition=piece.partition,
                remedy="When it runs again it begins at 0 of the present life, and "
                "keeps its rows: clear them first, if it was made anew on purpose.",
            )
        end = records.end(piece.partition)
        if next_offset > end:
            return Finding(
                severity="critical",
                code="sink-ahead",
                text=f"{stands}{part.where}, and the log ends at {end}: it has applied "
                f"records that are gone.",
                topic=piece.topic,
                partition=piece.partition,
                remedy="The log was cut (an unclean election), or this sink is of "
                "another cluster. What it made of these records has to be undone.",
            )
        last = None
        if max(piece.start, 0) < next_offset:
            last = records.at(piece.partition, next_offset - 1)
        here = None if last is None else last.leader_epoch()
        if leader_epoch is None or here is None or here == leader_epoch:
            return None
        return Finding(
            severity="critical",
            code="sink-truncated",
            text=f"{stands}{part.where}, behind a record of leader epoch "
            f"{leader_epoch}; the one that stands there has {here}: the log was cut "
            f"and written anew below it.",
            topic=piece.topic,
            partition=piece.partition,
            evidence=(
                Evidence(
                    what="stands there now",
                    topic=piece.topic,
                    topic_id=piece.topic_id,
                    partition=piece.partition,
                    offset=next_offset - 1,
                    leader_epoch=here,
                ),
            ),
            remedy="What the sink made of the records that are gone has to be undone; "
            "when it runs again it goes back by itself, and keeps its rows.",
        )

    def starts(self, part: PartRead, state: SinkState) -> Iterator[Finding]:
        """Epoch starts below the position that only one of both has."""
        next_offset = state.position.next_offset

        def below(starts: Iterable[EpochStart]) -> list[EpochStart]:
            return [
                one
                for one in starts
                if part.holds(one) and one.position.offset < next_offset
            ]

        found, stored = below(part.starts()), below(state.starts)
        floor = {one.scope for one in part.state.starts if not part.holds(one)}
        in_sink, in_log = StartIndex(stored), StartIndex(found)
        lacking = [
            one
            for one in found
            if one not in in_sink and (part.is_whole or one.scope in floor)
        ]
        false = [one for one in stored if one not in in_log]
        if lacking:
            yield Finding(
                severity="warning",
                code="sink-lacks-start",
                text=f"The sink ({self._sink.name}) has passed the beginning of "
                f"{self._named(lacking)} in {part.where} and has not stored it: what "
                f"came behind it of earlier epochs, it has applied.",
                topic=part.piece.topic,
                partition=part.piece.partition,
                scope=lacking[0].scope,
                epoch=lacking[0].epoch,
                evidence=tuple(
                    self._witness.start("began here", one) for one in lacking[:SHOWN]
                ),
                remedy="Its settings may differ from this audit's (--scope and so on). "
                "If they do not, compare its rows with the replay (--sink-table).",
            )
        if false:
            yield Finding(
                severity="critical",
                code="sink-false-start",
                text=f"The sink ({self._sink.name}) has stored the beginning of "
                f"{self._named(false)} in {part.where}, which the replay does not "
                f"find: it rejects earlier epochs from there on.",
                topic=part.piece.topic,
                partition=part.piece.partition,
                scope=false[0].scope,
                epoch=false[0].epoch,
                evidence=tuple(
                    self._witness.start("is to be here", one) for one in false[:SHOWN]
                ),
                remedy="Its settings may differ from this audit's (--scope and so on). "
                "If they do not, its tables were damaged, or the log was cut.",
            )

    def _named(self, starts: Sequence[EpochStart]) -> str:
        return some(
            [
                f"epoch {one.epoch} of scope {one.scope!r} (offset "
                f"{one.position.offset})"
                for one in starts
            ]
        )


# Rows.


def check_sink_rows(
    rows: SinkRows,
    sink: SinkSnapshot,
    audit: Audit,
    parts: Sequence[PartRead],
    records: Records,
    *,
    is_compacted: bool,
) -> Iterator[Finding]:
    """A sink's rows against those that the admitted records below its position make.

    Args:
        rows: What the sink had, of the moment of its positions.
        sink: Its positions.
        audit: What to judge by.
        parts: What was read of the partitions: all of them.
        records: The topic's records.
        is_compacted: Whether the cleaner may have taken some.
    """
    for part in parts:
        problem = _not_comparable(part, sink.partitions.get(part.piece.partition))
        if problem is not None:
            yield Finding(
                severity="warning",
                code="sink-rows-not-compared",
                text=f"The rows of {rows.name} were not compared: {problem}.",
                topic=part.piece.topic,
                partition=part.piece.partition,
                remedy="Run the audit again over all that the sink has read.",
            )
            return
    rows.begin()
    for part in parts:
        state = sink.partitions.get(part.piece.partition)
        if state is None:
            continue
        for message, verdict in judged_again(
            audit, part, records, state.position.next_offset
        ):
            _take(rows, message, verdict)
    is_whole = not is_compacted and all(part.is_whole for part in parts)
    rows.compare(is_whole=is_whole)
    explained = rows.differences(are_explained=True)
    if explained:
        yield _stale_applied(rows, explained, audit, parts, records)
    others = rows.differences(are_explained=False)
    if others:
        keys = [
            f"{printed(key)} ({difference})"
            for key, difference in rows.unexplained(SHOWN)
        ]
        yield Finding(
            severity="critical",
            code="sink-rows-differ",
            text=f"{_in_words(others, rows)}, and the topic tells no reason: "
            f"{', '.join(keys)}{_more(others)}.",
            topic=parts[0].piece.topic if parts else None,
            records=sum(others.values()),
            remedy="See whether anything but this sink writes to the table, and "
            "whether its columns hold the messages' keys and values as they are.",
        )
    left_out = [
        (rows.of_several_partitions(), "key", "stand in more than one partition"),
        (rows.keyless, "admitted record", "have no key"),
    ]
    told = [f"{counted(n, noun)} ({why})" for n, noun, why in left_out if n]
    if not is_whole:
        told.append("rows of keys that no admitted record has any more")
    if told:
        yield Finding(
            severity="notice",
            code="sink-rows-left-out",
            text=f"Left out of the comparison of {rows.name}: {', '.join(told)}.",
            topic=parts[0].piece.topic if parts else None,
            remedy="What they should be, the topic does not tell.",
        )


def _not_comparable(part: PartRead, state: SinkState | None) -> str | None:
    if state is None:
        return None
    topic_id, _, next_offset = state.position
    if topic_id != part.piece.topic_id:
        return f"the sink's position in {part.where} is of another life of the topic"
    if part.piece.start > part.piece.log_start:
        return f"{part.where} was not read from its start"
    if next_offset > part.reached:
        return (
            f"the sink stands at offset {next_offset} of {part.where}, which was "
            f"judged up to {part.reached} only"
        )
    return None


def _take(rows: SinkRows, message: Message, verdict: Verdict) -> None:
    partition, offset = message.partition() or 0, message.offset() or 0
    if verdict.is_rejected:
        rows.rejected(partition, offset, message.key(), message.value())
    elif verdict.kind == "admitted":
        rows.admitted(partition, offset, message.key(), message.value())


def _stale_applied(
    rows: SinkRows,
    explained: dict[Difference, int],
    audit: Audit,
    parts: Sequence[PartRead],
    records: Records,
) -> Finding:
    """Rows that are what records made of them that must not be applied."""
    witness = Witness(audit.source)
    by_partition = {part.piece.partition: part for part in parts}
    shown = list(islice(rows.explained(), SHOWN))
    seen: dict[tuple[int, int], Verdict] = {}
    for partition in {one.partition for one in shown}:
        wanted = {one.offset for one in shown if one.partition == partition}
        part = by_partition[partition]
        for message, verdict in judged_again(audit, part, records, max(wanted) + 1):
            if message.offset() in wanted:
                seen[partition, message.offset() or 0] = verdict
    evidence: list[Evidence] = []
    keys: list[str] = []
    for one in shown:
        verdict = seen[one.partition, one.offset]
        part = by_partition[one.partition]
        cause = verdict.cause
        holder = None
        if cause is not None:
            holder = witness.holder(cause.scope, cause.epoch, cause.grant_id)
        wrote = "" if holder is None else f" of {holder!r}"
        keys.append(
            f"{printed(one.key)}, by the {verdict.kind} record{wrote} at offset "
            f"{one.offset} of {part.where}"
        )
        evidence.append(
            Evidence(
                what=f"rejected as {verdict.reason}, and applied",
                topic=part.piece.topic,
                topic_id=part.piece.topic_id,
                partition=one.partition,
                offset=one.offset,
                scope=None if cause is None else cause.scope,
                epoch=None if cause is None else cause.epoch,
                grant_id=None if cause is None else cause.grant_id,
                holder=holder,
            )
        )
    return Finding(
        severity="critical",
        code="stale-applied",
        text=f"{_in_words(explained, rows)}, and each is just what a rejected "
        f"record makes of it: "
        f"{'; '.join(keys)}{_more(explained)}. A stale record was applied.",
        topic=parts[0].piece.topic,
        records=sum(explained.values()),
        evidence=tuple(evidence),
        remedy="Something without a fence has written there. Apply the admitted "
        "records anew: clear the table and the sink's positions, and let it run.",
    )


def _in_words(differences: dict[Difference, int], rows: SinkRows) -> str:
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in differences.items())
    total = sum(differences.values())
    return (
        f"{counted(total, 'row')} of {rows.name} {'is' if total == 1 else 'are'} not "
        f"as the admitted records make {'it' if total == 1 else 'them'} ({kinds}; "
        f"there should be {counted(rows.compared(), 'row')})"
    )


def _more(differences: dict[Difference, int]) -> str:
    more = sum(differences.values()) - SHOWN
    return f" and {more:,} more" if more > 0 else ""


def printed(key: bytes) -> str:
    """A key, for people."""
    try:
        text = key.decode("utf-8")
    except UnicodeDecodeError:
        return f"0x{key[:40].hex()}"
    return repr(text[:60])
