"""The options that compare a topic beyond the fence: what is refused."""

from __future__ import annotations

import pytest

from support.auditing import run


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-t", "t", "--sink", "mysql:x"], "sqlite:PATH nor postgres:CONNINFO"),
        (["-t", "t", "--sink", "sqlite:"], "sqlite:PATH nor postgres:CONNINFO"),
        (["-t", "t", "--sink-table", "stock"], "no sink is named"),
        (["-t", "t", "--sink-schema", "x"], "no sink is named"),
        (["-t", "t", "--sink", "sqlite:x", "--sink-schema", "y"], "no schemas"),
        (
            ["-t", "t", "--sink", "sqlite:x", "--sink-table", "y"],
            "goes together with --sink-key and --sink-value",
        ),
        (
            [
                *("-t", "t", "-p", "0", "--sink", "sqlite:x", "--sink-table", "y"),
                *("--sink-key", "k", "--sink-value", "v"),
            ],
            "come from all partitions",
        ),
        (
            [
                *("-t", "t", "--sink", "sqlite:x", "--sink-table", "a..b"),
                *("--sink-key", "k", "--sink-value", "v"),
            ],
            "no name of a table",
        ),
        (["/dev/null", "--sink", "sqlite:x"], "means nothing to a record file"),
        (["/dev/null", "--table-topic", "x"], "means nothing to a record file"),
        (["/dev/null", "--group", "x"], "means nothing to a record file"),
    ],
)
def test_options_that_are_refused(options: list[str], words: str) -> None:
    result = run("audit", *options, "-b", "127.0.0.1:1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in " ".join(result.stderr.split())


def test_a_password_is_not_repeated() -> None:
    for address in ("postgresql:hunter2", "postgres:hunter2 =", "x:hunter2"):
        result = run("audit", "-t", "t", "-b", "127.0.0.1:1", "--sink", address)
        assert result.exit_code == 2
        assert "hunter2" not in result.output
