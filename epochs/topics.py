"""The coordination topic and the table topic: made where missing, checked always."""

from __future__ import annotations

import logging
import time
from concurrent.futures import TimeoutError as FutureTimeout

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigResource,
    NewTopic,
    TopicDescription,
)

from epochfence.epochs.connection import Config, LastError, admin_client
from epochfence.epochs.errors import LedgerUnavailable, MisconfiguredError

COORDINATION_TOPIC = "epochfence.coordination"
TABLE_TOPIC = "epochfence.starts"

_log = logging.getLogger(__name__)

#: Where there are so many brokers, an acknowledged record survives the loss of one.
_SAFE_BROKERS = 3

_CONFIG = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}

_POLL_S = 0.05


class TopicKeeper:
    """Creates and checks the topics that the framework lives on.

    Args:
        config: Connection settings, as for confluent-kafka.
        timeout_s: How long one call to the cluster may take.
    """

    def __init__(self, config: Config, timeout_s: float) -> None:
        self._servers = config.get("bootstrap.servers")
        self._last_error = LastError()
        self._admin: AdminClient = admin_client(config, self._last_error)
        self._timeout_s = timeout_s

    def ensure(self, topic: str, *, create: bool) -> None:
        """See that a topic exists and keeps the promise; create it if allowed.

        Raises:
            LedgerUnavailable: The cluster does not answer.
            MisconfiguredError: The topic is missing and may not be created, or a
                setting of it breaks the promise.
        """
        described = self._describe(topic)
        brokers = self._brokers(topic)
        if described is None:
            if not create:
                raise self._missing(topic, brokers, "and may not be created here")
            self._create(topic, brokers)
            described = self._wait_for(topic)
        partitions = described.partitions
        if len(partitions) > 1:
            _log.warning(
                "topic %s has %d partitions; only partition 0 is used",
                topic,
                len(partitions),
            )
        self._check(topic, brokers, min(len(p.replicas) for p in partitions))

    def topic_id(self, topic: str) -> str | None:
        """Kafka's id of the present life of a topic, None where there is no topic.

        URL-safe base64 without padding, 22 characters.

        Raises:
            LedgerUnavailable: The cluster does not answer.
        """
        described = self._describe(topic)
        if described is None:
            return None
        return str(described.topic_id).translate(_URL_SAFE).rstrip("=")

    def partitions(self, topic: str) -> list[int]:
        """The numbers of a topic's partitions, none where there is no topic.

        Raises:
            LedgerUnavailable: The cluster does not answer.
        """
        described = self._describe(topic)
        return [] if described is None else sorted(p.id for p in described.partitions)

    def _describe(self, topic: str) -> TopicDescription | None:
        # Unlike a metadata request, this never creates the topic.
        future = self._admin.describe_topics(
            TopicCollection([topic]), request_timeout=self._timeout_s
        )[topic]
        try:
            described: TopicDescription = future.result(self._timeout_s + 1)
        except (KafkaException, FutureTimeout) as error:
            if _code(error) == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise self._unavailable(topic, error) from error
        return described

    def _brokers(self, topic: str) -> int:
        future = self._admin.describe_cluster(request_timeout=self._timeout_s)
        try:
            return len(future.result(self._timeout_s + 1).nodes)
        except (KafkaException, FutureTimeout) as error:
            raise self._unavailable(topic, error) from error

    def _wait_for(self, topic: str) -> TopicDescription:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            described = self._describe(topic)
            if described is not None and all(p.leader for p in described.partitions):
                return described
            time.sleep(_POLL_S)
        raise LedgerUnavailable(
            topic, f"it was created, but has no leader after {self._timeout_s:g} s"
        )

    def _create(self, topic: str, brokers: int) -> None:
        is_safe = brokers >= _SAFE_BROKERS
        config = {**_CONFIG, "min.insync.replicas": "2" if is_safe else "1"}
        new = NewTopic(
            topic,
            num_partitions=1,
            replication_factor=_SAFE_BROKERS if is_safe else 1,
            config=config,
        )
        future = self._admin.create_topics(
            [new], request_timeout=self._timeout_s, operation_timeout=self._timeout_s
        )[topic]
        try:
            future.result(2 * self._timeout_s + 1)
        except (KafkaException, FutureTimeout) as error:
            code = _code(error)
            if code == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            if code in (
                KafkaError.TOPIC_AUTHORIZATION_FAILED,
                KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise self._missing(
                    topic, brokers, "and this client is not allowed to create it"
                ) from error
            if code in (
                KafkaError.TOPIC_EXCEPTION,
                KafkaError.POLICY_VIOLATION,
                KafkaError.INVALID_CONFIG,
                KafkaError.INVALID_REPLICATION_FACTOR,
            ):
                raise self._missing(
                    topic, brokers, f"and the cluster refuses to create it: {error}"
                ) from error
            raise self._unavailable(topic, error) from error
        _log.info("created topic %s", topic)

    def _check(self, topic: str, brokers: int, replicas: int) -> None:
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        future = self._admin.describe_configs(
            [resource], request_timeout=self._timeout_s
        )[resource]
        try:
            entries = future.result(self._timeout_s + 1)
        except (KafkaException, FutureTimeout) as error:
            if _code(error) == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                _log.warning("the settings of topic %s may not be read", topic)
                return
            raise self._unavailable(topic, error) from error
        settings = {name: str(entry.value) for name, entry in entries.items()}
        _check_settings(topic, settings, brokers, replicas)

    def _missing(self, topic: str, brokers: int, why: str) -> MisconfiguredError:
        factor = _SAFE_BROKERS if brokers >= _SAFE_BROKERS else 1
        options = " ".join(
            f"--config {name}={value}" for name, value in _CONFIG.items()
        )
        return MisconfiguredError(
            "topic", topic, f"it does not exist, {why}",
            f"Create it: kafka-topics.sh --create --topic {topic} --partitions 1 "
            f"--replication-factor {factor} {options} "
            f"--config min.insync.replicas={2 if factor > 1 else 1}",
        )  # fmt: skip

    def _unavailable(self, topic: str, error: Exception) -> LedgerUnavailable:
        is_known = isinstance(error, KafkaException)
        reason = error.args[0].str() if is_known else "no answer in time"
        return LedgerUnavailable(
            topic, self._last_error.or_else(f"{self._servers}: {reason}")
        )


_URL_SAFE = str.maketrans("+/", "-_")


def _code(error: Exception) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


def _check_settings(
    topic: str, settings: dict[str, str], brokers: int, replicas: int
) -> None:
    """Refuse the settings under which a record that was acknowledged can vanish."""

    def refuse(name: str, problem: str, wanted: str) -> MisconfiguredError:
        return MisconfiguredError(
            f"{name} of topic {topic}", settings.get(name), problem,
            f"Set it: kafka-configs.sh --alter --topic {topic} --add-config "
            f"{name}={wanted}",
        )  # fmt: skip

    if settings.get("cleanup.policy") != "compact":
        raise refuse(
            "cleanup.policy", "records of it would be deleted by age or size", "compact"
        )
    if settings.get("unclean.leader.election.enable", "false") != "false":
        raise refuse(
            "unclean.leader.election.enable",
            "a broker that missed records could become the leader and drop them",
            "false",
        )
    if brokers < _SAFE_BROKERS:
        return
    if replicas < 2:
        raise MisconfiguredError(
            f"replication factor of topic {topic}", replicas,
            f"with {brokers} brokers, the loss of one must not lose the topic",
            "Move it to 3 replicas with kafka-reassign-partitions.sh.",
        )  # fmt: skip
    if int(settings.get("min.insync.replicas", "1")) < 2:
        raise refuse(
            "min.insync.replicas",
            "a record could be acknowledged by one broker alone and lost with it",
            "2",
        )
