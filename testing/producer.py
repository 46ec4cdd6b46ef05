"""The producer, in memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from confluent_kafka import KafkaError, Message

from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.receipts import Receipts
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.judging import Settings
from epochfence.testing.ledger import MemoryLedger
from epochfence.testing.sender import MemorySender


class MemoryProducer(FencedProducer):
    """A `FencedProducer` on a ledger in memory: the same code, with a stand-in below.

    What is handed over is in the log at once, its report comes with the next `poll`,
    `flush` or `confirm`. Between `hold` and `release` it stays on its way instead: so
    it happens to a leader that pauses, or to its connection.

    Args:
        ledger: The ledger.
        leaderships: As for `FencedProducer`, as the next two are.
        settings: How the consumers judge.
        config: Settings for a producer; only `on_delivery` has an effect.
    """

    def __init__(
        self,
        ledger: MemoryLedger,
        leaderships: Leadership | Iterable[Leadership],
        *,
        settings: Settings | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(ledger, MemoryLedger):
            raise MisconfiguredError(
                "ledger", ledger, "it is no MemoryLedger",
                "Give MemoryLedger(); with a real Ledger, use FencedProducer.",
            )  # fmt: skip
        super().__init__(config or {}, ledger, leaderships, settings=settings)
        self.ledger = ledger
        self._sender = cast("MemorySender", self._producer)

    # What is on its way.

    def hold(self) -> None:
        """Keep on its way what is handed over from now on, until `release`."""
        self._sender.is_holding = True

    def release(self) -> list[Message]:
        """Let arrive what was held back, wherever the logs have come to; the records.

        That needs no leadership, and no producer that is still open: nobody can call
        back what is on its way.
        """
        return self._sender.release()

    @property
    def held(self) -> int:
        """How many messages are held back."""
        return self._sender.held

    @property
    def held_topics(self) -> list[str]:
        """The topics that they are on their way to."""
        return self._sender.held_topics

    def fail_deliveries(
        self,
        times: int = 1,
        *,
        code: int = KafkaError._MSG_TIMED_OUT,
        arrives: bool = False,
    ) -> None:
        """Have the next messages reported as not delivered.

        Args:
            times: How many messages.
            code: The code of the error, as `confluent_kafka.KafkaError` has it.
            arrives: Whether they are in the log all the same: after a time-out,
                nobody knows.
        """
        self._sender.fail_deliveries(code, times, arrives=arrives)

    def confirm(self, timeout_s: float = 10.0) -> Receipts:
        """As `FencedProducer.confirm`; what is held back is not waited for.

        Raises:
            TopicUnavailable: Messages are held back.
        """
        self._check_usable()
        if self.held:
            self.poll(0)
            raise TopicUnavailable(
                ", ".join(self.held_topics),
                f"{self.held} messages are not acknowledged yet (release() lets them "
                f"arrive)",
            )
        return super().confirm(timeout_s)

    def __enter__(self) -> MemoryProducer:
        return self
