"""A topic, judged from captured start to captured end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.audit import Audit
from epochfence.replay.checked_parts import PartRead
from epochfence.replay.checking import Checks
from epochfence.replay.checkpoint import (
    Checkpoint,
    CheckpointFile,
    check_same,
    ledger_digest,
    table_digest,
)
from epochfence.replay.often import Often
from epochfence.replay.partition_audit import PartitionState
from epochfence.replay.report import Finding
from epochfence.replay.slices import Job, SliceState
from epochfence.replay.sources import INTERRUPTED, Outcome, Progress, VerdictWriter
from epochfence.replay.summing_up import settings_report, sum_up
from epochfence.replay.topic_source import Slice, TopicSource
from epochfence.replay.what_if import WhatIfState
from epochfence.replay.workers import (
    Listener,
    Task,
    Told,
    judge_by_workers,
    judge_here,
)

_log = logging.getLogger(__name__)

_SAVE_EVERY_S = 2.0


@dataclass
class TopicAudit:
    """An audit of a topic.

    Args:
        audit: What to judge by.
        source: The topic.
        what_if: Other settings, of which it is told where they disagree.
        verdicts: Takes each record's verdict; with one worker only.
        progress: Told how far it has come.
        must_stop: Asked every moment whether to stop between two batches.
        workers: How many processes judge; 1: this one.
        checkpoint: Where to keep how far it has come, and to go on from; None: nowhere.
        asked: Which part of the topic was asked for, for the checkpoint.
        checks: What it is compared with beyond the fence, unless it was stopped.
    """

    audit: Audit
    source: TopicSource
    what_if: Sequence[FenceSettings] = ()
    verdicts: VerdictWriter | None = None
    progress: Progress | None = None
    must_stop: Callable[[], bool] = lambda: False
    workers: int = 1
    checkpoint: CheckpointFile | None = None
    asked: str = ""
    checks: Checks | None = None
    _states: dict[int, SliceState] = field(default_factory=dict[int, SliceState])
    _failures: list[TopicUnavailable] = field(default_factory=list[TopicUnavailable])

    def run(self) -> Outcome:
        """Judge what there is to judge. Whatever happens, what was found is told.

        Raises:
            MisconfiguredError: The checkpoint is of another audit, or cannot be kept.
            InvalidFileError: The checkpoint is none.
        """
        slices, kept = self._begin()
        is_stopped = self._judge(slices, kept)
        findings = [*self._unread(slices), *self._changes(slices)]
        if not is_stopped:
            findings += self._compared(slices)
        partial = None
        if is_stopped:
            partial = INTERRUPTED
        elif self._failures:
            partial = str(self._failures[0])
        findings += self._keep(kept, is_whole=partial is None)
        report = sum_up(
            self.audit,
            f"topic {self.source.topic}",
            states=self._found(slices),
            what_if=self._what_if(),
            bounds={(one.topic, one.partition): (one.start, one.end) for one in slices},
            findings=findings,
            partial=partial,
            compared_with=() if self.checks is None else self.checks.compared_with(),
        )
        error = self._failures[0] if self._failures else None
        return Outcome(report, error, is_stopped)

    def _compared(self, slices: Sequence[Slice]) -> Iterator[Finding]:
        """What the checks beyond the fence say of what was judged."""
        if self.checks is None:
            return
        parts = [
            PartRead(piece, found.next_offset, found.state)
            for piece in slices
            if (found := self._states.get(piece.partition)) is not None
        ]
        try:
            yield from self.checks.findings(self.audit, parts)
        except TopicUnavailable as error:
            self._failures.append(error)

    def _begin(self) -> tuple[list[Slice], Checkpoint]:
        source = self.audit.source
        now = Checkpoint(
            topic=self.source.topic,
            settings=settings_report(self.audit.settings),
            what_if=[settings_report(one) for one in self.what_if],
            asked=self.asked,
            ledger=None if source is None else source.name,
            ledger_offset=None if source is None else source.offset,
            ledger_digest=None,
            table_digest=table_digest(self.audit.table),
            slices=self.source.slices,
        )
        if self.checkpoint is None:
            return self.source.slices, now
        now.ledger_digest = ledger_digest(source)
        before = self.checkpoint.load()
        if before is None:
            self.checkpoint.save(now)  # what cannot be written is told at once
            return self.source.slices, now
        check_same(before, now, self.checkpoint.path)
        # The ends of that time: what a report says must be of one moment.
        now.slices, now.states = before.slices, before.states
        self._states.update(
            (state.partition, state) for state in before.states.values()
        )
        return now.slices, now

    def _judge(self, slices: list[Slice], kept: Checkpoint) -> bool:
        """Judge what is left; give whether it was stopped."""
        tasks = [
            Task(piece, self._states.get(piece.partition))
            for piece in slices
            if not self._is_done(piece.partition)
        ]
        job = Job(
            self.source.config,
            self.source.timeout_s,
            self.audit.settings,
            self.audit.ledger,
            tuple(self.audit.table),
            tuple(self.what_if),
        )
        listener = self._listener(slices, kept)
        keeps = self.checkpoint is not None
        if self.workers > 1 and len(tasks) > 1:
            judge_by_workers(job, tasks, listener, keeps=keeps, workers=self.workers)
        else:
            for task in tasks:
                if self.must_stop():
                    break
                judge_here(job, task, listener, keeps=keeps, verdicts=self.verdicts)
        is_whole = all(self._is_done(piece.partition) for piece in slices)
        return self.must_stop() and not is_whole

    def _is_done(self, partition: int) -> bool:
        state = self._states.get(partition)
        return state is not None and state.is_done

    def _listener(self, slices: Sequence[Slice], kept: Checkpoint) -> Listener:
        total = sum(piece.end - piece.start for piece in slices)
        positions = {piece.partition: piece.start for piece in slices}
        positions |= {
            state.partition: state.next_offset for state in self._states.values()
        }
        begun_at = sum(piece.start for piece in slices)
        topic = self.source.topic
        records = sum(state.state.records for state in self._states.values())
        is_time_to_save = Often(_SAVE_EVERY_S)

        def listener(told: Told) -> bool:
            nonlocal records
            records += told.records
            positions[told.partition] = max(positions[told.partition], told.position)
            if told.failure is not None:
                at = None if told.position < 0 else told.position
                self._failures.append(
                    TopicUnavailable(topic, told.failure, told.partition, at)
                )
            if told.state is not None:
                self._states[told.partition] = told.state
                if self.checkpoint is not None:
                    kept.states[str(told.partition)] = told.state
                    if is_time_to_save():
                        self._save(kept)
            if self.progress is not None:
                self.progress(records, sum(positions.values()) - begun_at, total)
            return self.must_stop()

        return listener

    def _save(self, kept: Checkpoint) -> MisconfiguredError | None:
        """Keep how far it has come; what was judged does not depend on it."""
        assert self.checkpoint is not None
        try:
            self.checkpoint.save(kept)
        except MisconfiguredError as error:
            _log.warning("%s", error)
            return error
        return None

    def _keep(self, kept: Checkpoint, *, is_whole: bool) -> Iterator[Finding]:
        """Leave a checkpoint if there is something left to judge."""
        if self.checkpoint is None:
            return
        if is_whole:
            self.checkpoint.remove()
            return
        error = self._save(kept)
        if error is not None:
            yield Finding(
                severity="critical",
                code="checkpoint-not-kept",
                text=f"How far the audit has come could not be kept: {error}",
                topic=self.source.topic,
                remedy="An older checkpoint, if there is one, still holds.",
            )

    def _found(self, slices: Iterable[Slice]) -> list[PartitionState]:
        return [
            self._states[piece.partition].state
            if piece.partition in self._states
            else PartitionState(piece.topic, piece.partition)
            for piece in slices
        ]

    def _what_if(self) -> list[tuple[FenceSettings, list[WhatIfState]]]:
        found = sorted(self._states.values(), key=lambda state: state.partition)
        return [
            (settings, [state.what_if[number] for state in found])
            for number, settings in enumerate(self.what_if)
        ]

    def _changes(self, slices: Sequence[Slice]) -> Iterator[Finding]:
        """What could not be known, and what became of the topic meanwhile."""
        for piece in slices:
            yield from _limits_of(piece)
        try:
            problem = self.source.problem()
            if problem is not None:
                self._failures.append(TopicUnavailable(self.source.topic, problem))
                yield _replaced(self.source.topic, problem)
                return  # what there is now says nothing of what was read
            yield from _changes_of(self.source, slices)
            for piece in slices:
                yield from _rest_of(
                    self.source, piece, self._states.get(piece.partition)
                )
        except TopicUnavailable as error:
            self._failures.append(error)
            yield Finding(
                severity="critical",
                code="changes-unknown",
                text=f"Whether {self.source.topic} was made anew or truncated while it "
                f"was read cannot be told: {error.reason}.",
                topic=self.source.topic,
                remedy="Run the audit again when the cluster answers.",
            )

    def _unread(self, slices: Sequence[Slice]) -> Iterator[Finding]:
        """What could not be read, or was not yet."""
        failures = {failure.partition: failure for failure in self._failures}
        for piece in slices:
            failure = failures.get(piece.partition)
            state = self._states.get(piece.partition)
            if failure is None and state is not None and state.is_done:
                continue
            reached = piece.start if state is None else state.next_offset
            why = "" if failure is None else f": {failure.reason}"
            yield Finding(
                severity="critical",
                code="not-judged",
                text=f"{piece.topic}[{piece.partition}] was judged up to offset "
                f"{reached} of {piece.end} only{why}.",
                topic=piece.topic,
                partition=piece.partition,
                remedy="Run the audit again; with --checkpoint it goes on from there.",
            )


def _limits_of(piece: Slice) -> Iterator[Finding]:
    """What cannot be known of a partition that is not read from its beginning."""
    where = f"{piece.topic}[{piece.partition}]"
    if piece.start > 0:
        what = "begins at" if piece.start == piece.log_start else "was judged from"
        yield Finding(
            severity="notice",
            code="head-gone" if piece.start == piece.log_start else "range",
            text=f"{where} {what} offset {piece.start}: epochs that began before it "
            f"are known only from a table (--table-topic, --table).",
            topic=piece.topic,
            partition=piece.partition,
            remedy="Give the table of its consumers: what is judged without it may "
            "admit a record of a leader that had been deposed before.",
        )


def _rest_of(
    source: TopicSource, piece: Slice, found: SliceState | None
) -> Iterator[Finding]:
    """Why the end of a partition was not come to, although nothing failed."""
    if found is None or not found.is_done or found.next_offset >= piece.end:
        return
    where = f"{piece.topic}[{piece.partition}]"
    end = source.end_now(piece.partition)
    if end < piece.end:
        yield Finding(
            severity="critical",
            code="log-truncated",
            text=f"{where} ended at offset {piece.end} when its end was captured, and "
            f"ends at {end} now: records were lost, or a broker tells an old end. What "
            f"was judged behind {end} is not what lies there.",
            topic=piece.topic,
            partition=piece.partition,
            remedy="Run the audit again; if records are lost, see whether an unclean "
            "election took them.",
        )
        return
    yield Finding(
        severity="warning",
        code="open-transaction",
        text=f"{where} offsets {found.next_offset} to {piece.end - 1} lie behind "
        f"an open transaction and were not judged.",
        topic=piece.topic,
        partition=piece.partition,
        remedy="Run the audit again when it has ended; kafka-transactions.sh "
        "find-hanging finds one that does not.",
    )


def _replaced(topic: str, problem: str) -> Finding:
    return Finding(
        severity="critical",
        code="topic-replaced",
        text=f"{topic}: {problem}.",
        topic=topic,
    )


def _changes_of(source: TopicSource, slices: Sequence[Slice]) -> Iterator[Finding]:
    """What became of the topic while it was read."""
    added = source.partitions_added(slices)
    if added:
        yield Finding(
            severity="notice",
            code="partitions-added",
            text=f"{source.topic} got partitions meanwhile, which were not judged: "
            f"{', '.join(map(str, added))}.",
            topic=source.topic,
            remedy="Run the audit again for those (--partition).",
        )
    if source.is_compacted:
        yield Finding(
            severity="notice",
            code="compacted",
            text=f"{source.topic} is compacted: records that the cleaner removed were "
            f"not judged, and a stale record may have replaced an admitted one of its "
            f"key.",
            topic=source.topic,
        )
