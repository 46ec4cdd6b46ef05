"""A producer that writes under a leadership, and knows what became of it."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from functools import partial as bound
from types import TracebackType
from typing import Any, NoReturn

from confluent_kafka import Producer, TopicPartition

from epochfence.epochs.connection import (
    Config,
    LastError,
    connection_settings,
)
from epochfence.epochs.deadlines import deadline_after
from epochfence.epochs.errors import Deposed, MisconfiguredError
from epochfence.epochs.holding import deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.receipts import Receipts
from epochfence.epochs.values import Claim, check_function, check_timeout
from epochfence.producers.acknowledgements import (
    REPORT_REMEDY,
    Acknowledgements,
    Handover,
    Report,
    both,
)
from epochfence.producers.barriers import BarrierKey, BarrierValue, BarrierWriter
from epochfence.producers.confirmation import Confirmation
from epochfence.producers.judging import Judging, Settings
from epochfence.producers.lives import Lives
from epochfence.producers.partition_watch import PartitionWatch
from epochfence.producers.reported import Reported, Source
from epochfence.producers.rereading import Rereading
from epochfence.producers.stamping import (
    Headers,
    checked_leaderships,
    stamp_headers,
    with_cursor,
    with_stamps,
)
from epochfence.producers.taking_over import TakingOver
from epochfence.producers.territory import WHOLE_TOPIC, Territory

_log = logging.getLogger(__name__)

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
        config: Config | Producer,
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
        self._territory = Territory()
        told = self._open_producer(config)
        # For each message, looked up once.
        self._send: Callable[..., None] = self._producer.produce
        self._parts_of = self._territory.open.get
        clients, keeper = ledger.clients, None
        if not ledger.is_embedded:
            keeper = clients.topic_keeper(self._connection, self._timeout_s)
        lives = self._lives = Lives(keeper, self._producer)
        writer = BarrierWriter(
            self._connection,
            self.leaderships,
            keeper,
            barrier_key,
            barrier_value,
            clients,
        )
        self._taking_over = TakingOver(
            ledger,
            self.leaderships,
            self._territory,
            writer,
            lives,
            self._judging.check,
            self._judging.of,
        )
        self._watch = PartitionWatch(
            self._territory, self._taking_over, self._end_leadership
        )
        self._acknowledgements = Acknowledgements(self._watch.wake)
        self._handover = Handover(self._acknowledgements, told)
        self._renew_reports()
        rereading = Rereading(
            self._connection,
            ledger,
            self.leaderships,
            self._territory,
            writer,
            lives,
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
        # A closed ledger shows no successor: nothing is written after it.
        self._unwatch = ledger.watch(self._on_grant, self._territory.close)
        try:
            deposed = deposed_by(self.leaderships, ledger.state)
        except BaseException:
            self._unwatch()
            raise
        if deposed is not None:
            self._end_leadership(deposed)

    def _open_producer(self, config: Config | Producer) -> Report | None:
        """Make the producer, or take the given one; give a default `on_delivery`."""
        self._is_own = not isinstance(config, Producer)
        if isinstance(config, Producer):
            if type(config).produce is not Producer.produce:
                raise MisconfiguredError(
                    "config", config, "its `produce` is another than Producer's",
                    "Give a plain confluent_kafka.Producer; serialise values before.",
                )  # fmt: skip
            self._producer = config
            self._connection = self._ledger.connection
            return None
        if not isinstance(config, Mapping):
            raise MisconfiguredError(
                "config", config, "a mapping of settings, or a producer, is expected",
                "Give {'bootstrap.servers': 'host:port'}.",
            )  # fmt: skip
        settings = dict(config)
        told: Report | None = settings.pop("on_delivery", None)
        check_function("on_delivery", told, REPORT_REMEDY)
        clients = self._ledger.clients
        self._producer = clients.writing_producer(settings, LastError(config))
        self._connection = connection_settings(config)
        return told

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
        return not self._is_own

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
        if parts is None:
            raise MisconfiguredError(
                "topic", topic, "it was not taken over",
                f"Call take_over([{topic!r}]) before writing to it.",
            )  # fmt: skip
        if partition not in parts:
            raise MisconfiguredError(
                "partition", partition,
                f"of topic {topic}, only partitions {sorted(parts)} were taken over",
                "Name one of them, or take over the others or the whole topic.",
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

        Raises:
            Deposed: The ledger shows a later leadership. Nothing was handed over.
            MisconfiguredError: The topic, or the partition, was not taken over, a
                header is ours, or the callback cannot be called.
            LedgerClosed: The ledger was closed: it shows no successor any more.
            BufferError: The client's queue is full: `poll`, and try again.
            KafkaException: What else the client refuses.
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
        self._send(
            topic,
            value,
            key,
            partition,
            self._report
            if callback is None
            else bound(both, self._bare_report, callback),
            None,
            timestamp,
            headers,
        )
        self._messages.handed += 1

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
        deadline = deadline_after(self._timeout_s if timeout_s is None else timeout_s)
        self._check_leading()
        try:
            written = self._taking_over.take(topics, deadline)
        except Deposed as deposed:
            self._end_leadership(deposed)
            raise
        for place in written:
            self._acknowledgements.expect(place)
        self._check_leading()
        self._watch.start()
        return {place: max(offsets) for place, offsets in written.items()}

    def confirm(self, timeout_s: float = 10.0) -> Receipts:
        """Tell what became of every message that was acknowledged since last told.

        Waits for the messages that were handed over so far. As long as nobody else was
        granted the leadership, that is one read of the ledger; after that, the
        partitions written to are read too. Messages are forgotten once they have been
        told of; after an error, none are. Works for a deposed leader as well.

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

    def _answerable(self, reported: Reported) -> Source:
        """Where `confirm` gets what it answers for."""
        return reported

    def _renew_reports(self) -> None:
        # The count first: whoever produces meanwhile must not seem to wait in vain.
        begun = self._handover.begin()
        self._messages = begun[0]
        self._bare_report, self._report = begun[1:]

    # The end.

    def close(self) -> None:
        """Stop, having waited for delivery (not of a shared producer). May be repeated.

        What was not confirmed stays unconfirmed.
        """
        self._is_closed = True
        self._unwatch()
        self._territory.close()
        if self._is_forked:
            return  # nobody sends here what its threads would have
        self._watch.close()
        # Also where a callback, or Ctrl-C, came in the way of it the first time.
        if self._is_own and len(self._producer):
            remaining = self._producer.flush(self._timeout_s)
            if remaining:
                _log.warning(
                    "closed after %g s with %d messages not acknowledged: they may be "
                    "in the log or not. Call confirm() before close() to be told which",
                    self._timeout_s,
                    remaining,
                )

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


def _close_in_child() -> None:
    """Have nothing written in a forked process: the client's threads are not there."""
    for territory in list(_TERRITORIES):
        territory.close_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)
