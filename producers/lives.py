"""Which life of a topic is there now, and which partitions it has."""

from __future__ import annotations

from typing import NamedTuple

from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence.epochs.deadlines import some_time
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.topics import TopicKeeper

_ABSENT = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}


class Life(NamedTuple):
    """A topic as it is now.

    Attributes:
        topic_id: Kafka's id of this life, None on the embedded broker.
        partitions: The numbers of its partitions.
    """

    topic_id: str | None
    partitions: list[int]


class Lives:
    """Looks at topics.

    Args:
        keeper: Asks the cluster; None for the embedded broker.
        producer: Asks the embedded broker, which answers no admin call.
    """

    def __init__(self, keeper: TopicKeeper | None, producer: Producer) -> None:
        self._keeper = keeper
        self._producer = producer

    def look(self, topic: str, deadline: float) -> Life | None:
        """The topic as it is now, None where there is none.

        Raises:
            TopicUnavailable: The cluster does not answer.
            MisconfiguredError: There can be no topic of that name.
        """
        wait_s = some_time(deadline)
        if self._keeper is None:
            return self._look_at_embedded(topic, wait_s)
        facts = self._keeper.facts(topic, wait_s)
        return None if facts is None else Life(facts.topic_id, facts.partitions)

    def _look_at_embedded(self, topic: str, wait_s: float) -> Life | None:
        try:
            metadata = self._producer.list_topics(topic, wait_s).topics[topic]
        except KafkaException as error:
            raise TopicUnavailable(topic, error.args[0].str()) from error
        problem = metadata.error
        if problem is None:
            return Life(None, sorted(metadata.partitions))
        if problem.code() in _ABSENT:
            return None
        raise TopicUnavailable(topic, problem.str())
