"""docs/rules.md and the tests name the same sentences."""

from __future__ import annotations

import ast
import re
from pathlib import Path

_ROOT = Path(__file__).parents[2]


def numbers_on_the_page() -> list[int]:
    text = (_ROOT / "docs" / "rules.md").read_text("utf-8")
    return [int(number) for number in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]


def numbers_in_tests() -> set[int]:
    found: set[int] = set()
    for path in (_ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            is_mark = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                "mark.rule"
            )
            # A range stands for agreement as a whole: no test of one sentence.
            if is_mark:
                assert isinstance(node, ast.Call)
                found.update(
                    argument.value
                    for argument in node.args
                    if isinstance(argument, ast.Constant)
                    and isinstance(argument.value, int)
                )
    return found


def test_the_sentences_are_numbered_in_a_row() -> None:
    numbers = numbers_on_the_page()
    assert numbers == list(range(1, len(numbers) + 1))


def test_every_sentence_has_a_test_and_every_test_a_sentence() -> None:
    assert numbers_in_tests() == set(numbers_on_the_page())
