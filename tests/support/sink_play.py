"""Random histories of a sink: kills, pauses, rebalances, leaders and zombies."""

from __future__ import annotations

import random
import signal
import subprocess
from contextlib import suppress

from support.sink_instance import SINK_FENCED
from support.sink_world import PARTITIONS, SinkWorld
from support.waiting import wait_until

_SESSION_MS = 1500


def play(world: SinkWorld, dice: random.Random, steps: int = 12) -> None:
    """Play a history; in the end, see that the sink holds exactly what is admitted."""
    awake: list[subprocess.Popen[str]] = []
    asleep: list[subprocess.Popen[str]] = []

    def start() -> None:
        # Those of another group believe that all partitions are theirs.
        group = dice.choice([world.group, world.group, f"{world.group}-other"])
        step = dice.choice([None, None, dice.choice(world.store.steps)])
        options = {} if step is None else {"step": step, "times": dice.randint(1, 3)}
        awake.append(
            world.start(group=group, session_timeout_ms=_SESSION_MS, **options)
        )

    start()
    for _ in range(steps):
        what = dice.choice(
            ["write", "write", "zombie", "depose", "start", "fault", "settle"]
        )
        if what == "write":
            world.write(dice.randint(1, 9), dice.randrange(PARTITIONS))
        elif what == "zombie":
            leader = dice.randrange(len(world.leaderships))
            world.write(dice.randint(1, 3), dice.randrange(PARTITIONS), leader)
        elif what == "depose":
            world.depose()
        elif what == "start" and len(awake) < 2:
            start()
        elif what == "settle" and awake:
            with suppress(TimeoutError):  # they may all be dead, or asleep
                world.wait_for_end(2)
        elif what == "fault" and awake:
            victim = awake.pop(dice.randrange(len(awake)))
            kind = dice.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
            victim.send_signal(kind)
            if kind == signal.SIGSTOP:
                asleep.append(victim)
        if asleep and dice.random() < 0.3:
            awake.append(asleep.pop())
            awake[-1].send_signal(signal.SIGCONT)
    for victim in asleep:
        victim.send_signal(signal.SIGCONT)
    last = world.start(session_timeout_ms=_SESSION_MS)
    world.wait_for_end()
    for instance in world.instances:
        if instance is not last:
            _let_end(instance)
    # What somebody still had in hand when all was there has changed nothing.
    world.wait_for_end()
    _let_end(last)
    world.check()


def _let_end(instance: subprocess.Popen[str]) -> None:
    with suppress(ProcessLookupError):
        instance.send_signal(signal.SIGTERM)
    wait_until(lambda: instance.poll() is not None, 60, "an instance ends")
    # In order; killed by itself or by the history; or told that others took over.
    assert instance.returncode in (0, -signal.SIGKILL, -signal.SIGTERM, SINK_FENCED)
