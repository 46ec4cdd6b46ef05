"""The benchmarks: `python -m benchmarks [NAME...] [--json] [--readme]`.

They use the Kafka that `-b` names, or one by the tests' choice, and leave it clean.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from benchmarks import (
    audit,
    consume,
    fence,
    ledger,
    partition_leaderships,
    produce,
    replay,
    sinks,
    takeover,
)
from benchmarks.measuring import Figure, broker, versions

Measure = Callable[[str, int], list[Figure]]

#: Each with the number of turns that makes its median stand still.
BENCHMARKS: dict[str, tuple[Measure, int]] = {
    "produce": (produce.measure, 9),
    "consume": (consume.measure, 7),
    "fence": (fence.measure, 9),
    "takeover": (takeover.measure, 9),
    "ledger": (ledger.measure, 5),
    "sinks": (sinks.measure, 7),
    "audit": (audit.measure, 3),
    "replay": (replay.measure, 5),
    # The last: the broker goes on working when its partitions are deleted.
    "partition_leaderships": (partition_leaderships.measure, 5),
}

README = Path(__file__).parents[1] / "README.md"
_TABLE = re.compile(
    r"(<!-- made by: python -m benchmarks --readme -->\n).*?(<!-- end -->)", re.DOTALL
)


def main() -> None:
    """Parse the arguments, measure and print."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)}; else all"
    )
    parser.add_argument("-b", "--bootstrap-server", metavar="HOST:PORT")
    parser.add_argument(
        "--repeats", type=int, metavar="N", help="turns; each has a default of its own"
    )
    parser.add_argument(
        "--json", action="store_true", help="one JSON object a figure and line"
    )
    parser.add_argument(
        "--readme", action="store_true", help="put the table into README.md as well"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(BENCHMARKS))
    if unknown:
        parser.error(f"no such benchmark: {unknown[0]} (there are: "
                     f"{', '.join(BENCHMARKS)})")  # fmt: skip
    if options.repeats is not None and options.repeats < 1:
        parser.error("--repeats: at least 1")
    names = options.names or list(BENCHMARKS)
    if options.readme and set(names) != set(BENCHMARKS):
        parser.error("--readme: the table has all benchmarks, so name none")
    figures: list[Figure] = []
    with broker(options.bootstrap_server) as servers:
        for name in names:
            measure, repeats = BENCHMARKS[name]
            for figure in measure(servers, options.repeats or repeats):
                figures.append(figure)
                print(
                    json.dumps(figure.to_json()) if options.json else line(figure),
                    flush=True,
                )
    if options.readme:
        text = README.read_text("utf-8")
        README.write_text(with_table(text, figures), "utf-8")


def line(figure: Figure) -> str:
    """A figure, for people."""
    lowest, highest = figure.spread
    return (
        f"{figure.benchmark:9} {figure.figure:52} {figure.ratio:6.2f}  "
        f"({lowest:.2f} to {highest:.2f}; {figure.own:g} and {figure.baseline:g} "
        f"{figure.unit})"
    )


def with_table(readme: str, figures: Iterable[Figure]) -> str:
    """The README with these figures in its table.

    Raises:
        ValueError: It has no place for them.
    """
    rows = [
        f"| `{one.benchmark}`: {one.figure} | {one.ratio:.2f} | {one.spread[0]:.2f} to "
        f"{one.spread[1]:.2f} | {one.own:g} {one.unit} |"
        for one in figures
    ]
    run_with = ", ".join(f"{name} {number}" for name, number in versions().items())
    table = "\n".join(
        [
            "| figure | ratio | spread | here |",
            "|---|---|---|---|",
            *rows,
            "",
            f"({run_with})",
        ]
    )
    replaced, count = _TABLE.subn(
        lambda found: f"{found[1]}\n{table}\n\n{found[2]}", readme
    )
    if count != 1:
        raise ValueError("README.md has no place for the table")
    return replaced


if __name__ == "__main__":
    main()
