"""Where the demo is played: a broker, two processes that lead, two consumers that read.

The leaders are real processes, and the pause is a real one (SIGSTOP). This process
owns the broker, gives the cues and reads: with a plain consumer and with a fenced one.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import (
    FencedConsumer,
    Ledger,
    TopicUnavailable,
    Verdict,
)
from epochfence.demo.scenario import SCOPE, Order, Scenario
from epochfence.epochs.messages import headers_of
from epochfence.epochs.stamps import OwnStamps
from epochfence.epochs.topics import TopicKeeper, make_embedded_topics

HOLDERS = ("pod-7", "pod-8")

_TOPIC = "epochfence-demo"
#: How long the play may take in all.
_PATIENCE_S = 60.0
_POLL_S = 0.02
#: How long a cluster may take to answer at all.
_ANSWER_S = 10.0
_READER = OwnStamps()


class DemoFailed(Exception):
    """The play did not come to its end: the text says at what."""


@dataclass(frozen=True)
class Seen:
    """A record, as it lies in the log."""

    offset: int
    epoch: int
    holder: str
    is_barrier: bool
    order: Order | None


@dataclass(frozen=True)
class Rejected:
    """A record that the fence has kept away, and why."""

    record: Seen
    reason: str
    current_epoch: int | None


@dataclass
class Scene:
    """What there is to see so far.

    Attributes:
        where: Where it is played.
        log: The partition's records, in order.
        plain: The record that has set each item, for whoever applies all of them.
        fenced: The same, for whoever reads through the fence.
        rejected: What the fence kept away.
        told: What happened, a line each.
    """

    where: str
    log: list[Seen] = field(default_factory=list[Seen])
    plain: dict[str, Seen] = field(default_factory=dict[str, Seen])
    fenced: dict[str, Seen] = field(default_factory=dict[str, Seen])
    rejected: list[Rejected] = field(default_factory=list[Rejected])
    told: list[str] = field(default_factory=list[str])

    def wrong(self, right: Mapping[str, int]) -> dict[str, Seen]:
        """The items that a plain consumer has wrong, and the record that did it."""
        return {
            item: seen
            for item, seen in self.plain.items()
            if seen.order is not None and seen.order.level != right.get(item)
        }

    def levels(self, state: Mapping[str, Seen]) -> dict[str, int]:
        """Item and level of a state."""
        return {item: seen.order.level for item, seen in state.items() if seen.order}


#: Called whenever there may be something new to see.
OnChange = Callable[[Scene], None]


def play(
    scenario: Scenario,
    config: Mapping[str, Any] | None,
    on_change: OnChange,
    *,
    pace_s: float,
) -> Scene:
    """Play a scenario, and leave nothing behind.

    Args:
        scenario: The story.
        config: The cluster's settings; None: the embedded broker.
        on_change: Is shown the scene.
        pace_s: How long a leader waits before each write.

    Raises:
        DemoFailed: It did not come to its end.
        EpochfenceError: The cluster does not answer, or refuses.
    """
    with ExitStack() as stack:
        if config is None:
            where = stack.enter_context(_embedded())
        else:
            where = stack.enter_context(_cluster(config))
        stage = stack.enter_context(_Stage(where, on_change))
        stage.play(scenario, pace_s)
        return stage.scene


@dataclass(frozen=True)
class _Where:
    """A broker, a topic on it, and a ledger."""

    name: str
    config: dict[str, Any]
    topic: str
    ledger: dict[str, Any]


@contextmanager
def _embedded() -> Generator[_Where, None, None]:
    """librdkafka's mock cluster, which lives as long as its owner does."""
    owner = Producer(
        {"test.mock.num.brokers": 1, "bootstrap.servers": "", "log_level": 0}
    )
    brokers: Any = owner.list_topics(timeout=10).brokers
    [broker] = brokers.values()
    config = {"bootstrap.servers": f"{broker.host}:{broker.port}", "log_level": 0}
    make_embedded_topics(config, [_TOPIC], 10)
    yield _Where(
        "the Kafka client's embedded broker", config, _TOPIC, {"embedded": True}
    )
    del owner


@contextmanager
def _cluster(config: Mapping[str, Any]) -> Generator[_Where, None, None]:
    """Topics of the demo's own on a cluster; they are deleted in the end."""
    suffix = secrets.token_hex(4)
    topic, coordination, table = (
        f"{_TOPIC}-{suffix}{part}" for part in ("", "-coordination", "-starts")
    )
    # Who does not answer, and which setting is wrong, it says better than what follows.
    TopicKeeper(config, _ANSWER_S).facts(topic)
    admin: Any = AdminClient({**config, "log_level": 0})
    try:
        admin.create_topics([NewTopic(topic, 1, -1)], request_timeout=10)[topic].result(
            15
        )
    except (KafkaException, TimeoutError) as error:
        is_known = isinstance(error, KafkaException)
        reason = error.args[0].str() if is_known else "no answer in time"
        servers = config.get("bootstrap.servers")
        raise TopicUnavailable(topic, f"{servers}: {reason}") from error
    names = {"coordination_topic": coordination, "table_topic": table}
    try:
        yield _Where(str(config.get("bootstrap.servers")), dict(config), topic, names)
    finally:
        for deleted in admin.delete_topics([topic, coordination, table]).values():
            # Where the play did not get so far, some were never made.
            with suppress(KafkaException, TimeoutError):
                deleted.result(10)


class _Leader:
    """A leader's process, and what it says."""

    def __init__(
        self, holder: str, told: dict[str, Any], events: queue.Queue[tuple[str, Any]]
    ) -> None:
        self.holder = holder
        self.said: list[dict[str, Any]] = []
        self._events = events
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "epochfence.demo.leader",
                json.dumps({"holder": holder, "parent": os.getpid(), **told}),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._complaints: list[str] = []
        for stream, take in (
            (self._process.stdout, self._hear),
            (self._process.stderr, self._complaints.append),
        ):
            reader = threading.Thread(target=_read, args=(stream, take), daemon=True)
            reader.start()

    def _hear(self, line: str) -> None:
        self._events.put((self.holder, json.loads(line)))

    def cue(self) -> None:
        """Let it go on."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended: `check` tells
            self._process.stdin.write("\n")
            self._process.stdin.flush()

    def wake(self) -> None:
        """End its pause."""
        self._process.send_signal(signal.SIGCONT)

    def has_said(self, event: str) -> bool:
        """Whether it has said that it does something."""
        return any(one["event"] == event for one in self.said)

    def check(self) -> None:
        """Raise if it has ended before its time."""
        code = self._process.poll()
        if code is not None and code != 0:
            why = "".join(self._complaints).strip() or f"exit code {code}"
            raise DemoFailed(f"the process of {self.holder} has failed: {why}")

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone, of itself."""
        return self._process.poll() is not None

    def end(self) -> None:
        """End it, whatever it does, stopped or not."""
        with suppress(ProcessLookupError):
            self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()


def _read(stream: Any, take: Callable[[str], None]) -> None:
    with suppress(ValueError):  # closed while it was read
        for line in stream:
            take(line)


class _Stage:
    """The play itself, and the two who watch the topic."""

    def __init__(self, where: _Where, on_change: OnChange) -> None:
        self._where = where
        self._on_change = on_change
        self._events: queue.Queue[tuple[str, Any]] = queue.Queue()
        self._leaders: dict[str, _Leader] = {}
        self._deadline = time.monotonic() + _PATIENCE_S
        self._open = ExitStack()
        self._untold: dict[int, str] = {}
        self._written: set[int] = set()
        self.scene = Scene(where.name)

    def __enter__(self) -> _Stage:
        with ExitStack() as opening:
            opening.callback(self._end_leaders)
            where = self._where
            group = {**where.config, "group.id": where.topic, "enable.auto.commit": 0}
            self._ledger = opening.enter_context(Ledger(where.config, **where.ledger))
            self._plain = Consumer({**group, "log_level": 0})
            opening.callback(self._plain.close)
            self._fenced = opening.enter_context(
                FencedConsumer(
                    {**group, "enable.auto.commit": False},
                    self._ledger,
                    require={where.topic: [SCOPE]},
                    on_rejected=self._reject,
                )
            )
            start = TopicPartition(where.topic, 0, 0)
            self._plain.assign([start])
            self._fenced.assign([start])
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def _end_leaders(self) -> None:
        for leader in self._leaders.values():
            leader.end()

    # The play.

    def play(self, scenario: Scenario, pace_s: float) -> None:
        """From the first leader's start to the last record read."""
        first, second = HOLDERS
        told = {
            "config": self._where.config,
            "ledger": self._where.ledger,
            "topic": self._where.topic,
            "pace_s": pace_s,
        }
        self._start(
            first, told, scenario.before, late=scenario.late, after=scenario.late[-1:]
        )
        self._start(second, told, scenario.successor, after=scenario.after)
        zombie, successor = self._leaders[first], self._leaders[second]
        zombie.cue()
        self._wait(lambda: zombie.has_said("is stopped"), f"{first} leads")
        successor.cue()
        self._wait(lambda: successor.has_said("waits"), f"{second} takes over")
        zombie.wake()
        self.scene.told.append(f"{first}: wakes up, and knows of nothing")
        self._wait(lambda: zombie.has_ended, f"{first} wakes up")
        successor.cue()
        self._wait(lambda: successor.has_ended, f"{second} goes on")
        self._wait(self._has_read_all, "all is read")

    def _start(
        self,
        holder: str,
        told: dict[str, Any],
        before: tuple[Order, ...],
        *,
        late: tuple[Order, ...] = (),
        after: tuple[Order, ...] = (),
    ) -> None:
        orders = {"before": before, "late": late, "after": after}
        spelt = {name: [[*asdict(o).values()] for o in those] for name, those in
                 orders.items()}  # fmt: skip
        self._leaders[holder] = _Leader(holder, {**told, **spelt}, self._events)

    def _wait(self, is_done: Callable[[], bool], what: str) -> None:
        """Read on, and show it, until something has happened."""
        while True:
            self._read()
            for leader in self._leaders.values():
                leader.check()
            self._on_change(self.scene)
            if is_done() and self._events.empty() and not self._untold:
                return
            if time.monotonic() > self._deadline:
                raise DemoFailed(f"after {_PATIENCE_S:g} s, still waiting: {what}")

    def _has_read_all(self) -> bool:
        place = TopicPartition(self._where.topic, 0)
        _, end = self._plain.get_watermark_offsets(place, timeout=5)
        read = self._fenced.position([place])[0].offset
        return len(self.scene.log) == end and read == end

    # Reading.

    def _read(self) -> None:
        with suppress(queue.Empty):
            while True:
                holder, event = self._events.get_nowait()
                self._leaders[holder].said.append(event)
                self._tell(holder, event)
        for message in self._plain.consume(100, _POLL_S):
            if message.error() is None:
                self._take_plain(_seen(message, self._ledger))
        for message in self._fenced.consume(100, _POLL_S):
            if message.error() is None:
                seen = _seen(message, self._ledger)
                assert seen.order is not None
                self.scene.fenced[seen.order.item] = seen
        self._tell_rejected()

    def _take_plain(self, seen: Seen) -> None:
        self.scene.log.append(seen)
        if seen.order is not None:
            self.scene.plain[seen.order.item] = seen

    def _reject(self, message: Message, verdict: Verdict) -> None:
        seen = _seen(message, self._ledger)
        one = Rejected(seen, verdict.reason, verdict.current_epoch)
        self.scene.rejected.append(one)
        self._untold[seen.offset] = (
            f"fence: rejects offset {seen.offset}, {one.reason}: epoch {seen.epoch} of "
            f"{seen.holder}, while epoch {one.current_epoch} is current"
        )

    def _tell(self, holder: str, event: dict[str, Any]) -> None:
        self.scene.told += [f"{holder}: {line}" for line in _lines(event)]
        if event["event"] == "wrote":
            self._written.add(event["offset"])

    def _tell_rejected(self) -> None:
        """Tell of rejected records, each behind the line that tells of its writing."""
        for offset in sorted(self._written & self._untold.keys()):
            self.scene.told.append(self._untold.pop(offset))


def _lines(event: dict[str, Any]) -> Iterator[str]:
    """What a leader does, for people."""
    kind = event["event"]
    if kind == "leads":
        yield f"leads, epoch {event['epoch']}"
    elif kind == "took over":
        yield "has written its barrier"
    elif kind == "hands over":
        yield f"sets {event['item']} to {event['level']}: on its way, not sent yet"
    elif kind == "wrote":
        yield f"has set {event['item']} to {event['level']} (offset {event['offset']})"
    elif kind == "is stopped":
        yield "is stopped (SIGSTOP), as by a long garbage collection"
    elif kind == "is deposed":
        yield f"hears of it: {event['text']}"
    elif kind == "asks":
        counts = ", ".join(f"{n} {what}" for what, n in event["counts"].items() if n)
        yield f"asks what became of its messages: {counts}"


def _seen(message: Message, ledger: Ledger) -> Seen:
    offset, value, key = message.offset(), message.value(), message.key()
    assert offset is not None
    reading = _READER.read(_READER.key(headers_of(message), None))
    [stamp] = reading.stamps
    claim = ledger.state.find(stamp.scope, stamp.epoch, stamp.grant_id)
    if claim is None:  # this process may not have read so far
        claim = ledger.refresh().find(stamp.scope, stamp.epoch, stamp.grant_id)
    holder = "nobody" if claim is None else claim.holder
    order = None
    if not reading.is_barrier:
        assert isinstance(value, bytes)
        assert isinstance(key, bytes)
        order = Order(key.decode(), int(value))
    return Seen(offset, stamp.epoch, holder, reading.is_barrier, order)
