"""epochfence keeps deposed leaders from corrupting what Kafka consumers build.

A message carries the epoch of the leadership it was written under; whoever reads
drops what a deposed leader sent. README.md shows how, docs/rules.md says exactly.
"""

import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

from epochfence.consumers.at_least_once_sink import AtLeastOnceSink
from epochfence.consumers.dead_letters import DeadLetter
from epochfence.consumers.fence import Fence
from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.consumers.kafka_sink import KafkaSink
from epochfence.consumers.row_guard import guarded_upsert
from epochfence.consumers.sink import Sink, SinkBatch
from epochfence.consumers.sink_runner import SinkProgress, SinkRunner
from epochfence.consumers.sqlite_sink import SqliteSink
from epochfence.consumers.upsert import Upsert
from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    ElectionUnavailable,
    EpochExhausted,
    EpochfenceError,
    EpochUnavailable,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    NotAssigned,
    SinkFenced,
    SinkUnavailable,
    TableMissing,
    TableUnavailable,
    TopicUnavailable,
    TransactionAborted,
    TransactionUnknown,
)
from epochfence.epochs.idempotency import command_key, message_key
from epochfence.epochs.leadership import Claimed, Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.receipts import Receipt, Receipts, Undelivered
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import ForeignField, ForeignHeader
from epochfence.epochs.values import (
    Claim,
    EpochStart,
    Position,
    SinkPosition,
    SinkState,
    Stamp,
)
from epochfence.epochs.verdicts import Verdict
from epochfence.leading import (
    AsyncTenure,
    PartitionLeaderships,
    Recovered,
    Tenure,
    async_lead,
    lead,
)
from epochfence.producers.async_producer import AsyncFencedProducer
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.fenced_transactional_producer import (
    FencedTransactionalProducer,
)
from epochfence.producers.write_behind import WriteBehind

# A library is silent until its user asks for more.
logging.getLogger(__name__).addHandler(logging.NullHandler())

__version__ = version("epochfence")

if TYPE_CHECKING:
    from epochfence.consumers.postgres_sink import PostgresSink as PostgresSink
else:

    def __getattr__(name: str) -> object:
        """Load what needs an extra when it is asked for."""
        if name != "PostgresSink":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        try:
            from epochfence.consumers.postgres_sink import PostgresSink
        except ImportError as error:
            raise ImportError(
                f"PostgresSink needs psycopg ({error}). "
                "Install it: pip install 'epochfence[postgres]'"
            ) from error
        return PostgresSink


# PostgresSink is not among them: `from epochfence import *` goes without its extra.
__all__ = [
    # What is used first.
    "Ledger",
    "Leadership",
    "FencedProducer",
    "FencedTransactionalProducer",
    "FencedConsumer",
    "Fence",
    "AsyncFencedProducer",
    # The whole life of a leader.
    "lead",
    "async_lead",
    "AsyncTenure",
    "Tenure",
    "Recovered",
    # One leadership for each assigned partition.
    "PartitionLeaderships",
    # Sinks: the check and the write are one step.
    "SinkRunner",
    "SinkProgress",
    "SqliteSink",
    "KafkaSink",
    "AtLeastOnceSink",
    "message_key",
    "command_key",
    "Upsert",
    "guarded_upsert",
    "Sink",
    "SinkBatch",
    "DeadLetter",
    # What a topic's records must carry.
    "FenceSettings",
    "ForeignHeader",
    "ForeignField",
    # Values.
    "Claim",
    "Claimed",
    "EpochStart",
    "Position",
    "SinkPosition",
    "SinkState",
    "Stamp",
    "Verdict",
    "Receipt",
    "Receipts",
    "Undelivered",
    "WriteBehind",
    # Errors, by what to do next.
    "EpochfenceError",
    "Deposed",
    "ClaimLost",
    "ClaimUnknown",
    "SinkFenced",
    "SinkUnavailable",
    "TransactionAborted",
    "TransactionUnknown",
    "ElectionUnavailable",
    "NotAssigned",
    "EpochUnavailable",
    "LedgerUnavailable",
    "LedgerClosed",
    "TableUnavailable",
    "TopicUnavailable",
    "LedgerRegressed",
    "TableMissing",
    "EpochExhausted",
    "MisconfiguredError",
]
