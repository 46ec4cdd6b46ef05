"""Between clients and a server: passes on what they say, until the network is cut."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

from support.kafka_node import LOOPBACK

_CHUNK = 65536


class CutNetwork:
    """Passes connections on to a port of the loopback; may be cut: nobody is told.

    Args:
        port: Where to. Nobody needs to listen there yet.
    """

    def __init__(self, port: int) -> None:
        self._target = (LOOPBACK, port)
        self._is_whole = threading.Event()
        self._is_whole.set()
        self._is_over = False
        self._lock = threading.Lock()
        self._open: list[socket.socket] = []
        self._passing: list[threading.Thread] = []
        self._listener = socket.create_server((LOOPBACK, 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Pass nothing on any more, and leave every connection open."""
        self._is_whole.clear()

    def mend(self) -> None:
        """Pass on again, and first what was said meanwhile."""
        self._is_whole.set()

    def reset(self) -> None:
        """Break every connection; new ones are passed on."""
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return  # closed
            self._is_whole.wait()
            if self._is_over:
                client.close()
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()
                continue
            with self._lock:
                self._open += [client, server]
            for source, target in ((client, server), (server, client)):
                passing = threading.Thread(
                    target=self._pass_on, args=(source, target), daemon=True
                )
                passing.start()
                self._passing.append(passing)

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._is_whole.wait()
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End it, with every connection."""
        self._is_over = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._is_whole.set()
        self._thread.join()
        self._listener.close()
        self.reset()
        for passing in self._passing:
            passing.join()
        for one in self._open:
            one.close()

    def __enter__(self) -> CutNetwork:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
