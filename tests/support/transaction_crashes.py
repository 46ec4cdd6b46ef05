"""Leaders that write in transactions and are killed, one after the other, on one topic.

Each goes on where the cursors of its predecessors tell. What an independent reader
admits has to be 1, 2, 3, ... on every partition: each transaction whole, once, or not
at all.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from epochfence import Deposed, FencedTransactionalProducer, Ledger, Tenure, lead
from support.brokers import KafkaBroker
from support.ledgers import LedgerTopics
from support.local_election import LocalElection, LocalOffice
from support.reading import read_all
from support.transaction_victim import AMID_COMMITTING, IN_EACH, ONCE, PARTITIONS
from support.transactions import SCOPE, open_zombie

_END_S = 60


class Crashes:
    """One topic, and those who die on it.

    Attributes:
        committed: The last transaction that a leader was told to be committed.
    """

    def __init__(
        self, kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger
    ) -> None:
        self.committed = 0
        self._kafka = kafka
        self._topics = topics
        self._ledger = ledger
        self._topic = kafka.create_topic("t", PARTITIONS)

    @contextmanager
    def zombie(self) -> Generator[None, None, None]:
        """A leader that has a transaction open all the while, and commits it then."""
        held = self._ledger.claim(SCOPE, holder="zombie")
        with open_zombie(self._kafka, self._ledger, held) as producer:
            producer.take_over([self._topic])
            self._transact(producer)
            producer.begin_transaction()
            for partition in range(PARTITIONS):
                producer.produce(self._topic, b"zombie", partition=partition)
            assert producer.flush(30) == 0
            yield
            with pytest.raises(Deposed):
                producer.commit_transaction()
            counts = producer.confirm(30).counts
            assert (counts["admitted"], counts["aborted"]) == (PARTITIONS, PARTITIONS)

    def die(self, step: str, times: int = 1, delay_s: float = 0.001) -> None:
        """Have a leader count on from the last transaction, until it dies at a step."""
        told = {
            "servers": self._kafka.bootstrap_servers,
            "names": self._topics.names,
            "topic": self._topic,
            "scope": SCOPE,
            "first": self.committed + 1,
            "step": step,
            "times": times,
            "delay_s": delay_s,
        }
        tests = Path(__file__).parents[1]
        ended = subprocess.run(
            [
                sys.executable,
                str(Path(__file__).with_name("transaction_victim.py")),
                json.dumps(told),
            ],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tests,
            env={"PYTHONPATH": str(tests)},
            timeout=_END_S,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, (step, ended)
        for line in ended.stdout.split():
            self.committed = int(line)

    def succeed(self) -> None:
        """Lead, see by the cursors what was committed, and write one more."""
        office = LocalElection(LocalOffice())
        leading = lead(
            {**self._kafka.config, "log_level": 0},
            self._ledger, office, SCOPE, [self._topic], holder="successor",
            producer=FencedTransactionalProducer, cursors=True, timeout_s=30,
        )  # fmt: skip
        with leading as tenure:
            self._go_on(tenure)

    def _go_on(self, tenure: Tenure[FencedTransactionalProducer]) -> None:
        assert tenure.recovered is not None
        cursors = tenure.recovered.cursors
        found = {
            int(cursors[self._topic, partition] or 0) for partition in range(PARTITIONS)
        }
        (last,) = found  # each transaction is on all partitions, or on none
        # The one whose end it was not told of may be committed, too.
        assert self.committed <= last <= self.committed + 1
        self.committed = last
        self._transact(tenure.producer)
        assert tenure.producer.confirm(30).are_all_admitted

    def _transact(self, producer: FencedTransactionalProducer) -> None:
        value = str(self.committed + 1)
        with producer.transaction():
            for partition in range(PARTITIONS):
                producer.produce(self._topic, value, partition=partition, cursor=value)
        self.committed += 1

    def check(self) -> None:
        """Compare with what is admitted by the rule, told in a few lines here."""
        admitted: dict[int, list[bytes | None]] = {n: [] for n in range(PARTITIONS)}
        current = dict.fromkeys(range(PARTITIONS), 0)
        found = read_all(self._kafka, self._topic, isolation_level="read_committed")
        for record in found:
            number = record.partition() or 0
            headers = dict(record.headers() or ())
            is_barrier = "epochfence-barrier" in headers
            stamp = headers["epochfence-barrier" if is_barrier else "epochfence"]
            assert isinstance(stamp, bytes)
            epoch = int(stamp.split(b":")[0])
            if epoch >= current[number]:
                current[number] = epoch
                if not is_barrier:
                    admitted[number].append(record.value())
        counted = [b"%d" % n for n in range(1, self.committed + 1)]
        assert admitted == dict.fromkeys(range(PARTITIONS), counted)


def crash(
    kafka: KafkaBroker, topics: LedgerTopics, ledger: Ledger, seed: int, deaths: int
) -> None:
    """Have leaders die at steps that a seed chooses, one after the other."""
    dice = random.Random(seed)
    crashes = Crashes(kafka, topics, ledger)
    with crashes.zombie():
        for _ in range(deaths):
            step = dice.choice([*ONCE, *IN_EACH, AMID_COMMITTING])
            times = dice.randint(1, 4) if step in IN_EACH else 1
            crashes.die(step, times, dice.uniform(0, 0.01))
            crashes.succeed()
    crashes.check()
