"""The answer of `confirm()`: take what is due, ask the ledger, read where needed."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Generator,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from epochfence.epochs.acknowledged import Acknowledged, Asked
from epochfence.epochs.deadlines import some_time, time_left
from epochfence.epochs.errors import Deposed, TopicUnavailable
from epochfence.epochs.holding import check_granted, deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import Part, Receipt, Receipts, Undelivered
from epochfence.epochs.values import Place
from epochfence.producers.acknowledgements import Answerable
from epochfence.producers.judging import Judging
from epochfence.producers.reported import Source
from epochfence.producers.rereading import Rereading
from epochfence.producers.territory import Territory

_log = logging.getLogger(__name__)


#: A broker that finds an idempotent producer's sequence broken has lost records of it.
_SEQUENCE_LOST = {"OUT_OF_ORDER_SEQUENCE_NUMBER", "UNKNOWN_PRODUCER_ID"}


class Answer(NamedTuple):
    """What became of one producer's messages.

    Attributes:
        parts: Those that were acknowledged.
        undelivered: Those whose delivery failed.
        untold: The receipts that were asked for.
    """

    parts: list[Part]
    undelivered: tuple[Undelivered, ...]
    untold: list[tuple[Asked, Receipt]]


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
        #: How many messages were told of so far.
        self.told = 0
        # Receipts that were asked for, until their sender was told.
        self._untold: deque[tuple[Asked, Receipt]] = deque()
        # Answers that could not be given.
        self._ungiven: list[Receipts] = []

    def confirm(self, deadline: float) -> Receipts:
        """Answer for every message; `FencedProducer.confirm` tells more."""
        return confirm_together([self], self._ledger, deadline)

    @contextmanager
    def alone(self, deadline: float) -> Generator[None]:
        """Keep other threads from confirming, and begin with what is handed over."""
        if not self._one_at_a_time.acquire(timeout=time_left(deadline)):
            raise TopicUnavailable(
                ", ".join(self._territory.named()), "another thread is still confirming"
            )
        try:
            self._source.begin()
            yield
        finally:
            self._one_at_a_time.release()

    def await_delivery(self, deadline: float) -> None:
        """Wait until what was handed over so far is reported on."""
        with self.alone(deadline):
            self._source.await_delivery(deadline)

    def take(self, deadline: float) -> Answerable:
        """What is due and not answered for."""
        return self._source.take(deadline)

    def answer(
        self, answerable: Answerable, state: LedgerState, deadline: float
    ) -> Answer:
        """What became of messages that were taken before `state` was read."""
        acknowledged = answerable.acknowledged
        undelivered = answerable.undelivered.values()
        parts = self._parts(acknowledged, undelivered, state, deadline)
        untold = [*_asked(acknowledged, parts), *answerable.untold]
        parts += answerable.answered
        for place, messages in acknowledged.items():
            parts += _without_reading(place, messages)
        return Answer(parts, tuple(undelivered), untold)

    def answered(self, answer: Answer) -> None:
        """Forget what was taken last: else it is taken again."""
        # Before they are forgotten: what is here twice is told once.
        self._untold += answer.untold
        self._source.answered()
        if self._source.settled is None:
            self.told += sum(part.messages for part in answer.parts)
            self.told += sum(failed.messages for failed in answer.undelivered)
        else:
            self.told = self._source.settled

    def keep(self, receipts: Receipts) -> None:
        """Keep an answer that could not be given, for the next one."""
        self._ungiven.append(receipts)

    def take_kept(self) -> list[Receipts]:
        """The answers that could not be given, to be given now."""
        kept, self._ungiven = self._ungiven, []
        return kept

    def tell(self) -> None:
        """Tell whoever asked for a receipt, and was not told yet."""
        while self._untold:
            asked, receipt = self._untold.popleft()
            if asked.is_told:
                # An exception came between its report and the count of it: what it was
                # acknowledged with, which came first, is true.
                continue
            asked.is_told = True
            try:
                asked.on_receipt(receipt)
            except Exception:
                _log.exception("a function that was to be told %s failed", receipt)

    def _parts(
        self,
        acknowledged: Mapping[Place, Acknowledged],
        undelivered: Collection[Undelivered],
        state: LedgerState,
        deadline: float,
    ) -> list[Part]:
        """What became of the messages whose offsets stand."""
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
        return parts


def confirm_together(
    confirmations: Sequence[Confirmation], ledger: Ledger, deadline: float
) -> Receipts:
    """Answer for what several producers have written, by one read of their ledger.

    Raises what `FencedProducer.confirm` does; then nothing is forgotten.
    """
    for one in confirmations:
        one.tell()  # what an exception came in the way of the last time
    with ExitStack() as stack:
        for one in sorted(confirmations, key=id):  # no two threads wait in a circle
            stack.enter_context(one.alone(deadline))
        taken = [one.take(deadline) for one in confirmations]
        # After everything was acknowledged, and before any partition is read.
        state = ledger.refresh(some_time(deadline))
        answers = [
            one.answer(answerable, state, deadline)
            for one, answerable in zip(confirmations, taken, strict=True)
        ]
        receipts = Receipts(
            sorted((part for one in answers for part in one.parts), key=_place_of),
            [failed for one in answers for failed in one.undelivered],
        )
        for one, answer in zip(confirmations, answers, strict=True):
            one.answered(answer)
    try:
        for one in confirmations:
            one.tell()
    except BaseException:
        # Who was told raised what ends this (Ctrl-C): the next answer has it all.
        confirmations[0].keep(receipts)
        raise
    kept = [earlier for one in confirmations for earlier in one.take_kept()]
    return Receipts.joined([*kept, receipts]) if kept else receipts


def _place_of(part: Part) -> Place:
    return part.topic, part.partition


def _asked(
    acknowledged: Mapping[Place, Acknowledged], standing: Sequence[Part]
) -> Iterator[tuple[Asked, Receipt]]:
    """The receipts that were asked for, by what became of the offsets that stand."""
    for place, messages in acknowledged.items():
        parts = [part for part in standing if _place_of(part) == place]
        for offset, asked in messages.asked.items():
            found = next(part for part in parts if offset in part.offsets)
            yield asked, Receipt(*place, offset, found.outcome)
        for offset, asked in messages.asked_lost:
            yield asked, Receipt(*place, offset, "lost")
        for asked in messages.asked_nowhere:
            yield asked, Receipt(*place, None, "indeterminate")


def _without_reading(place: Place, messages: Acknowledged) -> list[Part]:
    """What is known of messages already: some are lost, of some nobody can tell."""
    parts = [Part(*place, "lost", offsets) for offsets in messages.lost]
    if messages.without_offset:
        unknown = Part(*place, "indeterminate", OffsetRanges(), messages.without_offset)
        parts.append(unknown)
    return parts
