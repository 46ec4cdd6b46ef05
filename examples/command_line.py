"""What the example programs share: options, errors as sentences, who is to be elected.

No part of epochfence. Whoever starts a program from one of these takes it along, or
puts the settings in by hand.
"""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from confluent_kafka import KafkaException

from epochfence import EpochfenceError, Ledger, MisconfiguredError
from epochfence.elections import Election, KafkaElection
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC


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
        "--silence", type=positive, default=10.0, metavar="SECONDS", dest="silence_s",
        help="how long a leader may be silent until another is elected (%(default)s)",
    )  # fmt: skip


def positive(text: str) -> float:
    """A number above 0, for argparse."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def whole(text: str) -> int:
    """A whole number above 0, for argparse."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


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
    """
    silence_s: float = options.silence_s
    if options.election == "postgres":
        from epochfence.elections import PostgresElection  # the extra `postgres`

        return PostgresElection(
            conninfo or "", scope, silence_s=silence_s, interval_s=silence_s / 5
        )
    config = {
        **kafka_config(options),
        "session.timeout.ms": round(silence_s * 1000),
        "heartbeat.interval.ms": max(1, round(silence_s * 1000 / 6)),
    }
    return KafkaElection(config, scope, topic=options.coordination_topic)


@contextmanager
def reported_errors() -> Generator[None, None, None]:
    """End the program with a sentence: code 2 where a setting is wrong, else 1."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(message)s")
    try:
        yield
    except MisconfiguredError as error:
        _end(error, 2)
    except (EpochfenceError, KafkaException, Stopped) as error:
        _end(error, 1)
    except KeyboardInterrupt:
        sys.exit(130)


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
        raise Stopped(
            f"the topic's last cursor is {cursor!r}: not one of this program's. Give "
            f"it a topic, and a scope, of its own."
        )
    return [int(number) for number in numbers]


def counted(counts: Mapping[Any, int]) -> str:
    """Counts in a sentence, those that are not 0."""
    return ", ".join(f"{n} {name}" for name, n in counts.items() if n) or "none"
