"""What all benchmarks share: servers, turns, and figures.

A figure is the ratio of two ways to do the same, taken in turns (A B A B) on one
machine: what a machine does differently from another one cancels out.
"""

from __future__ import annotations

import platform
import secrets
import statistics
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from confluent_kafka import Producer, libversion
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import Ledger

SCOPE = "orders-writer"
VALUE = b"x" * 100
#: A stamp of a grant that nobody made, for loops that are written by hand.
STAMP = ("epochfence", b"1:9f3a1c22d4e5b6a7:orders-writer")

_TIMEOUT_S = 30


@dataclass(frozen=True)
class Figure:
    """One measured ratio.

    Attributes:
        benchmark: The benchmark's name.
        figure: What was compared: `own to baseline`.
        ratio: The speed of the own way to that of the baseline, above 1: faster.
            The median over the turns.
        spread: The lowest and the highest ratio.
        repeats: How many turns.
        own: The own way's median, in `unit`: for orientation, of this machine.
        baseline: The same of the baseline.
        unit: What the two are in.
    """

    benchmark: str
    figure: str
    ratio: float
    spread: tuple[float, float]
    repeats: int
    own: float
    baseline: float
    unit: str

    def to_json(self) -> dict[str, Any]:
        """As it is printed."""
        return {
            "benchmark": self.benchmark,
            "figure": self.figure,
            "ratio": self.ratio,
            "spread": list(self.spread),
            "repeats": self.repeats,
            "own": self.own,
            "baseline": self.baseline,
            "unit": self.unit,
            "versions": versions(),
        }


def versions() -> dict[str, str]:
    """What a figure depends on."""
    return {
        "python": platform.python_version(),
        "epochfence": version("epochfence"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": libversion()[0],
    }


def compare(
    benchmark: str,
    figure: str,
    own: Sequence[float],
    baseline: Sequence[float],
    *,
    unit: str,
    is_rate: bool = False,
) -> Figure:
    """A figure from what the two ways took in each turn.

    Args:
        benchmark: The benchmark's name.
        figure: What is compared.
        own: Times of the own way, in turn (rates, if `is_rate`).
        baseline: The same of the other.
        unit: What they are in.
        is_rate: Whether more is faster.
    """
    pairs = zip(own, baseline, strict=True)
    ratios = [one / other if is_rate else other / one for one, other in pairs]
    return Figure(
        benchmark,
        figure,
        round(statistics.median(ratios), 2),
        (round(min(ratios), 2), round(max(ratios), 2)),
        len(ratios),
        _rounded(statistics.median(own)),
        _rounded(statistics.median(baseline)),
        unit,
    )


def _rounded(number: float) -> float:
    return float(f"{number:.3g}")


def in_turns(
    ways: Mapping[str, Callable[[], float]], repeats: int
) -> dict[str, list[float]]:
    """Run every way once a turn; give what each returned."""
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            found[name].append(way())
    return found


# The servers.


@contextmanager
def broker(servers: str | None) -> Generator[str]:
    """The address of a Kafka: the given one, or one by the tests' choices."""
    if servers is not None:
        yield servers
        return
    _use_tests()
    from support.plugin import open_broker
    from support.unavailable import Unavailable

    with ExitStack() as stack:
        try:
            found = open_broker(stack)
        except Unavailable as reason:
            raise SystemExit(f"benchmarks: {reason}") from None
        yield found.bootstrap_servers


@contextmanager
def postgres() -> Generator[str | None]:
    """An empty database of PostgreSQL, by the tests' choices; None without a server."""
    _use_tests()
    from support.unavailable import Unavailable

    with ExitStack() as stack:
        conninfo: str | None = None
        try:
            from support.postgres import open_postgres  # needs psycopg, an extra

            server = open_postgres(stack)
        except (ImportError, Unavailable) as reason:
            print(f"benchmarks: PostgreSQL is left out: {reason}", file=sys.stderr)
        else:
            conninfo = stack.enter_context(server.database())
        yield conninfo


def _use_tests() -> None:
    folder = str(Path(__file__).parents[1] / "tests")
    if folder not in sys.path:
        sys.path.insert(0, folder)


class Bench:
    """A topic and a ledger of a benchmark's own.

    Attributes:
        config: The cluster's settings.
        topic: The topic.
        coordination_topic: The ledger's.
        table_topic: The ledger's.
    """

    def __init__(self, servers: str, partitions: int = 1) -> None:
        suffix = secrets.token_hex(6)
        self.config: dict[str, Any] = {"bootstrap.servers": servers}
        self.coordination_topic = f"benchmark-coordination-{suffix}"
        self.table_topic = f"benchmark-starts-{suffix}"
        self._admin: Any = AdminClient(self.config)
        self._topics = [self.coordination_topic, self.table_topic]
        self.topic = self.new_topic(partitions)
        with self.ledger():
            pass  # both topics are made

    def new_topic(self, partitions: int = 1) -> str:
        """Create one more topic, and give its name."""
        name = f"benchmark-{secrets.token_hex(6)}"
        new = NewTopic(name, partitions, 1)
        self._admin.create_topics([new])[name].result(_TIMEOUT_S)
        self._topics.append(name)
        return name

    def ledger(self) -> Ledger:
        """The ledger, opened anew."""
        return Ledger(
            self.config,
            coordination_topic=self.coordination_topic,
            table_topic=self.table_topic,
        )

    def close(self) -> None:
        """Delete the topics."""
        for deleted in self._admin.delete_topics(self._topics).values():
            deleted.result(_TIMEOUT_S)

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def filler(config: Mapping[str, Any]) -> Producer:
    """A producer that takes a million messages without a pause."""
    return Producer(
        {**config, "linger.ms": 50, "queue.buffering.max.messages": 2_000_000}
    )
