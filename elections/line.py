"""Elections in which candidates have a place, and whoever has the first is elected.

As a rule they stand in a line. Where the server keeps none, there is one place to have.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from epochfence.elections.candidate import Candidate
from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.elections.keeper import Keeper
from epochfence.epochs.errors import ElectionUnavailable, MisconfiguredError

#: A place that was lost is followed by another after so long.
_AGAIN_S = 0.1


class Place(ABC):
    """A place, got a moment ago. Errors are those of `elections.errors`.

    Attributes:
        keeper: Keeps it alive.
        number: The server's own, higher with each place that was first.
    """

    keeper: Keeper
    number: int

    @abstractmethod
    def is_first(self) -> bool:
        """Whether it is the first, or is now. Asks the server."""

    @abstractmethod
    def wait(self, timeout_s: float) -> None:
        """Wait until whoever is right before it may be gone, or it is over."""

    @abstractmethod
    def leave(self) -> None:
        """Give it up, so that the next one is first at once; bounded, and silent."""


class LineElection(Candidate):
    """An election in which the candidate with the first place is elected."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Place | None = None
        # Between what a keeper's threads hear and what `campaign` says.
        self._lock = threading.RLock()

    @abstractmethod
    def _join(self, on_end: Callable[[Place], None]) -> Place:
        """Get a place behind all others."""

    @property
    @abstractmethod
    def _name(self) -> str:
        """Names the election, for its errors."""

    def campaign(self, timeout_s: float) -> bool:
        """Stand for election; whether this candidate is elected when this returns.

        Args:
            timeout_s: How long to wait. 0: look once.

        Raises:
            ElectionUnavailable: The server does not answer; with an answer to wait
                for, that may take longer than `timeout_s`. The candidacy goes on.
            MisconfiguredError: It refuses, and would refuse again.
        """
        deadline = self._deadline(timeout_s)
        try:
            return self._stand(deadline)
        except NoAnswerError as error:
            raise ElectionUnavailable(self._name, str(error)) from error
        except MisconfiguredError:
            self.resign()
            raise

    def _stand(self, deadline: float) -> bool:
        while True:
            place = self._place
            if place is not None and place.keeper.is_over():
                self.resign()
                place = None
            if not self._lost.is_set():
                return True
            try:
                if place is None:
                    place = self._place = self._join(self._hear_of_end)
                if place.is_first() and self._take_office(place):
                    return True
            except PlaceLostError:
                self.resign()
                place = None
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return False
            if place is not None:
                place.wait(left_s)
            else:
                time.sleep(min(left_s, _AGAIN_S))

    def _take_office(self, place: Place) -> bool:
        with self._lock:
            if place.keeper.is_over():
                return False
            self._lost.clear()
            return True

    def _hear_of_end(self, place: Place) -> None:
        with self._lock:
            # One that was left behind has no say.
            if self._place is place:
                self._lost.set()

    def _won_with(self) -> int | None:
        with self._lock:
            if self._place is None or self._lost.is_set():
                return None
            return self._place.number

    def _leave(self) -> None:
        with self._lock:
            self._lost.set()
            place, self._place = self._place, None
        if place is not None:
            place.leave()

    def _forget(self) -> None:
        super()._forget()
        self._lock = threading.RLock()
        self._place = None
