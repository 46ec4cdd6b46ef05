"""What a store has to do to be a sink: the check and the write are one step.

A sink keeps, beside what it makes of the messages, how far it has come on each
partition and where each epoch began there; all of it changes in one transaction, or
none of it. The stored position is compared before anything is written: so of two
instances that both believe to own a partition, the one that is behind changes nothing.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from confluent_kafka import Message

from epochfence.consumers.dead_letters import DeadLetter
from epochfence.epochs.errors import MisconfiguredError, SinkFenced
from epochfence.epochs.values import EpochStart, Position, SinkPosition, SinkState

F = TypeVar("F")


@dataclass(frozen=True, slots=True)
class SinkBatch:
    """What becomes of one partition in a transaction.

    Attributes:
        topic: The topic.
        partition: The partition's number.
        messages: The admitted messages, in order; none, where all were rejected.
        expected: What the sink must have stored before, None: nothing.
        position: What it has to store.
        new_starts: The epoch starts that it has to store besides; those that it has
            stay as they are.
        starts: Every epoch start that counts at the position, the new ones included.
        rejected: Those records between the two positions that were rejected, in
            order; none, unless the sink `keeps_rejected`.
    """

    topic: str
    partition: int
    messages: Sequence[Message]
    expected: SinkPosition | None
    position: SinkPosition
    new_starts: Sequence[EpochStart]
    starts: Sequence[EpochStart] = ()
    rejected: Sequence[DeadLetter] = ()

    @property
    def place(self) -> tuple[str, int]:
        """Topic and partition number."""
        return self.topic, self.partition

    def check(self, found: SinkPosition | None) -> None:
        """Compare with what the sink has stored, within the transaction.

        Raises:
            SinkFenced: It is another position: end the transaction without a change.
        """
        if found != self.expected:
            raise self.fenced(found)

    def fenced(self, found: SinkPosition | None) -> SinkFenced:
        """The error of an instance that must not store this, and what is stored."""
        nothing = (None, None, None)
        return SinkFenced(*self.place, self.expected or nothing, found or nothing)


def checked_apply(apply: F) -> F:
    """Give a function that applies messages back if it does so when it is called.

    Raises:
        MisconfiguredError: It is none, or does nothing until it is awaited.
    """
    if not callable(apply):
        raise MisconfiguredError(
            "apply", apply, "it is neither a function nor an Upsert",
            "Give a function of a cursor and messages, or Upsert(...).",
        )  # fmt: skip
    check_acts("apply", apply)
    return apply


def check_acts(name: str, function: object) -> None:
    """Return if a function has done its work when it returns.

    Raises:
        MisconfiguredError: It does nothing until it is awaited, or iterated.
    """
    call = getattr(function, "__call__", None)  # noqa: B004
    for one in (function, call):
        if (
            inspect.iscoroutinefunction(one)
            or inspect.isgeneratorfunction(one)
            or inspect.isasyncgenfunction(one)
        ):
            raise MisconfiguredError(
                name, function, "called, it does nothing yet: it is asynchronous, or a "
                "generator",
                "Give an ordinary function, which has done its work when it returns.",
            )  # fmt: skip


@contextmanager
def taken(lock: threading.Lock) -> Generator[None, None, None]:
    """A lock that is taken, also where who took it is gone before it was given back.

    So it is where Ctrl-C comes between the beginning of a write and its end: nobody
    holds what would end it then, and whatever else was entered is left likewise.
    """
    with lock:
        yield


def row_of_start(start: EpochStart) -> tuple[Any, ...]:
    """An epoch start as a row: the fields of `EpochStart`, the position's last."""
    return (*start[:6], *start.position)


def start_of_row(row: Sequence[Any]) -> EpochStart:
    """The epoch start of such a row."""
    topic, topic_id, partition, scope, epoch, grant_id, leader_epoch, offset = row
    return EpochStart(
        topic, topic_id, partition, scope, epoch, grant_id,
        Position(leader_epoch, offset),
    )  # fmt: skip


@runtime_checkable
class Sink(Protocol):
    """A store that admitted messages are applied to.

    `epochfence.testing.sink_contract.SinkContract` has the tests that a sink must
    pass. A `SinkRunner` calls it from one thread at a time.

    One that has an attribute `keeps_rejected`, which is true, gets rejected records too
    (`SinkBatch.rejected`), to store them in the same transaction. One that has a method
    `begin_write` is written to by it: see `OverlappingSink`.
    """

    def load(self, topic: str, partition: int) -> SinkState | None:
        """What was stored last of a partition, None for nothing yet.

        Raises:
            SinkUnavailable: The store does not answer now.
        """
        ...

    def write(self, batches: Sequence[SinkBatch]) -> None:
        """Apply batches of different partitions, all in one transaction.

        For each of them: compare (`SinkBatch.check`) what is stored, under a lock
        that lasts to the end of the transaction; apply the messages; store the new
        starts and the position.

        Raises:
            SinkFenced: A batch did not find what it expects. Nothing has changed.
            SinkUnavailable: The store does not answer, or not now. Either all of it
                was stored, or nothing.
            Exception: Any other, such as one of the function that applies messages:
                nothing has changed.
        """
        ...


@runtime_checkable
class OverlappingSink(Sink, Protocol):
    """A sink whose transactions end while the next messages are read.

    Not needed, but faster: what the end of a transaction waits for, such as a disk, is
    waited for in another thread.
    """

    def begin_write(self, batches: Sequence[SinkBatch]) -> Callable[[], None]:
        """Begin what `write` does; what it gives, called, sees to the rest.

        A `SinkRunner` calls that once, in a thread of its own, and calls nothing else
        of the sink until it has returned. Nothing counts as stored before.

        A class that comes of such a one and has a `write` of its own is written to by
        that.

        Raises:
            Exception: As `write`, which goes for what it gives, too.
        """
        ...
