"""How seats are taken: claims first, together, and then what is written to."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Protocol

from confluent_kafka import KafkaException

from epochfence.epochs.deadlines import some_time
from epochfence.epochs.errors import (
    ElectionUnavailable,
    EpochfenceError,
    NotAssigned,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.leading.seats import Outputs, Seat
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.shared_client import SharedClient


class Member(Protocol):
    """A consumer of a group: confluent's, or a `FencedConsumer`."""

    def memberid(self) -> str | None:
        """This member's id in the group."""
        ...


class Seating:
    """Takes the seats of partitions that are assigned to this process.

    Args:
        ledger: Knows the grants.
        client: What the leaders write with.
        topic: The topic whose partitions are assigned.
        outputs: Where they write to.
        holder: Names this process, for people.
        attributes: Text pairs for whoever asks who leads.
        group: The consumers' group, None where it is not to be asked.
        timeout_s: How long a producer waits for the cluster, in seconds.
    """

    def __init__(
        self,
        ledger: Ledger,
        client: SharedClient,
        topic: str,
        outputs: Outputs,
        *,
        holder: str,
        attributes: Mapping[str, str],
        group: str | None,
        timeout_s: float,
    ) -> None:
        self._ledger = ledger
        self._client = client
        self._topic = topic
        self._outputs = outputs
        self._holder = holder
        self._attributes = attributes
        self._group = group
        self._timeout_s = timeout_s

    def take(self, seats: list[Seat], member: Member | None, deadline: float) -> None:
        """Have each seat led, or its failure say why it is not.

        Args:
            seats: They are assigned to this process, and not led.
            member: The group's member to whom they are, None where that is not known.
            deadline: By `time.monotonic()`.
        """
        for seat in seats:
            seat.failure = None
        try:
            self._claim(seats, member, deadline)
            self._take_over([seat for seat in seats if seat.failure is None], deadline)
        except EpochfenceError as error:
            _fail(seats, error)
        except BaseException as error:  # Ctrl-C, for one
            _fail(seats, self._unreached(f"{type(error).__name__} came in the way"))
            raise
        finally:
            for seat in seats:
                # Without traceback and cause: they would keep clients alive.
                seat.failure = copy(seat.failure)

    def _unreached(self, reason: str) -> ElectionUnavailable:
        election = f"of the leaders of {self._topic!r}"
        if self._group is not None:
            election += f", by group {self._group!r}"
        return ElectionUnavailable(election, reason)

    def _claim(self, seats: list[Seat], member: Member | None, deadline: float) -> None:
        """Claim what is not held still."""
        state = self._ledger.refresh(some_time(deadline))
        # Read before the group is asked, so before it can have given a partition to
        # anybody after this process: who sleeps behind that loses to whoever claims.
        seen: dict[str, int] = {}
        for seat in seats:
            latest, held = state.latest(seat.scope), seat.leadership
            if latest is None or held is None or held.grant_id != latest.grant_id:
                seen[seat.scope] = 0 if latest is None else latest.epoch
        if not self._is_still_member(member, deadline):
            reason = f"group {self._group!r} does not count it among its members now"
            for seat in seats:
                seat.failure = NotAssigned(self._topic, seat.partition, reason)
            return
        if not seen:
            return
        claimed = self._ledger.claim_all(
            seen,
            holder=self._holder,
            seen=seen,
            attributes=self._attributes,
            timeout_s=some_time(deadline),
        )
        for seat in seats:
            if seat.scope in claimed.won:
                seat.begin(self._made(claimed.won[seat.scope]))
            else:
                seat.failure = claimed.failed.get(seat.scope)

    def _is_still_member(self, member: Member | None, deadline: float) -> bool:
        """Whether this process was not put out of its group.

        As long as it was not, nobody else has been given what its callbacks told it.
        """
        if member is None or self._group is None:
            return True
        try:
            member_id = member.memberid() or ""
        except RuntimeError as error:  # such as "Consumer closed"
            raise self._unreached(str(error)) from error
        try:
            return self._ledger.clients.has_member(
                self._client.connection,
                self._group,
                member_id,
                some_time(deadline),
            )
        except KafkaException as error:
            raise self._unreached(error.args[0].str()) from error

    def _made(self, leadership: Leadership) -> FencedProducer:
        return FencedProducer(
            self._client,
            self._ledger,
            leadership,
            settings=self._outputs.settings,
            timeout_s=self._timeout_s,
        )

    def _take_over(self, seats: list[Seat], deadline: float) -> None:
        if not self._outputs:
            return
        topics_of = {
            seat.producer: self._outputs.of(seat.partition)
            for seat in seats
            if seat.producer is not None
        }
        failed = FencedProducer.take_over_all(
            topics_of, keeps_barriers=True, timeout_s=some_time(deadline)
        )
        for seat in seats:
            if seat.producer is not None:
                seat.failure = failed.get(seat.producer)


def _fail(seats: list[Seat], error: EpochfenceError) -> None:
    for seat in seats:
        seat.failure = seat.failure or error
