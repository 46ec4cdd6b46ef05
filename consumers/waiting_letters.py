"""Rejected records that wait for the transaction in which a sink keeps them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from confluent_kafka import Message

from epochfence.consumers.dead_letters import DeadLetter, dead_letter
from epochfence.consumers.outbox import place_of
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.values import Place, Position, SinkPosition
from epochfence.epochs.verdicts import Verdict


class WaitingLetters:
    """What was rejected of each partition and is not stored yet, each record once.

    A consumer tells of a record when it is judged, which may be long before the
    position that passes it is stored; and once more, where it is judged again.

    Args:
        ledger: Tells holders.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._waiting: dict[Place, dict[Position, tuple[Message, Verdict]]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def add(self, message: Message, verdict: Verdict) -> None:
        """Take a rejected message."""
        at = Position(message.leader_epoch(), message.offset() or 0)
        self._waiting.setdefault(place_of(message), {})[at] = message, verdict

    def below(self, place: Place, position: SinkPosition) -> Sequence[DeadLetter]:
        """The letters that have to be stored with a position."""
        waiting = self._waiting.get(place)
        if not waiting:
            return ()
        ledger = self._ledger.state
        return [
            dead_letter(message, verdict, position.topic_id, ledger)
            for at, (message, verdict) in waiting.items()
            if at.offset < position.next_offset
        ]

    def stored(self, place: Place, letters: Iterable[DeadLetter]) -> None:
        """Drop letters that were stored."""
        waiting = self._waiting.get(place, {})
        for letter in letters:
            waiting.pop(Position(letter.leader_epoch, letter.offset), None)

    def drop(self, place: Place) -> None:
        """Drop what waits of a partition: it is judged again, here or elsewhere."""
        self._waiting.pop(place, None)
