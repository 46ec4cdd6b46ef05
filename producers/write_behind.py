"""Confirming behind the back of whoever writes: every so often, with a call back."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from types import TracebackType

from epochfence.epochs.errors import (
    EpochfenceError,
    LedgerClosed,
    MisconfiguredError,
)
from epochfence.epochs.receipts import Receipts
from epochfence.epochs.values import check_count, check_function, check_timeout
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.reported import has_failed_for_good

_log = logging.getLogger(__name__)

#: So long a poll waits for reports: neither a close nor whoever waits for room in the
#: client's queue waits longer for it.
_POLL_S = 0.05

OnReceipts = Callable[[Receipts], object]
OnError = Callable[[Exception], object]


class WriteBehind:
    """Confirms what a producer writes, and calls back, while others go on writing.

        with WriteBehind(producer, mark_sent, every_s=0.5):
            for row in rows:
                producer.produce("orders", row.value)

    A thread of its own polls the producer, so that delivery reports are served there,
    and calls `confirm` when enough messages wait for it or enough time has passed. When
    the context is left, all is confirmed. To be closed before the producer.

    Safe to use from several threads.

    Args:
        producer: Whose messages to confirm. If `confirm` is called elsewhere too, what
            it tells there is not told here.
        on_receipts: Called with what each `confirm` told, one call after the other,
            in its thread (in that of `flush` and `close`, during these). If it
            raises, it is called with the same again, until it returns. None, where
            `produce(on_receipt=)` says all.
        every_messages: So many messages, not confirmed yet, are confirmed at once.
        every_s: So long, in seconds, a message waits to be confirmed.
        on_error: Called with each failure to confirm, or to call back. All is tried
            again, unless the ledger, or the producer, was closed. It is logged, too.
        timeout_s: How long one `confirm` may take, in seconds.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        producer: FencedProducer,
        on_receipts: OnReceipts | None = None,
        *,
        every_messages: int = 10_000,
        every_s: float = 1.0,
        on_error: OnError | None = None,
        timeout_s: float = 10.0,
    ) -> None:
        if not isinstance(producer, FencedProducer):
            raise MisconfiguredError(
                "producer", producer, "it is no FencedProducer",
                "Give the one whose messages are to be confirmed.",
            )  # fmt: skip
        check_function("on_receipts", on_receipts)
        check_function("on_error", on_error)
        self._producer = producer
        self._on_receipts = on_receipts
        self._every_messages = check_count(every_messages, "every_messages")
        self._every_s = check_timeout(every_s, "every_s")
        self._on_error = on_error
        self._timeout_s = check_timeout(timeout_s)
        # One call back after the other; a callback may flush.
        self._turn = threading.RLock()
        self._untold: deque[Receipts] = deque()
        self._told_kind = ""
        # Then nothing is tried before its time, however many messages wait.
        self._has_failed = False
        self._is_closing = False
        self._thread = threading.Thread(
            target=self._run, name="epochfence-write-behind", daemon=True
        )
        self._thread.start()

    def flush(self, timeout_s: float | None = None) -> None:
        """Wait until all that was handed over so far is confirmed, and called back.

        Args:
            timeout_s: How long the `confirm` may take, in seconds.

        Raises:
            TopicUnavailable, LedgerUnavailable, TableUnavailable, LedgerRegressed: As
                `FencedProducer.confirm`; nothing is forgotten.
            Exception: What `on_receipts` raises.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        if self._producer.is_closed:
            # Not before the turn: in a forked process, nobody gives that back.
            raise RuntimeError("the producer was closed before all was confirmed")
        with self._turn:
            self._confirm(wait_s)
            self._tell()

    def _confirm(self, timeout_s: float) -> None:
        receipts = self._producer.confirm(timeout_s)
        is_wanted = len(receipts) or receipts.undelivered
        if is_wanted and self._on_receipts is not None:
            self._untold.append(receipts)

    def _tell(self) -> None:
        while self._untold and self._on_receipts is not None:
            receipts = self._untold.popleft()
            try:
                self._on_receipts(receipts)
            except BaseException:
                self._untold.appendleft(receipts)
                raise

    # The thread.

    def _run(self) -> None:
        due = time.monotonic() + self._every_s
        while not self._is_closing:
            poll_briefly(self._producer)
            waiting = self._producer.confirmable
            is_due = time.monotonic() >= due and (waiting or self._untold)
            if not is_due and (waiting < self._every_messages or self._has_failed):
                continue
            error = self._try()
            self._has_failed = error is not None
            if error is not None:
                self._report(error)
                if self._producer.is_closed or isinstance(error, LedgerClosed):
                    return
            due = time.monotonic() + self._every_s

    def _try(self) -> Exception | None:
        """Confirm, and call back; what came in the way of it."""
        with self._turn:
            try:
                if not self._is_closing:
                    self._confirm(self._timeout_s)
                    self._tell()
            except Exception as error:
                return error
        self._told_kind = ""
        return None

    def _report(self, error: Exception) -> None:
        if self._on_error is not None:
            try:
                self._on_error(error)
            except Exception:
                _log.exception("a function that was to be told of %r failed", error)
        kind = type(error).__name__
        if kind == self._told_kind:
            return  # once, not with every attempt
        self._told_kind = kind
        is_known = isinstance(error, EpochfenceError)
        _log.warning("not confirmed yet: %s", error, exc_info=not is_known)

    # The end.

    def close(self) -> None:
        """Stop, having confirmed everything. May be repeated.

        Raises:
            Exception: As `flush`.
        """
        self._stop()
        self.flush()

    def _stop(self) -> None:
        self._is_closing = True
        if self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> WriteBehind:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
            return
        self._stop()
        try:
            self.flush()
        except Exception as failure:
            # What the context was left with must not be hidden.
            _log.warning("closed, and not everything is confirmed: %s", failure)


def poll_briefly(producer: FencedProducer) -> None:
    """Serve delivery reports, in a thread where nobody would hear what that raises."""
    try:
        producer.poll(_POLL_S)
    except BaseException as error:
        if has_failed_for_good(error):
            _log.info(
                "a client has failed, as whoever writes will hear: %s", error.args[0]
            )
        else:
            # Of a delivery callback: it counts as reported all the same.
            _log.exception("a delivery callback failed")
