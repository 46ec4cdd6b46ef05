"""`epochfence watch`: who leads, and who should not write any more, as it happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from itertools import chain
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.live import Live

from epochfence.cli_options import (
    Authority,
    BootstrapServer,
    CommandConfig,
    CoordinationTopic,
    FailOn,
    MaxJump,
    Properties,
    Scopes,
    StampOption,
    TableTopic,
    Timeout,
    Unstamped,
    UnstampedChoice,
    as_milliseconds,
    fence_settings,
    kafka_config,
)
from epochfence.consumers.signals import handled
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.replay.live_reader import Beginning, LiveReader
from epochfence.replay.watch_picture import Picture, changes
from epochfence.terminal import (
    EXIT_FAILED,
    as_utc,
    print_note,
    printable,
    reported_errors,
    told_if_slow,
    warnings_kept,
)
from epochfence.watch_screen import WatchScreen
from epochfence.watch_tables import print_picture

#: How soon a signal is answered.
_NAP_S = 0.05

_KEPT_WARNINGS = 3


def watch(
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "-t", "--topic", metavar="T", help="The topic to watch. May be repeated."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    scopes: Scopes = None,
    stamp: StampOption = "epochfence",
    authority: Authority = None,
    unstamped: Unstamped = UnstampedChoice.quarantine,
    max_jump: MaxJump = None,
    from_start: Annotated[
        bool,
        typer.Option(
            "--from-start", help="Begin at the start of the log instead of now."
        ),
    ] = False,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Begin at the first record with such a timestamp, or a later one. "
            "ISO 8601; UTC where no zone is said.",
        ),
    ] = None,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            min=0.1,
            max=3600,
            help="How often to show what is new.",
        ),
    ] = 1.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once",
            help="Read to where the log ends now, print tables, and end.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print a JSON object a line, one each interval (or one)."
        ),
    ] = False,
    duration_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="SECONDS",
            min=0.1,
            max=31_536_000,
            help="End after so long. Default: at Ctrl-C.",
            show_default=False,
        ),
    ] = None,
    fail_on: Annotated[
        FailOn,
        typer.Option(help="End with exit code 1 if there were such records."),
    ] = FailOn.never,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    table_topic: TableTopic = TABLE_TOPIC,
    properties: Properties = None,
    command_config: CommandConfig = None,
    timeout_s: Timeout = 30.0,
) -> None:
    """Watch topics: who leads them, and who still writes that should not any more.

    On a terminal it takes the whole screen; elsewhere it prints a line for each
    change. Writes nothing to Kafka, joins no consumer group, commits nothing. The
    ledger is followed to the end that the broker tells (unsynced). Once it watches, a
    cluster that does not answer is waited for. Exit codes: 0 ended by Ctrl-C, SIGTERM,
    --for or --once; 1 --fail-on found something; 2 bad usage, or the topics or the
    ledger cannot be read; 130 Ctrl-C before it began, or with --once.

    Examples:

    epochfence watch -t orders -b localhost:9092 --scope orders-writer

    epochfence watch -t orders -t stock -b localhost:9092 --since 2026-11-30T22:00

    epochfence watch -t orders -b localhost:9092 --once --from-start --fail-on rejected

    epochfence watch -t orders -b localhost:9092 --json --interval 10 --for 3600
    """
    with reported_errors():
        if not topics:
            raise MisconfiguredError(
                "-t/--topic", None, "no topic is named", "Give -t TOPIC."
            )
        if from_start and since is not None:
            raise MisconfiguredError(
                "--since", since, "it cannot go together with --from-start",
                "Leave one of both out.",
            )  # fmt: skip
        if once and duration_s is not None:
            raise MisconfiguredError(
                "--for", duration_s, "it cannot go together with --once",
                "Leave one of both out.",
            )  # fmt: skip
        settings = fence_settings(scopes, stamp, authority, unstamped, max_jump)
        beginning = Beginning(from_start, as_milliseconds(since, "--since"))
        config = kafka_config(bootstrap_server, properties, command_config)
        with told_if_slow(config, timeout_s):
            reader = LiveReader(
                config, topics, settings, beginning,
                coordination_topic=coordination_topic, table_topic=table_topic,
                timeout_s=timeout_s,
            )  # fmt: skip
        with _stopped(duration_s) as is_stopped, reader:
            if once:
                reader.wait_for_ends(is_stopped)
                if is_stopped():
                    raise KeyboardInterrupt
                last = reader.picture()
                _print_json(last) if as_json else print_picture(last)
                if last.records == 0 and not (from_start or since):
                    print_note(
                        "note: no record was read; --from-start or --since TIME says "
                        "from where"
                    )
            else:
                looks = _looks(reader, interval_s, is_stopped)
                last = _show(reader.picture(), looks, as_json)
        if any(fail_on.is_met(one.verdict) for one in last.verdicts):
            raise typer.Exit(EXIT_FAILED)


def _show(first: Picture, looks: Iterable[Picture], as_json: bool) -> Picture:
    """Show picture after picture; give the last one."""
    console = Console(markup=False, highlight=False, emoji=False)
    picture = first
    if as_json:
        for picture in chain([first], looks):
            _print_json(picture)
        return picture
    if not console.is_terminal:
        names = ", ".join(first.topics)
        print_note(f"watching {names}; SIGINT (Ctrl-C) or SIGTERM ends it")
        return _show_lines(first, looks)
    with (
        warnings_kept(_KEPT_WARNINGS) as warnings,
        Live(console=console, screen=True, auto_refresh=False) as live,
    ):
        for picture in chain([first], looks):
            live.update(WatchScreen(picture, warnings), refresh=True)
    # What was seen last is worth keeping.
    console.print(WatchScreen(picture, warnings, is_over=True))
    return picture


def _show_lines(first: Picture, looks: Iterable[Picture]) -> Picture:
    before: Picture | None = None
    picture = first
    for picture in chain([first], looks):
        for line in changes(before, picture):
            print(printable(f"{as_utc(picture.at)} {line}"), flush=True)
        before = picture
    print(picture.summary())
    return picture


def _print_json(picture: Picture) -> None:
    print(msgspec.json.encode(picture).decode(), flush=True)


def _looks(
    reader: LiveReader, interval_s: float, is_stopped: Callable[[], bool]
) -> Generator[Picture, None, None]:
    """A picture each interval, and one in the end."""
    due_s = time.monotonic() + interval_s
    while not is_stopped():
        if time.monotonic() >= due_s:
            yield reader.picture()
            due_s = time.monotonic() + interval_s
        time.sleep(_NAP_S)
    yield reader.picture()


@contextmanager
def _stopped(duration_s: float | None) -> Generator[Callable[[], bool], None, None]:
    """Whether a signal came, or the time is over."""
    came = False
    end_s = None if duration_s is None else time.monotonic() + duration_s

    def note(_: int, __: object) -> None:
        nonlocal came
        came = True

    def is_over() -> bool:
        return came or (end_s is not None and time.monotonic() >= end_s)

    with handled([signal.SIGINT, signal.SIGTERM], note, once=True):
        yield is_over
