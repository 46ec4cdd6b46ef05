"""Epochs that Kafka counts: the leader epoch of a partition, read from the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ListOffsetsResultInfo, OffsetSpec

from epochfence.epochs.connection import (
    Config,
    LastError,
    admin_client,
    connection_settings,
)
from epochfence.epochs.errors import EpochUnavailable, MisconfiguredError
from epochfence.epochs.values import check_timeout

# The library leaves it without types.
_END: OffsetSpec = cast(Any, OffsetSpec).latest()


class KafkaLeaderEpoch:
    """Gives the leader epoch of a partition, plus one, as it is now.

    Kafka raises it whenever the partition gets a leader, even the same one again: so it
    numbers what leads because a broker does, such as an agent beside each. Kafka counts
    from 0 and epochs from 1, hence the one. It does not rise for each call: a number
    that somebody has led with is lost (`ClaimLost`) until the partition's leader has
    changed.

    A topic that is deleted and made anew counts from 0 again, and a broker that was
    replaced, and does not know it yet, tells an old one: both are below the latest, and
    the ledger refuses them.

    It takes Describe on the topic.

    Args:
        config: Connection settings, as for confluent-kafka.
        topic: The topic.
        partition: Which partition's.
        timeout_s: How long a call may take.

    Raises:
        MisconfiguredError: A setting is wrong.
    """

    def __init__(
        self, config: Config, topic: str, partition: int = 0, *, timeout_s: float = 10.0
    ) -> None:
        if not isinstance(config, Mapping):
            raise MisconfiguredError(
                "config", config, "a mapping of settings is expected",
                "Give {'bootstrap.servers': 'host:port'}.",
            )  # fmt: skip
        if not isinstance(topic, str) or not topic:
            raise MisconfiguredError(
                "topic", topic, "no topic's name", "Use, for instance, 'orders'."
            )
        if type(partition) is not int or partition < 0:
            raise MisconfiguredError(
                "partition", partition, "no partition's number", "Use 0, or higher."
            )
        self._config = connection_settings(config)
        self._place = TopicPartition(topic, partition)
        self._timeout_s = check_timeout(timeout_s)
        # Mistakes are to be found now, not when the first leader has gone.
        admin_client(self._config, LastError(config))

    def __call__(self) -> int:
        """The epoch, 1 or higher.

        Raises:
            EpochUnavailable: The partition's leader does not answer, or there is none.
            MisconfiguredError: This client may not ask.
        """
        last_error = LastError(self._config)
        # One for each call: a client that was there before knows an earlier leader.
        client = admin_client(self._config, last_error)
        try:
            asked: dict[TopicPartition, Future[ListOffsetsResultInfo]] = (
                client.list_offsets(
                    {self._place: _END}, request_timeout=self._timeout_s
                )
            )
            found = asked[self._place].result()
        except KafkaException as error:
            client.poll(0)  # what went wrong is told by callback
            cause: KafkaError = error.args[0]
            if cause.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise MisconfiguredError(
                    "topic", self._place.topic, "this client may not ask about it",
                    "Grant it Describe on the topic.",
                ) from error  # fmt: skip
            raise self._unavailable(last_error.or_else(cause.str())) from error
        if found.leader_epoch is None:
            # The client's way to say that its question got no answer.
            raise self._unavailable(last_error.or_else("its leader does not answer"))
        return found.leader_epoch + 1

    def _unavailable(self, reason: str) -> EpochUnavailable:
        place = f"{self._place.topic}[{self._place.partition}]"
        return EpochUnavailable(f"the leader epoch of {place}", reason)
