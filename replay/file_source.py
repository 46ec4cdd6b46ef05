"""The records of a file, judged."""

from __future__ import annotations

from epochfence.replay.audit import Audit
from epochfence.replay.files import InvalidFileError, read_records
from epochfence.replay.log_order import OutOfOrderError
from epochfence.replay.sources import Progress, VerdictWriter

_RECORDS_PER_TICK = 1 << 15


def audit_file(
    audit: Audit,
    path: str,
    verdicts: VerdictWriter | None = None,
    progress: Progress | None = None,
) -> None:
    """Judge the records of a file.

    Raises:
        InvalidFileError: The file or a line of it is bad, or out of order.
    """
    partitions = audit.partitions
    for judged, (number, record) in enumerate(read_records(path), 1):
        partition = partitions.get((record.topic, record.partition))
        if partition is None:
            partition = audit.partition(record.topic, record.partition)
        try:
            verdict = partition.judge(
                record.topic_id,
                record.leader_epoch,
                record.offset,
                record.timestamp,
                record.headers,
                record.value,
            )
        except OutOfOrderError as error:
            raise InvalidFileError(path, number, str(error)) from error
        if verdicts is not None:
            verdicts.write(record.topic, record.partition, (record.offset,), verdict)
        if progress is not None and judged % _RECORDS_PER_TICK == 0:
            progress(judged)
