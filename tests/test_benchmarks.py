"""The benchmarks' arithmetic, and the table that they make. They are not run here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(_ROOT))


def test_a_ratio_is_that_of_each_turn() -> None:
    from benchmarks.measuring import compare

    times = compare("b", "f", [1.0, 2.0, 4.0], [2.0, 2.0, 2.0], unit="s")
    assert (times.ratio, times.spread, times.repeats) == (1.0, (0.5, 2.0), 3)
    rates = compare("b", "f", [4.0], [2.0], unit="1/s", is_rate=True)
    assert rates.ratio == 2.0
    told = json.loads(json.dumps(times.to_json()))
    assert set(told) >= {
        "benchmark",
        "figure",
        "ratio",
        "spread",
        "repeats",
        "versions",
    }


def test_ways_are_taken_in_turns() -> None:
    from benchmarks.measuring import in_turns

    order: list[str] = []

    def way(name: str) -> float:
        order.append(name)
        return float(len(order))

    found = in_turns({"a": lambda: way("a"), "b": lambda: way("b")}, 2)
    assert order == ["a", "b", "a", "b"]
    assert found == {"a": [1.0, 3.0], "b": [2.0, 4.0]}


def test_the_readmes_table_is_made_by_the_command() -> None:
    from benchmarks.__main__ import BENCHMARKS, README, with_table
    from benchmarks.measuring import compare

    readme = README.read_text("utf-8")
    for name in BENCHMARKS:
        assert f"| `{name}`: " in readme
    figure = compare("produce", "f", [1.0], [2.0], unit="µs")
    made = with_table(readme, [figure])
    assert "| `produce`: f | 2.00 | 2.00 to 2.00 | 1 µs |" in made
    assert "| `audit`: " not in made
    assert with_table(made, [figure]) == made
    with pytest.raises(ValueError, match="no place"):
        with_table("# nothing", [figure])


@pytest.mark.parametrize(
    "arguments", [["nope"], ["--repeats", "0"], ["produce", "--readme"]]
)
def test_wrong_arguments(
    arguments: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", *arguments])
    from benchmarks.__main__ import main

    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    assert "error:" in capsys.readouterr().err
