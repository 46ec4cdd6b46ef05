"""A fenced producer for asyncio: the same one, with a thread that polls it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, TopicPartition

from epochfence.epochs.errors import (
    LedgerClosed,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.receipts import Receipt, Receipts
from epochfence.epochs.values import check_count, check_timeout
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.in_thread import in_thread, start_in_thread
from epochfence.producers.stamping import Headers
from epochfence.producers.write_behind import WriteBehind, poll_briefly

_log = logging.getLogger(__name__)

#: So many answers are kept before they are joined to one: nobody may ever ask.
_KEPT = 100

_CLOSED = "the producer was closed before it was known what became of a message"

#: After so many messages in a row, others on the loop have a turn; and so many are told
#: of at a time.
_IN_A_ROW = 200

#: So often a close looks whether all is told.
_BETWEEN_S = 0.05


class AsyncFencedProducer:
    """Writes under a leadership, from one event loop.

        async with AsyncFencedProducer(FencedProducer(kafka, ledger, leadership)) as p:
            await p.take_over(["orders"])
            delivered = await p.produce("orders", b"v")     # handed over
            message = await delivered                       # in the log
            receipts = await p.confirm()                    # admitted

    What blocks runs in threads; a message is handed over on the loop, which takes some
    microseconds. Whatever is cancelled, what was handed over stays so, and is told of.

    To be made, used and closed in one running event loop.

    Args:
        producer: The producer, which is closed with this one.
        confirm_every_messages: So many messages are confirmed at once while receipts
            are waited for (`produce_for_receipt`).
        confirm_every_s: So long, in seconds, a message waits to be confirmed then.
        timeout_s: How long a method waits for the cluster where it is not told
            otherwise, in seconds.

    Raises:
        MisconfiguredError: An argument is wrong.
        RuntimeError: No event loop runs here.
    """

    def __init__(
        self,
        producer: FencedProducer,
        *,
        confirm_every_messages: int = 1000,
        confirm_every_s: float = 0.1,
        timeout_s: float = 10.0,
    ) -> None:
        if not isinstance(producer, FencedProducer):
            raise MisconfiguredError(
                "producer", producer, "it is no FencedProducer",
                "Use AsyncFencedProducer(FencedProducer(config, ledger, leadership)).",
            )  # fmt: skip
        self._producer = producer
        self._every_messages = check_count(
            confirm_every_messages, "confirm_every_messages"
        )
        self._every_s = check_timeout(confirm_every_s, "confirm_every_s")
        self._timeout_s = check_timeout(timeout_s)
        self._loop = asyncio.get_running_loop()
        # Whoever waits for room in the client's queue, in the order of their calls.
        self._turn = asyncio.Lock()
        self._in_turn = 0
        self._in_a_row = 0
        self._room = asyncio.Event()
        # What the loop is to be told of, from other threads.
        self._told: deque[tuple[asyncio.Future[Any], Any, Exception | None]] = deque()
        self._is_telling = False
        self._outstanding: dict[asyncio.Future[Any], str] = {}
        self._unconfirmed: set[asyncio.Future[Receipt]] = set()
        # What was confirmed, until somebody asks.
        self._receipts: list[Receipts] = []
        self._keeping = threading.Lock()
        self._behind: WriteBehind | None = None
        self._closing: asyncio.Future[None] | None = None
        self._is_closed = False
        self._thread = threading.Thread(
            target=self._poll, name="epochfence-poll", daemon=True
        )
        self._thread.start()

    @property
    def leaderships(self) -> tuple[Leadership, ...]:
        """What it writes under."""
        return self._producer.leaderships

    # Writing.

    async def produce(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        timestamp: int = 0,
        headers: Headers | None = None,
        cursor: str | bytes | None = None,
    ) -> asyncio.Future[Message]:
        """Hand a message over; waits while the client's queue is full.

        Messages are handed over in the order of the calls. Cancelled, it was not handed
        over.

        Args:
            topic, value, key, partition, timestamp, headers, cursor: As for
                `FencedProducer.produce`.

        Returns:
            To be awaited, or not: the message as it was acknowledged; raises
            `KafkaException` if it was not delivered, and `TopicUnavailable` if that
            was not known when this producer was closed. If it is cancelled, the
            message is sent all the same.

        Raises:
            Deposed, MisconfiguredError, LedgerClosed, KafkaException: As there.
        """
        delivered: asyncio.Future[Message] = self._loop.create_future()

        def hand_over() -> None:
            self._producer.produce(
                topic, value, key, partition, partial(self._on_delivery, delivered),
                None, timestamp, headers, cursor=cursor,
            )  # fmt: skip

        await self._hand_over(hand_over)
        self._expect(delivered, topic)
        return delivered

    async def produce_for_receipt(
        self,
        topic: str,
        value: str | bytes | None = None,
        key: str | bytes | None = None,
        partition: int = -1,
        *,
        timestamp: int = 0,
        headers: Headers | None = None,
        cursor: str | bytes | None = None,
    ) -> asyncio.Future[Receipt]:
        """Hand a message over, as `produce`, and have it confirmed by and by.

        From the first call on, a thread confirms every so often (`confirm_every_s`).

        Returns:
            To be awaited, or not: what became of the message. Raises
            `TopicUnavailable` if nobody knew when this producer was closed.

        Raises:
            Deposed, MisconfiguredError, LedgerClosed, KafkaException: As `produce`.
        """
        if self._behind is None:
            self._check_open()
            self._behind = WriteBehind(
                self._producer,
                self._keep,
                every_messages=self._every_messages,
                every_s=self._every_s,
                on_error=self._on_error,
                timeout_s=self._timeout_s,
            )
        confirmed: asyncio.Future[Receipt] = self._loop.create_future()

        def hand_over() -> None:
            self._producer.produce(
                topic, value, key, partition, None, None, timestamp, headers,
                cursor=cursor, on_receipt=partial(self._tell, confirmed),
            )  # fmt: skip

        await self._hand_over(hand_over)
        self._expect(confirmed, topic)
        self._unconfirmed.add(confirmed)
        confirmed.add_done_callback(self._unconfirmed.discard)
        return confirmed

    async def _hand_over(self, hand_over: Callable[[], None]) -> None:
        self._check_open()
        if not self._in_turn and self._in_a_row < _IN_A_ROW:
            try:
                hand_over()
            except BufferError:
                pass
            else:
                self._in_a_row += 1
                return
        self._in_turn += 1
        try:
            async with self._turn:
                # Nobody may overtake meanwhile, so not before.
                await asyncio.sleep(0)
                self._in_a_row = 0
                while True:
                    self._room.clear()
                    self._check_open()
                    try:
                        hand_over()
                    except BufferError:
                        await self._room.wait()
                    else:
                        return
        finally:
            self._in_turn -= 1

    def _check_open(self) -> None:
        if self._closing is not None:
            raise RuntimeError("the producer was closed")

    def _expect(self, future: asyncio.Future[Any], topic: str) -> None:
        self._outstanding[future] = topic
        future.add_done_callback(self._outstanding.pop)

    async def take_over(
        self,
        topics: Iterable[str | TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> dict[tuple[str, int], int]:
        """Begin the own epochs on topics: as `FencedProducer.take_over`.

        Cancelled, it goes on in its thread.
        """
        take = partial(self._producer.take_over, topics, timeout_s=timeout_s)
        return await in_thread(take)

    async def confirm(self, timeout_s: float | None = None) -> Receipts:
        """Tell what became of the messages: as `FencedProducer.confirm`.

        What was told with the receipts of single messages is in it, too. Cancelled,
        the next one has what it would have told.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        await in_thread(partial(self._confirm, wait_s))
        with self._keeping:
            told, self._receipts = self._receipts, []
        return told[0] if len(told) == 1 else Receipts.joined(told)

    def _confirm(self, timeout_s: float) -> None:
        if self._behind is None:
            self._keep(self._producer.confirm(timeout_s))
        else:
            # Not beside it: what it is about to tell would be missing.
            self._behind.flush(timeout_s)
        self._join()

    def _keep(self, receipts: Receipts) -> None:
        with self._keeping:
            self._receipts.append(receipts)
        if len(self._receipts) > _KEPT:
            self._join()

    def _join(self) -> None:
        """Join what is kept; here and not on the loop, since it may be much."""
        with self._keeping:
            kept, self._receipts = self._receipts, []
        joined = Receipts.joined(kept)
        with self._keeping:
            self._receipts.insert(0, joined)

    async def flush(self, timeout_s: float | None = None) -> int:
        """Wait for delivery reports; give how many messages still wait for theirs."""
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        return await in_thread(partial(self._producer.flush, wait_s))

    def purge(self) -> None:
        """Give up what waits for its delivery: as `confluent_kafka.Producer.purge`."""
        self._producer.purge()

    def __len__(self) -> int:
        """How many messages wait for delivery."""
        return len(self._producer)

    def __bool__(self) -> bool:
        return True

    # In other threads: the poller's, and whichever confirms.

    def _poll(self) -> None:
        while not self._is_closed:
            poll_briefly(self._producer)
            if self._in_turn:
                self._wake()

    def _on_delivery(
        self,
        delivered: asyncio.Future[Message],
        error: KafkaError | None,
        message: Message,
    ) -> None:
        failure = None if error is None else KafkaException(error)
        self._tell(delivered, message, failure)

    def _tell(
        self,
        future: asyncio.Future[Any],
        result: Receipt | Message,
        failure: Exception | None = None,
    ) -> None:
        self._told.append((future, result, failure))
        self._wake()

    def _wake(self) -> None:
        if self._is_telling:
            return
        self._is_telling = True
        try:
            self._loop.call_soon_threadsafe(self._tell_loop)
        except RuntimeError:
            _log.debug("the event loop is closed: nobody waits any more")

    def _on_error(self, error: Exception) -> None:
        if isinstance(error, LedgerClosed):
            # Nothing will ever be confirmed.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._fail_receipts, error)

    # On the loop.

    def _tell_loop(self) -> None:
        # Before anything is taken: what comes behind is told by the next call.
        self._is_telling = False
        for _ in range(_IN_A_ROW):
            if not self._told:
                break
            self._tell_next()
        else:
            self._wake()
        self._room.set()

    def _tell_next(self) -> None:
        future, result, failure = self._told.popleft()
        if future.done():
            return  # cancelled: whoever waited does so no more
        if failure is None:
            future.set_result(result)
        else:
            _fail(future, failure)

    def _fail_receipts(self, error: Exception) -> None:
        for future in list(self._unconfirmed):
            if not future.done():
                _fail(future, error)

    # The end.

    async def close(self) -> None:
        """Wait for delivery and for receipts, and stop. May be repeated.

        Cancelled, it goes on in its thread.
        """
        await asyncio.shield(self.close_soon())

    def close_soon(self) -> asyncio.Future[None]:
        """Begin to close; done when that is done."""
        if self._closing is None:
            self._closing = start_in_thread(self._close_below, is_daemon=False)
            self._closing.add_done_callback(self._settle_rest)
            self._room.set()  # whoever waits there is told that it was closed
        return self._closing

    def _settle_rest(self, _: object) -> None:
        while self._told:
            self._tell_next()
        for future, topic in list(self._outstanding.items()):
            if not future.done():
                _fail(future, TopicUnavailable(topic, _CLOSED))

    def _close_below(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        try:
            if self._behind is not None:
                self._stop_confirming(self._behind)
            while self._outstanding and time.monotonic() < deadline:
                time.sleep(_BETWEEN_S)
        finally:
            try:
                self._producer.close()
            finally:
                self._is_closed = True
                self._thread.join()

    def _stop_confirming(self, behind: WriteBehind) -> None:
        try:
            behind.close()
        except Exception as error:
            _log.warning("closed, and not everything is confirmed: %s", error)

    async def __aenter__(self) -> AsyncFencedProducer:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()


def _fail(future: asyncio.Future[Any], error: Exception) -> None:
    future.set_exception(error)
    future.exception()  # looked at: nobody has to await it, and `confirm` tells of it
