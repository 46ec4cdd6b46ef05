"""A producer that writes under a leadership, and knows what became of it."""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial as bound
from types import TracebackType
from typing import Any, NoReturn

from confluent_kafka import KafkaException, Producer, TopicPartition

from epochfence.epochs.acknowledged import Asked
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import deadline_after
from epochfence.epochs.errors import Deposed, EpochfenceError, MisconfiguredError
from epochfence.epochs.holding import deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.receipts import Receipt, Receipts
from epochfence.epochs.values import Claim, Place, check_function, check_timeout
from epochfence.producers.acknowledgements import (
    REPORT_REMEDY,
    Acknowledgements,
    Handover,
    Report,
    asking,
    both,
)
from epochfence.producers.barriers import BarrierKey, BarrierOffsets, BarrierValue
from epochfence.producers.confirmation import Confirmation, confirm_together
from epochfence.producers.judging import Judging, Settings
from epochfence.producers.reported import Reported, Source, has_failed_for_good
from epochfence.producers.rereading import Rereading
from epochfence.producers.shared_client import SharedClient
from epochfence.producers.stamping import (
    Headers,
    checked_leaderships,
    stamp_headers,
    with_cursor,
    with_stamps,
)
from epochfence.producers.taking_over import Realm
from epochfence.producers.territory import WHOLE_TOPIC, Territory

_log = logging.getLogger(__name__)

_RECEIPT = "Give a function of a receipt."

#: Of every producer there is, to be closed in a forked process.
_TERRITORIES: weakref.WeakSet[Territory] = weakref.WeakSet()


class FencedProducer:
    """Writes under one leadership, or several: every message carries their stamps.

    Wraps a `confluent_kafka.Producer`; what has the same name works the same. Before
    anything can be written to a topic, it has to be taken over. Safe to use from
    several threads, as that producer is.

    Args:
        config: Settings for a confluent-kafka producer, `acks=all` and idempotence
            being added; or such a producer itself, which several may share. A given
            one must have both, or else `confirm` proves nothing, and is not closed
            here; an `on_delivery` of its settings is replaced by that of `produce`.
            Or a `SharedClient`, where one process writes under many leaderships.
        ledger: Says which leaderships are the latest. Not closed here.
        leaderships: What the ledger's `claim` gave; several in a list.
        settings: How the consumers of the topics judge: one for all topics, or one for
            each. None: they require the scopes of these leaderships, and quarantine
            what is unstamped.
        barrier_key: Makes the keys of barriers on compacted topics, where the default
            is not what the topic's schema allows: called with scope, epoch, grant id
            and a number that never comes twice.
        barrier_value: The value of barriers there, or what makes it, called likewise.
        timeout_s: How long a method waits for the cluster where it is not told
            otherwise, in seconds.

    Raises:
        MisconfiguredError: A setting contradicts what is needed, or is unknown.
        LedgerUnavailable: The ledger was closed, or cannot be read.
    """

    def __init__(
        self,
        config: Config | Producer | SharedClient,
        ledger: Ledger,
        leaderships: Leadership | Iterable[Leadership],
        *,
        settings: Settings | None = None,
        barrier_key: BarrierKey | None = None,
        barrier_value: BarrierValue | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        self.leaderships = checked_leaderships(leaderships)
        check_ledger(ledger)
        for held in self.leaderships:
            ledger.check_origin(held)
        self._timeout_s = check_timeout(timeout_s)
        self._ledger = ledger
        self._judging = Judging(settings, self.leaderships)
        # The same list for all messages: the client does not change it.
        self._stamps = stamp_headers(self.leaderships)
        self._is_closed = False
        self._process_id = os.getpid()
        self._deposed: Deposed | None = None
        self._let_go_for: EpochfenceError | None = None
        self._territory = Territory()
        self._shares_client = isinstance(config, SharedClient)
        client = self._client = self._open_client(config, barrier_key, barrier_value)
        self._producer = client.producer
        self._told = client.told
        # For each message, looked up once.
        self._send: Callable[..., None] = self._producer.produce
        self._parts_of = self._territory.open.get
        self._realm = Realm(
            self.leaderships, self._territory, self._judging, self._end_leadership
        )
        self._acknowledgements = Acknowledgements(client.watch.wake)
        self._handover = Handover(self._acknowledgements, client.told)
        self._renew_reports()
        rereading = Rereading(
            client.connection,
            ledger,
            self.leaderships,
            self._territory,
            client.writer,
            client.lives,
            self._judging,
        )
        reported = Reported(
            lambda: self._producer,
            self._acknowledgements,
            self._handover,
            self._renew_reports,
            self._territory,
        )
        self._confirmation = Confirmation(
            self._answerable(reported),
            ledger,
            self.leaderships,
            rereading,
            self._judging,
            self._territory,
            self._end_leadership,
        )
        _TERRITORIES.add(self._territory)
        client.join(self._realm, self._on_grant)
        try:
            deposed = deposed_by(self.leaderships, ledger.state)
        except BaseException:
            self._leave_client()
            raise
        if deposed is not None:
            self._end_leadership(deposed)

    def _open_client(
        self,
        config: Config | Producer | SharedClient,
        barrier_key: BarrierKey | None,
        barrier_value: BarrierValue | None,
    ) -> SharedClient:
        if isinstance(config, SharedClient):
            _check_fits(config, self._ledger, barrier_key, barrier_value)
            return config
        return SharedClient(
            config,
            self._ledger,
            barrier_key=barrier_key,
            barrier_value=barrier_value,
            timeout_s=self._timeout_s,
        )

    def _answerable(self, reported: Reported) -> Source:
        """Where `confirm` gets what it answers for."""
        return reported

    # Whether it may write.

    def _on_grant(self, claim: Claim) -> None:
        for held in self.leaderships:
            if held.scope == claim.scope and claim.epoch > held.epoch:
                self._end_leadership(
                    Deposed(held.scope, held.epoch, claim.epoch, claim.holder)
                )

    def _end_leadership(self, deposed: Deposed) -> None:
        self._deposed = self._deposed or deposed
        self._territory.close()

    @property
    def is_shared(self) -> bool:
        """Whether the client was given, and may be that of others, too."""
        return self._shares_client or not self._client.is_own

    @property
    def deposed(self) -> Deposed | None:
        """The later leadership, as far as is known; None: there is none."""
        return self._deposed

    @property
    def is_closed(self) -> bool:
        """Whether it was closed, or is of a process that this one was forked from."""
        return self._is_closed or self._is_forked

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process_id

    def _check_usable(self) -> None:
        if self._is_forked:
            raise RuntimeError(
                "the producer was opened before a fork, and nobody sends in this "
                "process: open one in each process"
            )
        if self._is_closed:
            raise RuntimeError("the producer was closed")

    def _check_leading(self) -> None:
        self._check_usable()
        if self._deposed is not None:
            raise copy(self._deposed)  # each raising has a traceback of its own
        self._ledger.check_open()

    def _check_open(self, topic: str, partition: int) -> None:
        """Raise what keeps a message from being written to a partition.

        Nothing may: another thread has just taken it over.
        """
        self._check_leading()
        parts = self._territory.open.get(topic)
        if isinstance(parts, bool):
            return
        if parts is None and self._let_go_for is not None:
            raise copy(self._let_go_for)
        if parts is None:
            raise MisconfiguredError(
                "topic", topic, "it was not taken over",
                self._client.remedy
                or f"Call take_over([{topic!r}]) before writing to it.",
            )  # fmt: skip
        if partition not in parts:
            raise MisconfiguredError(
                "partition", partition,
                f"of topic {topic}, only partitions {sorted(parts)} were taken over",
                self._client.remedy
                or "Name one of them, or take over the others or the whole topic.",
            )  # fmt: skip

    # Writing.

    def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        callback: Report | None = None,
        on_delivery: Report | None = None,
        timestamp: int = 0,
        headers: Headers | None = None,
        *,
        cursor: str | bytes | None = None,
        on_receipt: Callable[[Receipt], object] | None = None,
    ) -> None:
        """Hand a message over, stamped: as `confluent_kafka.Producer.produce`.

        Args:
            topic: A topic that was taken over.
            value: The message's value.
            key: Its key.
            partition: Its partition's number; -1 leaves the choice to the client.
            callback: Called with the delivery report, in whichever thread polls.
            on_delivery: The same under another name.
            timestamp: Milliseconds since 1970; 0: now.
            headers: Further headers. Names that begin with `epochfence` are ours.
            cursor: Where the message comes from in the leader's own source, such as
                the id of an outbox's row: at most 1,000 bytes. A successor is given
                the last admitted one of each partition (`lead(cursors=True)`).
            on_receipt: Called with the message's receipt by the `confirm` that tells
                of it, once it is done, in its thread. What it raises is logged
                (logger `epochfence.producers.confirmation`).

        Raises:
            Deposed: The ledger shows a later leadership. Nothing was handed over.
            MisconfiguredError: The topic, or the partition, was not taken over, a
                header is ours, or the callback cannot be called.
            LedgerClosed: The ledger was closed: it shows no successor any more.
            BufferError: The client's queue is full: `poll`, and try again.
            KafkaException: What else the client refuses. With the code `_FATAL`, it has
                failed for good: `confirm`, claim anew, and open another producer.
        """
        parts = self._parts_of(topic)
        if parts is not WHOLE_TOPIC and (parts is None or partition not in parts):  # type: ignore[operator]
            self._check_open(topic, partition)
        headers = (
            self._stamps if headers is None else with_stamps(self._stamps, headers)
        )
        if cursor is not None:
            headers = with_cursor(headers, cursor)
        # Positional arguments cost half of what keywords do. No local variable holds
        # the report: kept alive by the traceback of an error, it would never be gone
        # (see `Handover`).
        if callback is None:
            callback = on_delivery
        if callback is not None and not callable(callback):
            check_function("on_delivery", callback, REPORT_REMEDY)
        asked = None
        if on_receipt is not None:
            check_function("on_receipt", on_receipt, _RECEIPT)
            asked = Asked(on_receipt)
        self._send(
            topic,
            value,
            key,
            partition,
            self._asking_report(asked, callback)
            if asked is not None
            else self._report
            if callback is None
            else bound(both, self._bare_report, callback),
            None,
            timestamp,
            headers,
        )
        messages = self._messages
        messages.handed += 1
        if asked is not None:
            messages.asked.append(asked)

    def _asking_report(self, asked: Asked, told: Report | None) -> Report:
        """The report of a message whose receipt was asked for."""
        told = told or self._told
        if told is None:
            return asking(self._bare_report, asked)
        return bound(both, asking(self._bare_report, asked), told)

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports: as `confluent_kafka.Producer.poll`."""
        return self._producer.poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Wait for delivery reports: as `confluent_kafka.Producer.flush`.

        What is delivered is in the log; whether it is admitted, `confirm` tells.
        """
        return self._producer.flush(timeout)

    def purge(
        self, in_queue: bool = True, in_flight: bool = True, blocking: bool = True
    ) -> None:
        """Give messages up: as `confluent_kafka.Producer.purge`."""
        self._producer.purge(in_queue, in_flight, blocking)

    def list_topics(self, topic: str | None = None, timeout: float = -1) -> Any:
        """Ask for metadata: as `confluent_kafka.Producer.list_topics`."""
        if topic is None:
            return self._producer.list_topics(timeout=timeout)
        return self._producer.list_topics(topic, timeout)

    def __len__(self) -> int:
        """How many messages wait for delivery, as `len` of the producer."""
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    # Taking over, and confirming.

    def take_over(
        self,
        topics: Iterable[str | TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> dict[tuple[str, int], int]:
        """Begin the own epochs on topics: only then may they be written to.

        Writes a barrier to every partition, so that nothing of an earlier leadership
        that comes behind it is admitted; then makes sure that this leadership is still
        the latest. May be called again, for the same topics or others. Partitions that
        are added to a whole topic later get their barriers within seconds.

        Args:
            topics: Names of topics, and `TopicPartition`s for single partitions.
            timeout_s: How long to wait for the cluster, in seconds.

        Returns:
            The offset of the (last) own barrier by topic and partition: what lies
            before it is all that an earlier leadership can have written.

        Raises:
            Deposed: There is a later leadership.
            LedgerRegressed: Grants have been lost: an operator decides.
            TopicUnavailable: A barrier was not acknowledged in time.
            LedgerUnavailable, TableUnavailable: One of them could not be read in time.
            MisconfiguredError: There is no such topic, or it cannot be written to.
        """
        deadline = self._deadline(timeout_s)
        self._check_leading()
        taken = self._client.taking_over.take_all({self._realm: topics}, deadline)
        return self._go_by(taken[self._realm])

    def _go_by(self, taken: BarrierOffsets | EpochfenceError) -> dict[Place, int]:
        """Go by what a takeover came to."""
        if isinstance(taken, EpochfenceError):
            if isinstance(taken, Deposed):
                self._end_leadership(taken)
            raise taken
        self._let_go_for = None
        for place in taken:
            self._acknowledgements.expect(place)
        self._check_leading()
        self._client.look_after(self._realm)
        return {place: max(offsets) for place, offsets in taken.items()}

    def let_go(self, reason: EpochfenceError | None = None) -> None:
        """Have nothing written any more, until topics are taken over again.

        What was handed over is on its way, and can be confirmed. (So is what another
        thread is just about to hand over.)

        Args:
            reason: What `produce` raises until then; None: that it was not taken over.
        """
        self._let_go_for = reason
        self._territory.shut()

    def await_delivery(self, timeout_s: float) -> None:
        """Wait for the delivery reports of what was handed over so far, and no more.

        Raises:
            TopicUnavailable: They did not come in time.
        """
        self._confirmation.await_delivery(time.monotonic() + timeout_s)

    def confirm(self, timeout_s: float = 10.0) -> Receipts:
        """Tell what became of every message that was acknowledged since last told.

        Waits for the messages that were handed over so far. As long as nobody else was
        granted the leadership, that is one read of the ledger; after that, the
        partitions written to are read too. Messages are forgotten once they have been
        told of; after an error, none are. Works for a deposed leader as well, and after
        the client has failed for good (with `enable.gapless.guarantee`, by a message
        that is not delivered): what it had not sent is then among the `undelivered`,
        and what has happened is logged (logger `epochfence.producers.reported`).

        Args:
            timeout_s: How long it may take, in seconds.

        Raises:
            TopicUnavailable: Messages are not reported on yet, or a partition could not
                be read. Nothing was decided: try again.
            LedgerUnavailable, TableUnavailable: The same of the ledger and the table.
            LedgerRegressed: Grants have been lost: an operator decides.
        """
        deadline = deadline_after(timeout_s)
        self._check_usable()
        return self._confirmation.confirm(deadline)

    @property
    def unconfirmed(self) -> int:
        """How many messages were handed over and not told of by `confirm` yet.

        While other threads produce or poll, it may be off by what they are about.
        """
        return max(0, self._handover.handed - self._confirmation.told)

    @property
    def confirmable(self) -> int:
        """How many of the `unconfirmed` ones a `confirm` would wait for, and tell of.

        All of them, but for those of a transaction that is open.
        """
        return self.unconfirmed

    def _deadline(self, timeout_s: float | None) -> float:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)

    def _renew_reports(self) -> None:
        # The count first: whoever produces meanwhile must not seem to wait in vain.
        begun = self._handover.begin()
        self._messages = begun[0]
        self._bare_report, self._report = begun[1:]

    # The same for many.

    @staticmethod
    def take_over_all(
        topics_of: Mapping[FencedProducer, Iterable[str | TopicPartition]],
        *,
        keeps_barriers: bool = False,
        timeout_s: float,
    ) -> dict[FencedProducer, EpochfenceError]:
        """Take over for producers of one `SharedClient`, as `take_over` does for each.

        Args:
            topics_of: What each is to take over.
            keeps_barriers: Whether own barriers that stand in the present life of a
                topic do, so that no new ones are written there.
            timeout_s: How long to wait for the cluster, in seconds.

        Returns:
            What is wrong with those that have taken nothing over.

        Raises:
            LedgerUnavailable, TableUnavailable, LedgerRegressed, TopicUnavailable:
                None of them has.
            MisconfiguredError: One has a client of its own, which may have to be made
                ready first: a transactional one takes its id.
        """
        for one in topics_of:
            if not one._shares_client:
                raise MisconfiguredError(
                    "topics_of", one, "it has a client of its own",
                    "Call its take_over.",
                )  # fmt: skip
        failed: dict[FencedProducer, EpochfenceError] = {}
        for client in {one._client for one in topics_of}:
            of_client = {
                one._realm: topics
                for one, topics in topics_of.items()
                if one._client is client
            }
            taken = client.taking_over.take_all(
                of_client, deadline_after(timeout_s), keeps_barriers=keeps_barriers
            )
            for one in topics_of:
                if one._realm in taken:
                    try:
                        one._go_by(taken[one._realm])
                    except EpochfenceError as error:
                        failed[one] = error
        return failed

    @staticmethod
    def confirm_all(
        producers: Iterable[FencedProducer], ledger: Ledger, timeout_s: float
    ) -> Receipts:
        """Confirm what producers of one ledger have written, by one read of it.

        Raises what `FencedProducer.confirm` does: then nothing is forgotten.
        """
        deadline = deadline_after(timeout_s)
        confirmations: list[Confirmation] = []
        for one in producers:
            one._check_usable()
            confirmations.append(one._confirmation)
        return confirm_together(confirmations, ledger, deadline)

    # The end.

    def close(self) -> None:
        """Stop, having waited for delivery (not of a shared producer). May be repeated.

        What was not confirmed stays unconfirmed.
        """
        self._is_closed = True
        self._territory.close()
        self._leave_client()
        if self._is_forked:
            return  # nobody sends here what its threads would have
        # Also where a callback, or Ctrl-C, came in the way of it the first time.
        if not self.is_shared and len(self._producer):
            try:
                remaining = self._producer.flush(self._timeout_s)
            except KafkaException as error:
                if not has_failed_for_good(error):
                    raise
                _log.error("closed, and the client had failed: %s", error.args[0].str())
                remaining = self._producer.flush(self._timeout_s)
            if remaining:
                _log.warning(
                    "closed after %g s with %d messages not acknowledged: they may be "
                    "in the log or not. Call confirm() before close() to be told which",
                    self._timeout_s,
                    remaining,
                )

    def _leave_client(self) -> None:
        if not self._shares_client:
            self._client.close(is_forked=self._is_forked)
        elif not self._is_forked:  # the locks there may be of threads that are gone
            self._client.leave(self._realm)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a FencedProducer cannot be pickled: open one in each process")

    def __enter__(self) -> FencedProducer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _check_fits(
    client: SharedClient,
    ledger: Ledger,
    barrier_key: BarrierKey | None,
    barrier_value: BarrierValue | None,
) -> None:
    if client.ledger is not ledger:
        raise MisconfiguredError(
            "ledger", ledger, "the shared client goes by another",
            "Give the ledger that the client was made with.",
        )  # fmt: skip
    for name, given in (("barrier_key", barrier_key), ("barrier_value", barrier_value)):
        if given is not None:
            raise MisconfiguredError(
                name, given, "barriers are written by the shared client",
                "Give it to the SharedClient.",
            )  # fmt: skip


def _close_in_child() -> None:
    """Have nothing written in a forked process: the client's threads are not there."""
    for territory in list(_TERRITORIES):
        territory.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
