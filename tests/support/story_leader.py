"""A leader, as a process: `python story_leader.py JSON`, where the test tells the rest.

Writes orders until its queue holds some that were handed over and not sent yet, says
so, and goes on, as a leader does that knows nothing of the pause to come. When it
hears that it is deposed, it prints what became of every message.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from epochfence import Deposed, FencedProducer, Ledger

#: What is handed over waits so long before it is sent: the pause falls into it.
LINGER_MS = 3_000


def main(told: dict[str, Any]) -> None:
    partitions: int = told["partitions"]
    topic: str = told["topic"]
    config = {"bootstrap.servers": told["servers"], "linger.ms": LINGER_MS}
    with Ledger({"bootstrap.servers": told["servers"]}, **told["names"]) as ledger:
        leadership = ledger.claim(told["scope"], holder=told["holder"])
        with FencedProducer(config, ledger, leadership) as producer:
            producer.take_over([topic])
            sent = 0

            def write(count: int) -> None:
                nonlocal sent
                for number in range(sent, sent + count):
                    for partition in range(partitions):
                        name = f"{told['holder']}-{partition}-{number}"
                        producer.produce(topic, name, name, partition)
                sent += count

            write(told["orders"])
            producer.flush()
            if not told["is_deposed"]:
                say({"outcomes": Counter(r.outcome for r in producer.confirm(30))})
                return
            write(told["late_orders"])
            say("handed over")
            while True:  # on its way, and on with the work
                try:
                    write(1)
                except Deposed as deposed:
                    successor = deposed.holder
                    break
                producer.poll(0.1)
            receipts = producer.confirm(60)
            say(
                {
                    "deposed_by": successor,
                    "receipts": [
                        [one.partition, one.offset, one.outcome] for one in receipts
                    ],
                }
            )


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
