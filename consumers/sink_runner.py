"""Drives a sink: admitted messages go in, each once, whatever is restarted."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass

from confluent_kafka import (
    OFFSET_STORED,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.consumers.group_positions import GroupSink
from epochfence.consumers.membership import Membership
from epochfence.consumers.outbox import place_of
from epochfence.consumers.pieces import cut
from epochfence.consumers.rejections import OnRejected
from epochfence.consumers.settings import Require, without_auto_commit
from epochfence.consumers.signals import handled
from epochfence.consumers.sink import Sink, SinkBatch
from epochfence.consumers.waiting_letters import WaitingLetters
from epochfence.consumers.writing import Writing
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import (
    LedgerClosed,
    LedgerUnavailable,
    MisconfiguredError,
    SinkFenced,
    SinkUnavailable,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.stamps import StampReader
from epochfence.epochs.values import (
    EpochStart,
    Place,
    Position,
    SinkPosition,
    SinkState,
    check_function,
    check_timeout,
)
from epochfence.epochs.verdicts import Verdict

_log = logging.getLogger(__name__)

#: What passes: it is tried again.
_PASSING = (LedgerUnavailable, TableUnavailable, TopicUnavailable, SinkUnavailable)

#: How long the first wait lasts before something is tried again; each is longer.
_FIRST_WAIT_S = 0.1

#: How often the client is called while something is waited for.
_SERVE_S = 0.2


@dataclass(frozen=True, slots=True)
class SinkProgress:
    """How far a runner has come.

    Attributes:
        messages: How many messages were applied since it was made.
        transactions: In how many transactions.
        counts: How many records had each verdict: see `FencedConsumer.counts`.
        positions: How far the sink has come on each assigned partition.
        rebuilding: Partitions that are being read for the epochs that began there:
            see `FencedConsumer.progress`.
    """

    messages: int
    transactions: int
    counts: Mapping[str, int]
    positions: Mapping[Place, SinkPosition]
    rebuilding: Mapping[Place, tuple[int, int, int]]


class SinkRunner:
    """Reads topics as a member of a group, and applies what is admitted to a sink.

    Each partition goes on where the sink has come to, whatever the group has
    committed. (Offsets are committed too, after the sink's, for those who watch lag.)
    What passes, such as a broker or a database that does not answer, is tried again
    with growing waits, in which the group is kept. Nothing is applied twice: what is
    stored is compared in each transaction, and read again where a transaction's
    outcome is not known. While a batch is committed, the next one is read: see
    `OverlappingSink`.

    Args:
        config: As for `FencedConsumer`. `auto.offset.reset` (where the sink knows
            nothing) is `earliest` unless given; offsets are never committed
            automatically.
        ledger: The ledger.
        sink: The sink. Whoever made it closes it.
        require: As for `FencedConsumer`, as all that follow.
        unstamped: What to do with records that lack a stamp.
        authority: Who says which epochs exist.
        stamps: Finds the stamps.
        max_jump: How far an epoch may jump.
        rebuild: Whether missing epoch starts may be found by reading.
        on_rejected: Called with each rejected message and its verdict.
        batch_size: How many messages a transaction has at most.
        batch_wait_s: How long to wait for so many.
        commit_interval_s: How often offsets are committed.
        longest_wait_s: The longest wait before something is tried again.
        timeout_s: How long a call may wait for the cluster.

    Raises:
        MisconfiguredError: A setting is wrong, or contradicts the sink.
        LedgerUnavailable, TableUnavailable: They cannot be read.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        sink: Sink,
        *,
        require: Require,
        unstamped: str | None = None,
        authority: str | None = None,
        stamps: StampReader | None = None,
        max_jump: int | None = None,
        rebuild: bool = True,
        on_rejected: OnRejected | None = None,
        batch_size: int = 1000,
        batch_wait_s: float = 0.1,
        commit_interval_s: float = 5.0,
        longest_wait_s: float = 30.0,
        timeout_s: float = 10.0,
    ) -> None:
        if not isinstance(sink, Sink):
            raise MisconfiguredError(
                "sink", sink, "it has no load and write",
                "Give a sink, such as SqliteSink, or your own (help(epochfence.Sink)).",
            )  # fmt: skip
        self._batch_size = _checked_size(batch_size)
        self._batch_wait_s = _checked("batch_wait_s", batch_wait_s, 0.001, 3600)
        self._commit_interval_s = _checked(
            "commit_interval_s", commit_interval_s, 0, 3600
        )
        self._longest_wait_s = _checked("longest_wait_s", longest_wait_s, 0.1, 3600)
        self._timeout_s = check_timeout(timeout_s)
        check_function("on_rejected", on_rejected)
        self._on_rejected = on_rejected
        keeps_rejected = getattr(sink, "keeps_rejected", False)
        settings = {"auto.offset.reset": "earliest", **without_auto_commit(config)}
        self._sink = sink
        self._group_sink = sink if isinstance(sink, GroupSink) else None
        self._consumer = FencedConsumer(
            settings,
            ledger,
            require=require,
            unstamped=unstamped,
            authority=authority,
            stamps=stamps,
            max_jump=max_jump,
            rebuild=rebuild,
            on_rejected=self._reject if keeps_rejected else on_rejected,
            timeout_s=timeout_s,
            positions=self._load,
        )
        if self._group_sink is not None:
            self._group_sink.join(self._consumer)
        self._membership = Membership(
            self._consumer, self._group_sink, ledger, settings, timeout_s
        )
        # Messages that were taken over, and then their batches, until they are stored.
        # A partition that is given up, or placed anew, takes what is in hand of it
        # along: its next reader begins where the sink stands.
        self._gathered: dict[Place, list[Message]] = {}
        self._in_hand: dict[Place, SinkBatch] = {}
        self._writing = Writing(sink)
        self._is_known = True  # what became of the last write
        # What the sink has stored of each partition, as far as this instance knows.
        self._stored: dict[Place, SinkPosition | None] = {}
        self._starts: dict[Place, set[EpochStart]] = {}
        self._letters = WaitingLetters(ledger)
        self._uncommitted: set[Place] = set()
        self._next_commit = time.monotonic() + commit_interval_s
        # No Event: a signal's handler that sets one can meet its lock.
        self._is_stopping = False
        self._messages = self._transactions = 0

    # The run.

    def run(self, topics: list[str], *, handles_signals: bool = True) -> None:
        """Work until `stop` is called or a signal says so; then leave the group.

        Args:
            topics: Each is listed in `require`, or each that a pattern finds.
            handles_signals: Whether SIGINT and SIGTERM end the run, in the main
                thread: what is being written is finished.

        Raises:
            SinkFenced: Another instance has taken a partition over, and this one is no
                member of the group any more. Nothing was changed by it. Start again,
                with another runner: each runs once.
            LedgerRegressed, TableMissing: An operator decides.
            LedgerClosed: The ledger was closed meanwhile.
            MisconfiguredError: A setting is wrong.
            KafkaException: The client cannot go on.
            Exception: Whatever the sink's function raised; its transaction changed
                nothing.
        """
        consumer = self._consumer
        try:
            consumer.subscribe(topics, on_revoke=self._revoked, on_lost=self._lost)
            with stopped_by_signals(self) if handles_signals else nullcontext():
                self._run()
            self._commit(asynchronous=False)
        except Exception:
            self._close(waits=True)
            raise
        except BaseException:
            # A second Ctrl-C ends what does not end by itself.
            self._close(waits=False)
            raise
        self._close(waits=True)

    def _run(self) -> None:
        wait_s = _FIRST_WAIT_S
        while not self._is_stopping:
            failure: Exception | None = None
            try:
                self._gather_next()
            except LedgerClosed:
                raise
            except _PASSING as error:
                failure = error
            self._end_write()
            if self._in_hand:
                return  # told to stop while it is not known what became of it
            batches: dict[Place, SinkBatch] = {}
            if failure is None:
                try:
                    batches = self._batches()
                except LedgerClosed:
                    raise
                except _PASSING as error:
                    failure = error
            if failure is not None:
                wait_s = self._wait_after(failure, wait_s)
                continue
            wait_s = _FIRST_WAIT_S
            self._begin_write(batches)
            if time.monotonic() >= self._next_commit:
                self._commit(asynchronous=True)
        self._end_write()

    def _wait_after(self, error: Exception, wait_s: float) -> float:
        """Wait until something is tried again; how long to wait the next time."""
        _log.warning("tried again in %.1f s: %s", wait_s, error)
        self._wait(wait_s)
        return min(wait_s * 2, self._longest_wait_s)

    def stop(self) -> None:
        """Have `run` return once what is being written is. Safe in any thread."""
        self._is_stopping = True

    @property
    def progress(self) -> SinkProgress:
        """How far it has come."""
        stored = dict(self._stored)
        return SinkProgress(
            self._messages,
            self._transactions,
            self._consumer.counts,
            {place: at for place, at in stored.items() if at is not None},
            self._consumer.progress,
        )

    def _gather_next(self) -> None:
        """Gather what is written next, while what is in hand is written."""
        # Where an error came between, or a partition is being placed anew, there are
        # some already. (Asked for none, the consumer would not go on.)
        held = sum(map(len, self._gathered.values()))
        self._gather(max(self._batch_size - held, 1))
        for place in list(self._stored):
            # Asked here, what has to be waited for comes meanwhile, too.
            self._consumer.sink_state(TopicPartition(*place))

    def _gather(self, missing: int) -> None:
        """Take so many messages over, or what came in time."""
        until = time.monotonic() + self._batch_wait_s
        while not self._is_stopping:
            left_s = max(until - time.monotonic(), 0)
            messages = self._consumer.consume(missing, min(left_s, _SERVE_S))
            missing -= len(messages)
            for piece in cut(messages):
                if piece.place is None:
                    self._take_events(piece.messages)
                else:
                    self._gathered.setdefault(piece.place, []).extend(piece.messages)
            # Many that were rejected do not wait for messages.
            is_batch = not missing or self._waiting_letters() >= self._batch_size
            if is_batch or left_s <= _SERVE_S:
                return

    def _waiting_letters(self) -> int:
        in_hand = sum(len(batch.rejected) for batch in self._in_hand.values())
        return len(self._letters) - in_hand

    @staticmethod
    def _take_events(events: Sequence[Message]) -> None:
        for event in events:
            error = event.error()
            assert error is not None
            if error.fatal() or error.code() == KafkaError._AUTO_OFFSET_RESET:
                raise KafkaException(error)
            if error.code() != KafkaError._PARTITION_EOF:
                _log.warning("%s[%s]: %s", *place_of(event), error.str())

    def _batches(self) -> dict[Place, SinkBatch]:
        found: dict[Place, SinkBatch] = {}
        for place, expected in list(self._stored.items()):
            state = self._consumer.sink_state(TopicPartition(*place))
            messages = self._gathered.get(place, ())
            # Positions without messages count too: rejected records need not be read
            # again.
            if state is None or state.position == expected:
                continue
            if not messages and expected and _is_back(expected, state.position):
                # A log that was cut. Stored, it would let in who slept meanwhile and
                # expects this very position: the next records have a new leader epoch.
                continue
            new = [start for start in state.starts if start not in self._starts[place]]
            found[place] = SinkBatch(
                *place,
                messages,
                expected,
                state.position,
                new,
                state.starts,
                self._letters.below(place, state.position),
            )
        return found

    def _reject(self, message: Message, verdict: Verdict) -> None:
        """Keep a rejected message until the position that passes it is stored."""
        if place_of(message) in self._stored:
            self._letters.add(message, verdict)
        if self._on_rejected is not None:
            self._on_rejected(message, verdict)

    # The sink.

    def _load(self, topic: str, partition: int) -> SinkState | None:
        """Where a partition goes on: asked by the consumer whenever it is placed."""
        self._settle()
        state = self._sink.load(topic, partition)
        place = (topic, partition)
        self._let_go(place)
        self._stored[place] = None if state is None else state.position
        self._starts[place] = set() if state is None else set(state.starts)
        return state

    def _begin_write(self, batches: dict[Place, SinkBatch]) -> None:
        """Take in hand what was gathered, and begin to write it.

        It is nowhere else then: an error that is not dealt with where the write ends
        ends the run.
        """
        assert not self._in_hand, "what is in hand would be lost"
        self._in_hand = batches
        self._is_known = True
        for place in self._in_hand:
            self._gathered.pop(place, None)
        if self._in_hand:
            self._writing.begin(self._sorted())
            if self._writing.is_over:
                self._end_write()

    def _sorted(self) -> list[SinkBatch]:
        return [batch for _, batch in sorted(self._in_hand.items())]

    def _end_write(self) -> None:
        """See that what is in hand is written, but for what was given up meanwhile."""
        wait_s = _FIRST_WAIT_S
        while self._in_hand or self._writing.is_under_way:
            try:
                if not self._is_known:
                    if self._is_stopping:
                        return
                    self._compare()
                    self._is_known = True
                if not self._writing.is_under_way and self._in_hand:
                    self._writing.begin(self._sorted())
                if self._writing.is_under_way:
                    self._done(self._writing.end())
            except SinkFenced as error:
                place = (error.topic, error.partition)
                if all(batch.place != place for batch in self._writing.batches):
                    raise  # of nothing that was written
                self._in_hand.pop(place, None)
                self._reload(error)
            except SinkUnavailable as error:
                self._is_known = False
                wait_s = self._wait_after(error, wait_s)

    def _settle(self) -> None:
        """Wait for what is being written. (`_end_write` meets what went wrong.)"""
        if self._writing.has_succeeded:
            self._done(self._writing.end())

    def _compare(self) -> None:
        """See what became of a transaction whose outcome is not known.

        Raises:
            SinkUnavailable: The store still does not answer.
            SinkFenced: Another instance has written.
        """
        for place, batch in list(self._in_hand.items()):
            state = self._sink.load(*place)
            found = None if state is None else state.position
            if found == batch.position:
                self._done([batch])
            else:
                batch.check(found)

    def _done(self, batches: Sequence[SinkBatch]) -> None:
        self._transactions += 1
        for batch in batches:
            place = batch.place
            self._in_hand.pop(place, None)
            self._messages += len(batch.messages)
            if self._group_sink is None:  # else that is how it is stored
                self._uncommitted.add(place)
            self._stored[place] = batch.position
            self._starts[place].update(batch.new_starts)
            self._letters.stored(place, batch.rejected)

    def _reload(self, error: SinkFenced) -> None:
        """Go on where the sink stands, if the partition is still this member's.

        Raises:
            SinkFenced: It is not.
        """
        place = (error.topic, error.partition)
        if place not in self._stored:
            return  # given up meanwhile
        _log.warning("%s", error)
        self._see_membership(error)
        if place in self._stored:
            self._consumer.seek(TopicPartition(*place, OFFSET_STORED))

    def _see_membership(self, error: SinkFenced) -> None:
        """See that this member still has a partition.

        Raises:
            SinkFenced: It has not.
        """
        until = time.monotonic() + self._timeout_s
        while time.monotonic() < until and not self._is_stopping:
            if self._membership.holds(error):
                return
            self._wait(_SERVE_S)  # a rebalance goes on
            if (error.topic, error.partition) not in self._stored:
                return  # given up in order

    def _wait(self, wait_s: float) -> None:
        """Wait, and stay a member of the group meanwhile."""
        until = time.monotonic() + wait_s * random.uniform(0.75, 1.25)
        while not self._is_stopping:
            left_s = until - time.monotonic()
            if left_s <= 0:
                return
            time.sleep(min(left_s, _SERVE_S))
            # Hands nothing over: only callbacks run.
            with suppress(*_PASSING):
                self._consumer.consume(0, 0)

    # The group.

    def _revoked(self, _: FencedConsumer, partitions: list[TopicPartition]) -> None:
        self._settle()
        places = [(tp.topic, tp.partition) for tp in partitions]
        self._commit(places, asynchronous=False)
        self._give_up(places)

    def _lost(self, _: FencedConsumer, partitions: list[TopicPartition]) -> None:
        self._settle()
        self._give_up([(tp.topic, tp.partition) for tp in partitions])

    def _give_up(self, places: Sequence[Place]) -> None:
        for place in places:
            self._let_go(place)
            self._stored.pop(place, None)
            self._starts.pop(place, None)
            self._uncommitted.discard(place)

    def _let_go(self, place: Place) -> None:
        """Drop what is in hand of a partition: it is read again, here or elsewhere."""
        self._gathered.pop(place, None)
        self._in_hand.pop(place, None)
        self._letters.drop(place)

    def _commit(
        self, places: Sequence[Place] | None = None, *, asynchronous: bool
    ) -> None:
        """Commit what the sink has stored, for those who watch lag."""
        if places is None:
            self._next_commit = time.monotonic() + self._commit_interval_s
            places = list(self._uncommitted)
        offsets: dict[str, list[TopicPartition]] = {}
        for place in places:
            stored = self._stored.get(place)
            if place in self._uncommitted and stored is not None:
                tp = TopicPartition(*place, stored.next_offset)
                offsets.setdefault(tp.topic, []).append(tp)
        # Topic by topic: one that is gone must not keep the others from theirs.
        for of_topic in offsets.values():
            try:
                self._consumer.commit(offsets=of_topic, asynchronous=asynchronous)
            except (KafkaException, TopicUnavailable) as error:
                _log.warning("offsets were not committed: monitors lag. %s", error)
            else:
                self._uncommitted -= {(tp.topic, tp.partition) for tp in of_topic}

    # The end.

    def _close(self, *, waits: bool) -> None:
        try:
            self._writing.close(waits=waits)
        finally:
            self._consumer.close()

    def close(self) -> None:
        """Give the client back, where `run` was never called."""
        self._consumer.close()


def _is_back(expected: SinkPosition, position: SinkPosition) -> bool:
    """Whether a position lies before another of the same life of the topic."""
    if position.topic_id != expected.topic_id:
        return False
    here = Position(position.leader_epoch, position.next_offset)
    return here.is_at_or_before(Position(expected.leader_epoch, expected.next_offset))


def _checked(name: str, given: float, lowest: float, highest: float) -> float:
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    if not is_number or not lowest <= given <= highest:
        raise MisconfiguredError(
            name, given, "out of range", f"Use a number from {lowest} to {highest}."
        )
    return given


def _checked_size(given: int) -> int:
    if isinstance(given, int) and not isinstance(given, bool):
        return int(_checked("batch_size", given, 1, 1_000_000))
    raise MisconfiguredError(
        "batch_size", given, "no number of messages", "Use a whole number."
    )


@contextmanager
def stopped_by_signals(runner: SinkRunner) -> Generator[None, None, None]:
    """Have SIGINT and SIGTERM stop a runner; another thread than the first cannot."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        runner.stop()

    # A second one ends what does not end by itself.
    with handled((signal.SIGINT, signal.SIGTERM), stop, once=True):
        yield
