"""`epochfence audit`: judge a topic or a record file against a ledger."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from epochfence.audit_files import verdict_files, with_parquet
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
from epochfence.audit_outputs import ReportFiles, report_json, schema_text
from epochfence.audit_report import print_report
from epochfence.cli_options import (
    Authority,
    BootstrapServer,
    CommandConfig,
    FailOn,
    MaxJump,
    Properties,
    Scopes,
    StampOption,
    Timeout,
    Unstamped,
    UnstampedChoice,
    as_milliseconds,
    fence_settings,
    kafka_config,
    what_if_settings,
)
from epochfence.consumers.signals import handled
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.topics import COORDINATION_TOPIC
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.checking import begin_checks
from epochfence.replay.checking import read_table as read_table_topic
from epochfence.replay.checkpoint import CheckpointFile
from epochfence.replay.collecting import rarely_collected
from epochfence.replay.engine import TopicAudit
from epochfence.replay.file_source import audit_file
from epochfence.replay.files import (
    InvalidFileError,
    is_parquet,
    read_ledger,
    read_table,
)
from epochfence.replay.markdown_report import markdown
from epochfence.replay.sources import Progress as Tick
from epochfence.replay.told_topics import read_told_ledger
from epochfence.replay.topic_source import Range, TopicSource
from epochfence.terminal import (
    EXIT_FAILED,
    err,
    print_note,
    reported_errors,
    told_if_slow,
)


class AuditFormat(str, Enum):
    """How a report is printed."""

    table = "table"
    json = "json"
    markdown = "markdown"


def _print_schema(is_asked: bool) -> None:
    if is_asked:
        print(schema_text(), end="")
        raise typer.Exit


def audit(
    records: Annotated[
        str | None,
        typer.Argument(
            metavar="RECORDS",
            help="A record file (JSON lines); - is the standard input. Or a Parquet "
            "file, or a folder of them.",
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
    since: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="With --topic: begin at the first record with such a timestamp, or a "
            "later one. ISO 8601; UTC where no zone is said.",
        ),
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help="With --topic: stop before such a record instead."
        ),
    ] = None,
    from_offset: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="With --topic: begin at this offset."),
    ] = None,
    to_offset: Annotated[
        int | None,
        typer.Option(metavar="N", min=0, help="With --topic: stop before this offset."),
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
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="SETTINGS",
            help="Tell as well what other settings would say: some of scope=S, "
            "stamp=STAMP, authority=A, unstamped=U, max-jump=N, with commas between. "
            "May be repeated.",
        ),
    ] = None,
    format: Annotated[
        AuditFormat, typer.Option(help="How to print the report.")
    ] = AuditFormat.table,
    html: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write the report as one HTML page."),
    ] = None,
    png: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write its picture, as PNG. Needs the extra png (matplotlib).",
        ),
    ] = None,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            is_eager=True,
            callback=_print_schema,
            help="Print the JSON schema of --format json, and end.",
        ),
    ] = False,
    verdicts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write a line for each record (JSON lines)."),
    ] = None,
    parquet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a row for each record (Parquet; extra parquet)."
        ),
    ] = None,
    fail_on: Annotated[
        FailOn, typer.Option(help="End with exit code 1 if there are such records.")
    ] = FailOn.never,
    workers: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            max=256,
            help="With --topic: judge so many partitions at a time, by a process each.",
        ),
    ] = 1,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With --topic: keep there how far it has come. The same command goes "
            "on from it after Ctrl-C or an error.",
        ),
    ] = None,
    quiet: Annotated[
        bool, typer.Option("-q", "--quiet", help="Show no progress.")
    ] = False,
    properties: Properties = None,
    command_config: CommandConfig = None,
    timeout_s: Timeout = 30.0,
) -> None:
    """Judge the records of a topic or of a file: what a fence would let through.

    Writes nothing to Kafka, and leaves no consumer group behind. Exit codes: 0 done, 1
    --fail-on found something, 2 bad usage or input, or not all could be read (what was
    judged is reported all the same, marked as partial), 130 Ctrl-C (so is this).

    Examples:

    epochfence audit orders.jsonl --ledger ledger.jsonl

    epochfence audit orders.jsonl --ledger ledger.jsonl --html audit.html

    epochfence audit -t orders -b localhost:9092 --since 2026-11-30T22:00 --workers 4

    epochfence audit -t orders -b localhost:9092 --what-if unstamped=admit
    """
    with reported_errors(), rarely_collected():
        settings = fence_settings(scopes, stamp, authority, unstamped, max_jump)
        others = [what_if_settings(one, settings) for one in what_if or ()]
        _check_source(records, topic)
        if topic is None:
            _check_file(
                records or "-",
                {
                    "--partition": partitions,
                    "--property": properties,
                    "--command-config": command_config,
                    "--coordination-topic": coordination_topic,
                    "--since": since,
                    "--until": until,
                    "--from-offset": from_offset is not None,
                    "--to-offset": to_offset is not None,
                    "--workers": workers > 1,
                    "--checkpoint": checkpoint,
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
        _check_targets("--verdicts", verdicts, records, ledger, table)
        _check_targets("--parquet", parquet, records, ledger, table)
        _check_targets("--checkpoint", checkpoint, records, ledger, table)
        if checkpoint is not None and (sink or group):
            raise MisconfiguredError(
                "--checkpoint", str(checkpoint), "it goes with no --sink or --group",
                "What these have come to meanwhile lies behind the ends of the part "
                "that was kept: leave one of both out.",
            )  # fmt: skip
        _check_one_writer("--verdicts", verdicts, workers, checkpoint)
        _check_one_writer("--parquet", parquet, workers, checkpoint)
        files = ReportFiles(html, png)
        for option, target in files.targets():
            _check_targets(option, target, records, ledger, table)
        files.check(verdicts, parquet, checkpoint)
        source = None
        if ledger is not None:
            source = LedgerSource(LedgerState(read_ledger(ledger)), ledger)
        starts = () if table is None else tuple(read_table(table))
        needs_ledger = any(one.authority == "ledger" for one in (settings, *others))
        with (
            verdict_files(verdicts, parquet) as lines,
            _progress(quiet) as tick,
            _stopped() as (must_stop),
            ExitStack() as opened,
        ):
            if topic is not None:
                config = kafka_config(bootstrap_server, properties, command_config)
                limits = Range(
                    from_offset,
                    to_offset,
                    as_milliseconds(since, "--since"),
                    as_milliseconds(until, "--until"),
                )
                with told_if_slow(config, timeout_s):
                    checks = begin_checks(config, topic, compared, timeout_s)
                    opened.callback(checks.close)
                    there = TopicSource(config, topic, timeout_s, partitions, limits)
                    read_table_topic(checks, config, compared, timeout_s)
                    if source is None and needs_ledger:
                        name = coordination_topic or COORDINATION_TOPIC
                        source = read_told_ledger(
                            config, name, timeout_s, must_keep=False
                        )
                floor = checks.floor(there.slices)
                outcome = TopicAudit(
                    Audit(settings, source, starts, floor),
                    there,
                    others,
                    verdicts=lines,
                    progress=tick,
                    must_stop=must_stop,
                    workers=workers,
                    checkpoint=None
                    if checkpoint is None
                    else CheckpointFile(checkpoint),
                    asked=f"partitions {partitions}, {limits}",
                    checks=checks,
                ).run()
            else:
                if needs_ledger:
                    _need_ledger(settings, source)
                judge = audit_file
                if is_parquet(records or "-"):
                    module = with_parquet("parquet_source", "RECORDS", records)
                    judge = module.audit_parquet
                outcome = judge(
                    Audit(settings, source, starts),
                    records or "-",
                    others,
                    verdicts=lines,
                    progress=tick,
                    must_stop=must_stop,
                )
            if lines is not None and outcome.report.partial is not None:
                lines.abandon()
        report = outcome.report
        if report.partial is None or report.records:
            if format is AuditFormat.json:
                print(report_json(report))
            elif format is AuditFormat.markdown:
                print(markdown(report), end="")
            else:
                print_report(report)
            files.write(report)
        for remark in report.remarks:
            print_note(f"warning: {remark}")
        if outcome.is_stopped:
            raise KeyboardInterrupt
        if outcome.error is not None:
            raise outcome.error
        if any(fail_on.is_met(one.verdict) for one in report.verdicts):
            raise typer.Exit(EXIT_FAILED)


@contextmanager
def _stopped() -> Generator[Callable[[], bool], None, None]:
    """Whether Ctrl-C came: the first ends the reading, a second the command."""
    came = False

    def note(_: int, __: object) -> None:
        nonlocal came
        came = True
        print_note("stopping; what was judged is reported")

    with handled([signal.SIGINT, signal.SIGTERM], note, once=True):
        yield lambda: came


def _check_one_writer(
    option: str, verdicts: Path | None, workers: int, checkpoint: Path | None
) -> None:
    for name, there in (("--workers", workers > 1), ("--checkpoint", checkpoint)):
        if verdicts is not None and there:
            raise MisconfiguredError(
                option, str(verdicts), f"it cannot go together with {name}",
                "The file is written by one worker in one go: leave one of both out.",
            )  # fmt: skip


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


def _check_targets(option: str, target: Path | None, *inputs: str | None) -> None:
    """What is written must not replace what is judged."""
    for name in inputs:
        if target is None or name is None or name == "-":
            continue
        if target.exists() and Path(name).exists() and target.samefile(name):
            raise MisconfiguredError(
                option, str(target), "it is an input of this audit",
                "Name another file.",
            )  # fmt: skip


@contextmanager
def _progress(is_quiet: bool) -> Generator[Tick | None, None, None]:
    console = err()
    if is_quiet or not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("{task.fields[records]:,} records"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]:,.0f}/s"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=None, records=0, rate=0.0)
        began_at = time.monotonic()

        def tick(records: int, done: int, total: int) -> None:
            elapsed_s = max(time.monotonic() - began_at, 0.001)
            progress.update(
                task,
                completed=done,
                total=total or None,
                records=records,
                rate=records / elapsed_s,
            )

        yield tick
