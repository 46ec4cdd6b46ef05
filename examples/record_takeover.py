"""Records a real takeover, with a zombie, into the files beside this one.

Two processes lead in turn. The first is stopped (SIGSTOP) in the middle of its work,
as a long garbage collection or a frozen virtual machine would stop it; the second
claims the next epoch, writes its barriers and works on; then the first wakes up and
writes what it was about to write. The records and the ledger are saved as they lie in
Kafka:

    python examples/record_takeover.py localhost:9092
    cd examples/takeover && epochfence audit orders.jsonl --ledger ledger.jsonl

What the leaders do here by hand (stamps, barriers) is done by the producer of the
framework; this script shows what travels.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import Ledger
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.stamps import BARRIER_HEADER, STAMP_HEADER
from epochfence.epochs.topics import TopicKeeper
from epochfence.replay.files import RecordLine, write_records

FOLDER = Path(__file__).parent / "takeover"
SCOPE = "orders-writer"
PARTITIONS = 2
ORDERS = 12
#: Before which order a leader is stopped: the first in the middle of its work, the
#: second (to let the first go on meanwhile) when it has written later ones.
STOPPED_AT = {"pod-7": 5, "pod-8": 8}


def lead(servers: str, suffix: str, holder: str) -> None:
    """Lead once: claim, write barriers, write orders, pausing where told to."""
    topic = f"orders-{suffix}"
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True})
    with ledger_of(servers, suffix) as ledger:
        leadership = ledger.claim(SCOPE, holder=holder)
    stamp = leadership.stamp_value
    for partition in range(PARTITIONS):
        producer.produce(topic, partition=partition, headers=[(BARRIER_HEADER, stamp)])
    producer.flush(30)
    for number in range(ORDERS):
        if number == STOPPED_AT[holder]:
            # Every check "am I the leader?" came before; the pause comes now.
            os.kill(os.getpid(), signal.SIGSTOP)
        producer.produce(
            topic,
            f"{holder} sets order {number} to {leadership.epoch * 100 + number}",
            f"order-{number}",
            partition=number % PARTITIONS,
            headers=[(STAMP_HEADER, stamp)],
        )
        producer.flush(30)


def ledger_of(servers: str, suffix: str) -> Ledger:
    """The ledger of this recording."""
    return Ledger(
        {"bootstrap.servers": servers},
        coordination_topic=f"coordination-{suffix}",
        table_topic=f"starts-{suffix}",
    )


def record(servers: str) -> None:
    """Play the takeover and save what lies in Kafka."""
    suffix = secrets.token_hex(4)
    topic = f"orders-{suffix}"
    new = NewTopic(topic, num_partitions=PARTITIONS, replication_factor=1)
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([new])[topic].result(30)

    def start_until_stopped(holder: str) -> subprocess.Popen[bytes]:
        arguments = [sys.executable, __file__, servers, suffix, holder]
        leader = subprocess.Popen(arguments)
        _, status = os.waitpid(leader.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), f"{holder} ended before it was stopped"
        return leader

    first = start_until_stopped("pod-7")
    second = start_until_stopped("pod-8")
    for leader in (first, second):
        leader.send_signal(signal.SIGCONT)
        assert leader.wait(60) == 0
    save(servers, suffix, topic)


def save(servers: str, suffix: str, topic: str) -> None:
    """Write the record file and the ledger file."""
    config = {"bootstrap.servers": servers}
    facts = TopicKeeper(config, 30).facts(topic)
    assert facts is not None
    FOLDER.mkdir(exist_ok=True)
    with (FOLDER / "orders.jsonl").open("wb") as file:
        for partition in range(PARTITIONS):
            with PartitionReader(config, topic, partition) as reader:
                low, high = reader.bounds(30)
                for batch in reader.read(low, high):
                    write_records(
                        file,
                        (
                            RecordLine.of(
                                message, topic="orders", topic_id=facts.topic_id
                            )
                            for message in batch
                        ),
                    )
    with (
        ledger_of(servers, suffix) as ledger,
        (FOLDER / "ledger.jsonl").open("w", encoding="utf-8") as text,
    ):
        ledger.export(text)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        record(sys.argv[1])
    elif len(sys.argv) == 4:
        lead(*sys.argv[1:])
    else:
        sys.exit(__doc__)
