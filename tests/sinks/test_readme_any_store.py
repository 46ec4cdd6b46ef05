"""The example of the README's section on any other store, and an API that it calls."""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from epochfence import SinkRunner, message_key
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.waiting import wait_until

_README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")

_END_S = 30


class _Payments(ThreadingHTTPServer):
    """An API that carries a request out once for each key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests: list[str] = []
        self.paid: dict[str, bytes] = {}
        #: How the next requests are answered, and whether they are carried out.
        self.faults: list[tuple[int, bool]] = []


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        api: Any = self.server
        key = self.headers["Idempotency-Key"]
        body = self.rfile.read(int(self.headers["Content-Length"]))
        api.requests.append(key)
        status, is_done = api.faults.pop(0) if api.faults else (200, True)
        if is_done:
            api.paid.setdefault(key, body)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def payments() -> Iterator[_Payments]:
    with _Payments() as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            yield server
        finally:
            server.shutdown()
            serving.join(_END_S)


class Example:
    """The README's code at work in a thread."""

    def __init__(self, code: str) -> None:
        self._names: dict[str, Any] = {}
        self._code = compile(code, "README.md", "exec")
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            exec(self._code, self._names)
        except Exception as error:
            self.error = error

    @contextmanager
    def running(self) -> Generator[threading.Thread, None, None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield thread
        finally:
            runner = self._names.get("runner")
            if isinstance(runner, SinkRunner):
                runner.stop()
            thread.join(_END_S)


def test_an_api_that_honours_keys(
    payments: _Payments,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
        if "AtLeastOnceSink(" in block
    ]
    code = code.replace("localhost:8080", f"127.0.0.1:{payments.server_port}")

    def opened(_: object) -> nullcontext[MemoryLedger]:
        return nullcontext(memory_ledger)

    monkeypatch.setattr("epochfence.Ledger", opened)
    memory_log.create_topic("orders")
    leadership = memory_ledger.claim("orders-writer", holder="a")
    with MemoryProducer(memory_ledger, leadership) as producer:
        producer.take_over(["orders"])
        for value in "abc":
            producer.produce("orders", value)
        # Nothing was done; it was, and the answer is lost; somebody else is at it.
        payments.faults = [(200, True), (503, False), (500, True), (409, False)]
        keys = [message_key(memory_log.topic_id("orders"), 0, at) for at in (1, 2, 3)]
        with Example(code).running():
            wait_until(
                lambda: memory_log.committed("payments", "orders", 0).offset == 4,
                _END_S,
                "all is paid",
            )
        assert payments.paid == dict(zip(keys, (b"a", b"b", b"c"), strict=True))
        assert payments.requests == [keys[0], *[keys[1]] * 4, keys[2]]

        producer.produce("orders", "d")
        payments.faults = [(402, False)]
        example = Example(code)
        with example.running() as thread:
            thread.join(_END_S)
        assert "402" in str(example.error)
        assert memory_log.committed("payments", "orders", 0).offset == 4
