"""Reading a topic as it stands, from its first record to its end."""

import secrets

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    TopicPartition,
)

from support.brokers import KafkaBroker
from support.cluster_view import partitions_of
from support.waiting import wait_until


def read_all(
    kafka: KafkaBroker,
    topic: str,
    *,
    isolation_level: str = "read_uncommitted",
    timeout_s: float = 30,
) -> list[Message]:
    """Return every record that is in the topic now, partition by partition."""
    consumer = Consumer(
        {
            **kafka.config,
            "group.id": f"read-all-{secrets.token_hex(6)}",  # needed, but never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "error",
            "isolation.level": isolation_level,
            "fetch.wait.max.ms": 10,  # the end, too, is to be told at once
        }
    )
    try:
        # Asked of this very client, it saves half a second: without having met the
        # leaders it would look up the first offsets only when a timer next runs.
        unread = set(partitions_of(consumer, topic))
        consumer.assign([TopicPartition(topic, n, OFFSET_BEGINNING) for n in unread])
        records: list[Message] = []

        def is_read() -> bool:
            for message in consumer.consume(1000, timeout=0.1):
                error = message.error()
                number = message.partition()
                if error is None:
                    records.append(message)
                elif error.name() == "_PARTITION_EOF" and number is not None:
                    unread.discard(number)
                elif error.fatal() or not error.retriable():
                    raise KafkaException(error)
            return not unread

        wait_until(is_read, timeout_s, f"the end of {topic} was read", interval_s=0)
    finally:
        consumer.close()
    return sorted(records, key=lambda record: record.partition() or 0)
