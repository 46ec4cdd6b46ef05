"""The example of the README's section on PostgreSQL."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest

from epochfence import SinkRunner
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer
from support.waiting import wait_until

_README = (Path(__file__).parents[2] / "README.md").read_text("utf-8")


def test_the_sink_in_postgresql(
    database: str,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
        if "PostgresSink(" in block
    ]
    (table,) = re.findall(r"CREATE TABLE [^\n]*", code)
    code = code.replace("postgresql://shop@localhost:5432/shop", database)

    def opened(_: object) -> MemoryLedger:
        return memory_ledger

    monkeypatch.setattr("epochfence.Ledger", opened)
    memory_log.create_topic("stock-levels", 1)
    leadership = memory_ledger.claim("stock-writer", holder="a")
    with (
        psycopg.connect(database, autocommit=True) as connection,
        MemoryProducer(memory_ledger, leadership) as producer,
    ):
        connection.execute(table.encode())
        producer.take_over(["stock-levels"])
        for item, value in [("cup", '{"level": 1}'), ("cup", '{"level": 2}')]:
            producer.produce("stock-levels", key=item, value=value)
        producer.flush()
        names: dict[str, Any] = {}
        compiled = compile(code, "README.md", "exec")
        running = threading.Thread(target=exec, args=(compiled, names))
        running.start()
        try:
            stored = wait_until(
                lambda: connection.execute("SELECT * FROM stock").fetchall(),
                30,
                "rows are there",
            )
        finally:
            runner = names.get("runner")
            if isinstance(runner, SinkRunner):
                runner.stop()
            running.join(30)
        assert stored == [("cup", 2, {"level": 2})]
