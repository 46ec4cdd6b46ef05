"""`epochfence audit`: judge a topic or a record file against a ledger."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.progress import Progress, TextColumn, TimeElapsedColumn

from epochfence.audit_options import (
    GroupToCompare,
    SinkKey,
    SinkOption,
    SinkSchema,
    SinkTableName,
    SinkValue,
    TableTopicToCompare,
    compared_with,
)
from epochfence.audit_report import print_report
from epochfence.cli_options import (
    Authority,
    BootstrapServer,
    CommandConfig,
    MaxJump,
    Properties,
    Scopes,
    StampOption,
    Timeout,
    Unstamped,
    UnstampedChoice,
    fence_settings,
    kafka_config,
)
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.topics import COORDINATION_TOPIC
from epochfence.epochs.verdicts import REJECTED
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.checking import begin_checks
from epochfence.replay.checking import read_table as read_table_topic
from epochfence.replay.engine import audit_topic
from epochfence.replay.file_source import audit_file
from epochfence.replay.files import (
    InvalidFileError,
    VerdictFile,
    read_ledger,
    read_table,
)
from epochfence.replay.sources import Progress as Tick
from epochfence.replay.summing_up import sum_up
from epochfence.replay.told_topics import read_told_ledger
from epochfence.replay.topic_source import TopicSource
from epochfence.terminal import (
    EXIT_FAILED,
    err,
    print_note,
    reported_errors,
    told_if_slow,
    written_whole,
)


class AuditFormat(str, Enum):
    """How a report is printed."""

    table = "table"
    json = "json"


class FailOn(str, Enum):
    """What makes `audit` end with exit code 1."""

    rejected = "rejected"
    quarantined = "quarantined"
    never = "never"


_FAILING = {
    FailOn.never: set[str](),
    FailOn.quarantined: {"quarantined"},
    FailOn.rejected: set[str](REJECTED),
}


def audit(
    records: Annotated[
        str | None,
        typer.Argument(
            metavar="RECORDS",
            help="A record file (JSON lines); - is the standard input.",
            show_default=False,
        ),
    ] = None,
    topic: Annotated[
        str | None,
        typer.Option("-t", "--topic", metavar="T", help="Read this topic instead."),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option(
            "-p", "--partition", metavar="N", min=0, help="Only these partitions."
        ),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    ledger: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A ledger file (JSON lines), taken as complete. A topic's default "
            "is the coordination topic of its cluster.",
        ),
    ] = None,
    coordination_topic: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="With --topic: the topic that holds the ledger. Default: "
            + COORDINATION_TOPIC,
        ),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="A table file (JSON lines): epoch starts known beforehand.",
        ),
    ] = None,
    table_topic: TableTopicToCompare = None,
    sink: SinkOption = None,
    sink_schema: SinkSchema = None,
    sink_table: SinkTableName = None,
    sink_key: SinkKey = None,
    sink_value: SinkValue = None,
    group: GroupToCompare = None,
    scopes: Scopes = None,
    stamp: StampOption = "epochfence",
    authority: Authority = None,
    unstamped: Unstamped = UnstampedChoice.quarantine,
    max_jump: MaxJump = None,
    format: Annotated[
        AuditFormat, typer.Option(help="How to print the report.")
    ] = AuditFormat.table,
    verdicts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a line for each record (JSON lines)."),
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="End with exit code 1 if there are such records.")
    ] = FailOn.never,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Show no progress.")
    ] = False,
    properties: Properties = None,
    command_config: CommandConfig = None,
    timeout_s: Timeout = 30.0,
) -> None:
    """Judge the records of a topic or of a file: what a fence would let through.

    Writes nothing to Kafka. Exit codes: 0 done, 1 --fail-on found something, 2 bad
    usage or input.
    """
    with reported_errors():
        settings = fence_settings(scopes, stamp, authority, unstamped, max_jump)
        _check_source(records, topic)
        if topic is None:
            _check_file(
                records or "-",
                {
                    "--partition": partitions,
                    "--property": properties,
                    "--command-config": command_config,
                    "--coordination-topic": coordination_topic,
                    "--table-topic": table_topic,
                    "--sink": sink,
                    "--group": group,
                },
            )
        compared = compared_with(
            coordination_topic, table_topic, group,
            sink, sink_schema, (sink_table, sink_key, sink_value), partitions,
        )  # fmt: skip
        if ledger is not None and settings.stamps.is_foreign:
            raise MisconfiguredError(
                "--ledger", ledger, "no ledger knows the epochs of a foreign stamp",
                "Leave it out, or use --stamp epochfence.",
            )  # fmt: skip
        _check_targets(verdicts, records, ledger, table)
        source = None
        if ledger is not None:
            source = LedgerSource(LedgerState(read_ledger(ledger)), ledger)
        starts = () if table is None else tuple(read_table(table))
        with (
            _verdict_file(verdicts) as lines,
            _progress(quiet) as tick,
            ExitStack() as opened,
        ):
            if topic is not None:
                config = kafka_config(bootstrap_server, properties, command_config)
                with told_if_slow(config, timeout_s):
                    checks = begin_checks(config, topic, compared, timeout_s)
                    opened.callback(checks.close)
                    records_there = TopicSource(config, topic, timeout_s, partitions)
                    read_table_topic(checks, config, compared, timeout_s)
                    if source is None and settings.authority == "ledger":
                        name = coordination_topic or COORDINATION_TOPIC
                        source = read_told_ledger(
                            config, name, timeout_s, must_keep=False
                        )
                floor = checks.floor(records_there.slices)
                found = Audit(settings, source, starts, floor)
                report = audit_topic(found, records_there, lines, tick, checks)
            else:
                _need_ledger(settings, source)
                found = Audit(settings, source, starts)
                audit_file(found, records or "-", lines, tick)
                report = sum_up(found, f"file {records}")
        if format is AuditFormat.json:
            print(msgspec.json.format(msgspec.json.encode(report)).decode())
        else:
            print_report(report)
        for remark in report.remarks:
            print_note(f"warning: {remark}")
        if any(one.verdict in _FAILING[fail_on] for one in report.verdicts):
            raise typer.Exit(EXIT_FAILED)


def _check_source(records: str | None, topic: str | None) -> None:
    if (records is None) == (topic is None):
        raise MisconfiguredError(
            "RECORDS", records, "one source of records is needed",
            "Give a record file, or --topic T with -b HOST:PORT.",
        )  # fmt: skip


def _check_file(path: str, options: dict[str, object]) -> None:
    """See that a record file is there, and that no option is given in vain."""
    if path != "-" and not Path(path).exists():
        raise InvalidFileError(
            path, None, "No such file. (To judge a topic of a cluster: --topic NAME)"
        )
    for name, value in options.items():
        if value:
            raise MisconfiguredError(
                name, ..., "it means nothing to a record file",
                "Leave it out, or read a topic with --topic T.",
            )  # fmt: skip


def _need_ledger(settings: FenceSettings, source: LedgerSource | None) -> None:
    if settings.authority == "ledger" and source is None:
        raise MisconfiguredError(
            "--authority", "ledger", "a record file comes without a ledger",
            "Give --ledger FILE (epochfence ledger export writes one), or "
            "--authority max-seen.",
        )  # fmt: skip


@contextmanager
def _verdict_file(path: Path | None) -> Generator[VerdictFile | None, None, None]:
    if path is None:
        yield None
        return
    with written_whole(path, "--verdicts") as file:
        yield VerdictFile(file)


def _check_targets(verdicts: Path | None, *inputs: str | None) -> None:
    """The verdict file must not replace what is judged."""
    for name in inputs:
        if verdicts is None or name is None or name == "-":
            continue
        if verdicts.exists() and Path(name).exists() and verdicts.samefile(name):
            raise MisconfiguredError(
                "--verdicts", str(verdicts), "it is an input of this audit",
                "Name another file.",
            )  # fmt: skip


@contextmanager
def _progress(is_quiet: bool) -> Generator[Tick | None, None, None]:
    console = err()
    if is_quiet or not console.is_terminal:
        yield None
        return
    columns = (TextColumn("{task.completed:,.0f} records"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None)
        yield lambda judged: progress.update(task, completed=judged)
