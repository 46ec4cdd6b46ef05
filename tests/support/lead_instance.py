"""A candidate that counts on when it leads: `python lead_instance.py JSON`.

It goes on where the last admitted number of its predecessors tells, and says by lines
of JSON what it leads, and what became of its messages when that was over.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

from epochfence import (
    Ledger,
    LedgerUnavailable,
    Receipts,
    TableUnavailable,
    Tenure,
    TopicUnavailable,
    lead,
)
from support.candidate import opened

_CONFIRM_S = 120


def main(told: dict[str, Any]) -> None:
    logging.basicConfig(level=logging.ERROR)
    topic: str = told["topic"]
    config = {
        "bootstrap.servers": told["servers"],
        "enable.gapless.guarantee": True,
        "linger.ms": 5,
    }
    names = {name: told[name] for name in ("coordination_topic", "table_topic")}

    def count(tenure: Tenure) -> None:
        assert tenure.recovered is not None
        at = int(tenure.recovered.cursors[topic, 0] or 0)
        held = tenure.leadership
        say({"leads": held.epoch, "grant": held.grant_id, "from": at})
        try:
            while not tenure.over.is_set():
                at += 1
                tenure.producer.produce(topic, str(at), None, 0, cursor=str(at))
                tenure.producer.poll(0.01)
        finally:
            receipts = confirmed(tenure)
            say(
                {
                    "over": held.epoch,
                    "reason": tenure.reason,
                    "receipts": [[one.offset, one.outcome] for one in receipts],
                }
            )

    with Ledger({"bootstrap.servers": told["servers"]}, **names) as ledger:
        election = opened(told)
        leading = lead(
            config, ledger, election, told["scope"], [topic],
            holder=told["holder"], cursors=True, longest_wait_s=1,
        )  # fmt: skip
        leading.serve(count)
        election.close()
    say({"ended": told["holder"]})


def confirmed(tenure: Tenure) -> Receipts:
    """What became of the messages, once the network is there again."""
    deadline = time.monotonic() + _CONFIRM_S
    while True:
        try:
            return tenure.producer.confirm(10)
        except (TopicUnavailable, LedgerUnavailable, TableUnavailable):
            if time.monotonic() > deadline:
                raise


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
