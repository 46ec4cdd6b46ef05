"""What all candidates of ours have in common: `lost`, closing, and what they refuse."""

from __future__ import annotations

import os
import threading
import time
from abc import ABC, abstractmethod
from types import TracebackType
from typing import NoReturn, TypeVar
from weakref import WeakSet

from epochfence.elections.arguments import checked_wait

Kind = TypeVar("Kind", bound="Candidate")


class Candidate(ABC):
    """A candidate that is not elected yet."""

    def __init__(self) -> None:
        self._lost = threading.Event()
        self._lost.set()
        self._is_closed = False
        self._is_forked = False
        _CANDIDATES.add(self)

    @property
    def lost(self) -> threading.Event:
        """Set while this candidate is not elected, as far as it knows."""
        return self._lost

    @abstractmethod
    def campaign(self, timeout_s: float) -> bool:
        """Stand for election; whether this candidate is elected when this returns."""

    def _deadline(self, timeout_s: float) -> float:
        """When a `campaign` that begins now has to be back, by the monotonic clock."""
        deadline = time.monotonic() + checked_wait(timeout_s)
        if self._is_closed:
            raise RuntimeError("the election was closed")
        if self._is_forked:
            raise RuntimeError(
                "the election was opened before a fork, and its candidate is in the "
                "other process: open one in each"
            )
        return deadline

    def resign(self) -> None:
        """Give up the office, or the candidacy, so that another is elected at once.

        Where nothing answers, the office is free only after the election's own time.
        """
        # What a child process has is its parent's: it must not be ended there.
        if not self._is_forked:
            self._leave()

    @abstractmethod
    def _leave(self) -> None:
        """Set `lost`, and give up what is held."""

    def close(self) -> None:
        """Resign, for good. May be called again."""
        self._is_closed = True
        self.resign()

    def _forget(self) -> None:
        """In a forked process: nobody here is elected, nor hears of anything."""
        self._is_forked = True
        # Another one: a thread that is not there any more may hold the old one's lock.
        self._lost = threading.Event()
        self._lost.set()

    def __reduce__(self) -> NoReturn:
        raise TypeError("an election cannot be pickled: open one in each process")

    def __enter__(self: Kind) -> Kind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


#: Of every candidate there is, to be forgotten in a forked process.
_CANDIDATES: WeakSet[Candidate] = WeakSet()


def _forget_in_child() -> None:
    for candidate in list(_CANDIDATES):
        candidate._forget()  # pyright: ignore[reportPrivateUsage]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_child)
