"""The rule alone, for people with their own loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import confluent_kafka
from confluent_kafka import Message

from epochfence.consumers.arguments import check_message, checked_list
from epochfence.consumers.ledger_view import LedgerView
from epochfence.consumers.outbox import place_of
from epochfence.consumers.pieces import cut
from epochfence.consumers.rejections import OnRejected, Rejections
from epochfence.consumers.settings import Require, settings_by_topic, unlisted
from epochfence.consumers.sieve import Sifted, sift
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.messages import headers_of
from epochfence.epochs.stamps import StampReader
from epochfence.epochs.values import EpochStart, Place, check_function
from epochfence.epochs.verdicts import Verdict

# What a share consumer's poll gives, where the client has share consumers.
_SHARED_BATCH: type | None = getattr(confluent_kafka, "Messages", None)


class Fence:
    """Gives verdicts on messages that somebody else has read.

    The messages of each partition have to come in the log's order, from an isolated
    read (`read_committed`), before any buffer or repartitioning. Where the reading
    steps back, the verdicts are those of before.

    It reads no table and writes none: whoever uses it gives it the epoch starts that
    are known (`starts`, `add_starts`), and keeps those that are found
    (`take_new_starts`) durably, before or together with the effect of the messages.
    A fence that starts in the middle of a log without them lets deposed leaders in.

    For one thread at a time.

    Args:
        ledger: The ledger; None only with authority `max-seen`.
        require: For each topic, the scopes whose stamps every record must carry, or a
            `FenceSettings`; see `FencedConsumer`, as for the next four.
        unstamped: What to do with records that lack one.
        authority: Who says which epochs exist.
        stamps: Finds the stamps; None: this package's own headers.
        max_jump: With authority `max-seen`: how far an epoch may jump.
        starts: Epoch starts that are known.
        on_rejected: Called with each rejected message and its verdict.

    Raises:
        MisconfiguredError: A setting is wrong.
        LedgerUnavailable: The ledger cannot be read.
    """

    def __init__(
        self,
        ledger: Ledger | None,
        *,
        require: Require,
        unstamped: str | None = None,
        authority: str | None = None,
        stamps: StampReader | None = None,
        max_jump: int | None = None,
        starts: Iterable[EpochStart] = (),
        on_rejected: OnRejected | None = None,
    ) -> None:
        check_function("on_rejected", on_rejected)
        if ledger is not None:
            check_ledger(ledger)
        self._settings = settings_by_topic(
            require,
            unstamped=unstamped,
            authority=authority,
            stamps=stamps,
            max_jump=max_jump,
        )
        self._view = None if ledger is None else LedgerView(ledger)
        self._fences: dict[Place, PartitionFence] = {}
        self._lives: dict[str, str | None] = {}
        self._known: dict[Place, list[EpochStart]] = {}
        self._new_starts: list[EpochStart] = []
        self._rejections = Rejections(on_rejected, is_dry_run=False)
        for topic in self._settings:
            if ledger is None and self._settings[topic].authority == "ledger":
                raise MisconfiguredError(
                    "authority", "ledger", f"topic {topic!r} has no ledger to ask",
                    "Give one, or use authority max-seen.",
                )  # fmt: skip
        self.add_starts(starts)

    # Epoch starts, in and out.

    def add_starts(self, starts: Iterable[EpochStart]) -> None:
        """Take in epoch starts that others found, or that were kept."""
        given = checked_list(
            "starts",
            starts,
            EpochStart,
            "EpochStart",
            "Give what take_new_starts gave; at the first start, leave it out.",
        )
        for start in given:
            place = (start.topic, start.partition)
            fence = self._fences.get(place)
            if fence is None:
                self._known.setdefault(place, []).append(start)
            else:
                fence.add_starts([start])

    @property
    def starts(self) -> list[EpochStart]:
        """Every epoch start that is known."""
        found = [start for fence in self._fences.values() for start in fence.starts]
        return found + [start for known in self._known.values() for start in known]

    def take_new_starts(self) -> list[EpochStart]:
        """The epoch starts found since this was called last: each is given once."""
        found, self._new_starts = self._new_starts, []
        return found

    def enter_life(self, topic: str, topic_id: str | None) -> None:
        """Say which life of a topic the messages to come are of, by Kafka's id.

        Starts of earlier lives go on counting. Without it, all is of one life.
        """
        self._lives[topic] = topic_id
        for (name, _), fence in self._fences.items():
            if name == topic:
                fence.enter_life(topic_id)

    # Verdicts.

    def filter(self, messages: Sequence[Message]) -> list[Message]:
        """The messages that may be applied, and the client's events, in order.

        An error leaves the fence as it was, but for starts that were found: call
        again with the same messages.

        Args:
            messages: What the client's `consume` gave, or a part of it.

        Raises:
            LedgerUnavailable: It is needed for a verdict, and cannot be read now.
            LedgerRegressed: It has lost grants that were in use.
            MisconfiguredError: A topic is not listed in `require`; or a record has no
                stamp, and nobody said what to do then; or they come from a share
                group, which breaks the order.
        """
        if _SHARED_BATCH is not None and isinstance(messages, _SHARED_BATCH):
            raise MisconfiguredError(
                "messages", ..., "they come from a share group (KIP-932), which breaks "
                "the order within a partition, on which fencing rests",
                "Read with an ordinary consumer.",
            )  # fmt: skip
        batch = list(messages)
        for message in batch[:1]:
            check_message("messages", message)
        self._update()
        sifted = Sifted()
        is_complete = self._view is None
        try:
            for place, part, are_alike in cut(batch):
                if place is None:
                    sifted.passed += part
                elif self._view is None:
                    sift(
                        self._fence(place), part, sifted,
                        ledger_complete=True, are_alike=are_alike,
                    )  # fmt: skip
                else:
                    is_complete = self._view.sift(
                        self._fence(place), part, sifted,
                        is_complete=is_complete, are_alike=are_alike,
                    )  # fmt: skip
        finally:
            self._new_starts += sifted.starts
        self._rejections.take(sifted, self._state)
        self._rejections.call_back()
        return sifted.passed

    def judge(self, record: Message) -> Verdict:
        """One record's verdict, with everything one may ask.

        Raises:
            LedgerUnavailable, LedgerRegressed, MisconfiguredError: As `filter`.
        """
        check_message("record", record)
        self._update()
        fence = self._fence(place_of(record))
        offset = record.offset()
        if record.error() is not None or offset is None:
            raise MisconfiguredError(
                "record", ..., "it is an event of the client, not a record",
                "Look at its error().",
            )  # fmt: skip
        if self._view is not None:
            fence.ledger_replaced(self._view.state)
        verdict = self._judge(fence, record, offset, is_complete=self._view is None)
        if verdict is None and self._view is not None:
            self._view.refresh(fence.starts)
            fence.ledger_replaced(self._view.state)
            verdict = self._judge(fence, record, offset, is_complete=True)
        assert verdict is not None
        self._new_starts += verdict.starts
        sifted = Sifted()
        sifted.add(record, verdict)
        self._rejections.take(sifted, self._state)
        self._rejections.call_back()
        return verdict

    def _judge(
        self,
        fence: PartitionFence,
        record: Message,
        offset: int,
        *,
        is_complete: bool,
    ) -> Verdict | None:
        return fence.judge(
            record.leader_epoch(),
            offset,
            headers_of(record),
            record.value(),
            ledger_complete=is_complete,
        )

    @property
    def counts(self) -> dict[str, int]:
        """How many records had each verdict, by reason: see `FencedConsumer.counts`."""
        return dict(self._rejections.counts)

    @property
    def _state(self) -> LedgerState | None:
        return None if self._view is None else self._view.state

    def _update(self) -> None:
        """Judge by the ledger that was read last."""
        if self._view is not None:
            self._view.update()

    def _fence(self, place: Place) -> PartitionFence:
        fence = self._fences.get(place)
        if fence is not None:
            return fence
        topic, number = place
        settings = self._settings.get(topic)
        if settings is None:
            raise unlisted(topic, self._settings)
        known = self._known.pop(place, [])
        fence = PartitionFence(topic, number, settings, self._state, known)
        fence.enter_life(self._lives.get(topic))
        self._fences[place] = fence
        return fence
