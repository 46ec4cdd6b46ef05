"""What a source of records gives an audit, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from epochfence.epochs.errors import EpochfenceError
from epochfence.epochs.verdicts import Verdict
from epochfence.replay.report import Report

#: Told now and then how many records were judged so far, how many steps of the way (of
#: offsets, of bytes) that took, and how many there are; 0: that is not known.
Progress = Callable[[int, int, int], None]


#: What a report says that was cut short on purpose.
INTERRUPTED = "it was interrupted"


@dataclass(frozen=True)
class Outcome:
    """What came of an audit.

    Attributes:
        report: What it found.
        error: Why not all could be read, None where all was.
        is_stopped: Whether it was asked to stop before its end.
    """

    report: Report
    error: EpochfenceError | None = None
    is_stopped: bool = False


class VerdictWriter(Protocol):
    """Takes the verdict of each record."""

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Take the verdict that some records of a partition share."""
        ...
