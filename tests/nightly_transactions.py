"""Random histories of leaders that write in transactions, too many for every run.

    python tests/nightly_transactions.py

What `confirm` called admitted has to be what an independent consumer has, offset by
offset, whoever was deposed, lost its id or got no answer. And leaders are killed at
random steps: each of their transactions has to be there whole, or not at all.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack

from support.ledgers import unnamed_topics
from support.plugin import open_broker
from support.transaction_crashes import crash
from support.transaction_play import play
from support.unavailable import Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--histories", type=int, default=200, help="how many")
    parser.add_argument("--steps", type=int, default=60, help="how long each is")
    parser.add_argument("--deaths", type=int, default=2, help="how many die in each")
    parser.add_argument("--seed", type=int, default=0, help="the first one's seed")
    asked = parser.parse_args()
    begun = time.monotonic()
    with ExitStack() as stack:
        try:
            kafka = open_broker(stack)
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        for seed in range(asked.seed, asked.seed + asked.histories):
            topics = unnamed_topics(kafka)
            with topics.open() as ledger:
                try:
                    play(kafka, ledger, seed, asked.steps)
                    crash(kafka, topics, ledger, seed, asked.deaths)
                except BaseException:
                    print(f"seed {seed} ({asked.steps} steps, {asked.deaths} deaths):")
                    raise
    print(
        f"{asked.histories} histories of {asked.steps} steps, "
        f"{asked.histories * asked.deaths} deaths, 0 faults, "
        f"{time.monotonic() - begun:.0f} s"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
