"""Random histories of leaders that write in transactions; what `confirm` said of them.

Leaders are deposed and go on, lose their id to others, are left behind with a
transaction open, and have their commits answered too late or not at all. In the end,
what `confirm` called admitted has to be what an independent consumer has, offset by
offset; and each message that was acknowledged has one receipt. Some are confirmed all
the time, by a thread.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from epochfence import (
    Deposed,
    FencedTransactionalProducer,
    Ledger,
    Receipt,
    Receipts,
    TransactionAborted,
    TransactionUnknown,
    WriteBehind,
)
from support.brokers import KafkaBroker
from support.fenced_topic import fenced
from support.producing import doing
from support.stream import read_until
from support.transactions import (
    SCOPE,
    after_commit,
    committed_values,
    open_producer,
    open_zombie,
    take_id,
)

#: What a transaction may end with, other than being committed.
_ENDED = (Deposed, TransactionAborted, TransactionUnknown)
_FENCED = KafkaException(KafkaError(KafkaError._FENCED, "fenced", True))


class _Leader:
    """One leader, and what it was told of its messages."""

    def __init__(self, producer: FencedTransactionalProducer, topic: str) -> None:
        self.producer = producer
        self.acknowledged: list[int] = []
        #: Values of transactions of which it was told that they are committed, or not.
        self.committed: set[bytes] = set()
        self.aborted: set[bytes] = set()
        #: What the sender of each message was told, and what `confirm` told.
        self.receipts: dict[bytes, Receipt] = {}
        self.answers: list[Receipts] = []
        self.behind: WriteBehind | None = None
        self.handed = 0
        self._topic = topic
        self._values: set[bytes] = set()
        self.is_open = False

    def confirm_behind(self) -> None:
        """Have it confirmed all the time, by a thread."""
        self.behind = WriteBehind(
            self.producer, self.answers.append, every_messages=2, every_s=0.02
        )

    def begin(self) -> None:
        self._values = set()
        self.producer.begin_transaction()
        self.is_open = True

    def write(self, value: bytes) -> None:
        self._values.add(value)
        self.producer.produce(
            self._topic,
            value,
            partition=0,
            on_delivery=self._told,
            on_receipt=partial(self._note, value),
        )
        self.handed += 1

    def _note(self, value: bytes, receipt: Receipt) -> None:
        assert value not in self.receipts
        self.receipts[value] = receipt

    def _told(self, error: KafkaError | None, message: Any) -> None:
        if error is None:
            self.acknowledged.append(message.offset())

    def commit(self) -> None:
        self.is_open = False
        try:
            self.producer.commit_transaction()
        except TransactionAborted:
            self.aborted |= self._values
            raise
        self.committed |= self._values

    def abort(self) -> None:
        self.is_open = False
        self.producer.abort_transaction()
        self.aborted |= self._values


def play(kafka: KafkaBroker, ledger: Ledger, seed: int, steps: int = 40) -> None:
    """Play one history on a topic of its own, and compare."""
    dice = random.Random(seed)
    topic = kafka.create_topic("t")
    leaders: list[_Leader] = []
    with pytest.MonkeyPatch.context() as patch:

        def succeed() -> _Leader:
            claimed = ledger.claim(SCOPE, holder=f"leader {len(leaders)}")
            opened = open_zombie if dice.random() < 0.7 else open_producer
            producer = opened(kafka, ledger, claimed)
            producer.take_over([topic])
            leaders.append(_Leader(producer, topic))
            if dice.random() < 0.3:
                leaders[-1].confirm_behind()
            return leaders[-1]

        succeed()
        for number in range(steps):
            if dice.random() < 0.1:
                succeed()
            if dice.random() < 0.07:
                take_id(kafka, leaders[-1].producer.transactional_id)
            # Mostly the one that leads, or the one before it.
            leader = dice.choice([*leaders[-2:], leaders[-1]])
            try:
                _step(leader, dice, patch, b"%d" % number)
            except _ENDED:
                pass
            except KafkaException:
                # Of the client: it was fenced, or the transaction cannot go on.
                if leader.is_open:
                    leader.abort()
        for leader in leaders:
            if leader.is_open:
                leader.abort()
        last = succeed()
        last.begin()
        last.write(b"end")
        last.commit()
    _compare(kafka, ledger, topic, leaders)


def _step(
    leader: _Leader, dice: random.Random, patch: pytest.MonkeyPatch, value: bytes
) -> None:
    if not leader.is_open:
        leader.begin()
        return
    step = dice.choice(["write", "write", "write", "flush", "commit", "abort", "late"])
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: leader.write(value),
        "flush": lambda: leader.producer.flush(30),
        "commit": leader.commit,
        "abort": leader.abort,
    }
    if step != "late":
        calls[step]()
        return
    with after_commit(patch, doing(_FENCED)):
        leader.commit()


def _compare(
    kafka: KafkaBroker, ledger: Ledger, topic: str, leaders: list[_Leader]
) -> None:
    admitted: list[int] = []
    for leader in leaders:
        if leader.behind is not None:
            leader.behind.close()
        leader.answers.append(leader.producer.confirm(60))
        receipts = Receipts.joined(leader.answers)
        answered = sorted(receipt.offset or 0 for receipt in receipts)
        assert answered == sorted(leader.acknowledged)
        assert receipts.counts["lost"] == receipts.counts["indeterminate"] == 0
        admitted += [r.offset or 0 for r in receipts if r.outcome == "admitted"]
        assert leader.producer.unconfirmed == 0
        _compare_single(leader, receipts)
        leader.producer.close()
    with fenced(kafka, ledger, topic) as consumer:
        consumer.subscribe([topic])
        seen = read_until(consumer, lambda got: bool(got) and got[-1].value() == b"end")
    assert sorted(admitted) == [message.offset() for message in seen]
    plain = set(committed_values(kafka, topic))
    for leader in leaders:
        assert leader.committed <= plain
        assert not leader.aborted & plain
        admitted_ones = {
            value for value, one in leader.receipts.items() if one.outcome == "admitted"
        }
        assert admitted_ones <= plain
        assert not leader.aborted & admitted_ones


def _compare_single(leader: _Leader, receipts: Receipts) -> None:
    """Each sender is told, and what the whole answer says."""
    assert len(leader.receipts) == leader.handed
    by_offset = {receipt.offset: receipt.outcome for receipt in receipts}
    single = leader.receipts.values()
    assert {one.offset: one.outcome for one in single if not one.error} == by_offset
    unsent = sum(failed.messages for failed in receipts.undelivered)
    assert [one.outcome for one in single if one.error] == ["aborted"] * unsent
