"""The demo, many times over, too long for every run: `python tests/nightly_demo.py`.

First it plays, again and again, half of the times while every processor is busy; each
play must corrupt the plain consumer and name the records that did it. Then it is killed
at random moments; no process may be left.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

from support.demo import Demo, problems, running_demo
from support.waiting import wait_until

#: A play takes about so long; it is killed within.
_PLAY_S = 10.0
_MOST_S = 20.0


@contextmanager
def busy(processes: int) -> Generator[None]:
    """Keep processors busy."""
    running = [
        subprocess.Popen([sys.executable, "-c", "while True: pass"])
        for _ in range(processes)
    ]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def played(number: int, is_busy: bool) -> list[str]:
    """Play once; what is not as it should be."""
    with busy(os.cpu_count() or 1 if is_busy else 0), running_demo() as demo:
        begun = time.monotonic()
        code = demo.ended()
        taken_s = time.monotonic() - begun
        found = problems(demo.lines, code) + left_over(demo)
    # The limit is for a machine that has nothing else to do.
    if taken_s > _MOST_S and not is_busy:
        found.append(f"it took {taken_s:.1f} s")
    print(f"play {number}{' under load' if is_busy else ''}: {taken_s:.1f} s, "
          f"{'; '.join(found) or 'as it should be'}", flush=True)  # fmt: skip
    return found


def killed(number: int, dice: random.Random) -> list[str]:
    """Kill it at a random moment; what is not as it should be."""
    how = dice.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    after_s = dice.uniform(0, _PLAY_S)
    with running_demo() as demo:
        time.sleep(after_s)  # the moment itself, nothing is waited for
        demo.send(how)
        demo.ended()
        found = left_over(demo)
        if "Traceback" in "\n".join(demo.lines):
            found.append("a traceback")
    print(f"kill {number}: {how.name} after {after_s:.1f} s, "
          f"{'; '.join(found) or 'nothing is left'}", flush=True)  # fmt: skip
    return found


def left_over(demo: Demo) -> list[str]:
    """The processes that are still there a moment later."""
    try:
        wait_until(lambda: demo.leaders() == [], 10, "no process is left")
    except TimeoutError:
        return [f"processes are left: {demo.leaders()}"]
    return []


def main() -> None:
    """Play and kill; exit code 1 if anything was not as it should be."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--plays", type=int, default=20)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=random.randrange(10_000))
    options = parser.parse_args()
    print(f"seed {options.seed}")
    dice = random.Random(options.seed)
    found = [
        *(one for n in range(options.plays) for one in played(n, n % 2 == 1)),
        *(one for n in range(options.kills) for one in killed(n, dice)),
    ]
    print(f"{options.plays} plays, {options.kills} kills: {len(found)} faults")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
