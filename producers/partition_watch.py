"""Watches for partitions that are added to topics which were taken over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from functools import partial

from epochfence.epochs.errors import Deposed, EpochfenceError
from epochfence.producers.taking_over import TakingOver
from epochfence.producers.territory import Territory

_log = logging.getLogger(__name__)

#: So long, at most, an added partition goes unnoticed.
_LOOK_EVERY_S = 5.0
#: How long one look, with what follows from it, may take.
_LOOK_S = 10.0


class PartitionWatch:
    """A thread that writes barriers to added partitions.

    Args:
        territory: Tells which topics are of interest.
        taking_over: Does what is to be done.
        on_deposed: Called when it turns out that there is a successor.
    """

    def __init__(
        self,
        territory: Territory,
        taking_over: TakingOver,
        on_deposed: Callable[[Deposed], None],
    ) -> None:
        self._territory = territory
        self._taking_over = taking_over
        self._on_deposed = on_deposed
        self._told: set[str] = set()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def start(self) -> None:
        """Begin to watch. May be called again."""
        with self._starting:
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=self._watch, name="epochfence-partitions", daemon=True
                )
                self._thread.start()

    def wake(self) -> None:
        """Look now: there may be something new."""
        self._wake.set()

    def _watch(self) -> None:
        while True:
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()
            if self._is_closing:
                return
            for topic in self._territory.whole_topics():
                if not self._is_closing:
                    self._try(topic, partial(self._look, topic))
            self._try("", lambda: self._taking_over.prove_added(_soon()))

    def _look(self, topic: str) -> None:
        if self._taking_over.add_partitions(topic, _soon()):
            _log.info("wrote barriers to new partitions of %s", topic)

    def _try(self, topic: str, step: Callable[[], None]) -> None:
        """Do it; tell what is wrong once, not with every attempt."""
        kind = ""
        try:
            step()
        except Deposed as deposed:
            self._on_deposed(deposed)
        except EpochfenceError as error:
            kind = f"{topic}: {type(error).__name__}"
            if kind not in self._told:
                _log.warning(
                    "new partitions may lack barriers, trying again: %s", error
                )
        except Exception:
            kind = f"{topic}: unexpected"
            if kind not in self._told:
                _log.exception("new partitions may lack barriers, trying again")
        self._told = {told for told in self._told if not told.startswith(f"{topic}: ")}
        if kind:
            self._told.add(kind)

    def close(self) -> None:
        """Stop. May be called again."""
        with self._starting:
            self._is_closing = True
        self._wake.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()


def _soon() -> float:
    return time.monotonic() + _LOOK_S
