"""epochfence keeps deposed leaders from corrupting what Kafka consumers build.

A message carries the epoch of the leadership it was written under; whoever reads
drops what a deposed leader sent. README.md shows how, docs/rules.md says exactly.
"""

import logging
from importlib.metadata import version

from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    EpochExhausted,
    EpochfenceError,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    SinkFenced,
    TableMissing,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.values import Claim, EpochStart, Position, Stamp

# A library is silent until its user asks for more.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = version("epochfence")

__all__ = [
    # What is used first.
    "Ledger",
    "Leadership",
    # Values.
    "Claim",
    "EpochStart",
    "Position",
    "Stamp",
    # Errors, by what to do next.
    "EpochfenceError",
    "Deposed",
    "ClaimLost",
    "ClaimUnknown",
    "SinkFenced",
    "LedgerUnavailable",
    "TableUnavailable",
    "TopicUnavailable",
    "LedgerRegressed",
    "TableMissing",
    "EpochExhausted",
    "MisconfiguredError",
]
