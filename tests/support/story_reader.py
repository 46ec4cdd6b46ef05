"""A member of a fenced group, as a process: `python story_reader.py JSON`.

Applies each message by a line in its file, and commits what is applied, each time.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException

from epochfence import FencedConsumer, Ledger


def main(told: dict[str, Any]) -> None:
    config = {
        "bootstrap.servers": told["servers"],
        "group.id": told["group"],
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.wait.max.ms": 50,
        "session.timeout.ms": 6_000,
        "heartbeat.interval.ms": 500,
    }
    ledger = Ledger({"bootstrap.servers": told["servers"]}, **told["names"])
    consumer = FencedConsumer(config, ledger, require={told["topic"]: [told["scope"]]})
    with (
        ledger,
        consumer,
        Path(told["file"]).open("a", encoding="utf-8", buffering=1) as file,
    ):
        consumer.subscribe([told["topic"]])
        for message in consumer:
            value = (message.value() or b"").decode()
            file.write(f"{message.partition()} {message.offset()} {value}\n")
            try:
                consumer.commit(message, asynchronous=False)
            except KafkaException:
                continue  # the group is being shared out anew; the next owner repeats


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
