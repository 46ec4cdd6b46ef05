"""A gate killed at random moments, more often than in every run.

    python tests/nightly_gate.py --rounds 20

Leaders write, are deposed and write on; the gate is killed and started again, with
names of its own (it takes its predecessor's place at once) or without. In the end the
copy must hold exactly what is admitted, each record once.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import traceback
from contextlib import ExitStack
from pathlib import Path

from support.gate_scene import Scene, play_kills
from support.gates import Gates
from support.ledgers import unnamed_topics
from support.plugin import open_broker
from support.unavailable import Unavailable

#: So many kills a topic.
_KILLS = 10


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="of ten kills each")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    told = parser.parse_args()
    faults: list[int] = []
    begun = time.monotonic()
    with ExitStack() as stack:
        try:
            kafka = open_broker(stack)
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        topics = unnamed_topics(kafka)
        ledger = stack.enter_context(topics.open())
        for seed in range(told.first, told.first + told.rounds):
            scene = Scene(topics, ledger, 2)
            gates = Gates(topics, folder)
            try:
                play_kills(
                    scene, gates, random.Random(seed), _KILLS, is_named=bool(seed % 2)
                )
            except Exception:
                faults.append(seed)
                traceback.print_exc()
            finally:
                gates.close()
            print(f"seed {seed}: {len(faults)} faults so far", flush=True)
    taken_s = time.monotonic() - begun
    print(f"{told.rounds * _KILLS} kills in {taken_s:.0f} s, "
          f"{len(faults)} faults: {faults}")  # fmt: skip
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
