"""Histories of a sink, too many for every run.

    python tests/nightly_sinks.py --store sqlite
    python tests/nightly_sinks.py --store postgres

Each is played as its seed has it: instances are killed, stopped and started at random
steps, the group is shared out anew, leaders are deposed and write on. In the end the
store must hold exactly what is admitted, each record once.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import ExitStack
from functools import cache, partial
from pathlib import Path

from support.ledgers import unnamed_topics
from support.plugin import open_broker
from support.postgres import open_postgres
from support.sink_play import play
from support.sink_stores import STORES, PostgresStore, new_store
from support.sink_world import SinkWorld
from support.unavailable import Unavailable


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--store", choices=STORES, default="sqlite", help="what kind")
    parser.add_argument("--seeds", type=int, default=200, help="how many histories")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    told = parser.parse_args()
    faults: list[int] = []
    ends: Counter[int] = Counter()
    begun = time.monotonic()
    with ExitStack() as stack:
        try:
            kafka = open_broker(stack)
            postgres = cache(partial(open_postgres, stack))
            if told.store == PostgresStore.name:
                postgres()
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        topics = unnamed_topics(kafka)
        with topics.open() as ledger:
            for seed in range(told.first, told.first + told.seeds):
                with new_store(told.store, Path(folder), postgres, kafka) as store:
                    world = SinkWorld(kafka, topics, ledger, store)
                    try:
                        play(world, random.Random(seed))
                    except Exception:
                        faults.append(seed)
                        traceback.print_exc()
                    finally:
                        world.close()
                        kafka.delete_topic(world.topic)
                ends.update(one.returncode for one in world.instances)
                print(f"seed {seed}: {len(faults)} faults so far", flush=True)
    taken_s = time.monotonic() - begun
    print(f"{told.store}: {told.seeds} histories in {taken_s:.0f} s, "
          f"{len(faults)} faults: {faults}; "
          f"instances ended with {dict(sorted(ends.items()))}")  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
