"""A small store over HTTP that never answers a read as a deposed leader.

Its items live in the leader's memory, and their history in a topic. The leader answers
reads and writes; whoever follows sends the client there (307). A leader that was
paused, and wakes up with old items, finds out before it answers: it asks the ledger
whether it is still the latest leader, for each read.

    python read_fence.py -b localhost:9092 --topic items --port 8001
    python read_fence.py -b localhost:9092 --topic items --port 8002

    curl -L -X PUT -d 3 localhost:8001/items/cup
    curl -L localhost:8002/items/cup
    curl localhost:8002/leader
    curl localhost:8002/healthz

It is a WSGI application, served here by Python's own server; read_fence_asgi.py is the
same for ASGI servers. examples/README.md says what a read costs, and what it proves.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from confluent_kafka import KafkaException, Message

from command_line import (
    Stopped,
    add_kafka_options,
    add_leader_options,
    kafka_config,
    not_negative,
    open_election,
    open_ledger,
    parser_of,
    port,
    reported_errors,
    say,
    tell_state,
)
from epochfence import (
    Deposed,
    EpochfenceError,
    Ledger,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    Tenure,
    TopicUnavailable,
    lead,
)
from epochfence.elections import Election
from epochfence.leading import State

_log = logging.getLogger(__name__)

_LOOK_S = 0.05
_ITEMS = "/items/"
#: The largest item, in bytes.
MAX_ITEM_BYTES = 100_000
#: Hosts by which a server listens, and nobody is reached.
_EVERYWHERE = ("", "0.0.0.0", "::")


class Answer(NamedTuple):
    """An answer over HTTP."""

    status: HTTPStatus
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


@dataclass
class _Reign:
    """A tenure in which items are served."""

    tenure: Tenure
    #: When the latest verification began that found it to be the latest.
    verified_at_s: float = float("-inf")
    #: Whether something may have been written that the items lack.
    is_in_doubt: bool = False


class Store:
    """Items by name, of which only the latest leader tells.

    Args:
        config: Kafka's settings.
        ledger: The ledger.
        election: This process's candidacy.
        scope: What is led.
        topic: The items' history.
        holder: Names this process, for people.
        address: Where clients are sent when this process leads.
        staleness_s: A verification may be so old; 0: each read has one of its own.
        timeout_s: How long a read or a write may wait for the cluster.
        on_state: Told what `lead` is doing.
    """

    def __init__(
        self,
        config: dict[str, Any],
        ledger: Ledger,
        election: Election,
        scope: str,
        topic: str,
        *,
        holder: str,
        address: str,
        staleness_s: float = 0.0,
        timeout_s: float = 5.0,
        on_state: Callable[[State, str], object] | None = None,
    ) -> None:
        self._ledger = ledger
        self._election = election
        self._scope = scope
        self._topic = topic
        self._address = address
        self._staleness_s = staleness_s
        self._timeout_s = timeout_s
        self._items: dict[str, bytes] = {}
        self._reign: _Reign | None = None
        # One write at a time: what is in memory has the order of the log.
        self._writing = threading.Lock()
        self._state: tuple[State, str] = ("waiting", "")
        self._on_state = on_state
        self._on_end: Callable[[Exception], object] = bool
        self.error: Exception | None = None
        self._leading = lead(
            config, ledger, election, scope, [topic],
            holder=holder, attributes={"address": address}, standby=True,
            recover=self._apply, reset=self._items.clear, on_state=self._tell,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run, name="leading")

    # Leading, in a thread of its own.

    def start(self, on_end: Callable[[Exception], object] = bool) -> None:
        """Stand for election from now on; `on_end` is told why that ends by itself."""
        self._on_end = on_end
        self._thread.start()

    def close(self) -> None:
        """Hand over: another leads at once."""
        self._leading.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            self._leading.serve(self._work, handles_signals=False)
        except Exception as error:
            self.error = error
            self._state = ("ended", str(error))
            if not isinstance(error, EpochfenceError):  # whose text says it all
                _log.exception("it leads no more, nor stands for election")
            self._on_end(error)

    def _work(self, tenure: Tenure) -> None:
        reign = _Reign(tenure)
        self._reign = reign
        try:
            while not tenure.wait(_LOOK_S):
                if reign.is_in_doubt:
                    # Whoever leads next reads what there is.
                    self._election.resign()
                    tenure.wait()
        finally:
            with self._writing:  # what is being written is waited for
                self._reign = None

    def _apply(self, messages: Sequence[Message]) -> None:
        """Build the items from what was admitted."""
        for message in messages:
            self._items[(message.key() or b"").decode()] = message.value() or b""

    def _tell(self, state: State, reason: str) -> None:
        self._state = (state, reason)
        if self._on_state is not None:
            self._on_state(state, reason)

    # Answering, in any thread.

    def answer(self, method: str, path: str, body: bytes = b"") -> Answer:
        """Answer a request; waits for the cluster where it has to.

        Args:
            method: Such as GET.
            path: Without escapes.
            body: What came with it.
        """
        if path == "/healthz" and method == "GET":
            return self._health()
        if path == "/leader" and method == "GET":
            return self._leader()
        name = path.removeprefix(_ITEMS)
        if not path.startswith(_ITEMS) or not name:
            return Answer(HTTPStatus.NOT_FOUND, b"no such path\n")
        if method not in ("GET", "PUT"):
            allowed = (("Allow", "GET, PUT"),)
            return Answer(HTTPStatus.METHOD_NOT_ALLOWED, b"GET or PUT\n", allowed)
        if len(body) > MAX_ITEM_BYTES:
            return Answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, b"too large\n")
        reign = self._reign
        if reign is None:
            return self._forward(path)
        try:
            if method == "PUT":
                return self._write(reign, path, name, body)
            return self._read(reign, path, name)
        except Deposed:
            return self._forward(path)
        except (LedgerUnavailable, TableUnavailable, LedgerRegressed) as error:
            # It may be the leader, and cannot prove it.
            return _unavailable(str(error))

    def _read(self, reign: _Reign, path: str, name: str) -> Answer:
        # First the item, then the proof: what was read was so at a moment between the
        # question and the answer, however long this process sleeps in between.
        item = self._items.get(name)
        self._verify(reign)
        if self._reign is not reign:
            return self._forward(path)  # the items are being read anew, perhaps
        if item is None:
            return Answer(HTTPStatus.NOT_FOUND, b"no such item\n")
        return Answer(HTTPStatus.OK, item)

    def _verify(self, reign: _Reign) -> None:
        """Return if this is the latest leader, as of now, or as stale as allowed.

        Raises:
            Deposed: It is not.
            LedgerUnavailable, TableUnavailable, LedgerRegressed: Nobody can tell.
        """
        began_s = time.monotonic()
        if began_s - reign.verified_at_s < self._staleness_s:
            return
        reign.tenure.verify(self._timeout_s)  # concurrent callers share one sync
        reign.verified_at_s = max(reign.verified_at_s, began_s)

    def _write(self, reign: _Reign, path: str, name: str, item: bytes) -> Answer:
        with self._writing:
            if self._reign is not reign:
                return self._forward(path)
            producer = reign.tenure.producer
            try:
                producer.produce(self._topic, item, name)
                receipts = producer.confirm(self._timeout_s)
            except Deposed:
                raise
            except (
                KafkaException,
                TopicUnavailable,
                LedgerUnavailable,
                TableUnavailable,
                LedgerRegressed,
            ) as error:
                return self._doubt(reign, str(error))
            if receipts.are_all_admitted:
                self._items[name] = item
                return Answer(HTTPStatus.NO_CONTENT)
            if receipts.counts["fenced"]:
                return self._forward(path)  # nobody will ever read it here
            return self._doubt(reign, "its delivery failed")

    def _doubt(self, reign: _Reign, reason: str) -> Answer:
        reign.is_in_doubt = True
        self._reign = None
        return _unavailable(f"it may be written, or not: {reason}")

    def _forward(self, path: str) -> Answer:
        """Send the client to the leader, as far as the ledger was read."""
        try:
            leader = self._ledger.leader(self._scope)
        except LedgerUnavailable as error:
            return _unavailable(str(error))
        address = leader.attributes.get("address") if leader else None
        if address is None or address == self._address:
            return _unavailable("nobody leads now")
        there = (("Location", address + quote(path)),)
        return Answer(HTTPStatus.TEMPORARY_REDIRECT, b"", there)

    def _health(self) -> Answer:
        state, reason = self._state
        status = HTTPStatus.OK
        if state == "ended":
            status = HTTPStatus.SERVICE_UNAVAILABLE
        return _json(status, {"state": state, "reason": reason})

    def _leader(self) -> Answer:
        try:
            leader = self._ledger.leader(self._scope)
        except LedgerUnavailable as error:
            return _unavailable(str(error))
        if leader is None:
            return _unavailable("nobody has led yet")
        return _json(
            HTTPStatus.OK,
            {
                "scope": leader.scope,
                "epoch": leader.epoch,
                "holder": leader.holder,
                "address": leader.attributes.get("address"),
                "is_here": self._reign is not None,
            },
        )

    # As a WSGI application.

    def __call__(
        self,
        environ: dict[str, Any],
        start_response: Callable[[str, list[tuple[str, str]]], object],
    ) -> Iterable[bytes]:
        """Answer as WSGI has it."""
        path = environ.get("PATH_INFO", "").encode("latin-1").decode("utf-8", "replace")
        method = environ["REQUEST_METHOD"]
        length = environ.get("CONTENT_LENGTH") or ""
        # One byte more than is allowed: enough to see that it is too much.
        wanted = min(int(length) if length.isdecimal() else 0, MAX_ITEM_BYTES + 1)
        body = environ["wsgi.input"].read(wanted)
        if method == "PUT" and not length.isdecimal():
            answer = Answer(HTTPStatus.LENGTH_REQUIRED, b"say how long the item is\n")
        elif len(body) < wanted:
            answer = Answer(HTTPStatus.BAD_REQUEST, b"less came than was announced\n")
        else:
            answer = self.answer(method, path, body)
        status = f"{answer.status.value} {answer.status.phrase}"
        start_response(status, headers_of(answer))
        return [answer.body]


def headers_of(answer: Answer) -> list[tuple[str, str]]:
    """The headers of an answer."""
    length = ("Content-Length", str(len(answer.body)))
    return [*answer.headers, length] if answer.status != 204 else [*answer.headers]


def _unavailable(reason: str) -> Answer:
    again = (("Retry-After", "1"),)
    return Answer(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode(), again)


def _json(status: HTTPStatus, told: dict[str, Any]) -> Answer:
    body = json.dumps(told).encode() + b"\n"
    return Answer(status, body, (("Content-Type", "application/json"),))


def address_of(options: argparse.Namespace) -> str:
    """Where clients are sent when this process leads.

    Raises:
        MisconfiguredError: They cannot be sent there.
    """
    host: str = options.host
    if options.address is None:
        if host in _EVERYWHERE:
            raise MisconfiguredError(
                "--host", host, "the process listens at every address it has, and "
                "clients have to be sent to one of them",
                "Name it: --address http://pod-7:8001.",
            )  # fmt: skip
        return f"http://{f'[{host}]' if ':' in host else host}:{options.port}"
    address: str = options.address.rstrip("/")
    if not _is_origin(address):
        raise MisconfiguredError(
            "--address", address, "clients cannot be sent there",
            "Give a URL without a path, such as http://pod-7:8001.",
        )  # fmt: skip
    return address


def _is_origin(address: str) -> bool:
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return False
    has_more = parts.path or parts.query or parts.fragment
    is_printable = address.isascii() and address.isprintable() and " " not in address
    return (
        parts.scheme in ("http", "https")
        and bool(host)
        and host not in _EVERYWHERE
        and not has_more
        and is_printable
    )


@contextmanager
def opened_store(options: argparse.Namespace) -> Generator[Store, None, None]:
    """The store that the options name, not started yet; closed in the end."""
    address = address_of(options)
    scope = options.scope or f"items/{options.topic}"
    with (
        closing(open_election(options, scope, options.postgres)) as election,
        open_ledger(options) as ledger,
    ):
        store = Store(
            kafka_config(options),
            ledger,
            election,
            scope,
            options.topic,
            holder=options.holder,
            address=address,
            staleness_s=options.staleness_s,
            on_state=tell_state,
        )
        try:
            yield store
        finally:
            store.close()


def parser(text: str | None = __doc__) -> argparse.ArgumentParser:
    """The options, which read_fence_asgi.py has too."""
    made = parser_of(text)
    made.add_argument("--topic", required=True, help="the items' history")
    made.add_argument("--scope", metavar="S", help="what to lead (items/TOPIC)")
    made.add_argument("--host", default="127.0.0.1", help="(%(default)s)")
    made.add_argument("--port", type=port, default=8001, help="(%(default)s)")
    made.add_argument(
        "--address", metavar="URL",
        help="where clients reach this process (http://HOST:PORT)",
    )  # fmt: skip
    made.add_argument(
        "--staleness", type=not_negative, default=0.0, metavar="SECONDS",
        dest="staleness_s",
        help="a read may be so much behind a new leader's writes, by this machine's "
        "clock (%(default)s: not at all)",
    )  # fmt: skip
    made.add_argument("--postgres", metavar="CONNINFO", help="for its election")
    add_kafka_options(made)
    add_leader_options(made, elections=["kafka", "postgres"])
    return made


class _Server(ThreadingMixIn, WSGIServer):
    def __init__(self, address: tuple[str, int], *arguments: Any) -> None:
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        super().__init__(address, *arguments)

    daemon_threads = True
    request_queue_size = 128


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Not a line for each request."""


def serve(options: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        Stopped: It cannot go on.
    """
    with opened_store(options) as store:
        try:
            server = make_server(
                options.host, options.port, store, _Server, _QuietHandler
            )
        except OSError as error:
            raise Stopped(
                f"cannot listen at {options.host}:{options.port}: {error.strerror}"
            ) from error

        def end(*_: object) -> None:
            # It waits for the loop, which runs in the thread that a signal interrupts.
            threading.Thread(target=server.shutdown).start()

        with server:
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, end)
            store.start(on_end=end)
            say(f"serves at http://{options.host}:{server.server_port}")
            server.serve_forever(poll_interval=0.1)
        if store.error is not None:
            raise store.error


def main() -> None:
    """Parse the arguments, and serve."""
    options = parser().parse_args()
    with reported_errors():
        serve(options)


if __name__ == "__main__":
    main()
