"""What a source of records gives an audit, whatever it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from epochfence.epochs.verdicts import Verdict

#: Told now and then how many records were judged so far.
Progress = Callable[[int], None]


class VerdictWriter(Protocol):
    """Takes the verdict of each record."""

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Take the verdict that some records of a partition share."""
        ...
