"""`epochfence demo`: a takeover with a zombie, on no Kafka at all or on yours."""

from __future__ import annotations

import logging
import random
import signal
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console

from epochfence.cli_options import (
    BootstrapServer,
    CommandConfig,
    Properties,
    kafka_config,
)
from epochfence.consumers.signals import handled
from epochfence.demo.scenario import make_scenario
from epochfence.demo.stage import DemoFailed, play
from epochfence.demo.view import Screen, fault_of
from epochfence.terminal import EXIT_FAILED, print_note, reported_errors

#: Slow enough for eyes; nobody watches a file.
_PACE_S = 0.25


def demo(
    bootstrap_server: BootstrapServer = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=2**32 - 1,
            help="Play this story again. Default: another each time.",
            show_default=False,
        ),
    ] = None,
    properties: Properties = None,
    command_config: CommandConfig = None,
) -> None:
    """See a deposed leader corrupt a consumer, and a fenced consumer that is not.

    Two processes lead in turn; the first is stopped in the middle of its work, and
    writes on when it wakes up. Needs no Kafka; with -b, it runs on yours, on topics of
    its own, which it deletes in the end. Exit codes: 0 played, 1 not as it should be,
    2 bad usage or a cluster that does not answer.
    """
    with reported_errors(), _ended_by_signals():
        config = None
        if bootstrap_server is not None or properties or command_config:
            config = kafka_config(bootstrap_server, properties, command_config)
        scenario = make_scenario(random.randrange(10_000) if seed is None else seed)
        console = Console(markup=False, highlight=False, emoji=False)
        console.print(
            _opening(config, scenario.seed), soft_wrap=not console.is_terminal
        )
        # What the library would log is what the demo shows.
        logging.getLogger("epochfence").setLevel(logging.ERROR)
        try:
            with Screen(console, scenario, is_on_cluster=config is not None) as screen:
                scene = play(
                    scenario,
                    config,
                    screen.show,
                    pace_s=_PACE_S if console.is_terminal else 0.0,
                )
        except DemoFailed as error:
            print_note(f"epochfence: the demo failed: {error}")
            raise typer.Exit(EXIT_FAILED) from error
        screen.sum_up(scene)
        problem = fault_of(scene, scenario.right)
        if problem:
            print_note(f"epochfence: not as it should be: {problem}")
            raise typer.Exit(EXIT_FAILED)


def _opening(config: Mapping[str, object] | None, seed: int) -> str:
    if config is None:
        where = "the Kafka client's embedded broker: nothing is installed"
    else:
        servers = config.get("bootstrap.servers")
        where = f"{servers}, on topics of its own, which it deletes in the end"
    return f"Two leaders keep a shop's stock levels (seed {seed}), on {where}.\n"


@contextmanager
def _ended_by_signals() -> Generator[None, None, None]:
    """End in order, processes included, where a supervisor or a terminal says so."""

    def end(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    names = ("SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    with handled(numbers, end):
        yield
