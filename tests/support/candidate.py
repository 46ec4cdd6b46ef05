"""A candidate, as a process: `python candidate.py JSON`, where the test tells the rest.

It reads the latest epoch, is elected, and says so. When it is told to, by a line, it
claims, under the next number of a sequence where the test names one; and says how that
ended, and whether it knows by then that it is deposed.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from epochfence import ClaimLost, Ledger
from epochfence.elections import (
    Election,
    EtcdElection,
    KafkaElection,
    KubernetesElection,
    PostgresElection,
    PostgresSequence,
    ZookeeperElection,
)

_WAIT_S = 60


def opened(told: dict[str, Any]) -> Election:
    """The candidate of the kind that the test wants."""
    if told["kind"] == "postgres":
        return PostgresElection(told["conninfo"], told["scope"], **told["times"])
    if told["kind"] == "etcd":
        return EtcdElection(told["server"], told["scope"], **told["times"])
    if told["kind"] == "zookeeper":
        return ZookeeperElection(told["server"], told["scope"], **told["times"])
    if told["kind"] == "kubernetes":
        return KubernetesElection(told["kubeconfig"], told["scope"], **told["times"])
    config = {"bootstrap.servers": told["servers"], **told["times"]}
    return KafkaElection(config, told["scope"], topic=told["coordination_topic"])


def number(told: dict[str, Any]) -> int | None:
    """The number to claim, where numbers come from elsewhere."""
    if "sequence" not in told:
        return None
    return PostgresSequence(told["conninfo"], told["sequence"])()


def main(told: dict[str, Any]) -> None:
    names = {name: told[name] for name in ("coordination_topic", "table_topic")}
    with Ledger({"bootstrap.servers": told["servers"]}, **names) as ledger:
        seen = ledger.refresh().epoch_of(told["scope"])
        election = opened(told)
        say(election.campaign(_WAIT_S))
        sys.stdin.readline()
        try:
            ledger.claim(
                told["scope"], holder="sleeper", seen=seen, exactly=number(told)
            )
        except ClaimLost as lost:
            say(lost.holder)
        else:
            say("it leads")
        say(election.lost.wait(_WAIT_S))
        election.close()


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
