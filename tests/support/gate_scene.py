"""A topic with leaders and zombies, the copy of it, and gates that are killed."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from epochfence import Leadership, Ledger
from support.gates import Gates, Replay
from support.ledgers import LedgerTopics
from support.producing import add_partitions
from support.stamped import Writer, stamp

SCOPE = "w"


class Scene:
    """A source, its leaders, and the copy of it.

    Args:
        topics: The ledger's topics.
        ledger: The ledger.
        partitions: How many the source has.
        config: Its settings.
    """

    def __init__(
        self,
        topics: LedgerTopics,
        ledger: Ledger,
        partitions: int = 1,
        config: dict[str, str] | None = None,
    ) -> None:
        self.kafka = topics.kafka
        self.partitions = partitions
        self.source = self.kafka.create_topic("orders", partitions, config=config)
        self.destination = f"{self.source}-admitted"
        self.replay = Replay(topics, self.source, SCOPE)
        self.writer = Writer(self.kafka, self.source)
        self._ledger = ledger
        self.leaders = [self.claim()]

    @property
    def group(self) -> str:
        return f"epochfence-gate.{self.source}.{self.destination}"

    def claim(self) -> Leadership:
        leadership = self._ledger.claim(SCOPE, holder="pod")
        return self.replay.granted(leadership)

    def write(
        self,
        *values: bytes | None,
        leader: int = -1,
        partition: int = 0,
        key: bytes | None = b"k",
    ) -> None:
        headers = stamp(self.leaders[leader])
        self.writer.write(headers, *values, partition=partition, key=key)

    def depose(self) -> None:
        """Another leader takes every partition over; the one before writes on."""
        self.leaders.append(self.claim())
        for partition in range(self.partitions):
            self.writer.barrier(self.leaders[-1], partition=partition)
            self.write(b"too late", leader=-2, partition=partition)

    def create_copy(self, config: dict[str, str] | None = None) -> None:
        """Create the copy, before a gate does it."""
        self.destination = self.kafka.create_topic(
            "copy", self.partitions, config=config
        )

    def grow(self, topic: str, partitions: int) -> None:
        """Give one of the two topics more partitions."""
        add_partitions(self.kafka, topic, partitions)
        self.writer = Writer(self.kafka, self.source)  # which knows of them

    def wait(self) -> None:
        self.replay.wait_for(self.destination, self.group)

    def check(self) -> None:
        self.replay.check(self.destination)


#: Whoever has these takes the place of its predecessor at once.
NAMED = ("-X", "group.instance.id=gate-0", "-X", "transactional.id={}")


def play_kills(
    scene: Scene, gates: Gates, chance: random.Random, rounds: int, *, is_named: bool
) -> None:
    """Kill a gate at random moments, again and again, and see what its copy holds.

    Args:
        scene: What it copies; it has two partitions.
        gates: Starts it.
        chance: Says when it is killed, and what is written.
        rounds: How often.
        is_named: Whether its successors come under its names.
    """
    names = NAMED if is_named else ()
    options = [name.format(scene.source) for name in names]
    with _writing(scene, chance):
        for _ in range(rounds):
            gate = gates.start(
                scene.source, scene.destination, *options,
                *("--batch-size", "20", "--report", "0.05"),
            )  # fmt: skip
            gate.wait_for("transactions: [1-9]")
            time.sleep(chance.uniform(0, 0.2))  # the moment; nothing is waited for
            gate.send(signal.SIGKILL)
            assert gate.code() == -signal.SIGKILL
    last = gates.start(scene.source, scene.destination, *options)
    scene.wait()
    last.end()
    scene.check()


@contextmanager
def _writing(scene: Scene, chance: random.Random) -> Generator[None, None, None]:
    """Leaders write, are deposed and write on, while the block lasts."""
    is_over = threading.Event()
    failures: list[Exception] = []

    def write() -> None:
        number = 0
        try:
            while not is_over.wait(0.01):
                number += 1
                if chance.random() < 0.1:
                    scene.depose()
                values = [b"%d-%d" % (number, n) for n in range(chance.randrange(1, 9))]
                leader = -2 if chance.random() < 0.2 and len(scene.leaders) > 1 else -1
                scene.write(*values, leader=leader, partition=chance.randrange(2))
        except Exception as error:
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
    assert failures == []
