"""The consumer, in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, Message

from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.consumers.gathering import Gathering
from epochfence.consumers.rejections import OnRejected
from epochfence.consumers.settings import Require
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.stamps import StampReader
from epochfence.testing.ledger import MemoryLedger
from epochfence.testing.receiver import MemoryReceiver

#: Each pass brings something on, and there is little to be done.
_MOST_PASSES = 10_000

_CONFIG = {"group.id": "test", "auto.offset.reset": "earliest"}


class MemoryConsumer(FencedConsumer):
    """A `FencedConsumer` on a ledger in memory: the same code, a stand-in below.

    It never waits: `poll` and `consume` give what there is, whatever their time-out,
    and iteration ends where the logs end (and may be begun again).

    Args:
        ledger: The ledger.
        require: As for `FencedConsumer`, as all that follow.
        config: Settings for a consumer; group `test` from the `earliest` offset on
            where nothing else is said.
        unstamped: What to do with records that lack a stamp.
        authority: Who says which epochs exist.
        stamps: Finds the stamps.
        max_jump: How far an epoch may jump.
        mode: `enforce` or `dry-run`.
        rebuild: Whether missing epoch starts may be found by reading.
        on_rejected: Called with each rejected message and its verdict.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        *,
        require: Require,
        config: Mapping[str, Any] | None = None,
        unstamped: str | None = None,
        authority: str | None = None,
        stamps: StampReader | None = None,
        max_jump: int | None = None,
        mode: str = "enforce",
        rebuild: bool = True,
        on_rejected: OnRejected | None = None,
    ) -> None:
        if not isinstance(ledger, MemoryLedger):
            raise MisconfiguredError(
                "ledger", ledger, "it is no MemoryLedger",
                "Give MemoryLedger(); with a real Ledger, use FencedConsumer.",
            )  # fmt: skip
        super().__init__(
            {**_CONFIG, **(config or {})},
            ledger,
            require=require,
            unstamped=unstamped,
            authority=authority,
            stamps=stamps,
            max_jump=max_jump,
            mode=mode,
            rebuild=rebuild,
            on_rejected=on_rejected,
        )
        self.ledger = ledger

    def _gather(self, count: int, timeout_s: float) -> list[Message]:
        reader = self._reader
        with self._turns:
            for _ in range(_MOST_PASSES):
                reader.look_soon()
                messages = Gathering(reader, count, 0.0).step()
                if messages is not None:
                    return messages
                # After a topic was made anew, it is another one.
                receiver = cast("MemoryReceiver", reader.raw)
                if reader.is_at_rest and receiver.is_at_rest:
                    return reader.take(count)
        raise AssertionError(
            "the consumer in memory does not come to rest: a fault of the testing kit"
        )

    def __next__(self) -> Message:
        """The next admitted message.

        Raises:
            StopIteration: There is none yet, or the consumer was closed.
            KafkaException: An event of the client; call again to go on.
            EpochfenceError: The fence cannot decide; call again where it says so.
        """
        while not self._reader.is_closed:
            message = self.poll(0)
            if message is None:
                break
            error = message.error()
            if error is None:
                return message
            if error.code() != KafkaError._PARTITION_EOF:
                raise KafkaException(error)
        raise StopIteration

    def __enter__(self) -> MemoryConsumer:
        return self
