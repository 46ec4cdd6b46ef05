"""The ledger on three nodes, some of which are killed or frozen meanwhile."""

from __future__ import annotations

import threading

import pytest

from epochfence import (
    ClaimLost,
    ClaimUnknown,
    Leadership,
    Ledger,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
)
from support.brokers import IMPATIENT
from support.kafka_local import KafkaCluster
from support.ledgers import LedgerTopics, unnamed_topics
from support.waiting import wait_until


@pytest.fixture
def topics(healing_cluster: KafkaCluster) -> LedgerTopics:
    return unnamed_topics(healing_cluster)


def opened(topics: LedgerTopics) -> Ledger:
    return Ledger({**topics.kafka.config, **IMPATIENT}, **topics.names)


class Claimant(threading.Thread):
    """Claims one epoch after the other until it is told to stop."""

    def __init__(self, topics: LedgerTopics, holder: str) -> None:
        super().__init__(name=holder)
        self.leaderships: list[Leadership] = []
        self.unknown: list[ClaimUnknown] = []
        self.lost = 0
        self.unavailable = 0
        self.failure: BaseException | None = None
        self._topics = topics
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with opened(self._topics) as ledger:
                while not self._stopping.is_set():
                    self._claim(ledger)
        except BaseException as failure:
            self.failure = failure

    def _claim(self, ledger: Ledger) -> None:
        try:
            won = ledger.claim("s", holder=self.name, timeout_s=5)
            self.leaderships.append(won)
        except ClaimLost:
            self.lost += 1
        except ClaimUnknown as unknown:
            self.unknown.append(unknown)
        except LedgerUnavailable:
            self.unavailable += 1

    def stop(self) -> None:
        self._stopping.set()
        self.join(120)
        assert self.failure is None, self.failure


@pytest.mark.rule(19)
@pytest.mark.parametrize("fault", ["kill", "pause"])
def test_a_node_fails_during_claims(
    healing_cluster: KafkaCluster, topics: LedgerTopics, fault: str
) -> None:
    claimants = [Claimant(topics, "a"), Claimant(topics, "b")]
    with opened(topics) as ledger:
        for claimant in claimants:
            claimant.start()
        try:
            wait_until(lambda: epoch_of(ledger) > 10, 60, "claims are made")
            leader = healing_cluster.leader_of(topics.coordination_topic, 0)
            node = healing_cluster.nodes[leader]
            node.kill() if fault == "kill" else node.pause()
            during = epoch_of(ledger)
            wait_until(lambda: epoch_of(ledger) > during + 10, 90, "claims go on")
        finally:
            for claimant in claimants:
                claimant.stop()
            healing_cluster.heal()
        state = ledger.refresh(timeout_s=60)
    won = [one for claimant in claimants for one in claimant.leaderships]
    # No two leaderships of one epoch, and none without a grant.
    assert len({one.epoch for one in won}) == len(won)
    assert min(one.epoch for one in won) <= during < max(one.epoch for one in won)
    for one in won:
        assert state.is_grant("s", one.epoch, one.grant_id)
    # Every grant is somebody's: a leadership's, or one whose claimant does not lead.
    known = {one.grant_id for one in won}
    known |= {one.grant_id for claimant in claimants for one in claimant.unknown}
    grants = [claim for claim, is_grant in state.claims() if is_grant]
    unexplained = [one for one in grants if one.grant_id not in known]
    # A claim that won and was deposed before its claimant read on counts as lost.
    assert len(unexplained) <= sum(claimant.lost for claimant in claimants)


def epoch_of(ledger: Ledger) -> int:
    try:
        return ledger.state.epoch_of("s")
    except LedgerUnavailable:
        return 0


def test_without_a_quorum_nothing_is_decided_and_it_goes_on_later(
    healing_cluster: KafkaCluster, topics: LedgerTopics
) -> None:
    with opened(topics) as ledger:
        leadership = ledger.claim("s", holder="a")
        leader = healing_cluster.leader_of(topics.coordination_topic, 0)
        # One stays in sync, fewer than min.insync.replicas; the leader stays.
        for number, node in healing_cluster.nodes.items():
            if number != leader:
                node.pause()
        with pytest.raises(LedgerUnavailable):
            leadership.verify(timeout_s=3)
        with pytest.raises((ClaimUnknown, LedgerUnavailable)):
            ledger.claim("s", holder="b", timeout_s=3)
        for node in healing_cluster.nodes.values():
            node.resume()
        healing_cluster.heal()
        leadership.verify(timeout_s=60)
        assert ledger.claim("s", holder="b", timeout_s=60).epoch == 2


def test_topics_are_created_to_survive_a_broker(
    healing_cluster: KafkaCluster, topics: LedgerTopics
) -> None:
    with opened(topics):
        pass
    metadata = healing_cluster.admin.list_topics().topics
    for name in topics.names.values():
        (partition,) = metadata[name].partitions.values()
        assert len(partition.replicas) == 3


@pytest.mark.parametrize(
    ("replicas", "settings", "words"),
    [
        (1, {"cleanup.policy": "compact"}, ["replication factor", "1", "3 replicas"]),
        (
            3,
            {"cleanup.policy": "compact", "min.insync.replicas": "1"},
            ["min.insync.replicas", "'1'", "min.insync.replicas=2"],
        ),
        (
            3,
            {"cleanup.policy": "compact", "unclean.leader.election.enable": "true"},
            ["unclean.leader.election.enable", "'true'", "enable=false"],
        ),
    ],
)
def test_settings_that_break_the_promise_are_refused(
    healing_cluster: KafkaCluster,
    replicas: int,
    settings: dict[str, str],
    words: list[str],
) -> None:
    name = healing_cluster.create_topic("c", 1, replicas, settings)
    topics = LedgerTopics(
        healing_cluster, name, unnamed_topics(healing_cluster).table_topic
    )
    with pytest.raises(MisconfiguredError) as refused:
        opened(topics)
    assert [word for word in [*words, name] if word not in str(refused.value)] == []


@pytest.mark.rule(20)
def test_a_topic_made_anew_below_the_leader_epoch_that_clients_know(
    healing_cluster: KafkaCluster, topics: LedgerTopics
) -> None:
    """Clients ignore a leader of a lower epoch for good: new ones have to be made."""
    with opened(topics) as ledger:
        leadership = ledger.claim("s", holder="a")
        leader = healing_cluster.leader_of(topics.coordination_topic, 0)
        healing_cluster.nodes[leader].kill()
        leadership.verify(timeout_s=60)
        healing_cluster.nodes[leader].start()
        healing_cluster.heal()
        healing_cluster.delete_topic(topics.coordination_topic)
        with opened(topics) as other:
            for _ in range(12):
                other.claim("r", holder="b")
        with pytest.raises(LedgerRegressed) as regressed:
            leadership.verify(timeout_s=30)
        seen = regressed.value
        assert (seen.scope, seen.ledger_epoch, seen.seen_epoch) == ("s", 0, 1)
        assert ledger.claim("s", holder="a", at_least=2, timeout_s=30).epoch == 2
        assert ledger.refresh().epoch_of("r") == 12
