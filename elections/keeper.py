"""Keeps a place alive, and tells when it is over: by an answer, or for lack of one."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.epochs.errors import EpochfenceError

_log = logging.getLogger(__name__)

#: While a system sleeps, what a thread waits for stands still: so it looks often.
_LOOK_S = 0.5

#: So often is a place confirmed within the time that it lasts.
_TIMES = 3

#: An answer that failed to come is asked for again so much sooner.
_HASTE = 5

#: How long `stop` waits for a question that is under way.
_STOP_S = 1.0

# Goes on while the system sleeps, as the server's clock does.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_s() -> float:
    """The time by which places end."""
    return time.clock_gettime(_CLOCK)


class Keeper:
    """Confirms a place again and again; over when it could not be for too long.

    What counts is when a question was sent: the server forgets no place earlier than
    the place's time after it heard of it. A second thread watches the clock, since an
    answer may be waited for.

    Args:
        confirm: Asks the server; False: the place is gone. On a thread of its own.
        lasts_s: How long the server keeps a place that it hears nothing of.
        asked_at: When the question was sent by which the place was got (`now_s`);
            `math.inf` if it was not got yet: then `confirmed` tells.
        on_end: Called when the place is over, once, on any thread; not after `stop`.
    """

    def __init__(
        self,
        confirm: Callable[[], bool],
        lasts_s: float,
        asked_at: float,
        on_end: Callable[[], None],
    ) -> None:
        self._confirm = confirm
        self._lasts_s = lasts_s
        self._until = asked_at + lasts_s
        self._on_end = on_end
        self._lock = threading.Lock()
        self._hurry = threading.Event()
        #: Set when the place is over, or given up.
        self.ended = threading.Event()
        self._threads = [
            threading.Thread(target=run, name="epochfence-election", daemon=True)
            for run in (self._ask, self._watch)
        ]

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def is_over(self) -> bool:
        """Whether the place is over, by the clock of this very moment too."""
        if now_s() >= self._until:
            self.end()
        return self.ended.is_set()

    def confirmed(self, asked_at: float) -> None:
        """The server has answered a question that was sent then."""
        self._until = asked_at + self._lasts_s

    def hurry(self) -> None:
        """Ask now: something has happened."""
        self._hurry.set()

    def end(self) -> None:
        """The place is over."""
        if self._is_first_to_end():
            self._on_end()

    def stop(self) -> None:
        """The place is given up."""
        self._is_first_to_end()
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(_STOP_S)

    def _is_first_to_end(self) -> bool:
        with self._lock:
            is_first = not self.ended.is_set()
            self.ended.set()
        self._hurry.set()
        return is_first

    # On their own threads.

    def _ask(self) -> None:
        pause_s = usual_s = self._lasts_s / _TIMES
        while True:
            self._hurry.wait(pause_s)
            self._hurry.clear()
            if self.ended.is_set():
                return
            asked_at = now_s()
            try:
                is_there = self._confirm()
            except NoAnswerError:
                pause_s = usual_s / _HASTE
                continue
            except (PlaceLostError, EpochfenceError):
                is_there = False  # the next `campaign` will tell what it is
            except Exception:
                _log.exception("an election's place cannot be confirmed")
                is_there = False
            if not is_there:
                self.end()
                return
            self.confirmed(asked_at)
            pause_s = usual_s

    def _watch(self) -> None:
        while not self.is_over():
            self.ended.wait(min(_LOOK_S, max(0.0, self._until - now_s())))
