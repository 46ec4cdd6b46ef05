"""The store behind a read fence, as ASGI servers call it."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from read_fence import MAX_ITEM_BYTES
from read_fence_asgi import Application, create_application
from support.brokers import KafkaBroker
from support.example_program import EXAMPLES, kafka_options
from support.kafka_node import pick_ports
from support.ledgers import LedgerTopics

_WAIT_S = 60


class Server:
    """What an ASGI server does for one request, or for a life."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    def tell(self, kind: str, **facts: Any) -> None:
        """Tell the application something."""
        self._told.put_nowait({"type": kind, **facts})

    async def run(self, kind: str, **scope: Any) -> None:
        """Call the application."""
        await self._application({"type": kind, **scope}, self._told.get, self.sent.put)


@asynccontextmanager
async def served(application: Application) -> AsyncGenerator[None, None]:
    """The application between its server's start and end."""
    server = Server(application)
    life = asyncio.create_task(server.run("lifespan"))
    server.tell("lifespan.startup")
    started = await asyncio.wait_for(server.sent.get(), _WAIT_S)
    assert started == {"type": "lifespan.startup.complete"}
    yield
    server.tell("lifespan.shutdown")
    await asyncio.wait_for(life, _WAIT_S)
    assert await server.sent.get() == {"type": "lifespan.shutdown.complete"}


async def ask(
    application: Application, method: str, path: str, *body: bytes
) -> tuple[int, bytes]:
    """Ask, with a body that comes in pieces."""
    server = Server(application)
    for piece in body:
        server.tell("http.request", body=piece, more_body=True)
    server.tell("http.request")
    await server.run("http", method=method, path=path)
    start, rest = await server.sent.get(), await server.sent.get()
    assert all(name == name.lower() for name, _ in start["headers"])
    return start["status"], rest["body"]


async def until_it_leads(application: Application) -> None:
    while (await ask(application, "GET", "/items/cup"))[0] == 503:
        await asyncio.sleep(0.05)


def test_it_serves_as_the_leader(
    kafka: KafkaBroker, topics: LedgerTopics, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [*kafka_options(topics), "--topic", kafka.create_topic("items")]
    monkeypatch.setenv("READ_FENCE", shlex.join(options))

    async def play() -> None:
        application = create_application()
        async with served(application):
            await asyncio.wait_for(until_it_leads(application), _WAIT_S)
            put = await ask(application, "PUT", "/items/cup", b"th", b"ree")
            assert put == (204, b"")
            answers = [ask(application, "GET", "/items/cup") for _ in range(20)]
            assert set(await asyncio.gather(*answers)) == {(200, b"three")}
            much = b"x" * MAX_ITEM_BYTES
            assert (await ask(application, "PUT", "/items/cup", much, b"x"))[0] == 413
            status, body = await ask(application, "GET", "/leader")
            told = json.loads(body)
            assert (status, told["epoch"], told["is_here"]) == (200, 1, True)

    asyncio.run(play())


def test_a_start_that_fails(topics: LedgerTopics) -> None:
    async def play() -> None:
        from read_fence import parser

        options = [*kafka_options(topics), "--topic", "items", "--address", "pod-7"]
        server = Server(Application(parser().parse_args(options)))
        server.tell("lifespan.startup")
        await server.run("lifespan")
        told = await server.sent.get()
        assert told["type"] == "lifespan.startup.failed"
        assert "--address" in told["message"]

    asyncio.run(play())


@pytest.mark.parametrize("server", ["its own", "a factory's"])
def test_a_server_whose_leading_ends_by_itself_ends(
    topics: LedgerTopics, server: str
) -> None:
    (port,) = pick_ports(1)
    options = [*kafka_options(topics), "--topic", "not-there", "--port", str(port)]
    program = [str(EXAMPLES / "read_fence_asgi.py"), *options]
    if server != "its own":
        factory = "read_fence_asgi:create_application"
        program = ["-m", "uvicorn", "--factory", factory, "--port", str(port)]
    ended = subprocess.run(
        [sys.executable, *program],
        env={**os.environ, "READ_FENCE": shlex.join(options)},
        cwd=EXAMPLES,
        capture_output=True,
        text=True,
        check=False,
        timeout=_WAIT_S,
    )
    assert ended.returncode == (2 if server == "its own" else -signal.SIGTERM)
    assert ended.stderr.count("there is no such topic") == 1
    assert "Application shutdown complete" in ended.stderr
    assert "Traceback" not in ended.stderr
