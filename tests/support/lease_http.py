"""Questions about Leases over HTTP, and a server that answers them by a function."""

from __future__ import annotations

import json
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any

import urllib3

from support.kafka_node import LOOPBACK
from support.kube_files import write_kubeconfig

_BEARER = "Bearer "
_POLL_S = 0.01


@dataclass(frozen=True)
class Question:
    """What is asked, and by whose token."""

    method: str
    path: str
    token: str
    body: Any = None


@dataclass(frozen=True)
class Answer:
    """What is answered."""

    status: int
    body: Any


def ask(server: str, question: Question) -> Answer:
    """The answer of a server; its certificate is not looked at."""
    with urllib3.PoolManager(cert_reqs="CERT_NONE") as http:
        answer = http.request(
            question.method, server + question.path, json=question.body,
            retries=False, timeout=10,
            headers={"Authorization": _BEARER + question.token},
        )  # fmt: skip
        return Answer(answer.status, answer.json())


class ConnectionBroken(Exception):
    """Raised in place of an answer: the connection is to break."""


class LeaseServer:
    """Answers on the loopback, in threads of its own; may be frozen, and stopped.

    Args:
        answer: Gives each answer; called by one thread at a time.
        certificate: A file with the server's certificate, and one with its key, where
            it speaks TLS.
    """

    def __init__(
        self,
        answer: Callable[[Question], Answer],
        certificate: tuple[Path, Path] | None = None,
    ) -> None:
        self._answer = answer
        self._certificate = certificate
        self._lock = threading.Lock()
        self._is_thawed = threading.Event()
        self._is_thawed.set()
        self._server: _Server | None = None
        self.port = 0
        self.start()

    @property
    def url(self) -> str:
        """Where it answers."""
        protocol = "https" if self._certificate else "http"
        return f"{protocol}://{LOOPBACK}:{self.port}"

    def kubeconfig(self, folder: Path, token: str, **more: Any) -> str:
        """The path of a kubeconfig for it, made in a folder."""
        path = folder / f"{token}-{self.port}.yaml"
        return str(write_kubeconfig(path, self.url, token, **more))

    def answer(self, question: Question) -> Answer:
        """What it answers; not before it is thawed."""
        self._is_thawed.wait()
        with self._lock:
            return self._answer(question)

    def start(self) -> None:
        """Start it where it is down, at the port that it had."""
        if self._server is None:
            self._server = _Server((LOOPBACK, self.port), self, self._certificate)
            self.port = self._server.server_port

    def stop(self) -> None:
        """End it as a crash would, but for what it knows."""
        self.thaw()
        if self._server is not None:
            self._server.end()
            self._server = None

    def heal(self) -> None:
        """Have it run, whatever a test has done."""
        self.thaw()
        self.start()

    def freeze(self) -> None:
        """Have it stand still, with every connection open."""
        self._is_thawed.clear()

    def thaw(self) -> None:
        """Let it go on."""
        self._is_thawed.set()

    def __enter__(self) -> LeaseServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


class _Server(ThreadingHTTPServer):
    daemon_threads = False

    def __init__(
        self,
        address: tuple[str, int],
        leases: LeaseServer,
        certificate: tuple[Path, Path] | None,
    ) -> None:
        self.leases = leases
        self._open: set[Any] = set()
        super().__init__(address, _Handler)
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            self.socket = context.wrap_socket(
                self.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": _POLL_S}
        )
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        for one in list(self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # Some clients write `bearer`.
        token = self.headers.get("Authorization", "")[len(_BEARER) :]
        question = Question(
            self.command, self.path, token, json.loads(sent) if sent else None
        )
        assert isinstance(self.server, _Server)
        try:
            answer = self.server.leases.answer(question)
        except ConnectionBroken:
            self.close_connection = True
            return
        said = json.dumps(answer.body).encode()
        with suppress(OSError):  # who asked may be gone
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

    do_GET = do_POST = do_PUT = do_DELETE = _do

    def log_message(self, format: str, *args: object) -> None:
        pass
