"""The answer of `confirm()`: take what is due, ask the ledger, read where needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.deadlines import time_left
from epochfence.epochs.errors import Deposed, TopicUnavailable
from epochfence.epochs.holding import check_granted, deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import Part, Receipts, Undelivered
from epochfence.epochs.values import Place
from epochfence.producers.judging import Judging
from epochfence.producers.reported import Source
from epochfence.producers.rereading import Rereading
from epochfence.producers.territory import Territory

#: Even where no time is left, a call needs some to be sent.
_SHORTEST_S = 0.2

#: A broker that finds an idempotent producer's sequence broken has lost records of it.
_SEQUENCE_LOST = {"OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"}


class Confirmation:
    """Answers for what was acknowledged; forgets it only when it has.

    Args:
        source: Gives what is to be answered for.
        ledger: Knows the grants.
        leaderships: What the messages were written under.
        rereading: Answers for a deposed leader.
        judging: Tells where messages cannot be admitted.
        territory: Names the topics, for messages.
        on_deposed: Called when it turns out that there is a successor.
    """

    def __init__(
        self,
        source: Source,
        ledger: Ledger,
        leaderships: Sequence[Leadership],
        rereading: Rereading,
        judging: Judging,
        territory: Territory,
        on_deposed: Callable[[Deposed], None],
    ) -> None:
        self._source = source
        self._ledger = ledger
        self._leaderships = leaderships
        self._rereading = rereading
        self._judging = judging
        self._territory = territory
        self._on_deposed = on_deposed
        self._one_at_a_time = threading.Lock()

    def confirm(self, deadline: float) -> Receipts:
        """Answer for every message; `FencedProducer.confirm` tells more."""
        if not self._one_at_a_time.acquire(timeout=time_left(deadline)):
            raise TopicUnavailable(
                ", ".join(self._territory.named()), "another thread is still confirming"
            )
        try:
            answerable = self._source.take(deadline)
            undelivered = answerable.undelivered.values()
            parts = self._answer(answerable.acknowledged, undelivered, deadline)
            parts += answerable.answered
            receipts = Receipts(sorted(parts, key=_place_of), undelivered)
            self._source.answered()
            return receipts
        finally:
            self._one_at_a_time.release()

    def _answer(
        self,
        acknowledged: Mapping[Place, Acknowledged],
        undelivered: Collection[Undelivered],
        deadline: float,
    ) -> list[Part]:
        state = self._ledger.refresh(max(_SHORTEST_S, time_left(deadline)))
        check_granted(self._leaderships, state)
        deposed = deposed_by(self._leaderships, state)
        standing = {
            place: messages.standing
            for place, messages in sorted(acknowledged.items())
            if messages.standing
        }
        parts: list[Part] = []
        if deposed is None:
            # A successor writes only after its grant is in the ledger. Where the log
            # itself is in doubt, that is not all.
            doubtful = {
                failed[:2] for failed in undelivered if failed.error in _SEQUENCE_LOST
            }
            doubtful |= {
                place for place in standing if acknowledged[place].is_truncated
            }
            # A partition that was added may require what this producer has not got.
            doubtful |= {
                place for place in standing if not self._judging.lets_in(*place)
            }
            for place in set(standing) - doubtful:
                parts.append(Part(*place, "admitted", standing.pop(place)))
        else:
            self._on_deposed(deposed)
        if standing:
            parts += self._rereading.answer(standing, deadline)
        for place, messages in acknowledged.items():
            parts += _without_reading(place, messages)
        return parts


def _place_of(part: Part) -> Place:
    return part.topic, part.partition


def _without_reading(place: Place, messages: Acknowledged) -> list[Part]:
    """What is known of messages already: some are lost, of some nobody can tell."""
    parts = [Part(*place, "lost", offsets) for offsets in messages.lost]
    if messages.without_offset:
        unknown = Part(*place, "indeterminate", OffsetRanges(), messages.without_offset)
        parts.append(unknown)
    return parts
