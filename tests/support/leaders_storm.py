"""Candidates that are stopped, cut off, killed, and count on all the same."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, TopicPartition
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from epochfence import FencedConsumer
from support.brokers import KafkaBroker
from support.cut_network import CutNetwork
from support.kafka_local import local_broker_behind
from support.kafka_node import LOOPBACK
from support.ledgers import LedgerTopics
from support.scratch import Scratch
from support.waiting import wait_until

_SCRIPT = Path(__file__).with_name("lead_instance.py")
_WAIT_S = 90
#: A leader counts so far before it is disturbed.
_NUMBERS = 20


class Door:
    """How one candidate reaches the broker and the election.

    Args:
        servers: The broker's address, there.
        broker: The network to it, if that may be cut.
        election: That to the election's server, likewise.
        kubeconfig: Names that server as it is reached there.
    """

    def __init__(
        self,
        servers: str,
        broker: CutNetwork | None = None,
        election: CutNetwork | None = None,
        kubeconfig: Path | None = None,
    ) -> None:
        self.servers = servers
        self.networks = [one for one in (broker, election) if one is not None]
        self.election = election
        self.kubeconfig = kubeconfig


class Instance:
    """One process, and what it has said."""

    def __init__(self, told: dict[str, Any], door: Door) -> None:
        self.told = told
        self.door = door
        self.said: list[dict[str, Any]] = []
        self.is_away = False
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), json.dumps(told)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(_SCRIPT.parents[1])},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.said.append(json.loads(line))

    @property
    def epoch(self) -> int:
        """The last epoch that it has led, 0 for none."""
        return max(
            (one["leads"] for one in list(self.said) if "leads" in one), default=0
        )

    def tell(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """Have it sleep."""
        self.tell(signal.SIGSTOP)
        self.is_away = True

    def cut_off(self, networks: Iterable[CutNetwork]) -> None:
        """Cut its networks, or some."""
        for network in networks:
            network.cut()
        self.is_away = True

    def come_back(self) -> None:
        """Have it wake up, with every network whole."""
        for network in self.door.networks:
            network.mend()
        self.tell(signal.SIGCONT)
        self.is_away = False

    def end(self, number: signal.Signals) -> int:
        """Have it end, and wait for that; its exit code."""
        if self._process.poll() is None:
            self._process.send_signal(number)
        self.come_back()
        code = self._process.wait(_WAIT_S)
        self._reader.join(_WAIT_S)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        return code


class Storm:
    """Several candidates for one scope, and a topic that they count in.

    Args:
        kafka: The broker.
        topics: The ledger's topics.
        told: The election, as `support.candidate.opened` takes it.
        doors: One for each candidate.
    """

    def __init__(
        self,
        kafka: KafkaBroker,
        topics: LedgerTopics,
        told: dict[str, Any],
        doors: Sequence[Door],
    ) -> None:
        self._kafka = kafka
        self._topics = topics
        self.topic = kafka.create_topic("counted")
        self._told = {
            **told,
            **topics.names,
            "topic": self.topic,
        }
        self._watching = Consumer({**kafka.config, "group.id": self.topic})
        self._number = 0
        self._ended: list[Instance] = []
        #: How often a leader was disturbed in each way.
        self.disturbed: Counter[str] = Counter()
        self.instances = [self._new(door) for door in doors]

    def _new(self, door: Door) -> Instance:
        self._number += 1
        told = {
            **self._told,
            "holder": f"candidate-{self._number}",
            "servers": door.servers,
        }
        if door.election is not None and "conninfo" in told:
            told["conninfo"] = make_conninfo(
                told["conninfo"], host=LOOPBACK, port=door.election.port
            )
        elif door.kubeconfig is not None:
            told["kubeconfig"] = str(door.kubeconfig)
        elif door.election is not None:
            told["server"] = f"{LOOPBACK}:{door.election.port}"
        return Instance(told, door)

    @property
    def leader(self) -> Instance | None:
        """Who leads, as far as it has said."""
        awake = [one for one in self.instances if not one.is_away]
        found = max(awake, key=lambda one: one.epoch, default=None)
        highest = max(one.epoch for one in (*self.instances, *self._ended))
        return found if found and found.epoch == highest > 0 else None

    def wait_for_leader(self, above: int) -> Instance:
        """Who leads, once that is under a higher epoch."""

        def next_leader() -> Instance | None:
            leader = self.leader
            return leader if leader and leader.epoch > above else None

        found = wait_until(next_leader, _WAIT_S, f"an epoch above {above} is led")
        assert found is not None
        return found

    def play(self, dice: random.Random, successions: int) -> None:
        """Disturb so many leaders, each in some way; then end all in order."""
        ways: dict[str, Callable[[Instance], None]] = {
            "stopped": Instance.stop,
            "killed": self._kill,
            "told to end": self._resign,
        }
        door = self.instances[0].door
        if door.networks:
            ways["cut off"] = lambda leader: leader.cut_off(leader.door.networks)
        if door.election is not None:
            ways["cut off from the election"] = lambda leader: leader.cut_off(
                leader.door.networks[1:]
            )
        away: list[Instance] = []
        epoch = 0
        for _ in range(successions):
            leader = self.wait_for_leader(epoch)
            epoch = leader.epoch
            self.wait_for_numbers(dice.randint(1, _NUMBERS))
            way = dice.choice(list(ways))
            self.disturbed[way] += 1
            ways[way](leader)
            self.wait_for_leader(epoch)
            if leader.is_away:
                away.append(leader)
            if len(away) > 1:
                # The others lead on; whoever comes back writes what it had in hand.
                away.pop(0).come_back()
        self.wait_for_numbers(1)
        for instance in self.instances:
            assert instance.end(signal.SIGTERM) == 0
        self._ended += self.instances
        self.instances = []

    def wait_for_numbers(self, count: int) -> None:
        """Wait until the topic has so many more records."""
        end = self._end() + count
        wait_until(lambda: self._end() >= end, _WAIT_S, "the leader counts on")

    def _end(self) -> int:
        at = TopicPartition(self.topic, 0)
        return self._watching.get_watermark_offsets(at, timeout=_WAIT_S)[1]

    def _kill(self, leader: Instance) -> None:
        assert leader.end(signal.SIGKILL) == -9
        self.replace(leader)

    def _resign(self, leader: Instance) -> None:
        assert leader.end(signal.SIGTERM) == 0
        self.replace(leader)

    def replace(self, leader: Instance) -> None:
        """Start another in place of one that has ended, or will in a moment."""
        leader.end(signal.SIGTERM)
        self._ended.append(leader)
        self.instances.remove(leader)
        self.instances.append(self._new(leader.door))

    def check(self) -> int:
        """Compare what is admitted with what was said; how far they have counted."""
        with self._topics.open() as ledger:
            granted = {
                (claim.epoch, claim.grant_id)
                for claim, has_won in ledger.claims()
                if has_won and claim.scope == self._told["scope"]
            }
            led = [one for one in self._said() if "leads" in one]
            epochs = [one["leads"] for one in led]
            assert len(epochs) == len(set(epochs)), "two leaders of one epoch"
            assert {(one["leads"], one["grant"]) for one in led} <= granted
            admitted: dict[int, int] = {}
            config = {**self._kafka.config, "group.id": self.topic,
                      "auto.offset.reset": "earliest"}  # fmt: skip
            end = self._end()
            require = {self.topic: [self._told["scope"]]}
            with FencedConsumer(config, ledger, require=require) as consumer:
                consumer.subscribe([self.topic])

                def is_read() -> bool:
                    for message in consumer.consume(1000, 0.2):
                        assert message.error() is None
                        admitted[message.offset() or 0] = int(message.value() or b"0")
                    assigned = consumer.assignment()
                    return any(tp.offset >= end for tp in consumer.position(assigned))

                wait_until(is_read, _WAIT_S, "all is read")
        numbers = list(admitted.values())
        assert numbers == list(range(1, len(numbers) + 1)), "a gap, or a repetition"
        for one in self._said():
            for offset, outcome in one.get("receipts", ()):
                assert outcome == ("admitted" if offset in admitted else "fenced")
        return len(numbers)

    def _said(self) -> list[dict[str, Any]]:
        return [one for instance in self._ended for one in instance.said]

    def close(self) -> None:
        """End what is still there."""
        for instance in self.instances:
            instance.end(signal.SIGKILL)
        self._watching.close()


def open_doors(
    stack: ExitStack, count: int, told: dict[str, Any]
) -> tuple[KafkaBroker, list[Door]]:
    """A broker, and doors to it and to the election's server."""
    kafka, networks = local_broker_behind(stack, count)
    port = _port_of_election(told)
    doors: list[Door] = []
    for number, network in enumerate(networks):
        election = kubeconfig = None
        if port is not None:
            election = stack.enter_context(CutNetwork(port))
            if "kubeconfig" in told:
                folder = stack.enter_context(Scratch(f"door-{number}")).path
                kubeconfig = Path(folder) / "kubeconfig"
                text = Path(told["kubeconfig"]).read_text()
                kubeconfig.write_text(text.replace(f":{port}", f":{election.port}"))
        servers = f"{LOOPBACK}:{network.port}"
        doors.append(Door(servers, network, election, kubeconfig))
    return kafka, doors


def _port_of_election(told: dict[str, Any]) -> int | None:
    """The port of the election's server, None where it has none on this machine."""
    if "conninfo" in told:
        return int(conninfo_to_dict(told["conninfo"]).get("port") or 5432)
    if "server" in told:
        return int(told["server"].rpartition(":")[2])
    if "kubeconfig" in told:
        text = Path(told["kubeconfig"]).read_text()
        found = re.search(rf"http://{re.escape(LOOPBACK)}:(\d+)", text)
        return None if found is None else int(found[1])
    return None
