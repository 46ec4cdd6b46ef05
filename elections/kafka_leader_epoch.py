"""Epochs that Kafka counts: the leader epoch of a partition, read from the cluster."""

from __future__ import annotations

import time
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
from epochfence.epochs.errors import (
    EpochUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import check_timeout

# The library leaves it without types.
_END: OffsetSpec = cast(Any, OffsetSpec).latest()

#: Whatever is not there for so long is a mistake.
_SETTLED_S = 2.0
_AGAIN_S = 0.2

#: Without time left, a question would not even be sent.
_SHORTEST_S = 0.2


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
            MisconfiguredError: This client may not ask, or there is no such topic or
                partition: not even some seconds later.
        """
        begun = time.monotonic()
        while True:
            try:
                return self._asked(begun + self._timeout_s)
            except _NotThereError as error:
                # A broker may not have heard yet of a topic made a moment ago.
                if time.monotonic() < begun + min(_SETTLED_S, self._timeout_s):
                    time.sleep(_AGAIN_S)
                    continue
                setting, value, problem = error.args
                raise MisconfiguredError(
                    setting, value, problem, f"Check the {setting}, and the cluster."
                ) from error.__cause__

    def _asked(self, deadline: float) -> int:
        last_error = LastError(self._config)
        # One for each call: a client that was there before knows an earlier leader.
        client = admin_client(self._config, last_error)
        wait_s = max(_SHORTEST_S, deadline - time.monotonic())
        try:
            asked: dict[TopicPartition, Future[ListOffsetsResultInfo]] = (
                client.list_offsets({self._place: _END}, request_timeout=wait_s)
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
            self._check_place(deadline - time.monotonic())
            raise self._unavailable(last_error.or_else(cause.str())) from error
        if found.leader_epoch is None:
            # The client's way to say that its question got no answer.
            raise self._unavailable(last_error.or_else("its leader does not answer"))
        return found.leader_epoch + 1

    def _check_place(self, wait_s: float) -> None:
        """Tell what is not there from what does not answer: to clients, all is one."""
        topic, partition = self._place.topic, self._place.partition
        keeper = TopicKeeper(self._config, self._timeout_s)
        try:
            facts = keeper.facts(topic, wait_s)
        except TopicUnavailable:
            return
        if facts is None:
            raise _NotThereError("topic", topic, "there is no such topic")
        if partition not in facts.partitions:
            raise _NotThereError(
                "partition", partition,
                f"topic {topic} has {len(facts.partitions)}, counted from 0",
            )  # fmt: skip

    def _unavailable(self, reason: str) -> EpochUnavailable:
        place = f"{self._place.topic}[{self._place.partition}]"
        return EpochUnavailable(f"the leader epoch of {place}", reason)


class _NotThereError(Exception):
    """The cluster says that there is no such place: setting, value, problem."""
