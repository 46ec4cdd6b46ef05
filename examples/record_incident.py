"""Records a bad night of a topic, on a real broker, into the folder `incident`.

Three partitions and four epochs of one scope, played by processes of their own:

- `pod-1` leads and is stopped (SIGSTOP) between two writes; `pod-2` takes over; `pod-1`
  wakes up and writes on.
- `nightly-import` writes without any stamp, and `pod-9` with one that the coordination
  topic of another cluster gave it.
- `pod-3` takes over in order. Then the coordination topic is restored from a backup
  that lacks its claim, so that `pod-4` is granted the same epoch once more; both write.
- An operator raises the floor, and `pod-5` leads under epoch 4.

The records, the ledger and the table are saved as they lie in Kafka:

    python examples/record_incident.py localhost:9092
    cd examples/incident
    epochfence audit payments.jsonl --ledger ledger.jsonl --table table.jsonl

What the leaders do here by hand (stamps, barriers) is done by the producer of the
framework: this script shows what goes wrong without.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path

from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import FencedConsumer, Ledger
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.stamps import BARRIER_HEADER, STAMP_HEADER
from epochfence.epochs.topics import TopicKeeper
from epochfence.epochs.values import EpochStart
from epochfence.replay.files import RecordLine, write_records
from epochfence.replay.told_topics import read_told_table

FOLDER = Path(__file__).parent / "incident"
NAME = "payments"
SCOPE = "payments-writer"
PARTITIONS = 3
#: Between two payments of one leader.
PAUSE_S = 0.03


def lead(
    servers: str, suffix: str, holder: str, ledger: str, at_least: str, writes: str
) -> None:
    """Lead once: claim, write barriers, write payments; stop where a minus stands."""
    topic = f"{NAME}-{suffix}"
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    with ledger_of(servers, suffix, ledger) as opened:
        leadership = opened.claim(SCOPE, holder=holder, at_least=int(at_least) or None)
    stamp = leadership.stamp_value
    # Whoever is not of this cluster does not take over either.
    for partition in range(PARTITIONS if ledger != "staging" else 0):
        producer.produce(topic, partition=partition, headers=[(BARRIER_HEADER, stamp)])
    producer.flush(30)
    number = 0
    for part in writes.split("-"):
        if number:
            # Every check "am I the leader?" came before; the pause comes now.
            os.kill(os.getpid(), signal.SIGSTOP)
        for _ in range(int(part)):
            number += 1
            producer.produce(
                topic,
                f"{holder} books payment {number}",
                f"payment-{number}",
                partition=number * 7 % 11 % PARTITIONS,
                headers=[(STAMP_HEADER, stamp)],
            )
            producer.flush(30)
            time.sleep(PAUSE_S)


def ledger_of(servers: str, suffix: str, name: str) -> Ledger:
    """One of the ledgers of this recording, each with a table of its own."""
    return Ledger(
        {"bootstrap.servers": servers},
        coordination_topic=f"{name}-coordination-{suffix}",
        table_topic=f"{name}-starts-{suffix}",
    )


class Stage:
    """The cluster, and who comes on when."""

    def __init__(self, servers: str) -> None:
        self.servers = servers
        self.suffix = secrets.token_hex(4)
        self.topic = f"{NAME}-{self.suffix}"
        self.starts: tuple[EpochStart, ...] = ()
        self.config: dict[str, str | int | float | bool] = {
            "bootstrap.servers": servers
        }
        new = NewTopic(self.topic, num_partitions=PARTITIONS, replication_factor=1)
        admin = AdminClient(self.config)
        admin.create_topics([new])[self.topic].result(30)

    def play(self) -> None:
        """The whole night."""
        first = self.begin("pod-1", "24-14")
        second = self.begin("pod-2", "20-22")
        self.go_on(first)
        self.write_unstamped("nightly-import")
        self.go_on(second)
        self.end(first, second)
        self.end(self.begin("pod-9", "7", ledger="staging", at_least=3))
        third = self.begin("pod-3", "18-9")
        self.read_all()
        self.restore_backup_without(epoch=3)
        fourth = self.begin("pod-4", "6-8", ledger="restored")
        self.go_on(third, fourth)
        self.end(third, fourth)
        self.end(self.begin("pod-5", "21", ledger="restored", at_least=4))

    def begin(
        self, holder: str, writes: str, ledger: str = "first", at_least: int = 0
    ) -> subprocess.Popen[bytes]:
        """Have a leader come on, and wait until it has stopped or ended."""
        leader = subprocess.Popen(
            [
                *(sys.executable, __file__, self.servers, self.suffix),
                *(holder, ledger, str(at_least), writes),
            ]
        )
        if "-" in writes:
            _, status = os.waitpid(leader.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status), f"{holder} ended before it was stopped"
        return leader

    def go_on(self, *leaders: subprocess.Popen[bytes]) -> None:
        """Wake those up that were stopped."""
        for leader in leaders:
            leader.send_signal(signal.SIGCONT)

    def end(self, *leaders: subprocess.Popen[bytes]) -> None:
        """Wait until they are through."""
        for leader in leaders:
            assert leader.wait(60) == 0

    def write_unstamped(self, writer: str) -> None:
        """Somebody writes who knows nothing of leaderships."""
        producer = Producer(self.config)
        producer.produce(self.topic, f"by {writer}", "payment-1", partition=1)
        producer.flush(30)

    def read_all(self) -> None:
        """A fenced consumer reads what is there, and keeps the epoch starts."""
        group = {"group.id": f"books-{self.suffix}", "auto.offset.reset": "earliest"}
        with (
            ledger_of(self.servers, self.suffix, "first") as ledger,
            FencedConsumer(
                {**self.config, **group}, ledger, require={self.topic: [SCOPE]}
            ) as consumer,
        ):
            consumer.subscribe([self.topic])
            while len(self.starts) < 3 * PARTITIONS:  # three epochs so far
                consumer.consume(100, timeout=1)
                table = ledger.table_topic
                told = read_told_table(self.config, table, 30)
                self.starts = () if told is None else tuple(told.rows)

    def restore_backup_without(self, epoch: int) -> None:
        """Copy the coordination topic, as if from a backup that was made too early."""
        old = f"first-coordination-{self.suffix}"
        with ledger_of(self.servers, self.suffix, "restored"):
            pass  # makes the topic as it has to be
        producer = Producer(self.config)
        with PartitionReader(self.config, old, 0) as reader:
            for batch in reader.read(*reader.bounds(30)):
                for message in batch:
                    if f"/{epoch}/" not in (message.key() or b"").decode():
                        self.copy(producer, message)
        producer.flush(30)

    def copy(self, producer: Producer, message: Message) -> None:
        """Put one record into the restored topic."""
        target = f"restored-coordination-{self.suffix}"
        producer.produce(target, message.value(), message.key(), partition=0)

    def save(self) -> None:
        """Write the record file, the ledger file and the table file."""
        facts = TopicKeeper(self.config, 30).facts(self.topic)
        assert facts is not None
        FOLDER.mkdir(exist_ok=True)
        with (FOLDER / f"{NAME}.jsonl").open("wb") as file:
            for partition in range(PARTITIONS):
                with PartitionReader(self.config, self.topic, partition) as reader:
                    for batch in reader.read(*reader.bounds(30)):
                        write_records(
                            file,
                            (
                                RecordLine.of(one, topic=NAME, topic_id=facts.topic_id)
                                for one in batch
                            ),
                        )
        with (
            ledger_of(self.servers, self.suffix, "restored") as ledger,
            (FOLDER / "ledger.jsonl").open("w", encoding="utf-8") as text,
        ):
            ledger.export(text)
        with (FOLDER / "table.jsonl").open("w", encoding="utf-8") as text:
            for start in self.starts:
                line = {
                    "topic": NAME,
                    "topic_id": start.topic_id,
                    "partition": start.partition,
                    "scope": start.scope,
                    "epoch": start.epoch,
                    "grant_id": start.grant_id,
                    "leader_epoch": start.position.leader_epoch,
                    "start_offset": start.position.offset,
                }
                text.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        stage = Stage(sys.argv[1])
        stage.play()
        stage.save()
    elif len(sys.argv) == 7:
        lead(*sys.argv[1:])
    else:
        sys.exit(__doc__)
