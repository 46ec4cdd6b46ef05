"""Watches for partitions that are added to topics which were taken over."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from epochfence.epochs.errors import EpochfenceError
from epochfence.producers.taking_over import Realm, TakingOver

_log = logging.getLogger(__name__)

#: So long, at most, an added partition goes unnoticed.
_LOOK_EVERY_S = 5.0
#: How long one look, with what follows from it, may take.
_LOOK_S = 10.0


class PartitionWatch:
    """A thread that writes barriers to added partitions, for all who use one client.

    Args:
        taking_over: Does what is to be done.
    """

    def __init__(self, taking_over: TakingOver) -> None:
        self._taking_over = taking_over
        self._realms: list[Realm] = []
        self._told: set[str] = set()
        self._wake = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def add(self, realm: Realm) -> None:
        """Look after the topics of one more realm. May be called again."""
        with self._starting:
            if realm not in self._realms:
                self._realms = [*self._realms, realm]
            if self._thread is None and not self._is_closing:
                self._thread = threading.Thread(
                    target=self._watch, name="epochfence-partitions", daemon=True
                )
                self._thread.start()

    def remove(self, realm: Realm) -> None:
        """Look after them no more."""
        with self._starting:
            self._realms = [one for one in self._realms if one is not realm]

    def wake(self) -> None:
        """Look now: there may be something new."""
        self._wake.set()

    def _watch(self) -> None:
        while True:
            self._wake.wait(_LOOK_EVERY_S)
            self._wake.clear()
            if self._is_closing:
                return
            realms: dict[str, list[Realm]] = defaultdict(list)
            for realm in self._realms:
                for topic in realm.territory.whole_topics():
                    realms[topic].append(realm)
            for topic, of_topic in realms.items():
                if not self._is_closing:
                    self._try(topic, partial(self._look, topic, of_topic))
            self._try("", partial(self._prove, self._realms))

    def _look(self, topic: str, realms: list[Realm]) -> None:
        if self._taking_over.add_partitions(topic, realms, _soon()):
            _log.info("wrote barriers to new partitions of %s", topic)

    def _prove(self, realms: list[Realm]) -> None:
        self._taking_over.prove_added(realms, _soon())

    def _try(self, topic: str, step: Callable[[], None]) -> None:
        """Do it; tell what is wrong once, not with every attempt."""
        kind = ""
        try:
            step()
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
