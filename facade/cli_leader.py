"""`epochfence leader run`: any program, only while this process leads."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from contextlib import AbstractContextManager, suppress
from enum import Enum
from typing import Annotated

import typer

from epochfence import elections
from epochfence.cli_options import (
    BootstrapServer,
    CommandConfig,
    CoordinationTopic,
    Properties,
    TableTopic,
    Timeout,
    kafka_config,
    whoami,
)
from epochfence.epochs.connection import (
    Config,
    LastError,
    connection_settings,
    writing_producer,
)
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.topics import COORDINATION_TOPIC, TABLE_TOPIC
from epochfence.leading import Tenure, lead
from epochfence.leading.lead import WAITING
from epochfence.terminal import print_note, reported_errors, told_if_slow

app = typer.Typer(
    help="Do something only while leading.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

#: Settings of the group that an election on Kafka is held by.
_OF_GROUP = re.compile(r"(?:group|session|heartbeat)\.")

#: How soon the end of a command is noticed.
_LOOK_S = 0.05


class ElectionChoice(str, Enum):
    """Where the election is held."""

    kafka = "kafka"
    postgres = "postgres"
    etcd = "etcd"
    zookeeper = "zookeeper"
    kubernetes = "kubernetes"


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction]
    """Do something only while leading."""


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND...", help="What to run.")
    ],
    scope: Annotated[
        str, typer.Option(metavar="S", help="What to lead.", show_default=False)
    ],
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            metavar="TOPIC",
            help="A topic that the command writes to: it gets a barrier on every "
            "partition first. May be repeated.",
        ),
    ] = None,
    bootstrap_server: BootstrapServer = None,
    election: Annotated[
        ElectionChoice, typer.Option(help="Where the election is held.")
    ] = ElectionChoice.kafka,
    election_server: Annotated[
        str | None,
        typer.Option(
            metavar="WHERE",
            envvar="EPOCHFENCE_ELECTION_SERVER",
            help="PostgreSQL's conninfo, the host:port of etcd or ZooKeeper, or for "
            "Kubernetes a kubeconfig file, or in-cluster.",
        ),
    ] = None,
    holder: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Names this process, for people."),
    ] = None,
    grace_s: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            min=0,
            max=86_400,
            help="How long the command has to end, from SIGTERM on, before SIGKILL.",
        ),
    ] = 10.0,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="End, too, when the leadership does: with exit code 1."
        ),
    ] = False,
    properties: Properties = None,
    command_config: CommandConfig = None,
    coordination_topic: CoordinationTopic = COORDINATION_TOPIC,
    table_topic: TableTopic = TABLE_TOPIC,
    timeout_s: Timeout = 10.0,
) -> None:
    """Run a command while this process leads a scope; end it when it does not.

    It waits to be elected, claims an epoch, puts barriers on the topics, and starts
    the command. That finds in its environment EPOCHFENCE_SCOPE, EPOCHFENCE_EPOCH,
    EPOCHFENCE_GRANT_ID, EPOCHFENCE_HOLDER, and EPOCHFENCE_STAMP: the value of the
    header epochfence, which every message has to carry. It is not the signal that
    keeps a deposed leader out, but that stamp, wherever a fence reads.

    When another leads, the command, and what it has started, get SIGTERM; then this
    process stands for election again. SIGINT and SIGTERM end both.

    Exit codes: that of the command when it ends by itself (128 and the signal's number
    where one killed it), 0 ended by a signal, 1 the leadership is over (--once), 2 bad
    usage, or what an operator has to see to.

    Example: epochfence leader run --scope billing --topic orders -b localhost:9092 --
    ./billing --fast
    """
    with reported_errors():
        _check_command(command[0])
        given = kafka_config(bootstrap_server, properties, command_config)
        of_group = {name: given[name] for name in given if _OF_GROUP.match(name)}
        config = {name: given[name] for name in given if name not in of_group}
        # A mistake is to be found now, not by whoever has won the election. Nothing is
        # sent by this one.
        writing_producer(config, LastError(config))
        connection = connection_settings(config)
        with told_if_slow(config, timeout_s):
            ledger = Ledger(
                connection,
                coordination_topic=coordination_topic,
                table_topic=table_topic,
                timeout_s=timeout_s,
            )
        with (
            ledger,
            _opened(
                election,
                election_server,
                connection,
                of_group,
                scope,
                coordination_topic,
            ) as candidate,
        ):
            child = _Child(command, grace_s)
            leading = lead(
                config, ledger, candidate, scope, topics or [],
                holder=holder or whoami(), timeout_s=timeout_s,
                on_state=_say,
            )  # fmt: skip

            def work(tenure: Tenure) -> None:
                child.run(tenure)
                if once:
                    leading.stop()

            leading.serve(work)
    if child.code is not None:
        raise typer.Exit(child.code)
    if once and not child.was_told_to_stop:
        raise typer.Exit(1)


def _check_command(name: str) -> None:
    if shutil.which(name) is not None:
        return
    if os.path.isfile(name):
        raise MisconfiguredError(
            "COMMAND", name, "this file may not be executed",
            "Allow it (chmod +x), or name its interpreter before it.",
        )  # fmt: skip
    raise MisconfiguredError(
        "COMMAND", name, "there is no such program",
        "Give a program that is found on PATH, or its path.",
    )  # fmt: skip


def _say(state: str, reason: str) -> None:
    # What goes wrong meanwhile is a warning of its own.
    if state == "taking-over" or reason == WAITING:
        print_note(f"{state}: {reason}")


def _opened(
    choice: ElectionChoice,
    server: str | None,
    connection: Config,
    of_group: Config,
    scope: str,
    coordination_topic: str,
) -> AbstractContextManager[elections.Election]:
    if choice is ElectionChoice.kafka:
        if server is not None:
            raise MisconfiguredError(
                "--election-server", ..., "an election on Kafka is held on its brokers",
                "Leave it out, or choose another --election.",
            )  # fmt: skip
        return elections.KafkaElection(
            {**connection, **of_group}, scope, topic=coordination_topic
        )
    for name in of_group:
        raise MisconfiguredError(
            name, of_group[name], "only an election on Kafka is held by a group",
            f"Leave it out where the election is held by {choice.value}.",
        )  # fmt: skip
    if not server:
        raise MisconfiguredError(
            "--election-server", server,
            f"nothing says where the election by {choice.value} is held",
            "Give it, or set EPOCHFENCE_ELECTION_SERVER.",
        )  # fmt: skip
    try:
        if choice is ElectionChoice.postgres:
            return elections.PostgresElection(server, scope)
        if choice is ElectionChoice.etcd:
            return elections.EtcdElection(server, scope)
        if choice is ElectionChoice.zookeeper:
            return elections.ZookeeperElection(server, scope)
        return elections.KubernetesElection(server, scope)
    except ImportError as error:
        raise MisconfiguredError(
            "--election", choice.value, "its client is not installed",
            f"pip install 'epochfence[{choice.value}]'",
        ) from error  # fmt: skip


class _Child:
    """The command at work."""

    def __init__(self, command: list[str], grace_s: float) -> None:
        self._command = command
        self._grace_s = grace_s
        #: How it ended by itself, None where it did not.
        self.code: int | None = None
        self.was_told_to_stop = False

    def run(self, tenure: Tenure) -> None:
        """Run it until it ends, or the leadership does."""
        held = tenure.leadership
        environment = {
            **os.environ,
            "EPOCHFENCE_SCOPE": held.scope,
            "EPOCHFENCE_EPOCH": str(held.epoch),
            "EPOCHFENCE_GRANT_ID": held.grant_id,
            "EPOCHFENCE_HOLDER": held.holder,
            "EPOCHFENCE_STAMP": held.stamp_value.decode(),
        }
        print_note(f"leading {held.scope} under epoch {held.epoch}: {self._command[0]}")
        try:
            # In a session of its own: what it starts ends with it.
            process = subprocess.Popen(
                self._command, env=environment, start_new_session=True
            )
        except OSError as error:
            raise MisconfiguredError(
                "COMMAND", self._command[0], f"it cannot be started: {error.strerror}",
                "See that it is a program of this system, and that what its first line "
                "names (#!) is there.",
            ) from error  # fmt: skip
        try:
            while process.poll() is None:
                if tenure.wait(_LOOK_S):
                    break
        finally:
            is_ended = process.poll() is not None
            self._end(process)
        if is_ended:
            code = process.returncode
            self.code = code if code >= 0 else 128 - code
        else:
            self.was_told_to_stop = tenure.is_told_to_stop
            print_note(f"the command was ended: {tenure.reason}")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for number, wait_s in ((signal.SIGTERM, self._grace_s), (signal.SIGKILL, None)):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number)
            with suppress(subprocess.TimeoutExpired):
                process.wait(wait_s)
                if number is signal.SIGKILL or not _has_members(process.pid):
                    return


def _has_members(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
