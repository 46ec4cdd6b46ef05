"""One leader of the demo, as a process: `python -m epochfence.demo.leader JSON`.

It takes its cues from the standard input, a line each, and says what it does on the
standard output, a JSON object a line.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaError, Message, TopicPartition

from epochfence import Deposed, FencedProducer, Ledger
from epochfence.demo.scenario import SCOPE, Order

#: What is handed over waits so long before it is sent: the pause falls into it.
LINGER_MS = 1_000

_NEWS_S = 0.5

#: Linux: have the kernel send a signal when the parent ends.
_PR_SET_PDEATHSIG = 1


def main(told: dict[str, Any]) -> None:
    """Lead once, as told."""
    _end_with_parent(told["parent"])
    cues = _Cues()
    cues.wait()
    config = {**told["config"], "linger.ms": LINGER_MS}
    with Ledger(told["config"], **told["ledger"]) as ledger:
        leadership = ledger.claim(SCOPE, holder=told["holder"])
        say("leads", epoch=leadership.epoch)
        with FencedProducer(config, ledger, leadership) as producer:
            producer.take_over([TopicPartition(told["topic"], 0)])
            say("took over")
            writer = _Writer(producer, told["topic"], told["pace_s"])
            writer.write(told["before"])
            if told["late"]:
                writer.hand_over(told["late"])
                say("is stopped")
                # The pause: every check whether this process leads came before it.
                os.kill(os.getpid(), signal.SIGSTOP)
                # Time for the news to come, so that each story ends in one way: with
                # what was on its way, and nothing more.
                time.sleep(_NEWS_S)
            else:
                say("waits")
                cues.wait()
            writer.write(told["after"])
            say("asks", counts=dict(producer.confirm(30).counts))


class _Writer:
    """Writes orders, and says so."""

    def __init__(self, producer: FencedProducer, topic: str, pace_s: float) -> None:
        self._producer = producer
        self._topic = topic
        self._pace_s = pace_s

    def write(self, orders: Iterable[list[Any]]) -> None:
        """Write orders one by one, each acknowledged; stop when deposed."""
        for order in orders:
            time.sleep(self._pace_s)  # slow enough to be seen
            try:
                self._produce(Order(*order))
            except Deposed as deposed:
                say("is deposed", text=str(deposed))
                return
            self._producer.flush(30)

    def hand_over(self, orders: Iterable[list[Any]]) -> None:
        """Hand orders to the client, and wait for nothing."""
        for order in orders:
            self._produce(Order(*order))
            say("hands over", item=order[0], level=order[1])

    def _produce(self, order: Order) -> None:
        def told(error: KafkaError | None, message: Message) -> None:
            if error is None:
                say(
                    "wrote",
                    item=order.item,
                    level=order.level,
                    offset=message.offset(),
                )

        self._producer.produce(
            self._topic, str(order.level), order.item, 0, on_delivery=told
        )


class _Cues:
    """Lines on the standard input; at its end, this process ends."""

    def __init__(self) -> None:
        self._given = threading.Semaphore(0)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for _ in sys.stdin:
            self._given.release()
        os._exit(1)  # nobody is left to lead for

    def wait(self) -> None:
        """Wait for the next cue."""
        self._given.acquire()


def _end_with_parent(parent: int) -> None:
    """Leave nothing behind, however the parent ends, not even stopped.

    A stopped process cannot see that its input has ended. Linux kills it on request;
    elsewhere, a stopped process whose group has no parent any more is sent SIGHUP.
    """
    with suppress(OSError):
        os.setpgid(0, 0)  # Ctrl-C is for the parent
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def say(what: str, **facts: object) -> None:
    """Tell the parent."""
    line = json.dumps({"event": what, **facts})
    try:
        print(line, flush=True)
    except BrokenPipeError:
        os._exit(1)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
