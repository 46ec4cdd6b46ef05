"""Between a client and PostgreSQL: what is said is seen, and may be cut off."""

from __future__ import annotations

import select
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.kafka_node import LOOPBACK

BEFORE, AFTER = "before", "after"

_CHUNK = 65536


class Proxy:
    """Passes one client after another on to a server, and sees what they say.

    Args:
        conninfo: The server, by TCP.
    """

    def __init__(self, conninfo: str) -> None:
        target = conninfo_to_dict(conninfo)
        self._target = (str(target["host"]), int(target["port"] or 5432))
        self._listener = socket.create_server((LOOPBACK, 0))
        self.conninfo = make_conninfo(
            conninfo, host=LOOPBACK, port=self._listener.getsockname()[1],
            sslmode="disable", gssencmode="disable",
        )  # fmt: skip
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _asked(self, data: bytes) -> bool:
        """The client has sent this: whether it may go on to the server."""
        return True

    def _answered(self) -> bool:
        """The server has sent something: whether it may go on to the client."""
        return True

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            with (
                client,
                socket.create_connection(self._target) as server,
                suppress(ConnectionError),  # either may be gone
            ):
                self._pass_on(client, server)

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        while True:
            ready, _, _ = select.select([client, server], [], [])
            for source in ready:
                data = source.recv(_CHUNK)
                if not data:
                    return
                is_client = source is client
                if not (self._asked(data) if is_client else self._answered()):
                    return
                (server if is_client else client).sendall(data)

    def close(self) -> None:
        """Take no more clients; the last one has to be gone."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(10)
        assert not self._thread.is_alive(), "a client is still connected"


class CuttingProxy(Proxy):
    """Passes everything on until it is told to cut."""

    def __init__(self, conninfo: str) -> None:
        self._lock = threading.Lock()
        self._statement: bytes | None = None
        self._mark: bytes | None = None
        self._when = BEFORE
        self._then: Callable[[], object] = bool
        self._is_asked = False
        super().__init__(conninfo)

    def cut(
        self,
        statement: str,
        when: str,
        *,
        mark: str | None = None,
        then: Callable[[], object] = bool,
    ) -> None:
        """Cut the connection once, at a statement that holds a text.

        Args:
            statement: The text.
            when: BEFORE the server has it, or AFTER the server has answered: the
                client gets no answer either way.
            mark: Only from the statement on that holds this text.
            then: What to do just before the cut.
        """
        with self._lock:
            self._mark = None if mark is None else mark.encode()
            self._statement, self._when, self._then = statement.encode(), when, then

    def _asked(self, data: bytes) -> bool:
        with self._lock:
            if not self._is_reached(data):
                return True
        if self._when == AFTER:
            self._is_asked = True
            return True
        self._then()
        return False

    def _answered(self) -> bool:
        if not self._is_asked:
            return True
        self._is_asked = False
        self._then()
        return False

    def _is_reached(self, data: bytes) -> bool:
        if self._mark is not None:
            if self._mark in data:
                self._mark = None
            return False
        if self._statement is None or self._statement not in data:
            return False
        self._statement = None
        return True

    def __enter__(self) -> CuttingProxy:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
