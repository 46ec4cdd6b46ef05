"""Spark's Kafka source against the command, over a topic of a real broker.

    python tests/nightly_engines.py

Leaders write and are deposed and write on; there are barriers, records without stamps,
damaged ones, and an aborted transaction. The job must give each record the verdict that
`epochfence audit --topic` gives it.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
from confluent_kafka import Producer

from epochfence import FencedProducer
from support.ledgers import LedgerTopics, unnamed_topics
from support.plugin import open_broker
from support.unavailable import Unavailable

_PARTITIONS = 4
_CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:4.2.0"


def write(topics: LedgerTopics, records: int, seed: int) -> str:
    """A topic with a history by chance."""
    rng = random.Random(seed)
    kafka = topics.kafka
    topic = kafka.create_topic("orders", partitions=_PARTITIONS)
    plain = Producer({**kafka.config, "linger.ms": 5})
    stamps: list[bytes] = []
    with topics.open() as ledger:
        for _ in range(5):
            leadership = ledger.claim("orders-writer", holder="nightly")
            stamps.append(leadership.stamp_value)
            with FencedProducer(kafka.config, ledger, leadership) as producer:
                producer.take_over([topic])
            for number in range(records // 5):
                value = rng.choice([*stamps[-1:] * 6, *stamps, b"damaged", None])
                headers: list[tuple[str, bytes | None]] = [("trace", b"\xff")]
                if rng.random() < 0.9:
                    headers.append(("epochfence", value))
                plain.produce(
                    topic, b"v", partition=number % _PARTITIONS,
                    headers=rng.choice([headers, headers, headers, []]),
                )  # fmt: skip
                plain.poll(0)
            plain.flush()
    aborted = Producer({**kafka.config, "transactional.id": topic})
    aborted.init_transactions()
    aborted.begin_transaction()
    aborted.produce(topic, b"never", headers=[("epochfence", stamps[-1])])
    aborted.flush()
    aborted.abort_transaction()
    return topic


def by_the_command(topics: LedgerTopics, topic: str, folder: Path) -> dict[object, str]:
    """What the command says of each record."""
    target = folder / "verdicts.jsonl"
    subprocess.run(
        [
            *(sys.executable, "-m", "epochfence", "audit", "-t", topic),
            *("-b", topics.kafka.config["bootstrap.servers"]),
            *("--coordination-topic", topics.coordination_topic),
            *("--verdicts", str(target), "--format", "json"),
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    return {(one["partition"], one["offset"]): one["reason"] for one in lines}


def by_spark(topics: LedgerTopics, topic: str, folder: Path) -> dict[object, str]:
    """What the job says of each."""
    target = folder / "verdicts"
    subprocess.run(
        [
            *(sys.executable, "-m", "epochfence.replay.spark_job", "-t", topic),
            *("-b", topics.kafka.config["bootstrap.servers"]),
            *("--coordination-topic", topics.coordination_topic, "--out", str(target)),
        ],
        check=True,
        env={
            **os.environ,
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_SUBMIT_ARGS": f"--packages {_CONNECTOR} --master local[2] "
            "--conf spark.driver.host=127.0.0.1 "
            "--conf spark.driver.bindAddress=127.0.0.1 "
            "--conf spark.ui.enabled=false pyspark-shell",
        },
    )
    rows = pq.read_table(target).to_pylist()
    return {(one["partition"], one["offset"]): one["reason"] for one in rows}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=100_000, help="how many")
    parser.add_argument("--seed", type=int, default=0)
    told = parser.parse_args()
    begun = time.monotonic()
    with ExitStack() as stack:
        try:
            topics = unnamed_topics(open_broker(stack))
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        topic = write(topics, told.records, told.seed)
        expected = by_the_command(topics, topic, folder)
        found = by_spark(topics, topic, folder)
    faults = [place for place in expected if expected[place] != found.get(place)]
    print(Counter(expected.values()))
    print(f"{len(expected)} records, {len(found)} of them by Spark, in "
          f"{time.monotonic() - begun:.0f} s, {len(faults)} faults: {faults[:10]}")  # fmt: skip
    return 1 if faults or len(expected) != len(found) else 0


if __name__ == "__main__":
    sys.exit(main())
