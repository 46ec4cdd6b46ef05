"""An election among the threads of a process, and who stands in it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class LocalOffice:
    """One office; whoever has stood longest is elected."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.line: list[LocalElection] = []

    def expel(self) -> None:
        """Have the elected candidate lose the office."""
        with self.changed:
            gone = self.line.pop(0)
            gone.lost.set()
            self.changed.notify_all()


class LocalElection:
    """A candidate."""

    def __init__(self, office: LocalOffice) -> None:
        self.lost = threading.Event()
        self.lost.set()
        self.resignations = 0
        #: Called between winning the election and saying so.
        self.on_won: Callable[[], object] = lambda: None
        self._office = office

    @property
    def is_elected(self) -> bool:
        """Whether it is, right now."""
        return self._office.line[:1] == [self]

    def campaign(self, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        changed = self._office.changed
        with changed:
            if self not in self._office.line:
                self._office.line.append(self)
            while not self.is_elected:
                left_s = deadline - time.monotonic()
                if left_s <= 0 or not changed.wait(left_s):
                    return False
            is_new = self.lost.is_set()
            self.lost.clear()
        if is_new:
            self.on_won()
        return True

    def resign(self) -> None:
        with self._office.changed:
            self.resignations += 1
            self.lost.set()
            if self in self._office.line:
                self._office.line.remove(self)
            self._office.changed.notify_all()

    def close(self) -> None:
        self.resign()
