"""What was handed over and reported on, to be answered for."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import TopicUnavailable
from epochfence.producers.acknowledgements import (
    Acknowledgements,
    Answerable,
    Handover,
)
from epochfence.producers.territory import Territory

_log = logging.getLogger(__name__)

_FLUSH_S = 0.1
_BETWEEN_S = 0.005


def has_failed_for_good(error: BaseException) -> bool:
    """Whether it is by this that a client says that it sends nothing any more.

    It says so once, to whoever calls. What it has not sent it reports as failed.
    """
    cause = error.args[0] if isinstance(error, KafkaException) else None
    return isinstance(cause, KafkaError) and cause.fatal()


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
        # What the client said when it failed for good, if it was told here.
        self._failure = ""

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
            waiting = self._flush(min(_FLUSH_S, left_s))
            if self._handover.is_reported:
                return
            if not waiting:
                # Another thread is in the middle of a report.
                time.sleep(_BETWEEN_S)
            if left_s == 0:
                reason = f"{len(self._client())} messages are not acknowledged yet"
                if self._failure:
                    reason = f"{reason}, and the client has failed: {self._failure}"
                raise TopicUnavailable(self.topics(), reason)

    def _flush(self, timeout_s: float) -> int:
        """Serve reports; give how many messages wait for theirs."""
        try:
            return self._client().flush(timeout_s)
        except KafkaException as error:
            if not has_failed_for_good(error):
                raise
            # Its text only: the error has frames that may keep a report.
            self._failure = error.args[0].str()
        return len(self._client())

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
        if self._failure:
            _log.error(
                "the client has failed for good: %s. What it had not sent is told as "
                "undelivered, and it sends nothing any more: claim anew, and go on "
                "with another producer",
                self._failure,
            )
            self._failure = ""  # it is told once
        taken = self.take_in()
        # Anew each time: a signal handler's exception may have come before one was
        # counted, which must not be missing for good.
        self._taken = self._handover.handed_before
        return taken

    def answered(self) -> None:
        """Forget what was given last: else it is given again."""
        self._acknowledgements.answered()
        self.settled = self._taken
        self._failure = ""
