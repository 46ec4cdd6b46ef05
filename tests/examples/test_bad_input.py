"""What the examples say where something is wrong: a sentence, and an exit code."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

import outbox_relay
import read_fence
import read_fence_asgi
import scheduler
from command_line import reported_errors
from support.example_program import EXAMPLES

_NOWHERE = ("-b", "127.0.0.1:1")
_STORE = (*_NOWHERE, "--topic", "t")
_TICKS = ("run", *_NOWHERE, "--topic", "ticks", "--every", "1")
_NOON = (*_TICKS, "--since", "2026-12-01T12:00Z")

_MAIN = {
    "outbox_relay.py": outbox_relay.main,
    "read_fence.py": read_fence.main,
    "read_fence_asgi.py": read_fence_asgi.main,
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
            "0 is not between 0.001 and",
        ),
        (("scheduler.py", *_TICKS, "--since", "0001-01-01T00:00+05:00"), 2, "--since"),
        (("scheduler.py", *_TICKS, "--since", "1969-12-31T00:00Z"), 2, "before 1970"),
        (("scheduler.py", *_NOON, "--every", "1e-9"), 2, "1e-9 is not between"),
        (("scheduler.py", *_NOON, "--every", "1e300"), 2, "1e300 is not between"),
        (("scheduler.py", *_NOON, "--every", "nan"), 2, "nan is not between"),
        (("scheduler.py", *_NOON, "--every", "x"), 2, "'x' is not a number"),
        (("scheduler.py", *_NOON, "--last", "0.5"), 2, "'0.5' is no whole number"),
        (("scheduler.py", *_NOON, "--last", "1" + "0" * 20), 2, "is not between 1 and"),
        (("scheduler.py", *_NOON, "--resume-after", "1" + "0" * 15), 2, "year 9999"),
        (("scheduler.py", *_NOON, "--silence", "1e300"), 2, "0.1 and 3600 seconds"),
        (("scheduler.py", *_NOON, "--election", "postgres"), 2, "--postgres CONNINFO"),
        (
            ("read_fence.py", *_STORE, "--election", "postgres"),
            2,
            "--postgres CONNINFO",
        ),
        (("read_fence.py", *_STORE, "--port", "65536"), 2, "65536 is not between"),
        (("read_fence.py", *_STORE, "--port", "-1"), 2, "-1 is not between"),
        (("read_fence.py", *_STORE, "--port", "http"), 2, "'http' is no whole number"),
        (("read_fence.py", *_STORE, "--staleness", "-1"), 2, "-1 is not between"),
        (("read_fence.py", *_STORE, "--staleness", "nan"), 2, "nan is not between"),
        (("read_fence.py", *_STORE, "--host", "0.0.0.0"), 2, "--address"),
        (("read_fence.py", *_STORE, "--host", "::"), 2, "--address"),
        (("read_fence.py", *_STORE, "--host", ""), 2, "--address"),
        (("read_fence.py", *_STORE, "--address", "http://0.0.0.0:1"), 2, "URL"),
        (("read_fence.py", *_STORE, "--address", "http://pod/path"), 2, "URL"),
        (("read_fence.py", *_STORE, "--address", "http://["), 2, "URL"),
        (("read_fence.py", *_STORE, "--address", "http://pod:x"), 2, "URL"),
        (("read_fence.py", *_STORE, "--address", "http://pod\r\nX: y"), 2, "URL"),
        (("read_fence_asgi.py", *_STORE, "--host", "0.0.0.0"), 2, "--address"),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "--address", "pod"), 2, "URL"),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "-X", "acks"), 2, "NAME=VALUE"),
        (("read_fence.py", *_NOWHERE, "--topic", "t", "-X", "ack=1"), 2, '"ack"'),
        (("outbox_relay.py", "create-table", "--postgres", "x="), 2, "--topic"),
        (("outbox_relay.py", "run", "--postgres", "x=", *_STORE), 2, "--topic"),
        (("outbox_relay.py", "run", "--postgres", "x="), 2, "--bootstrap-server"),
        (
            (
                *("scheduler.py", *_TICKS, "--since", "2026-12-01T00:00Z"),
                *("-X", "message.timeout.ms=3000"),
            ),
            2,
            "timed out",
        ),
        (
            ("outbox_relay.py", "run", "--postgres", "x=", *_NOWHERE),
            1,
            "PostgreSQL",
        ),
        (
            ("outbox_relay.py", "create-table", "--postgres", "x", "--partitions", "0"),
            2,
            "0 is not between 1 and",
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
    missing = run("outbox_relay.py", "run", *where, *_NOWHERE)
    no_table = "error: there is no table outbox: create it (create-table)\n"
    assert missing == (1, no_table)
    options = (*where, "--partitions", "2", "--topic", "t")
    create = ("outbox_relay.py", "create-table", *options)
    assert run(*create)[0] == 0
    assert run(*create) == (1, "error: there is a table outbox already\n")


def test_a_table_of_that_name_which_is_another(run: Run, database: str) -> None:
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        connection.execute("CREATE TABLE outbox (id int)")
    code, said = run("outbox_relay.py", "run", "--postgres", database, *_NOWHERE)
    assert (code, "not one that create-table has made" in said) == (1, True), said


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (None, "READ_FENCE is not set"),
        ("--topic 'items", "No closing quotation"),
        ("--topic items", "--bootstrap-server"),
    ],
)
def test_options_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    given: str | None,
    told: str,
) -> None:
    monkeypatch.delenv("READ_FENCE", raising=False)
    if given is not None:
        monkeypatch.setenv("READ_FENCE", given)
    with pytest.raises(SystemExit) as ended:
        read_fence_asgi.create_application()
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert told in said
    assert "READ_FENCE: error: " in said


def test_a_file_that_is_no_database(run: Run, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("no database at all\n" * 100)
    for file in (text, tmp_path, tmp_path / "gone" / "ticks.db"):
        code, said = run("scheduler.py", "count", *_STORE, "--database", str(file))
        assert (code, said.startswith("error: --database = ")) == (2, True), said


@pytest.mark.parametrize(
    ("missing", "arguments", "told"),
    [
        ("psycopg", ("outbox_relay.py", "--help"), "'epochfence[postgres]'"),
        (
            "psycopg",
            ("scheduler.py", *_NOON, "--election", "postgres", "--postgres", "x="),
            "'epochfence[postgres]'",
        ),
        ("uvicorn", ("read_fence_asgi.py", *_STORE), "pip install uvicorn"),
    ],
)
def test_what_is_not_installed(
    tmp_path: Path, missing: str, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / f"{missing}.py").write_text("raise ImportError('it is not here')")
    program, *rest = arguments
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / program), *rest],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: ")
    assert "it is not here" in line
    assert told in line


def test_a_broker_that_is_not_there() -> None:
    """What the client says again and again is said once, and what follows of it."""
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "scheduler.py"), *_NOON],
        capture_output=True,
        text=True,
        check=False,
    )
    lines = ended.stderr.splitlines()
    assert (ended.returncode, ended.stdout) == (1, "")
    assert lines[-1].startswith("error: the ledger (topic ")
    assert len(lines) <= 6, ended.stderr


def test_what_it_does_to_the_log_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("epochfence.leading.lead")
    with reported_errors():
        log.warning("told")
        log.warning("told")
    log.warning("told")
    assert caplog.messages == ["told", "told"]
