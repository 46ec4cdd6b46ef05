"""`epochfence gate`: an admitted-only copy of a topic, for those who cannot fence."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Annotated

import typer

from epochfence.cli_options import (
    Authority,
    BootstrapServer,
    CommandConfig,
    CoordinationTopic,
    MaxJump,
    Properties,
    Scopes,
    StampOption,
    TableTopic,
    Timeout,
    Unstamped,
    UnstampedChoice,
    fence_settings,
    kafka_config,
)
from epochfence.consumers.copied_topic import open_destination
from epochfence.consumers.gate import GateSink
from epochfence.consumers.sink_runner import (
    SinkProgress,
    SinkRunner,
    stopped_by_signals,
)
from epochfence.epochs.connection import connection_settings
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.terminal import print_note, reported_errors, told_if_slow

_ADMITTED = ("ok", "unstamped-admitted")


def gate(
    source: Annotated[str, typer.Argument(metavar="SRC", help="The topic to copy.")],
    destination: Annotated[
        str,
        typer.Argument(
            metavar="DST",
            help="The copy: a topic that is missing, empty, or this gate's own.",
        ),
    ],
    bootstrap_server: BootstrapServer = None,
    scopes: Scopes = None,
    stamp: StampOption = "epochfence",
    authority: Authority = None,
    unstamped: Unstamped = UnstampedChoice.quarantine,
    max_jump: MaxJump = None,
    group: Annotated[
        str | None,
        typer.Option(
            "-g",
            "--group",
            metavar="NAME",
            help="The group whose members share the partitions: the same one for "
            "every instance, always. Default: epochfence-gate.SRC.DST",
        ),
    ] = None,
    create: Annotated[
        bool, typer.Option(help="Create DST where it is missing, as SRC is.")
    ] = True,
    dead_letters: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Keep rejected records there, in the same transaction: see "
            "epochfence deadletters. It has to exist.",
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=1_000_000, help="Records a transaction, at most."
        ),
    ] = 1000,
    report_s: Annotated[
        float,
        typer.Option(
            "--report",
            metavar="SECONDS",
            min=0,
            max=86_400,
            help="How often to say how far it has come; 0: only at the end.",
        ),
    ] = 60.0,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    table_topic: TableTopic = TABLE_TOPIC,
    timeout_s: Timeout = 10.0,
) -> None:
    """Copy what is admitted of SRC to DST, for consumers that cannot fence.

    Keys, values, timestamps, headers and partitions are the source's; barriers and
    rejected records are left out, and so are headers that begin with epochfence. Each
    record's source (topic id:partition:leader epoch:offset) is in its header
    epochfence-source. Readers of DST need isolation.level=read_committed.

    It runs until SIGINT or SIGTERM. Start it again, or start more of it: each record
    is copied once. Exit codes: 0 ended by a signal, 1 another instance has taken over,
    2 bad usage, or what an operator has to see to.

    Example: epochfence gate orders orders-admitted -b localhost:9092 --scope
    orders-writer
    """
    with reported_errors():
        settings = fence_settings(scopes, stamp, authority, unstamped, max_jump)
        config = kafka_config(bootstrap_server, properties, command_config)
        if "group.id" in config:
            raise MisconfiguredError(
                "group.id", config["group.id"], "the gate's group is an option here",
                "Use --group.",
            )  # fmt: skip
        # Clients of our own take no more; a setting that is wrong meets the others.
        connection = connection_settings(config)
        if group is None:
            group = f"epochfence-gate.{source}.{destination}"
        with told_if_slow(config, timeout_s):
            ledger = Ledger(
                connection,
                coordination_topic=coordination_topic,
                table_topic=table_topic,
                timeout_s=timeout_s,
            )
        with ledger:
            with told_if_slow(config, timeout_s):
                ledger.table.refresh()
                largest_bytes = open_destination(
                    connection, ledger.table, source, destination,
                    create=create, timeout_s=timeout_s,
                )  # fmt: skip
                sink = GateSink(
                    config, source, destination,
                    largest_bytes=largest_bytes, dead_letters=dead_letters,
                    timeout_s=timeout_s,
                )  # fmt: skip
            with sink:
                runner = SinkRunner(
                    {**config, "group.id": group},
                    ledger,
                    sink,
                    require={source: settings},
                    batch_size=batch_size,
                    timeout_s=timeout_s,
                )
                # From before it is said on: whoever reads that may send one at once.
                with stopped_by_signals(runner), _reports(runner, report_s):
                    print_note(
                        f"copying {source} to {destination} as a member of group "
                        f"{group}; SIGINT (Ctrl-C) or SIGTERM ends it"
                    )
                    runner.run([source], handles_signals=False)
        print_note(f"ended in order: {_report(runner.progress)}")


def _report(progress: SinkProgress) -> str:
    counts = progress.counts
    rejected = ", ".join(
        f"{count:,} {reason}"
        for reason, count in sorted(counts.items())
        if count and reason not in (*_ADMITTED, "barrier")
    )
    places = ", ".join(
        f"{partition} at {position.next_offset}"
        for (_, partition), position in sorted(progress.positions.items())
    )
    report = (
        f"records copied: {progress.messages:,}, transactions: "
        f"{progress.transactions:,}, rejected: {rejected or 'none'}"
    )
    return f"{report}; partitions: {places}" if places else report


@contextmanager
def _reports(runner: SinkRunner, every_s: float) -> Generator[None, None, None]:
    """Say how far a runner has come, from time to time, where something happens."""
    if not every_s:
        yield
        return
    is_over = threading.Event()

    def tell() -> None:
        told = ""
        while not is_over.wait(every_s):
            report = _report(runner.progress)
            if report != told:
                print_note(report)
                told = report

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()
