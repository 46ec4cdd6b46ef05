"""Takeovers of leaders that count, too many for every run.

    python tests/nightly_leaders.py --election kafka
    python tests/nightly_leaders.py --election etcd

Five candidates; each leader in turn is stopped, killed, told to end, or cut off from
the broker and the election, or from the election alone; those that were stopped or
cut off go on later. In the end the topic's admitted records must be 1, 2, 3 and so
on, no two processes may have led one epoch, and every message must be what `confirm`
said.
"""

from __future__ import annotations

import argparse
import random
import secrets
import time
from contextlib import ExitStack, closing
from typing import Any

from support.election_servers import start_etcd, start_zookeeper
from support.elections import SOON
from support.leaders_storm import Storm, open_doors
from support.leases import open_leases
from support.ledgers import unnamed_topics
from support.postgres import open_postgres
from support.unavailable import Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--election", choices=SOON, default="kafka", help="what kind")
    parser.add_argument("--successions", type=int, default=100, help="how many")
    parser.add_argument("--candidates", type=int, default=5, help="how many at a time")
    parser.add_argument("--seed", type=int, default=0, help="the seed")
    asked = parser.parse_args()
    begun = time.monotonic()
    with ExitStack() as stack:
        told: dict[str, Any] = {
            "kind": asked.election,
            "times": dict(SOON[asked.election]),
            "scope": f"counter-{secrets.token_hex(6)}",
        }
        try:
            if asked.election == "postgres":
                server = open_postgres(stack)
                told["conninfo"] = stack.enter_context(server.database())
            elif asked.election == "etcd":
                told["server"] = f"127.0.0.1:{start_etcd(stack).port}"
            elif asked.election == "zookeeper":
                told["server"] = f"127.0.0.1:{start_zookeeper(stack).port}"
            elif asked.election == "kubernetes":
                told["kubeconfig"] = open_leases(stack).kubeconfig
            kafka, doors = open_doors(stack, asked.candidates, told)
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        storm = Storm(kafka, unnamed_topics(kafka), told, doors)
        with closing(storm):
            storm.play(random.Random(asked.seed), asked.successions)
            counted = storm.check()
    ways = ", ".join(f"{count} {way}" for way, count in storm.disturbed.items())
    print(
        f"{asked.election}: {asked.successions} successions in "
        f"{time.monotonic() - begun:.0f} s, counted to {counted}, 0 faults "
        f"({ways})"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
