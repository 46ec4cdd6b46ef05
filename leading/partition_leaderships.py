"""One leadership for each partition that is assigned to this process."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from copy import copy
from types import MappingProxyType, TracebackType
from typing import NoReturn

from confluent_kafka import Producer, TopicPartition

from epochfence.epochs.claims import checked_texts
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import deadline_after, some_time, time_left
from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    ElectionUnavailable,
    EpochfenceError,
    LedgerClosed,
    LedgerUnavailable,
    MisconfiguredError,
    NotAssigned,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.receipts import Receipts
from epochfence.epochs.values import Claim, check_function, check_timeout
from epochfence.leading.seating import Member, Seating
from epochfence.leading.seats import Outputs, Seat, Seats
from epochfence.producers.barriers import BarrierKey, BarrierValue
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.judging import Settings
from epochfence.producers.shared_client import SharedClient

_log = logging.getLogger(__name__)

#: Told that one partition has another leader. It is called on the ledger's thread.
OnDeposed = Callable[[int, Deposed], object]

#: What helps whoever writes to where no barrier was written to.
_REMEDY = (
    "Add the topic to outputs, and write to the partition of the led one's number; or "
    "to shared_outputs, for any partition."
)

#: What passes: it is tried again when the partition's producer is asked for.
_PASSING = (
    NotAssigned,
    ElectionUnavailable,
    LedgerUnavailable,
    TableUnavailable,
    TopicUnavailable,
    ClaimUnknown,
)


class PartitionLeaderships:
    """Leads a scope for each assigned partition of a topic, over one client.

    For stream processors: whoever is assigned partition 3 of `orders` leads the scope
    `orders/3`, and writes what it makes of it under that leadership. What the process
    that had the partition before still sends is then fenced.

        led = PartitionLeaderships(
            kafka, ledger, "orders", holder="pod-7", outputs=["prices"], group="pricing"
        )
        consumer.subscribe(
            ["orders"], on_assign=led.on_assign, on_revoke=led.on_revoke,
            on_lost=led.on_lost,
        )
        for message in consumer:
            part = message.partition()
            led.of(part).produce("prices", price(message), partition=part)

    Hundreds of partitions take one client, and are claimed and taken over together. A
    partition that comes back, with nobody having led it meanwhile, is led under the
    same leadership as before. Safe to use from several threads.

    Args:
        config: Settings for a confluent-kafka producer, or such a producer, as for
            `FencedProducer`.
        ledger: The ledger. Not closed here.
        topic: The topic whose partitions are assigned.
        holder: Names this process, for people.
        outputs: Topics of which the leader of a partition writes to the partition of
            the same number, and to no other.
        shared_outputs: Topics of which each leader may write to any partition. Each
            writes a barrier to all of them, so that it takes as many barriers as there
            are leaders, times the partitions.
        scope: What is led, with `{partition}` in it; None: `<topic>/{partition}`. Two
            applications that read one topic need scopes that differ.
        group: The consumers' group. It is asked, before anything is claimed, whether
            this process is still a member; `on_assign` needs it.
        attributes: Text pairs for whoever asks who leads, such as an address.
        barrier_key: As for `FencedProducer`.
        barrier_value: As for `FencedProducer`.
        settings: How the outputs' consumers judge, as for `FencedProducer`. None: those
            of `outputs` require the scope, those of `shared_outputs` any stamp.
        on_deposed: Called with a partition and the later leadership when somebody else
            leads it, on the thread that follows the ledger. It must return soon:
            `led`, `failures` and a producer's `produce` may be called there, and of
            these methods no other; they may wait for that very thread.
        timeout_s: How long a method waits for the cluster where it is not told
            otherwise, in seconds.

    Raises:
        MisconfiguredError: An argument is wrong.
        LedgerUnavailable: The ledger was closed, or cannot be read.
    """

    def __init__(
        self,
        config: Config | Producer,
        ledger: Ledger,
        topic: str,
        *,
        holder: str,
        outputs: Iterable[str] = (),
        shared_outputs: Iterable[str] = (),
        scope: str | None = None,
        group: str | None = None,
        attributes: Mapping[str, str] | None = None,
        barrier_key: BarrierKey | None = None,
        barrier_value: BarrierValue | None = None,
        settings: Settings | None = None,
        on_deposed: OnDeposed | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        check_ledger(ledger)
        texts = checked_texts(holder, attributes)
        check_function("on_deposed", on_deposed)
        self._timeout_s = check_timeout(timeout_s)
        self._seats = Seats(topic, scope)
        if group is not None and (not isinstance(group, str) or not group):
            raise MisconfiguredError(
                "group", group, "it names no group", "Give the consumer's group.id."
            )
        self._outputs = Outputs(outputs, shared_outputs, self._seats.scope, settings)
        self.topic = topic
        self._ledger = ledger
        self._group = group
        self._on_deposed = on_deposed
        self._member: Member | None = None
        # Looked up for each message, without a lock.
        self._led: dict[int, FencedProducer] = {}
        # Held for moments only, by the ledger's thread too, while that changes.
        self._swapping = threading.RLock()
        self._lock = threading.RLock()
        # Taken before the lock: nobody may part with what another thread confirms.
        self._confirming = threading.RLock()
        self._is_closed = False
        self._process_id = os.getpid()
        self._client = SharedClient(
            config,
            ledger,
            barrier_key=barrier_key,
            barrier_value=barrier_value,
            remedy=_REMEDY,
            timeout_s=self._timeout_s,
        )
        self._seating = Seating(
            ledger,
            self._client,
            topic,
            self._outputs,
            holder=holder,
            attributes=texts,
            group=group,
            timeout_s=self._timeout_s,
        )
        try:
            self._unwatch = ledger.watch(self._on_grant)
        except BaseException:
            self._client.close()
            raise

    # What is assigned.

    def assigned(
        self, partitions: Iterable[int], *, timeout_s: float | None = None
    ) -> Mapping[int, EpochfenceError]:
        """Lead partitions that are assigned to this process now, beside the others.

        Those that are led go on being led. A partition that comes back is led under
        its earlier leadership, if that is still the latest grant, with no new claim
        (and no new barriers, but where its topic was made anew); the others are claimed
        together. Then the outputs are taken over, and it is made sure that each
        leadership is still the latest.

        Args:
            partitions: Their numbers.
            timeout_s: How long to wait for the cluster, in seconds, for all of them.

        Returns:
            Why some are not led, by partition: what passes (`of` tries those again),
            and `ClaimLost` and `Deposed`, where another leads.

        Raises:
            LedgerClosed, LedgerRegressed, EpochExhausted, MisconfiguredError: Of one or
                of all, what does not pass; the others are led.
        """
        deadline = self._deadline(timeout_s)
        self._check_open()
        with self._lock:
            seats = self._seats.at_all(partitions)
            for seat in seats:
                seat.is_assigned = True
            wanted = [seat for seat in seats if not self._is_led(seat)]
            if wanted:
                self._lead(wanted, deadline)
            failures = self._failures_of(seats)
        lasting = [one for one in failures.values() if not _is_borne(one)]
        if lasting:
            raise lasting[0]
        if failures:
            number, failure = next(iter(failures.items()))
            _log.warning(
                "%d partitions of %s are not led, for instance %d: %s",
                len(failures),
                self.topic,
                number,
                failure,
            )
        return MappingProxyType(failures)

    def _failures_of(self, seats: Iterable[Seat]) -> dict[int, EpochfenceError]:
        # Copies: each raising has a traceback of its own.
        found = {seat.partition: seat.failure for seat in seats}
        return {
            number: copy(failure)
            for number, failure in found.items()
            if failure is not None
        }

    def revoked(
        self, partitions: Iterable[int], *, timeout_s: float | None = None
    ) -> None:
        """Give partitions up, having waited for what was handed over.

        Nothing more is written under their leaderships, unless they come back. What was
        written can be confirmed all the same.

        Args:
            partitions: Their numbers.
            timeout_s: How long to wait, in seconds. What is not acknowledged then may
                reach the topic later: behind a successor's barrier, it is fenced.
        """
        timeout_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        deadline = deadline_after(timeout_s)
        late: list[int] = []
        for number, producer in self._give_up(partitions, "it was revoked").items():
            try:
                producer.await_delivery(time_left(deadline))
            except TopicUnavailable:
                late.append(number)
        if late:
            _log.warning(
                "partitions %s of %s were given up after %g s with messages that are "
                "not acknowledged",
                late,
                self.topic,
                timeout_s,
            )

    def lost(self, partitions: Iterable[int]) -> None:
        """Give partitions up that are somebody else's already: nothing is waited for.

        Nothing more is written under their leaderships, unless they come back.

        Args:
            partitions: Their numbers.
        """
        self._give_up(partitions, "it was lost")

    def _give_up(
        self, partitions: Iterable[int], reason: str
    ) -> dict[int, FencedProducer]:
        """Give partitions up; give those that were led, by what."""
        self._check_process()
        were_led: dict[int, FencedProducer] = {}
        with self._lock:
            for seat in self._seats.at_all(partitions):
                given_up = NotAssigned(self.topic, seat.partition, reason)
                with self._swapping:
                    seat.is_assigned = False
                    seat.failure = given_up
                    producer = self._led.pop(seat.partition, None)
                if producer is not None:
                    were_led[seat.partition] = producer
                if seat.producer is not None:
                    seat.producer.let_go(given_up)
        return were_led

    # As callbacks of a consumer.

    def on_assign(self, consumer: Member, partitions: list[TopicPartition]) -> None:
        """For `subscribe(on_assign=...)`: lead the topic's partitions among these.

        It takes as long as the claims and barriers do, up to `timeout_s`. What passes
        is logged, and `of` tries it again.

        Raises:
            MisconfiguredError: No group was given, that could be asked. Else, and for
                the rest, as `assigned`.
        """
        if self._group is None:
            raise MisconfiguredError(
                "group", None, "nobody can be asked whether this process is still a "
                "member once it claims",
                "Give the group.id of the consumer, or call assigned().",
            )  # fmt: skip
        self._member = consumer
        self.assigned(self._of_topic(partitions))

    def on_revoke(self, consumer: Member, partitions: list[TopicPartition]) -> None:
        """For `subscribe(on_revoke=...)`: as `revoked`."""
        self.revoked(self._of_topic(partitions))

    def on_lost(self, consumer: Member, partitions: list[TopicPartition]) -> None:
        """For `subscribe(on_lost=...)`: as `lost`."""
        self.lost(self._of_topic(partitions))

    def _of_topic(self, partitions: Iterable[TopicPartition]) -> list[int]:
        return [tp.partition for tp in partitions if tp.topic == self.topic]

    # Becoming the leader, and being deposed.

    def _is_led(self, seat: Seat) -> bool:
        producer = self._led.get(seat.partition)
        return producer is not None and producer.deposed is None

    def _lead(self, seats: list[Seat], deadline: float) -> None:
        """Lead each of these; note why, where that fails."""
        with self._swapping:
            for seat in seats:
                self._led.pop(seat.partition, None)
        self._seating.take(seats, self._member, deadline)
        self._part_with_idle(seats)
        for seat in seats:
            if seat.failure is None and seat.producer is not None:
                with self._swapping:
                    self._led[seat.partition] = seat.producer
                # A grant that came before this line was told to nobody.
                self._end(seat, seat.producer)

    def _on_grant(self, claim: Claim) -> None:
        # On the ledger's thread, which whoever has the lock may be waiting for.
        seat = self._seats.of_scope(claim.scope)
        producer = None if seat is None else self._led.get(seat.partition)
        if seat is not None and producer is not None:
            deposed = self._end(seat, producer)
            if deposed is not None and self._on_deposed is not None:
                self._on_deposed(seat.partition, deposed)

    def _end(self, seat: Seat, producer: FencedProducer) -> Deposed | None:
        """Lead a partition no more, if there is a later leadership."""
        deposed = producer.deposed
        if deposed is None:
            return None
        with self._swapping:
            if self._led.get(seat.partition) is not producer:
                return None
            # First: whoever finds no producer looks for the reason.
            seat.failure = deposed
            del self._led[seat.partition]
        return deposed

    # Writing.

    def of(self, partition: int) -> FencedProducer:
        """The producer that writes under the leadership of a partition.

        It lasts as long as that leadership: ask for it anew with each message, or
        batch. Where something passing kept assigned partitions from being led, this
        tries once more, for all of them, for up to `timeout_s`; `on_assign` having been
        used, call it in the thread that polls the consumer. Then the group is asked
        first, and as long as it counts this process a member, a partition that somebody
        else has claimed is claimed anew, too.

        Raises:
            NotAssigned: The partition is not assigned to this process.
            Deposed, ClaimLost: Somebody else leads it. Without `on_assign`: if the
                partition is still assigned, `assigned` claims it anew.
            EpochfenceError: What else keeps it from being led, as `assigned` tells.
        """
        producer = self._led.get(partition)
        if producer is None or type(partition) is not int:  # as True, which is 1
            return self._late(partition)
        return producer

    def _late(self, partition: int) -> FencedProducer:
        self._check_open()
        with self._lock:
            seat = self._seats.at(partition)
            if not seat.is_assigned:
                raise copy(
                    seat.failure
                    or NotAssigned(self.topic, partition, "it was never assigned to it")
                )
            producer = self._led.get(partition)
            if producer is None and self._is_to_retry(seat):
                # What kept this one from being led will have kept others.
                seats = [one for one in self._seats.all() if self._is_to_retry(one)]
                self._lead(seats, self._deadline(None))
                producer = self._led.get(partition)
            if producer is None:
                assert seat.failure is not None
                raise copy(seat.failure)
            return producer

    def _is_to_retry(self, seat: Seat) -> bool:
        if not seat.is_assigned or seat.partition in self._led:
            return False
        if isinstance(seat.failure, ClaimLost | Deposed):
            # Somebody claimed whom the group has put out, if it still has this process:
            # it is asked before the claim.
            return self._group is not None and self._member is not None
        return seat.failure is None or isinstance(seat.failure, _PASSING)

    @property
    def led(self) -> list[int]:
        """The partitions that are led, as far as is known, sorted."""
        return sorted(self._led)

    @property
    def failures(self) -> Mapping[int, EpochfenceError]:
        """Why others, which are assigned, are not led, by partition."""
        # Without the lock: `on_deposed` may ask.
        self._check_process()
        seats = [seat for seat in self._seats.all() if seat.is_assigned]
        return MappingProxyType(self._failures_of(seats))

    def poll(self, timeout: float = -1) -> int:
        """Serve delivery reports: as `confluent_kafka.Producer.poll`."""
        return self._client.producer.poll(timeout)

    def flush(self, timeout: float = -1) -> int:
        """Wait for delivery reports: as `confluent_kafka.Producer.flush`."""
        return self._client.producer.flush(timeout)

    def confirm(self, timeout_s: float | None = None) -> Receipts:
        """Tell what became of every message of every partition, since last told.

        As `FencedProducer.confirm`, by one read of the ledger for all of them; so it
        is for partitions that were given up since, and for every leadership that this
        process had of them.

        Where another leads, the partitions written to are read too, one after the
        other: after hundreds of partitions were taken from this process at once, give
        it minutes.

        Raises:
            TopicUnavailable, LedgerUnavailable, TableUnavailable, LedgerRegressed: As
                `FencedProducer.confirm`. Nothing was forgotten.
        """
        deadline = self._deadline(timeout_s)
        self._check_open()
        with self._alone(deadline):
            with self._lock:
                seats = self._seats.all()
                outlived = {producer for seat in seats for producer in seat.outlived()}
                led = {seat.producer for seat in seats if seat.producer is not None}
            receipts = FencedProducer.confirm_all(
                led | outlived, self._ledger, some_time(deadline)
            )
            with self._lock:
                for seat in seats:
                    seat.part_with(outlived)
        return receipts

    @contextmanager
    def _alone(self, deadline: float) -> Generator[None]:
        """Keep other threads from confirming."""
        if not self._confirming.acquire(timeout=time_left(deadline)):
            raise TopicUnavailable(
                self._outputs.named(), "another thread is still confirming"
            )
        try:
            yield
        finally:
            self._confirming.release()

    def _part_with_idle(self, seats: Iterable[Seat]) -> None:
        if not self._confirming.acquire(blocking=False):
            return  # who confirms parts with them
        try:
            for seat in seats:
                seat.part_with_idle()
        finally:
            self._confirming.release()

    # The end.

    def _deadline(self, timeout_s: float | None) -> float:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)

    @property
    def _is_forked(self) -> bool:
        return os.getpid() != self._process_id

    def _check_open(self) -> None:
        self._check_process()
        if self._is_closed:
            raise RuntimeError("the partition leaderships were closed")

    def _check_process(self) -> None:
        # The locks may be of threads that are not there.
        if self._is_forked:
            raise RuntimeError(
                "the partition leaderships were opened before a fork, and nobody sends "
                "in this process: open them in each process"
            )

    def close(self) -> None:
        """Give all partitions up, as `revoked` does. May be called again.

        A producer that was given is not closed. What was not confirmed stays so.
        """
        if self._is_forked:
            return  # the lock may be of a thread that is not there
        with self._lock:
            if self._is_closed:
                return
            assigned = [one.partition for one in self._seats.all() if one.is_assigned]
            try:
                self.revoked(assigned)
            finally:
                self._is_closed = True
                self._unwatch()
                if self._client.is_own:
                    # Of partitions that were lost or deposed before.
                    self._client.producer.flush(self._timeout_s)
                for seat in self._seats.all():
                    seat.close()
                self._client.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("they cannot be pickled: open them in each process")

    def __enter__(self) -> PartitionLeaderships:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _is_borne(error: EpochfenceError) -> bool:
    """Whether an error is told, and not raised: it passes, or another leads."""
    if isinstance(error, LedgerClosed):
        return False
    return isinstance(error, (*_PASSING, ClaimLost, Deposed))
