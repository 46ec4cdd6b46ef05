"""Kafka in a container: one node, from `docker/compose.yaml`.

The container ends with the tests: in order, or, where pytest is killed, by a small
shell process that learns of it from a pipe that closes (as in `support.scratch`).
"""

import os
import secrets
import shlex
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka.admin import AdminClient
from pytest_docker.plugin import DockerComposeExecutor, get_docker_ip

from support.brokers import KafkaBroker
from support.cluster_view import ask
from support.kafka_jars import KAFKA_VERSION
from support.kafka_node import LOOPBACK, pick_ports
from support.unavailable import StartFailed, Unavailable
from support.waiting import wait_until

COMPOSE_FILE = Path(__file__).parents[2] / "docker" / "compose.yaml"
IMAGE_VARIABLE = "KAFKA_IMAGE"
PUBLIC_IMAGE = f"apache/kafka:{KAFKA_VERSION}"

# Where no engine runs, the answer comes at once; an engine that is busy takes longer.
_ENGINE_TIMEOUT_S = 10
_PULL_TIMEOUT_S = 200
_START_TIMEOUT_S = 90
_VIEW_TIMEOUT_S = 3

# Nothing in there is worth a long farewell.
_DOWN = "down --volumes --timeout 1"


def docker_broker(stack: ExitStack) -> KafkaBroker:
    """Start one node in a container (a choice for `support.brokers.open_first`)."""
    _check_engine()
    command = _find_compose()
    _get_image(os.environ.get(IMAGE_VARIABLE) or PUBLIC_IMAGE)
    # Parallel test runs, and the workers of one, each have a node of their own.
    port, controller_port = pick_ports(2)
    project = f"epochfence-test-{secrets.token_hex(6)}"
    # Set in the shell that runs the command, as they concern nothing else.
    command = f"KAFKA_PORT={port} KAFKA_CONTROLLER_PORT={controller_port} {command}"
    stack.enter_context(_guarded(command, project))
    compose = DockerComposeExecutor(command, str(COMPOSE_FILE), project)
    # Before the start, which may fail half-way.
    stack.callback(_compose, compose, _DOWN)
    _compose(compose, "up --detach")
    servers = f"{LOOPBACK}:{port}"
    _wait_until_ready(servers, project, compose)
    return KafkaBroker(servers)


def _wait_until_ready(
    servers: str, project: str, compose: DockerComposeExecutor
) -> None:
    # Until somebody listens, the client is to try often and say nothing.
    config = {"bootstrap.servers": servers, "reconnect.backoff.max.ms": "200"}
    client = AdminClient({**config, "log_level": "0"})

    def answers() -> bool:
        label = f"label=com.docker.compose.project={project}"
        if not _docker("ps", "--quiet", "--filter", label).stdout.strip():
            raise StartFailed("the container ended")
        view = ask(client, _VIEW_TIMEOUT_S)
        return view is not None and len(view.brokers) == 1

    try:
        wait_until(answers, _START_TIMEOUT_S, "the container's Kafka answers")
    except (StartFailed, TimeoutError) as error:
        log = _compose(compose, "logs --no-color --tail 40")
        raise StartFailed(f"{error}\n--- end of the container's log:\n{log}") from error


def _check_engine() -> None:
    """Raise `Unavailable` unless an engine answers that shares our network."""
    try:
        answer = _docker("info", "--format", "{{.OperatingSystem}}")
    except FileNotFoundError as error:
        raise Unavailable("docker was not found: install Docker") from error
    except subprocess.TimeoutExpired as expired:
        raise Unavailable("the Docker engine does not answer: start it") from expired
    if answer.returncode != 0:
        reason = _last_line(answer.stderr)
        raise Unavailable(f"no Docker engine answers ({reason}): start one")
    # The node is reached, and reaches itself, at an address of its engine's machine.
    if get_docker_ip() != LOOPBACK or answer.stdout.strip() == "Docker Desktop":
        raise Unavailable(
            "the Docker engine is on a machine of its own (DOCKER_HOST, or Docker "
            f"Desktop): start {COMPOSE_FILE.name} there"
        )


def _find_compose() -> str:
    """Return the command, of one word or two, that is docker compose here."""
    for command in ("docker compose", "docker-compose"):
        try:
            answer = _run(*command.split(), "version")
        except (FileNotFoundError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0:
            return command
    raise Unavailable("docker compose was not found: install its plugin")


def _get_image(name: str) -> None:
    """Pull the image if it is not there yet."""
    if _docker("image", "inspect", name).returncode == 0:
        return
    try:
        answer = _docker("pull", "--quiet", name, timeout_s=_PULL_TIMEOUT_S)
    except subprocess.TimeoutExpired as expired:
        reason = f"not within {expired.timeout:g} s"
    else:
        if answer.returncode == 0:
            return
        reason = _last_line(answer.stderr)
    raise Unavailable(
        f"the image {name} is not there and cannot be pulled ({reason}): "
        f"set {IMAGE_VARIABLE} to one that docker/build-image.sh has built"
    )


@contextmanager
def _guarded(command: str, project: str) -> Generator[None]:
    """Have the project ended if pytest ends within the block, however it does."""
    file = shlex.quote(str(COMPOSE_FILE))
    script = f"read -r _; {command} --file {file} --project-name {project} {_DOWN}"
    # Its own session: a Ctrl-C at the terminal must not reach it.
    with subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as guard:
        try:
            yield
        finally:
            guard.send_signal(signal.SIGKILL)


def _compose(compose: DockerComposeExecutor, subcommand: str) -> str:
    """Run docker compose, and return what it prints."""
    try:
        return bytes(compose.execute(subcommand)).decode(errors="replace")
    except Exception as error:  # its own are of no other type
        raise StartFailed(str(error)) from error


def _docker(
    *arguments: str, timeout_s: float = _ENGINE_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return _run("docker", *arguments, timeout_s=timeout_s)


def _run(
    *command: str, timeout_s: float = _ENGINE_TIMEOUT_S
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["no reason given"])[-1]
