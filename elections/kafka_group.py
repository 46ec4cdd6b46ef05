"""An election by a consumer group: whoever is assigned the one partition is elected."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from confluent_kafka import KafkaError

from epochfence.elections.candidate import Candidate
from epochfence.elections.group_member import GroupMember
from epochfence.epochs.connection import (
    Config,
    LastError,
    candidate_consumer,
    connection_settings,
)
from epochfence.epochs.errors import (
    ElectionUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.topics import COORDINATION_TOPIC, TopicKeeper
from epochfence.epochs.values import check_scope, check_timeout

#: Even a call that only looks has to be answered.
_SHORTEST_S = 1.0


class KafkaElection(Candidate):
    """Elects by a consumer group, on the cluster that is there anyway.

    All candidates of an office are in one group, `epochfence-election-<scope>`. Exactly
    one of them is assigned the only partition of a topic: that one is elected. Nothing
    is read from the topic, nothing written, no offset committed.

    - **How soon another is elected.** After `resign`: at the next heartbeats, a second
      at most (`heartbeat.interval.ms`). After a crash, a pause or a cut network:
      `session.timeout.ms` (10 s here, where the config does not say otherwise), in
      which the group hears nothing of a member; shorter ones take a pause for a death
      more often. The broker allows it within its `group.min.session.timeout.ms`
      (6 s) and `group.max.session.timeout.ms`. A candidate that reaches no broker
      finds `lost` set about when the group gives it up; one that was stopped, when it
      goes on.
    - **Who comes next** is the group's choice: the order in which candidates came
      counts for nothing. Who is elected stays so while others come and go; with more
      partitions than one the group would share them out anew, so a topic that has more
      is refused.
    - **Its candidacy goes on** between calls of `campaign`, which may find it elected
      already. Whoever does not want the office any more resigns.
    - **Elected, and lost, means out**: it stands again only with the next `campaign`.

    The group works by the classic protocol. By KIP-848's, a client does not notice that
    it is cut off, and `lost` would never be set (measured with librdkafka 2.16).

    With ACLs, it takes Describe on the topic, and Read on the topic and on the group.

    Args:
        config: Connection settings, as for confluent-kafka; `session.timeout.ms`,
            `heartbeat.interval.ms` and `max.poll.interval.ms` may be added.
        scope: The office: what is led. Candidates of one scope, on one cluster, are
            candidates for one office.
        topic: A topic of one partition; the ledger's own is there already.
        timeout_s: How long a question to the cluster may take.

    Raises:
        MisconfiguredError: A setting is wrong.
    """

    def __init__(
        self,
        config: Config,
        scope: str,
        *,
        topic: str = COORDINATION_TOPIC,
        timeout_s: float = 10.0,
    ) -> None:
        super().__init__()
        if not isinstance(config, Mapping):
            raise MisconfiguredError(
                "config", config, "a mapping of settings is expected",
                "Give {'bootstrap.servers': 'host:port'}.",
            )  # fmt: skip
        self._config = dict(config)
        self._group = f"epochfence-election-{check_scope(scope)}"
        self._topic = topic
        self._timeout_s = check_timeout(timeout_s)
        self._last_error = LastError(config)
        # Mistakes are to be found now, not when the first leader has gone.
        candidate_consumer(self._config, self._group, self._last_error).close()
        self._keeper = TopicKeeper(connection_settings(config), timeout_s)
        self._member: GroupMember | None = None
        # Between what the member's thread hears and what `campaign` says.
        self._lock = threading.RLock()

    def campaign(self, timeout_s: float) -> bool:
        """Stand for election; whether this candidate is elected when this returns.

        Args:
            timeout_s: How long to wait. 0: only look; joining the group takes longer.

        Raises:
            ElectionUnavailable: No broker answers. The candidacy goes on.
            MisconfiguredError: There is no such topic, or it has several partitions,
                or the brokers refuse this candidate.
        """
        deadline = self._deadline(timeout_s)
        while True:
            member = self._standing(deadline)
            is_assigned = member.wait(max(0.0, deadline - time.monotonic()))
            if is_assigned and self._is_elected(member):
                return True
            if member.refusal is not None:
                self._refuse(member, member.refusal)
            elif not member.is_over:
                break
        if self._last_error.text:
            self._check_topic(deadline)
        return False

    def _standing(self, deadline: float) -> GroupMember:
        """The member of the group; one that has lost the office is over."""
        if self._member is not None and self._member.is_over:
            self.resign()
        if self._member is None:
            self._check_topic(deadline)
            consumer = candidate_consumer(self._config, self._group, self._last_error)
            self._member = GroupMember(consumer, self._topic, self._hear_of_loss)
        return self._member

    def _is_elected(self, member: GroupMember) -> bool:
        with self._lock:
            if member.is_assigned:
                self._lost.clear()
            return member.is_assigned

    def _hear_of_loss(self, member: GroupMember) -> None:
        with self._lock:
            # One that was left behind has no say.
            if self._member is member:
                self._lost.set()

    def _check_topic(self, deadline: float) -> None:
        """See that the cluster answers, and that the topic is one to elect by."""
        left_s = min(self._timeout_s, max(_SHORTEST_S, deadline - time.monotonic()))
        try:
            facts = self._keeper.facts(self._topic, left_s)
        except TopicUnavailable as error:
            raise ElectionUnavailable(self._name, error.reason) from error
        self._last_error.clear()
        if facts is None:
            self.resign()
            raise MisconfiguredError(
                "topic", self._topic, "it does not exist",
                "Open a Ledger first, which creates its coordination topic, or give a "
                "topic of one partition that is there.",
            )  # fmt: skip
        if len(facts.partitions) > 1:
            self.resign()
            raise MisconfiguredError(
                "topic", self._topic,
                f"it has {len(facts.partitions)} partitions, which a group shares out "
                f"anew whenever a candidate comes: that would depose who is elected",
                "Give a topic of one partition (topic=...); nothing is written to it.",
            )  # fmt: skip

    def _refuse(self, member: GroupMember, error: KafkaError) -> None:
        """Raise for what the group says no with, and go on where that may pass."""
        member.refusal = None
        self._last_error(error)
        found = _REFUSALS.get(error.code())
        if found is None:
            return
        self.resign()
        setting, problem, remedy = found
        value = {"topic": self._topic, "group.id": self._group}.get(setting, ...)
        raise MisconfiguredError(
            setting, value, f"{problem}: {error.str()}", f"{remedy}."
        )

    @property
    def _name(self) -> str:
        servers = self._config.get("bootstrap.servers")
        servers = servers or self._config.get("metadata.broker.list")
        return f"by group {self._group!r} on Kafka ({servers})"

    def _leave(self) -> None:
        """Leave the group."""
        with self._lock:
            self._lost.set()
            member, self._member = self._member, None
        if member is not None:
            member.leave()


_SHARED = (
    "group.id", "others than candidates of ours are in this group",
    "Keep the names that begin with epochfence-election- for elections",
)  # fmt: skip
_NOT_ALLOWED = "this client may not use it"

#: By their codes, refusals that do not pass: which setting, what is wrong, what to do.
_REFUSALS: dict[int, tuple[str, str, str]] = {
    KafkaError.INVALID_SESSION_TIMEOUT: (
        "session.timeout.ms", "the broker does not allow it",
        "Use a value between its group.min.session.timeout.ms and "
        "group.max.session.timeout.ms",
    ),
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: _SHARED,
    KafkaError.GROUP_AUTHORIZATION_FAILED: (
        "group.id", _NOT_ALLOWED, "Allow Read on the group",
    ),
    KafkaError.TOPIC_AUTHORIZATION_FAILED: (
        "topic", _NOT_ALLOWED, "Allow Describe and Read on the topic",
    ),
}  # fmt: skip
