"""Histories, and the report of each: read them, they are written for people.

`EPOCHFENCE_REWRITE=1 pytest tests/replay/test_golden.py` writes the reports anew; then
read what has changed. The commands are described in `support.audit_script`.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from support.audit_script import World

_FOLDER = Path(__file__).parent / "golden"
_LINE = "----\n"
_STORIES = sorted(_FOLDER.glob("*.txt"))


@pytest.mark.parametrize("story", _STORIES, ids=[path.stem for path in _STORIES])
def test_a_history_and_its_report(story: Path, tmp_path: Path) -> None:
    script, _, expected = story.read_text("utf-8").partition(_LINE)
    report = World(tmp_path).play(script)
    if os.environ.get("EPOCHFENCE_REWRITE"):
        story.write_text(f"{script.rstrip()}\n{_LINE}{report}", "utf-8")
        return
    assert report.splitlines() == expected.splitlines()


def test_there_are_enough_of_them() -> None:
    assert len(_STORIES) >= 25


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("topic orders", "ends with audit"),
        ("nonsense x", "line 1: nonsense x"),
        ("topic orders\nwrite orders pod-7", "line 2"),
    ],
)
def test_a_mistake_in_a_script_is_named(
    script: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=words):
        World(tmp_path).play(script)
