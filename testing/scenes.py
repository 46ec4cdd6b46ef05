"""What befalls leaders, in one call."""

from __future__ import annotations

from confluent_kafka import Message

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.messages import headers_of
from epochfence.epochs.stamps import BARRIER_HEADER, decode_stamp
from epochfence.testing.log import MemoryLog
from epochfence.testing.producer import MemoryProducer


def zombie(producer: MemoryProducer) -> list[Message]:
    """Let what a producer holds back arrive behind its successor's barriers.

    Where its leaderships are still the latest, the first of them gets a successor,
    which takes over the topics that the messages are on their way to.

    Args:
        producer: It was told to `hold`, and has messages on their way.

    Returns:
        The records, as they lie in the log: no fenced reader ever gets them.

    Raises:
        MisconfiguredError: It holds nothing back; or its successor has no barrier yet
            where they would arrive, so that they would come first, and count.
    """
    ledger, topics = producer.ledger, producer.held_topics
    if not producer.held:
        raise MisconfiguredError(
            "producer", ..., "it holds no message back",
            "Call hold() before the message is handed over.",
        )  # fmt: skip
    state = ledger.state
    if all(state.epoch_of(one.scope) == one.epoch for one in producer.leaderships):
        successor = ledger.depose(producer.leaderships[0])
        with MemoryProducer(ledger, successor) as leader:
            leader.take_over(topics)
    for topic in topics:
        for number in ledger.log.topics()[topic]:
            if not _is_fenced(ledger.log, topic, number, producer):
                raise MisconfiguredError(
                    "producer", ...,
                    f"its successor has no barrier on {topic}[{number}] yet: what "
                    f"arrives there now comes first, and counts",
                    f"Have the successor call take_over([{topic!r}]) before.",
                )  # fmt: skip
    return producer.release()


def _is_fenced(
    log: MemoryLog, topic: str, number: int, producer: MemoryProducer
) -> bool:
    """Whether a later epoch of one of the producer's scopes has a barrier there."""
    held = {one.scope: one.epoch for one in producer.leaderships}
    for record in log.records(topic, number):
        for name, value in headers_of(record):
            stamp = decode_stamp(value) if name == BARRIER_HEADER else None
            if stamp is not None and stamp.epoch > held.get(stamp.scope, stamp.epoch):
                return True
    return False
