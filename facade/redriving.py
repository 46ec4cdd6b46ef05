"""Sending dead letters again, after somebody has decided that they should count."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from epochfence.epochs.connection import Config, LastError, writing_producer
from epochfence.epochs.errors import EpochfenceError, TopicUnavailable
from epochfence.epochs.full_queue import when_there_is_room
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.stamps import without_ours
from epochfence.letter_stores import StoredLetter
from epochfence.producers.fenced_producer import FencedProducer

#: What a broker has taken once, it takes again.
_LARGE = {"message.max.bytes": 1_000_000_000}


class Redriven:
    """What became of letters that were sent again.

    Attributes:
        arrived: Those that were acknowledged; under a leadership: admitted.
        failures: Why others were not, by reason, counted.
        error: What kept the rest from being sent.
    """

    def __init__(self) -> None:
        self.arrived: list[StoredLetter] = []
        self.failures: dict[str, int] = {}
        self.error: Exception | None = None
        self._sent: list[tuple[StoredLetter, str, int, int]] = []

    def note(
        self, one: StoredLetter, error: KafkaError | None, message: Message
    ) -> None:
        """Take a delivery report."""
        if error is not None:
            self.fail(error.str())
            return
        place = message.topic() or "", message.partition() or 0, message.offset() or 0
        self._sent.append((one, *place))

    def fail(self, reason: str) -> None:
        """Count a failure."""
        self.failures[reason] = self.failures.get(reason, 0) + 1

    @property
    def sent(self) -> Sequence[tuple[StoredLetter, str, int, int]]:
        """What was acknowledged: its topic, partition and offset."""
        return self._sent


def in_order(letters: Sequence[StoredLetter]) -> list[StoredLetter]:
    """Letters in the order of their records, partition by partition."""

    def position(one: StoredLetter) -> tuple[Any, ...]:
        letter = one.letter
        leader_epoch = -1 if letter.leader_epoch is None else letter.leader_epoch
        return letter.topic, letter.partition, leader_epoch, letter.offset

    return sorted(letters, key=position)


def _send(
    producer: Producer | FencedProducer,
    letters: Sequence[StoredLetter],
    to: str | None,
    timeout_s: float,
    redriven: Redriven,
) -> None:
    for one in in_order(letters):
        letter = one.letter
        if letter.left_out_bytes is not None:
            redriven.fail("its value was too large to be kept: see it in its topic")
            continue
        headers: Any = without_ours(letter.headers)
        produce = partial(
            producer.produce,
            to or letter.topic,
            letter.value,
            letter.key,
            # Elsewhere, the key has to choose among other partitions.
            letter.partition if to in (None, letter.topic) else -1,
            on_delivery=partial(redriven.note, one),
            timestamp=letter.timestamp or 0,
            headers=headers,
        )
        try:
            when_there_is_room(produce, producer.poll, timeout_s)
        except KafkaException as error:
            redriven.fail(error.args[0].str())
        except (BufferError, EpochfenceError) as error:
            # The rest has to wait; what went before is still looked after.
            redriven.error = error
            return


def send_as_leader(
    config: Config,
    ledger: Ledger,
    leaderships: Sequence[Leadership],
    letters: Sequence[StoredLetter],
    to: str | None,
    timeout_s: float,
) -> Redriven:
    """Send letters again, stamped, and see that they were admitted.

    Args:
        config: Connection settings.
        ledger: The ledger.
        leaderships: Whose stamps they get.
        letters: The letters.
        to: A topic; None: each to where it was read from.
        timeout_s: How long to wait for the cluster.

    Raises:
        Deposed: Somebody else leads by now.
        LedgerUnavailable, TableUnavailable, TopicUnavailable: No answer.
    """
    redriven = Redriven()
    topics = sorted({to or one.letter.topic for one in letters})
    with FencedProducer(
        {**_LARGE, **config}, ledger, list(leaderships), timeout_s=timeout_s
    ) as producer:
        producer.take_over(topics)
        _send(producer, letters, to, timeout_s, redriven)
        receipts = producer.confirm(timeout_s)
    for one, topic, partition, offset in redriven.sent:
        outcome = receipts.outcome(topic, partition, offset)
        if outcome == "admitted":
            redriven.arrived.append(one)
        else:
            redriven.fail(f"{outcome or 'not confirmed'}")
    return redriven


def send_unstamped(
    config: Config, letters: Sequence[StoredLetter], to: str, timeout_s: float
) -> Redriven:
    """Send letters again, without a stamp, to a topic that no fence judges.

    Args:
        config: Connection settings.
        letters: The letters.
        to: Where to.
        timeout_s: How long to wait for the cluster.
    """
    redriven = Redriven()
    last_error = LastError(config)
    producer = writing_producer({**_LARGE, **config}, last_error)
    _send(producer, letters, to, timeout_s, redriven)
    if producer.flush(timeout_s):
        reason = last_error.or_else("not all was acknowledged in time")
        redriven.error = redriven.error or TopicUnavailable(to, reason)
    redriven.arrived.extend(one for one, *_ in redriven.sent)
    return redriven
