"""What the ledger's following thread does with the records that it reads."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from epochfence.epochs.claims import decode_claim
from epochfence.epochs.ledger_state import LedgerState, Outcome
from epochfence.epochs.schemas import UnknownFingerprint
from epochfence.epochs.topic_log import ReadingStoppedError
from epochfence.epochs.values import Claim, is_foreign

_log = logging.getLogger(__name__)


#: So many records that are no claims are told of one by one.
_TOLD_PASSED_OVER = 5


def warn_passed_over(
    topic: str, offset: int | None, outcome: Outcome, state: LedgerState
) -> None:
    """Tell of a record that is no claim; of many, that there are many."""
    if state.passed_over <= _TOLD_PASSED_OVER:
        _log.warning("%s offset %s is passed over: %s", topic, offset, outcome.problem)
    if state.passed_over == _TOLD_PASSED_OVER:
        _log.warning(
            "more such records of %s are counted, not told of. Is it a coordination "
            "topic?",
            topic,
        )


class GrantFollower:
    """Folds the coordination topic into a `LedgerState` and tells who watches.

    While the log is read again from its start, `state` stays what it was before,
    and becomes what the log says now all at once.

    Args:
        topic: The coordination topic's name, for messages.
    """

    def __init__(self, topic: str) -> None:
        self.state = LedgerState()
        self._topic = topic
        self._loading: LedgerState | None = None
        self._floor: dict[str, int] = {}
        self._watchers: dict[int, Callable[[Claim], None]] = {}
        self._on_close: dict[int, Callable[[], None]] = {}
        self._watches = 0
        self._lock = threading.Lock()

    # On the following thread.

    def restart(self) -> None:
        """The log is read from its start (again)."""
        self._loading = LedgerState()

    def take(self, offset: int, key: bytes | None, value: bytes | None) -> None:
        """Fold in one record."""
        loading = self._loading
        try:
            outcome = (loading or self.state).apply(key, value)
        except UnknownFingerprint as error:
            raise ReadingStoppedError(str(error), offset) from error
        if outcome.fate == "passed-over":
            warn_passed_over(self._topic, offset, outcome, loading or self.state)
        elif outcome.fate == "granted" and loading is None:
            self._tell([decode_claim(key, value)])

    def caught_up(self) -> None:
        """Publish what the log says; what was known before becomes a floor."""
        loaded, before = self._loading, self.state
        if loaded is None:
            return
        self.raise_floor((scope, before.epoch_of(scope)) for scope in before.scopes())
        self._loading = None
        self.state = loaded
        self._tell(loaded.grants_beyond(before))

    def _tell(self, grants: Iterable[Claim]) -> None:
        for grant in grants:
            with self._lock:
                watchers = list(self._watchers.values())
            if not watchers:
                return  # the grants need not be decoded
            for watcher in watchers:
                try:
                    watcher(grant)
                except BaseException:  # the thread is the ledger's, whatever is raised
                    _log.exception(
                        "a watcher of the ledger failed; it goes on watching"
                    )

    # On any thread.

    def watch(
        self,
        on_grant: Callable[[Claim], None],
        on_close: Callable[[], None] | None = None,
    ) -> Callable[[], None]:
        """Have every grant from now on told; call the result to end that."""
        with self._lock:
            self._watches += 1
            number = self._watches
            self._watchers[number] = on_grant
            if on_close is not None:
                self._on_close[number] = on_close

        def end() -> None:
            with self._lock:
                self._watchers.pop(number, None)
                self._on_close.pop(number, None)

        return end

    def close(self) -> None:
        """Tell who watches that no more will be told."""
        with self._lock:
            told, self._on_close = list(self._on_close.values()), {}
        for on_close in told:
            on_close()

    def raise_floor(self, in_use: Iterable[tuple[str, int]]) -> None:
        """Note epochs that were in use: the ledger must not be below them."""
        with self._lock:
            for scope, epoch in in_use:
                if not is_foreign(scope):
                    self._floor[scope] = max(epoch, self._floor.get(scope, 0))

    def floor_of(self, scope: str) -> int:
        """The highest epoch of a scope that is known to have been in use, or 0."""
        with self._lock:
            return self._floor.get(scope, 0)

    def check_floor(self, scope: str | None = None) -> None:
        """See that no grant was lost, of one scope or of any.

        Raises:
            LedgerRegressed: One was.
        """
        with self._lock:
            floor = list(self._floor.items())
        if scope is not None:
            floor = [(name, epoch) for name, epoch in floor if name == scope]
        self.state.check_not_below(floor)
