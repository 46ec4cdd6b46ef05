"""The coordination topic and the table topic: made where missing, checked always."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (
    AdminClient,
    ConfigEntry,
    ConfigResource,
    DescribeClusterResult,
    NewTopic,
    TopicDescription,
)

from epochfence.epochs.connection import (
    Config,
    LastError,
    admin_client,
    appending_producer,
)
from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable

COORDINATION_TOPIC = "epochfence.coordination"
TABLE_TOPIC = "epochfence.starts"

_log = logging.getLogger(__name__)

#: Where there are so many brokers, an acknowledged record survives the loss of one.
_SAFE_BROKERS = 3

_CONFIG = {"cleanup.policy": "compact", "unclean.leader.election.enable": "false"}

_POLL_S = 0.05

#: How long one attempt of an admin call may take. Without time left, a call would
#: not even be sent.
_ATTEMPT_S = 1.0
_SHORTEST_CALL_S = 0.2

T = TypeVar("T")


@dataclass(frozen=True)
class TopicFacts:
    """What a cluster says of a topic.

    Attributes:
        topic_id: Kafka's id of its present life: URL-safe base64 without padding.
        partitions: The numbers of its partitions.
        replicas: How many brokers have each of them, at the least.
    """

    topic_id: str
    partitions: list[int]
    replicas: int = 1


#: Gives the facts of a topic that were asked for, waiting so long at most.
Answer: TypeAlias = Callable[[float], TopicFacts | None]


class TopicKeeper:
    """Creates and checks the topics that the framework lives on.

    Args:
        config: Connection settings, as for confluent-kafka.
        timeout_s: How long one call to the cluster may take, where it is not said.
    """

    def __init__(self, config: Config, timeout_s: float) -> None:
        self._servers = config.get("bootstrap.servers")
        self._last_error = LastError(config)
        self._admin: AdminClient = admin_client(config, self._last_error)
        self._timeout_s = timeout_s
        self._cluster_id: str | None = None

    def ensure(self, topic: str, *, create: bool) -> bool:
        """See that a topic exists and keeps the promise; create it if allowed.

        Returns:
            Whether it was created here and now.

        Raises:
            TopicUnavailable: The cluster does not answer.
            MisconfiguredError: The topic is missing and may not be created, or a
                setting of it breaks the promise.
        """
        described = self._describe(topic, self._timeout_s)
        brokers = self._brokers(topic)
        is_missing = described is None
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
        settings = self.settings(topic)
        if settings is None:
            _log.warning("the settings of topic %s may not be read", topic)
        else:
            replicas = min(len(p.replicas) for p in partitions)
            for problem in setting_problems(topic, settings, brokers, replicas):
                raise problem
        return is_missing

    def problems(self, topic: str, facts: TopicFacts) -> list[MisconfiguredError]:
        """The settings of a topic that break the promise, for whoever only looks on.

        None, where this client may not read them.

        Raises:
            TopicUnavailable: The cluster does not answer, or there is no such topic.
        """
        settings = self.settings(topic)
        if settings is None:
            return []
        brokers = self._brokers(topic)
        return [*setting_problems(topic, settings, brokers, facts.replicas)]

    def facts(self, topic: str, timeout_s: float | None = None) -> TopicFacts | None:
        """What the cluster says of a topic now, None where there is none.

        Raises:
            TopicUnavailable: The cluster does not answer.
            MisconfiguredError: There can be no topic of that name.
        """
        return self._facts(topic, timeout_s, None)

    def ask(self, topics: Sequence[str]) -> dict[str, Answer]:
        """Ask for the facts of topics, without waiting: for each, what gives them.

        That takes how long it may wait, and else does what `facts` does.
        """
        asked: dict[str, Future[TopicDescription]] = {}
        with suppress(KafkaException, ValueError):  # then it is asked for once more
            asked = self._ask(topics, _ATTEMPT_S)
        return {
            topic: partial(self._facts, topic, asked=asked.get(topic))
            for topic in topics
        }

    def _facts(
        self,
        topic: str,
        timeout_s: float | None,
        asked: Future[TopicDescription] | None,
    ) -> TopicFacts | None:
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        described = self._describe(topic, max(_SHORTEST_CALL_S, wait_s), asked)
        if described is None:
            return None
        return TopicFacts(
            str(described.topic_id).translate(_URL_SAFE).rstrip("="),
            sorted(partition.id for partition in described.partitions),
            min((len(p.replicas) for p in described.partitions), default=1),
        )

    def is_compacted(self, topic: str, timeout_s: float | None = None) -> bool:
        """Whether the cleaner may take records of a topic: its policy has compact.

        True, to be on the safe side, where this client may not read the policy.

        Raises:
            TopicUnavailable: The cluster does not answer, or there is no such topic.
        """
        settings = self.settings(topic, timeout_s)
        return settings is None or "compact" in settings.get("cleanup.policy", "")

    def _ask(
        self, topics: Sequence[str], wait_s: float
    ) -> dict[str, Future[TopicDescription]]:
        # Unlike a metadata request, this never creates the topic.
        asked: dict[str, Future[TopicDescription]] = self._admin.describe_topics(
            TopicCollection(list(topics)), request_timeout=wait_s
        )
        return asked

    def _describe(
        self,
        topic: str,
        timeout_s: float,
        asked: Future[TopicDescription] | None = None,
    ) -> TopicDescription | None:
        def describe(wait_s: float) -> Future[TopicDescription]:
            return self._ask([topic], wait_s)[topic]

        try:
            return self._answer(topic, describe, timeout_s, asked)
        except (KafkaException, ValueError) as error:
            code = _code(error)
            if code == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            if code == KafkaError.TOPIC_EXCEPTION or isinstance(error, ValueError):
                raise MisconfiguredError(
                    "topic", topic, "no topic can have this name",
                    "Use 1 to 249 of the characters A-Z a-z 0-9 . _ -",
                ) from error  # fmt: skip
            raise self._unavailable(topic, error) from error

    def _answer(
        self,
        topic: str,
        call: Callable[[float], Future[T]],
        timeout_s: float,
        called: Future[T] | None = None,
    ) -> T:
        """The cluster's answer to an admin call, tried again until the time is over.

        The client sends such calls to the broker that it takes for the controller,
        and does not look for another while that one is dead: it spins until its
        request times out, and would do so for minutes. So the attempts are short,
        and between them it is made to ask who is there. The first attempt may have been
        `called` before.

        Raises:
            TopicUnavailable: No answer in time.
            KafkaException: What the cluster said no with.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = min(_ATTEMPT_S, max(_SHORTEST_CALL_S, deadline - time.monotonic()))
            try:
                attempt, called = called or call(wait_s), None
                answer = attempt.result(wait_s + 1)
            except (KafkaException, FutureTimeout) as error:
                is_said_no = _code(error) not in (None, *_NO_ANSWER)
                if is_said_no:
                    raise
                if time.monotonic() >= deadline:
                    raise self._unavailable(topic, error) from error
            else:
                self._last_error.clear()
                return answer
            with suppress(KafkaException):
                self._admin.list_topics(timeout=wait_s)

    def cluster_id(self, topic: str) -> str:
        """The id of the cluster, which stays as it was once told.

        Raises:
            TopicUnavailable: It does not answer; `topic` is what it was asked for.
        """
        if self._cluster_id is None:
            self._cluster(topic)
        return str(self._cluster_id)

    def _brokers(self, topic: str) -> int:
        return len(self._cluster(topic).nodes)

    def _cluster(self, topic: str) -> DescribeClusterResult:
        def describe(wait_s: float) -> Future[DescribeClusterResult]:
            return self._admin.describe_cluster(request_timeout=wait_s)

        try:
            answer = self._answer(topic, describe, self._timeout_s)
        except KafkaException as error:
            raise self._unavailable(topic, error) from error
        self._cluster_id = answer.cluster_id
        return answer

    def _wait_for(self, topic: str) -> TopicDescription:
        deadline = time.monotonic() + self._timeout_s
        while time.monotonic() < deadline:
            described = self._describe(topic, self._timeout_s)
            if described is not None and all(p.leader for p in described.partitions):
                return described
            time.sleep(_POLL_S)
        raise TopicUnavailable(
            topic, f"it was created, but has no leader after {self._timeout_s:g} s"
        )

    def _create(self, topic: str, brokers: int) -> None:
        is_safe = brokers >= _SAFE_BROKERS
        config = {**_CONFIG, "min.insync.replicas": "2" if is_safe else "1"}
        try:
            self._make(topic, 1, _SAFE_BROKERS if is_safe else 1, config)
        except KafkaException as error:
            code = _code(error)
            if code in _MAY_NOT_CREATE:
                raise self._missing(
                    topic, brokers, "and this client is not allowed to create it"
                ) from error
            if code in _CANNOT_CREATE:
                raise self._missing(
                    topic, brokers, f"and the cluster refuses to create it: {error}"
                ) from error
            raise self._unavailable(topic, error) from error

    def create(
        self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> TopicFacts:
        """Create a topic, and wait until each partition has a leader.

        Raises:
            TopicUnavailable: The cluster does not answer.
            MisconfiguredError: It refuses.
        """
        try:
            self._make(topic, partitions, replicas, settings)
        except KafkaException as error:
            if _code(error) not in _MAY_NOT_CREATE | _CANNOT_CREATE:
                raise self._unavailable(topic, error) from error
            raise MisconfiguredError(
                "topic", topic,
                f"it does not exist, and the cluster refuses to create it: "
                f"{error.args[0].str()}",
                f"Create it with {partitions} partitions, or have it allowed.",
            ) from error  # fmt: skip
        self._wait_for(topic)
        facts = self.facts(topic)
        assert facts is not None
        return facts

    def _make(
        self, topic: str, partitions: int, replicas: int, settings: Mapping[str, str]
    ) -> None:
        new = NewTopic(topic, partitions, replicas, config=dict(settings))

        def create(wait_s: float) -> Future[None]:
            return self._admin.create_topics(
                [new], request_timeout=wait_s, operation_timeout=wait_s
            )[topic]

        try:
            self._answer(topic, create, self._timeout_s)
        except KafkaException as error:
            if _code(error) != KafkaError.TOPIC_ALREADY_EXISTS:
                raise
        else:
            _log.info("created topic %s", topic)

    def settings(
        self, topic: str, timeout_s: float | None = None
    ) -> dict[str, str] | None:
        """The topic's settings, None where this client may not read them.

        Raises:
            TopicUnavailable: The cluster does not answer, or there is no such topic.
        """
        wait_s = self._timeout_s if timeout_s is None else timeout_s
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)

        def describe(wait_s: float) -> Future[dict[str, ConfigEntry]]:
            return self._admin.describe_configs([resource], request_timeout=wait_s)[
                resource
            ]

        deadline = time.monotonic() + wait_s
        while True:
            try:
                entries = self._answer(topic, describe, wait_s)
            except KafkaException as error:
                code = _code(error)
                if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return None
                # A broker may not have heard yet of a topic made a moment ago.
                is_unheard_of = code == KafkaError.UNKNOWN_TOPIC_OR_PART
                if not is_unheard_of or time.monotonic() >= deadline:
                    raise self._unavailable(topic, error) from error
                time.sleep(_POLL_S)
            else:
                return {name: str(entry.value) for name, entry in entries.items()}

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

    def _unavailable(self, topic: str, error: Exception) -> TopicUnavailable:
        self._admin.poll(0)  # this is when the client tells what it complains about
        is_known = isinstance(error, KafkaException)
        reason = error.args[0].str() if is_known else "no answer in time"
        return TopicUnavailable(
            topic, self._last_error.or_else(f"{self._servers}: {reason}")
        )


def make_embedded_topics(
    config: Config, topics: Iterable[str], timeout_s: float
) -> None:
    """Make topics appear on the embedded broker, which does so when they are used.

    Raises:
        TopicUnavailable: It does not answer.
    """
    last_error = LastError(config)
    producer = appending_producer(config, last_error)
    for topic in topics:
        try:
            producer.list_topics(topic, timeout_s)
        except KafkaException as error:
            reason = last_error.or_else(error.args[0].str())
            raise TopicUnavailable(topic, reason) from error


_URL_SAFE = str.maketrans("+/", "-_")

_NO_ANSWER = (
    KafkaError._TIMED_OUT,
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_CONTROLLER,
)
_MAY_NOT_CREATE = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
}
_CANNOT_CREATE = {
    KafkaError.POLICY_VIOLATION,
    KafkaError.INVALID_CONFIG,
    KafkaError.INVALID_REPLICATION_FACTOR,
}


def _code(error: Exception) -> int | None:
    return error.args[0].code() if isinstance(error, KafkaException) else None


def setting_problems(
    topic: str, settings: Mapping[str, str], brokers: int, replicas: int
) -> Iterator[MisconfiguredError]:
    """The settings under which a record that was acknowledged can vanish.

    Args:
        topic: A topic that the framework lives on.
        settings: Its settings.
        brokers: How many brokers the cluster has.
        replicas: How many of them have each partition, at the least.
    """

    def refuse(name: str, problem: str, wanted: str) -> MisconfiguredError:
        return MisconfiguredError(
            f"{name} of topic {topic}", settings.get(name), problem,
            f"If this topic holds nothing but the ledger's records, set it: "
            f"kafka-configs.sh --alter --topic {topic} --add-config {name}={wanted}; "
            f"if it is another, name the right one",
        )  # fmt: skip

    if settings.get("cleanup.policy") != "compact":
        yield refuse(
            "cleanup.policy", "records of it would be deleted by age or size", "compact"
        )
    if settings.get("unclean.leader.election.enable", "false") != "false":
        yield refuse(
            "unclean.leader.election.enable",
            "a broker that missed records could become the leader and drop them",
            "false",
        )
    if brokers < _SAFE_BROKERS:
        return
    if replicas < 2:
        yield MisconfiguredError(
            f"replication factor of topic {topic}", replicas,
            f"with {brokers} brokers, the loss of one must not lose the topic",
            "Move it to 3 replicas with kafka-reassign-partitions.sh.",
        )  # fmt: skip
    if int(settings.get("min.insync.replicas", "1")) < 2:
        yield refuse(
            "min.insync.replicas",
            "a record could be acknowledged by one broker alone and lost with it",
            "2",
        )
