"""The store of read_fence.py for ASGI servers, by the same options:

    python read_fence_asgi.py -b localhost:9092 --topic items --port 8001

    READ_FENCE="-b localhost:9092 --topic items --port 8001" \\
        uvicorn --factory read_fence_asgi:create_application --port 8001

The first takes uvicorn too (pip install uvicorn); the second way is that of any server
that calls a factory: there, `--port` says only where clients are sent.

`verify()` waits for the cluster, so a request is answered in a thread; those that wait
at the same time share one read of the ledger. Where leading ends by itself, the server
ends, too: the second way by SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any

from command_line import reported_errors
from read_fence import (
    MAX_ITEM_BYTES,
    Store,
    address_of,
    headers_of,
    opened_store,
    parser,
)

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


def end_by_signal(error: Exception) -> None:
    """Say why, and end this process as whoever stops the server does."""
    print(f"error: {error}", file=sys.stderr)
    os.kill(os.getpid(), signal.SIGTERM)


class Application:
    """An ASGI application: the store leads from the server's start to its end.

    Args:
        options: As read_fence.py has them.
        on_end: Told, in another thread, why leading ends by itself.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        on_end: Callable[[Exception], object] = end_by_signal,
    ) -> None:
        self._options = options
        self._on_end = on_end
        self._store: Store | None = None

    @property
    def error(self) -> Exception | None:
        """Why leading has ended by itself, if it has."""
        return None if self._store is None else self._store.error

    async def __call__(
        self, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        """Answer as ASGI has it."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, send)
        else:
            raise NotImplementedError(f"{scope['type']} is not served here")

    async def _live(self, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            assert (await receive())["type"] == "lifespan.startup"
            try:
                self._store = await asyncio.to_thread(
                    stack.enter_context, opened_store(self._options)
                )
                self._store.start(on_end=self._on_end)
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                return
            await send({"type": "lifespan.startup.complete"})
            assert (await receive())["type"] == "lifespan.shutdown"
            await asyncio.to_thread(stack.close)
        await send({"type": "lifespan.shutdown.complete"})

    async def _answer(
        self, scope: dict[str, Any], receive: Receive, send: Send
    ) -> None:
        body, is_more = b"", True
        while is_more and len(body) <= MAX_ITEM_BYTES:
            told = await receive()
            if told["type"] == "http.disconnect":
                return
            body += told.get("body", b"")
            is_more = told.get("more_body", False)
        if self._store is None:
            raise RuntimeError("the server has to tell of its start: --lifespan on")
        answer = await asyncio.to_thread(
            self._store.answer, scope["method"], scope["path"], body
        )
        headers = [
            (name.lower().encode(), value.encode())
            for name, value in headers_of(answer)
        ]
        start = {"type": "http.response.start", "status": answer.status.value}
        await send({**start, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})


def create_application() -> Application:
    """The application of the options in the environment variable READ_FENCE.

    Ends the process, by a sentence and exit code 2, where they are wrong.
    """
    options = parser()
    options.prog = "READ_FENCE"
    given = os.environ.get("READ_FENCE")
    if given is None:
        options.error("the environment variable READ_FENCE is not set: it has options")
    try:
        arguments = shlex.split(given)
    except ValueError as error:
        options.error(f"the environment variable READ_FENCE = {given!r}: {error}")
    return Application(options.parse_args(arguments))


def main() -> None:
    """Parse the arguments, and serve by uvicorn."""
    options = parser(__doc__).parse_args()
    try:
        import uvicorn
    except ImportError as error:
        print(f"error: {error}. Install it: pip install uvicorn", file=sys.stderr)
        sys.exit(2)
    with reported_errors():
        address_of(options)  # rather than a server that starts, and fails

        def end(_: Exception) -> None:
            server.should_exit = True

        application = Application(options, on_end=end)
        config = uvicorn.Config(
            application, host=options.host, port=options.port,
            lifespan="on", access_log=False,
        )  # fmt: skip
        server = uvicorn.Server(config)
        server.run()
        if not server.started:
            sys.exit(1)  # it has said why
        if application.error is not None:
            raise application.error


if __name__ == "__main__":
    main()
