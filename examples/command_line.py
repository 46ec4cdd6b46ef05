"""What the example programs share: options, errors as sentences, who is to be elected.

No part of epochfence. Whoever starts a program from one of these takes it along, or
puts the settings in by hand.
"""

from __future__ import annotations

import argparse
import logging
import os
import re
import socket
import sys
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from epochfence import EpochfenceError, Ledger, MisconfiguredError
from epochfence.elections import Election, KafkaElection
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC

_LONGEST_S = 1e8
_MINUTE_S = 60
_LARGEST = 10**15


class Stopped(Exception):
    """The program cannot go on: its text says why, and what to do."""


def say(text: str) -> None:
    """Tell people what happens, at once, in one piece: several threads do."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def tell_state(state: str, reason: str) -> None:
    """Tell what `lead` is doing: its `on_state`."""
    say(f"{state}: {reason}")


def parser_of(text: str | None) -> argparse.ArgumentParser:
    """A parser whose help is a module's docstring."""
    return argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_kafka_options(parser: argparse.ArgumentParser) -> None:
    """Where Kafka is, and the ledger's topics on it."""
    group = parser.add_argument_group("Kafka")
    group.add_argument(
        "-b", "--bootstrap-server", required=True, metavar="HOST:PORT[,...]",
        help="brokers to connect to first",
    )  # fmt: skip
    group.add_argument(
        "-X", "--property", action="append", default=[], metavar="NAME=VALUE",
        help="a librdkafka setting, such as security.protocol=SSL; may be repeated",
    )  # fmt: skip
    group.add_argument(
        "--coordination-topic", default=COORDINATION_TOPIC, metavar="NAME",
        help="the topic that holds the ledger (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--table-topic", default=TABLE_TOPIC, metavar="NAME",
        help="the topic of the max-epoch table (%(default)s)",
    )  # fmt: skip


def add_leader_options(
    parser: argparse.ArgumentParser, *, elections: list[str]
) -> None:
    """Who this process is, and where the election is held: the first is the default."""
    group = parser.add_argument_group("leading")
    group.add_argument(
        "--holder", default=f"{socket.gethostname()}-{os.getpid()}", metavar="NAME",
        help="names this process, for people (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--election", choices=elections, default=elections[0],
        help="where the election is held (%(default)s)",
    )  # fmt: skip
    group.add_argument(
        "--silence", type=silence, default=10.0, metavar="SECONDS", dest="silence_s",
        help="how long a leader may be silent until another is elected (%(default)s)",
    )  # fmt: skip


def seconds(text: str, shortest_s: float, longest_s: float) -> float:
    """A time within bounds, for argparse; "nan" is within none."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not shortest_s <= number <= longest_s:
        raise argparse.ArgumentTypeError(
            f"{text} is not between {shortest_s:g} and {longest_s:g} seconds"
        )
    return number


def positive(text: str) -> float:
    """From a millisecond to about three years, for argparse."""
    return seconds(text, 0.001, _LONGEST_S)


def not_negative(text: str) -> float:
    """From nothing to about three years, for argparse."""
    return seconds(text, 0, _LONGEST_S)


def silence(text: str) -> float:
    """How long a leader may be silent, for argparse: Kafka's groups allow an hour."""
    return seconds(text, 0.1, 3600)


def number_of(text: str, largest: int) -> int:
    """A whole number from 1 on, for argparse."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if not 1 <= number <= largest:
        raise argparse.ArgumentTypeError(f"{text} is not between 1 and {largest}")
    return number


def whole(text: str) -> int:
    """A whole number above 0, for argparse."""
    return number_of(text, _LARGEST)


def port(text: str) -> int:
    """The number of a port, for argparse."""
    return number_of(text, 65535)


def kafka_config(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of every client."""
    config = {"bootstrap.servers": options.bootstrap_server}
    for pair in options.property:
        name, is_pair, value = pair.partition("=")
        if not is_pair:
            raise MisconfiguredError("-X", pair, "no setting", "Give it as NAME=VALUE.")
        config[name.strip()] = value.strip()
    return config


def gapless_config(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a producer whose cursors tell that nothing before is missing.

    Raises:
        MisconfiguredError: A time-out was given.
    """
    config = kafka_config(options)
    for name in ("message.timeout.ms", "delivery.timeout.ms"):
        if name in config:
            raise MisconfiguredError(
                "-X", name,
                "what is sent behind a message that timed out would look as if nothing "
                "before it were missing: the client's guarantee does not cover that",
                "Leave it out: a leader that does not get through gives up by itself.",
            )  # fmt: skip
    return {**config, "enable.gapless.guarantee": True, "message.timeout.ms": 0}


def open_ledger(options: argparse.Namespace) -> Ledger:
    """The ledger that the options name."""
    return Ledger(
        kafka_config(options),
        coordination_topic=options.coordination_topic,
        table_topic=options.table_topic,
    )


def open_election(
    options: argparse.Namespace, scope: str, conninfo: str | None = None
) -> Election:
    """This process's candidacy.

    Args:
        options: As `add_leader_options` has them.
        scope: What to lead.
        conninfo: PostgreSQL, where the election may be held there.

    Raises:
        MisconfiguredError: The election is to be held where it cannot be.
    """
    silence_s: float = options.silence_s
    if options.election == "postgres":
        if not conninfo:
            raise MisconfiguredError(
                "--election", "postgres", "nobody knows where that is",
                "Say it (--postgres CONNINFO), or leave the election to Kafka.",
            )  # fmt: skip
        try:
            from epochfence.elections import PostgresElection  # the extra `postgres`
        except ImportError as error:
            raise MisconfiguredError(
                "--election", "postgres", f"psycopg cannot be used ({error})",
                "Install it: pip install 'epochfence[postgres]'.",
            ) from error  # fmt: skip
        return PostgresElection(
            conninfo, scope, silence_s=silence_s, interval_s=silence_s / 5
        )
    config = {
        **kafka_config(options),
        "session.timeout.ms": round(silence_s * 1000),
        "heartbeat.interval.ms": max(1, round(silence_s * 1000 / 6)),
    }
    return KafkaElection(config, scope, topic=options.coordination_topic)


class _Once(logging.Filter):
    """Lets no line through that was said in the minute before, however often."""

    def __init__(self) -> None:
        super().__init__()
        self._said_s: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is new."""
        # Clients tell their names, and how long something took: which differ.
        text, now_s = re.sub(r"[0-9]+", "0", record.getMessage()), time.monotonic()
        if now_s - self._said_s.get(text, float("-inf")) < _MINUTE_S:
            return False
        self._said_s[text] = now_s
        return True


@contextmanager
def reported_errors() -> Generator[None, None, None]:
    """End the program with a sentence: code 2 where a setting is wrong, else 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    filters = [(handler, _Once()) for handler in logging.getLogger().handlers]
    for handler, once in filters:
        handler.addFilter(once)
    try:
        yield
    except MisconfiguredError as error:
        _end(error, 2)
    except (EpochfenceError, KafkaException, Stopped) as error:
        _end(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        for handler, once in filters:
            handler.removeFilter(once)


def _end(error: Exception, code: int) -> None:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(code)


def cursor_numbers(cursor: bytes, parts: int) -> list[int]:
    """The numbers of a cursor such as `742:19`.

    Raises:
        Stopped: Somebody else's program writes to the topic under this scope.
    """
    numbers = cursor.decode("utf-8", "replace").split(":")
    if len(numbers) != parts or not all(number.isdecimal() for number in numbers):
        raise strange(cursor)
    return [int(number) for number in numbers]


def strange(cursor: bytes) -> Stopped:
    """What to say of a cursor that cannot be this program's."""
    return Stopped(
        f"the topic's last cursor is {cursor!r}: not one of this program's. Give it a "
        f"topic, and a scope, of its own."
    )


def counted(counts: Mapping[Any, int]) -> str:
    """Counts in a sentence, those that are not 0."""
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "none"
