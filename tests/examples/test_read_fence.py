"""The store behind a read fence: a leader that was paused tells nothing old."""

from __future__ import annotations

import http.client
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any, NamedTuple

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.example_program import Program, Team, kafka_options
from support.kafka_node import LOOPBACK, pick_ports
from support.ledgers import LedgerTopics
from support.waiting import wait_until

_WAIT_S = 90
_WAITING = 8
_SERVES = {
    "read_fence.py": "serves at",
    "read_fence_asgi.py": "INFO:     Uvicorn running on",
}
_ITEM = "/items/a%20cup"


class Reply(NamedTuple):
    """What came back over HTTP."""

    status: int
    body: bytes
    location: str | None


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None) -> Reply:
    """Ask one process, and go nowhere else."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_WAIT_S)
    with closing(connection):
        connection.request(method, path, body)
        response = connection.getresponse()
        return Reply(response.status, response.read(), response.getheader("Location"))


def address(port: int) -> str:
    return f"http://{LOOPBACK}:{port}"


@pytest.fixture
def ports() -> dict[str, int]:
    """Where the process of each holder listens."""
    return {}


@pytest.fixture(params=["read_fence.py", "read_fence_asgi.py"])
def program_name(request: pytest.FixtureRequest) -> str:
    """By Python's own server, and by uvicorn."""
    name: str = request.param
    return name


@pytest.fixture
def team(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    ports: dict[str, int],
    program_name: str,
) -> Iterator[Team]:
    topic = kafka.create_topic("items")

    def start(holder: str) -> Program:
        (ports[holder],) = pick_ports(1)
        return Program(
            program_name, *kafka_options(topics), "--topic", topic,
            *("--holder", holder, "--port", str(ports[holder]), "--silence", "1.5"),
        )  # fmt: skip

    with Team(ledger, f"items/{topic}", start) as made:
        yield made


def test_a_paused_leader_answers_no_stale_read(
    team: Team, ports: dict[str, int], program_name: str
) -> None:
    for program in team.programs.values():
        program.wait_for(_SERVES[program_name])
    claim, leader = team.wait_for_leader()
    (follower,) = [name for name in ports if name != claim.holder]
    old, new = ports[claim.holder], ports[follower]
    assert ask(old, _ITEM) == (404, b"no such item\n", None)
    assert ask(old, _ITEM, "PUT", b"old").status == 204
    assert ask(old, _ITEM) == (200, b"old", None)
    wait_until(lambda: ask(new, _ITEM).status == 307, _WAIT_S, "the follower forwards")
    for method in ("GET", "PUT"):
        assert ask(new, _ITEM, method) == (307, b"", address(old) + _ITEM)

    leader.tell(signal.SIGSTOP)
    second, _ = team.wait_for_leader(claim.epoch)
    assert ask(new, _ITEM) == (200, b"old", None)
    assert ask(new, _ITEM, "PUT", b"new").status == 204
    # The questions are there already when it wakes up.
    replies: list[Reply] = []
    questions = [
        threading.Thread(target=lambda: replies.append(ask(old, _ITEM)))
        for _ in range(_WAITING)
    ]
    for question in questions:
        question.start()
    leader.tell(signal.SIGCONT)
    for question in questions:
        question.join(_WAIT_S)
    assert len(replies) == _WAITING
    replies += [ask(old, _ITEM) for _ in range(_WAITING)]
    forwarded = Reply(307, b"", address(new) + _ITEM)
    assert all(reply == forwarded or reply.status == 503 for reply in replies), replies
    leader.wait_for("over: ")
    wait_until(lambda: ask(old, _ITEM) == forwarded, _WAIT_S, "it forwards")
    assert ask(old, _ITEM, "PUT", b"x") == forwarded
    assert ask(new, _ITEM) == (200, b"new", None)
    told: dict[str, Any] = json.loads(ask(old, "/leader").body)
    assert (told["epoch"], told["holder"]) == (second.epoch, follower)
    assert (told["address"], told["is_here"]) == (address(new), False)
    assert ask(old, "/healthz").status == 200

    # It hands over, to who was deposed before, and has read on.
    # uvicorn ends in order, and then by the signal that it was sent.
    assert team.programs.pop(follower).end() in (0, -signal.SIGTERM)
    team.wait_for_leader(second.epoch)
    wait_until(lambda: ask(old, _ITEM).status == 200, _WAIT_S, "it serves again")
    assert ask(old, _ITEM).body == b"new"
