"""What the benchmarks on Kafka share: topics of their own, and what they ran with."""

from __future__ import annotations

import argparse
import json
import platform
import secrets
import statistics
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Any

from confluent_kafka import libversion
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from epochfence import Ledger

SCOPE = "orders-writer"


@contextmanager
def measuring_topic(servers: str) -> Generator[tuple[str, Ledger]]:
    """A topic of one partition and a ledger; nothing is left behind."""
    config: dict[str, Any] = {"bootstrap.servers": servers}
    suffix = secrets.token_hex(6)
    topic, coordination, table = (
        f"{name}-{suffix}" for name in ("benchmark", "coordination", "starts")
    )
    admin: Any = AdminClient(config)
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)
    try:
        with Ledger(
            config, coordination_topic=coordination, table_topic=table
        ) as ledger:
            yield topic, ledger
    finally:
        for done in admin.delete_topics([topic, coordination, table]).values():
            done.result(30)


def ratio(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    """The median of the ratios within each turn."""
    pairs = zip(numerators, denominators, strict=True)
    return round(statistics.median(one / other for one, other in pairs), 2)


def versions() -> dict[str, str]:
    """What a figure depends on."""
    return {
        "python": platform.python_version(),
        "epochfence": version("epochfence"),
        "confluent-kafka": version("confluent-kafka"),
        "librdkafka": libversion()[0],
    }


def run(
    name: str,
    doc: str | None,
    measure: Callable[[str, int, int], dict[str, object]],
    *,
    messages: int,
    repeats: int,
) -> None:
    """Parse the arguments of a benchmark, run it and print one JSON object."""
    parser = argparse.ArgumentParser(
        description=(doc or "").partition("\n")[0], prog=f"python -m benchmarks.{name}"
    )
    parser.add_argument("-b", "--bootstrap-server", default="localhost:9092")
    parser.add_argument("--messages", type=int, default=messages)
    parser.add_argument("--repeats", type=int, default=repeats)
    options = parser.parse_args()
    if options.messages < 10 or options.repeats < 1:
        parser.error("at least 10 messages and 1 repeat")
    figures = measure(options.bootstrap_server, options.messages, options.repeats)
    print(
        json.dumps(
            {
                "benchmark": name,
                "messages": options.messages,
                "repeats": options.repeats,
                **figures,
                "versions": versions(),
            }
        )
    )
