"""Draws docs/watch.svg from a real takeover with a zombie, on a cluster of yours.

    python docs/draw_watch.py localhost:9092

It takes three quarters of a minute, on a topic orders, which must not be there yet, and
two of the framework's; it deletes them in the end.
"""

from __future__ import annotations

import re
import secrets
import sys
import threading
import time
from io import StringIO
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console

from epochfence import FencedProducer, Leadership, Ledger
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.live_reader import Beginning, LiveReader
from epochfence.replay.watch_picture import Picture
from epochfence.watch_screen import WatchScreen

TARGET = Path(__file__).parent / "watch.svg"
SCOPE = "orders-writer"
PARTITIONS = 3
LEADS_S, ZOMBIE_S = 8, 36
WIDTH, HEIGHT = 126, 34


def watch(servers: str) -> Picture:
    """Have a leader deposed that does not notice, and see that."""
    suffix = secrets.token_hex(4)
    topic, claims, starts = "orders", f"coordination-{suffix}", f"starts-{suffix}"
    config = {"bootstrap.servers": servers}
    admin = AdminClient({**config})
    admin.create_topics([NewTopic(topic, PARTITIONS)])[topic].result(30)
    try:
        with Ledger(config, coordination_topic=claims, table_topic=starts) as ledger:
            settings = FenceSettings([SCOPE], unstamped="quarantine")
            reader = LiveReader(
                config, [topic], settings, Beginning(),
                coordination_topic=claims, table_topic=starts,
            )  # fmt: skip
            with reader:
                _play(config, ledger, topic)
                return reader.picture()
    finally:
        there = [topic, claims, starts]
        for done in admin.delete_topics(there).values():
            done.result(30)


def _play(config: dict[str, str], ledger: Ledger, topic: str) -> None:
    pod_7 = ledger.claim(SCOPE, holder="pod-7")
    with FencedProducer(config, ledger, pod_7) as leader:
        leader.take_over([topic])
        _write(leader, topic, LEADS_S)
    pod_8 = ledger.claim(SCOPE, holder="pod-8")
    with FencedProducer(config, ledger, pod_8) as leader:
        leader.take_over([topic])
        zombie = threading.Thread(target=_write_on, args=(config, topic, pod_7))
        zombie.start()
        _write(leader, topic, ZOMBIE_S)
        zombie.join()


def _write(leader: FencedProducer, topic: str, duration_s: float) -> None:
    end_s = time.monotonic() + duration_s
    number = 0
    while time.monotonic() < end_s:
        leader.produce(topic, f"order {number}", partition=number % PARTITIONS)
        leader.poll(0)
        number += 1
        time.sleep(0.05)
    leader.flush()


def _write_on(config: dict[str, str], topic: str, leadership: Leadership) -> None:
    """What a process does that has not heard of its end: more and more."""
    producer = Producer(config)
    end_s = time.monotonic() + ZOMBIE_S
    number, pause_s = 0, 3.0
    while time.monotonic() < end_s:
        producer.produce(
            topic,
            f"order {number}",
            partition=number % 2,
            headers=[("epochfence", leadership.stamp_value)],
        )
        producer.flush(30)
        number += 1
        time.sleep(pause_s)
        pause_s = max(0.8, pause_s * 0.9)


def draw(picture: Picture) -> str:
    """The screen, as SVG."""
    console = Console(
        record=True, width=WIDTH, height=HEIGHT, file=StringIO(), force_terminal=True,
        color_system="truecolor", markup=False, highlight=False, emoji=False,
    )  # fmt: skip
    console.print(WatchScreen(picture))
    # Without fonts from elsewhere: a picture loads nothing.
    form = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
    return console.export_svg(
        title="epochfence watch -t orders", code_format=form, unique_id="watch"
    )


if __name__ == "__main__":
    TARGET.write_text(draw(watch(sys.argv[1])), encoding="utf-8")
