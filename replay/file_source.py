"""The records of a file, judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import Headers
from epochfence.replay.audit import Audit
from epochfence.replay.files import InvalidFileError, read_records
from epochfence.replay.log_order import OutOfOrderError
from epochfence.replay.partition_audit import PartitionAudit
from epochfence.replay.partition_replay import PartitionReplay
from epochfence.replay.sources import INTERRUPTED, Outcome, Progress, VerdictWriter
from epochfence.replay.summing_up import sum_up
from epochfence.replay.what_if import Changes, WhatIfState

_RECORDS_PER_TICK = 1 << 15


class StoredRecord(Protocol):
    """A record as files hold them."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def topic_id(self) -> str | None: ...

    @property
    def leader_epoch(self) -> int | None: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int | None: ...

    @property
    def headers(self) -> Headers: ...

    @property
    def value(self) -> bytes | None: ...


class StoredRecords:
    """Records that come one by one, and the replays of their partitions.

    Args:
        audit: What to judge by.
        what_if: Other settings, of which it is told where they disagree.
        verdicts: Takes each record's verdict.
    """

    def __init__(
        self,
        audit: Audit,
        what_if: Sequence[FenceSettings],
        verdicts: VerdictWriter | None,
    ) -> None:
        self._audit = audit
        self._settings = what_if
        self._verdicts = verdicts
        self._partitions: dict[tuple[str, int], PartitionReplay] = {}

    def take(self, record: StoredRecord) -> None:
        """Judge the next record.

        Raises:
            OutOfOrderError: It does not stand behind those of its partition.
        """
        replay = self._partitions.get((record.topic, record.partition))
        if replay is None:
            replay = self._open((record.topic, record.partition))
        replay.take(
            record.topic_id,
            record.leader_epoch,
            record.offset,
            record.timestamp,
            record.headers,
            record.value,
        )

    def what_if(self) -> list[tuple[FenceSettings, list[WhatIfState]]]:
        """What the other settings say."""
        found = [self._partitions[at].what_if() for at in sorted(self._partitions)]
        return [
            (settings, [one[number] for one in found])
            for number, settings in enumerate(self._settings)
        ]

    def _open(self, place: tuple[str, int]) -> PartitionReplay:
        audit = self._audit
        others = [
            (PartitionAudit(*place, settings, audit.ledger, audit.table), Changes())
            for settings in self._settings
        ]
        replay = PartitionReplay(audit.partition(*place), others, self._verdicts)
        self._partitions[place] = replay
        return replay


def audit_file(
    audit: Audit,
    path: str,
    what_if: Sequence[FenceSettings] = (),
    *,
    verdicts: VerdictWriter | None = None,
    progress: Progress | None = None,
    must_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Judge the records of a file. Whatever is wrong with it, what was found is told.

    Args:
        audit: What to judge by.
        path: The file; `-` is the standard input.
        what_if: Other settings, of which it is told where they disagree.
        verdicts: Takes each record's verdict.
        progress: Told how many were judged.
        must_stop: Asked now and then whether to stop.
    """
    records = StoredRecords(audit, what_if, verdicts)
    error: InvalidFileError | None = None
    is_stopped = False
    try:
        for judged, (number, record) in enumerate(read_records(path), 1):
            try:
                records.take(record)
            except OutOfOrderError as problem:
                raise InvalidFileError(path, number, str(problem)) from problem
            if judged % _RECORDS_PER_TICK == 0:
                if progress is not None:
                    progress(judged, judged, 0)
                if must_stop():
                    is_stopped = True
                    break
    except InvalidFileError as problem:
        error = problem
    partial = INTERRUPTED if is_stopped else None if error is None else str(error)
    report = sum_up(audit, f"file {path}", what_if=records.what_if(), partial=partial)
    return Outcome(report, error, is_stopped)
