"""What README.md shows is what one gets."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from epochfence.testing import MemoryLedger, MemoryLog
from epochfence.testing.plugin import Zombie
from support.auditing import run

_ROOT = Path(__file__).parents[1]
_README = (_ROOT / "README.md").read_text("utf-8")


def test_the_audit_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(_ROOT)
    found = re.search(
        r"```sh\n(\S*epochfence audit examples[^\n]*)\n```\n\n<!--[^\n]*\n"
        r"```text\n(.*?)```",
        _README,
        re.DOTALL,
    )
    assert found is not None
    command, shown = found.groups()
    result = run(*shlex.split(command)[1:])
    assert result.exit_code == 0
    printed = [line.rstrip() for line in result.stdout.splitlines()]
    assert printed == shown.splitlines()


def test_what_an_audit_shows(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = re.search(
        r"<!-- a test runs these -->\n```sh\ncd (\S+)\n(.*?)```", _README, re.DOTALL
    )
    assert found is not None
    folder, commands = found.groups()
    for file in (_ROOT / folder).iterdir():
        shutil.copy(file, tmp_path)
    monkeypatch.chdir(tmp_path)
    told = [run(*shlex.split(line)[1:]) for line in commands.splitlines()]
    assert [one.exit_code for one in told] == [0, 0, 0]
    assert (tmp_path / "audit.html").read_bytes().startswith(b"<!doctype html>")
    assert (tmp_path / "audit.png").read_bytes().startswith(b"\x89PNG")
    assert told[2].stdout.startswith("# epochfence audit\n")


def test_the_files_that_it_links_to_are_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", _README):
        assert (_ROOT / target).exists(), target


def test_every_example_is_told_of_and_tested() -> None:
    folder = _ROOT / "examples"
    told = (folder / "README.md").read_text("utf-8")
    for target in re.findall(r"\]\(([^)#:]+)\)", told):
        assert (folder / target).exists(), target
    tests = [path.read_text("utf-8") for path in (_ROOT / "tests").rglob("test_*.py")]
    for path in folder.glob("*.py"):
        assert f"[{path.name}]" in told
        is_tested = any(path.stem in test for test in tests)
        assert is_tested or path.name.startswith("record_"), path


def test_every_error_is_in_its_table() -> None:
    import epochfence

    table = set(re.findall(r"`([A-Z]\w+)`", _README))
    errors = {
        name
        for name in epochfence.__all__
        if isinstance(getattr(epochfence, name), type)
        and issubclass(getattr(epochfence, name), epochfence.EpochfenceError)
    }
    assert errors - table == {"EpochfenceError"}


def test_every_check_is_in_its_table() -> None:
    sources = [
        path.read_text("utf-8")
        for path in (_ROOT / "replay").glob("check*.py")
        if path.stem != "checkpoint"
    ]
    found = {
        (code, severity)
        for source in sources
        for severity, code in re.findall(r'severity="(\w+)",\s+code="([\w-]+)"', source)
    }
    assert sum(source.count("code=") for source in sources) == len(found)
    table = re.findall(
        r"^\| `([\w-]+)` \| (critical|warning|notice) \|", _README, re.MULTILINE
    )
    assert sorted(table) == sorted(found)


def test_its_lines_of_files_are_such_lines(tmp_path: Path) -> None:
    record, start = re.findall(r"```json\n(.*?)\n```", _README)
    records, table = tmp_path / "records.jsonl", tmp_path / "table.jsonl"
    records.write_text(record)
    table.write_text(start)
    options = ("--table", table, "--authority", "max-seen")
    result = run("audit", records, *options)
    assert result.exit_code == 0
    assert "1 epoch start known beforehand" in result.stdout
    assert "1 record: 1 admitted" in result.stdout


def test_the_picture_is_that_of_the_recording() -> None:
    script = _ROOT / "docs" / "draw_takeover.py"
    names = runpy.run_path(str(script))
    drawn: str = names["draw"]()
    assert drawn == (_ROOT / "docs" / "takeover.svg").read_text("ascii")


def test_the_test_without_a_broker(
    memory_log: MemoryLog, memory_ledger: MemoryLedger, zombie: Zombie
) -> None:
    (code,) = [
        block
        for block in re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
        if "epochfence.testing" in block
    ]
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    names["test_a_zombie_does_no_harm"](memory_log, memory_ledger, zombie)
