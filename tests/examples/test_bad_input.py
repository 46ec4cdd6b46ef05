"""What the examples say where something is wrong: a sentence, and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

import outbox_relay
import read_fence
import scheduler

_NOWHERE = ("-b", "127.0.0.1:1")
_TICKS = ("run", *_NOWHERE, "--topic", "ticks", "--every", "1")


_MAIN = {
    "outbox_relay.py": outbox_relay.main,
    "read_fence.py": read_fence.main,
    "scheduler.py": scheduler.main,
}

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a program in this process; its exit code, and what it has said."""

    def call(name: str, *arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        code: object = 0
        try:
            _MAIN[name]()
        except SystemExit as ended:
            code = ended.code or 0
        assert isinstance(code, int)
        said = capsys.readouterr()
        return code, said.out + said.err

    return call


@pytest.mark.parametrize("name", _MAIN)
def test_help(run: Run, name: str) -> None:
    code, said = run(name, "--help")
    assert code == 0
    assert f"python {name}" in said


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("scheduler.py", *_TICKS, "--since", "2026-12-01"), 2, "lacks a zone"),
        (("scheduler.py", *_TICKS, "--since", "noon"), 2, "noon"),
        (("scheduler.py", *_TICKS), 2, "--since"),
        (
            ("scheduler.py", *_TICKS, "--since", "2026-12-01T00:00Z", "--every", "0"),
            2,
            "0 is not above 0",
        ),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "--address", "pod"), 2, "URL"),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "-X", "acks"), 2, "NAME=VALUE"),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "-X", "ack=1"), 2, '"ack"'),
        (("outbox_relay.py", "run", "--postgres", "x=", *_NOWHERE), 2, "--topic"),
        (
            (
                *("scheduler.py", *_TICKS, "--since", "2026-12-01T00:00Z"),
                *("-X", "message.timeout.ms=3000"),
            ),
            2,
            "timed out",
        ),
        (
            ("outbox_relay.py", "run", "--postgres", "x=", *_NOWHERE, "--topic", "t"),
            1,
            "PostgreSQL",
        ),
        (
            ("outbox_relay.py", "create-table", "--postgres", "x", "--partitions", "0"),
            2,
            "0 is not above 0",
        ),
    ],
)
def test_what_makes_no_sense(
    run: Run, arguments: tuple[str, ...], code: int, told: str
) -> None:
    ended, said = run(*arguments)
    assert (ended, told in said) == (code, True), said


def test_a_table_that_is_missing_and_one_that_is_there(run: Run, database: str) -> None:
    where = ("--postgres", database)
    missing = run("outbox_relay.py", "run", *where, *_NOWHERE, "--topic", "t")
    no_table = "error: there is no table outbox: create it (create-table)\n"
    assert missing == (1, no_table)
    create = ("outbox_relay.py", "create-table", *where, "--partitions", "2")
    assert run(*create)[0] == 0
    assert run(*create) == (1, "error: there is a table outbox already\n")
