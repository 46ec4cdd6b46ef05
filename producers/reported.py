"""What was handed over and reported on, to be answered for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import Producer

from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import TopicUnavailable
from epochfence.producers.acknowledgements import (
    Acknowledgements,
    Answerable,
    Handover,
)
from epochfence.producers.territory import Territory

_FLUSH_S = 0.1
_BETWEEN_S = 0.005


class Source(Protocol):
    """Where `confirm` gets what it has to answer for."""

    def begin(self) -> None:
        """Say that what is handed over from now on is not waited for."""
        ...

    def await_delivery(self, deadline: float) -> None:
        """Wait until what was handed over before `begin` is reported on.

        Raises:
            TopicUnavailable: It is not in time.
        """
        ...

    def take(self, deadline: float) -> Answerable:
        """Give all that is due and not answered for.

        Raises:
            TopicUnavailable: It is not known yet.
        """
        ...

    def answered(self) -> None:
        """Forget what `take` gave last: else it is given again."""
        ...

    @property
    def settled(self) -> int | None:
        """So many of the messages handed over, at least, were answered for then.

        None where that is not known: then those are counted that were told of.
        """
        ...


class Reported:
    """Gives what was reported of all that was handed over so far.

    Args:
        client: Gives the client that messages are handed to.
        acknowledgements: What was reported so far.
        handover: Tells when all that was handed over is reported on.
        renew_reports: Makes what is handed over from now on belong to a new handover.
        territory: Names the topics, for messages.
    """

    def __init__(
        self,
        client: Callable[[], Producer],
        acknowledgements: Acknowledgements,
        handover: Handover,
        renew_reports: Callable[[], None],
        territory: Territory,
    ) -> None:
        self._client = client
        self._acknowledgements = acknowledgements
        self._handover = handover
        self._renew_reports = renew_reports
        self._territory = territory
        self._taken = 0
        self.settled: int | None = 0

    def begin(self) -> None:
        """Say that what is handed over from now on is not waited for."""
        self._renew_reports()

    def await_all(self, deadline: float) -> None:
        """Wait until what was handed over before `begin` is reported on.

        Raises:
            TopicUnavailable: It is not in time.
        """
        while True:
            left_s = time_left(deadline)
            waiting = self._client().flush(min(_FLUSH_S, left_s))
            if self._handover.is_reported:
                return
            if not waiting:
                # Another thread is in the middle of a report.
                time.sleep(_BETWEEN_S)
            if left_s == 0:
                raise TopicUnavailable(
                    self.topics(),
                    f"{len(self._client())} messages are not acknowledged yet",
                )

    def await_delivery(self, deadline: float) -> None:
        """The same, but nobody else's messages are waited for if there are none."""
        if not self._handover.is_reported:
            self.await_all(deadline)

    def topics(self) -> str:
        """Where to messages go, for an error."""
        return ", ".join(self._territory.named())

    def take_in(self) -> Answerable:
        """Give what is reported by now, without waiting."""
        return self._acknowledgements.take(self._handover.take_missed)

    def take(self, deadline: float) -> Answerable:
        """Give what is reported, having waited for all that was handed over before."""
        self.await_all(deadline)
        taken = self.take_in()
        # Anew each time: a signal handler's exception may have come before one was
        # counted, which must not be missing for good.
        self._taken = self._handover.handed_before
        return taken

    def answered(self) -> None:
        """Forget what was given last: else it is given again."""
        self._acknowledgements.answered()
        self.settled = self._taken
