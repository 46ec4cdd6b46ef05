"""The report of an audit in the forms that are not tables: on stdout, and in files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from epochfence.epochs.errors import MisconfiguredError
from epochfence.replay.html_report import html_page
from epochfence.replay.png_report import check_matplotlib, write_png
from epochfence.replay.report import Report, report_schema
from epochfence.terminal import written_whole


def schema_text() -> str:
    """The JSON schema of a report, as `docs/audit-report.schema.json` has it."""
    return json.dumps(report_schema(), indent=2, ensure_ascii=False) + "\n"


def report_json(report: Report) -> str:
    """The report for machines."""
    return msgspec.json.format(msgspec.json.encode(report)).decode()


@dataclass(frozen=True)
class ReportFiles:
    """The files that a report is written to, beside what is printed.

    Args:
        html: Where the page goes, None for nowhere.
        png: Where the picture goes, None for nowhere.
    """

    html: Path | None
    png: Path | None

    def targets(self) -> Iterator[tuple[str, Path]]:
        """Each of them, with the option that names it."""
        if self.html is not None:
            yield "--html", self.html
        if self.png is not None:
            yield "--png", self.png

    def check(self, *others: Path | None) -> None:
        """See beforehand that they can be written: reading may take long.

        Args:
            others: What else the command writes.

        Raises:
            MisconfiguredError: They cannot, or one would replace another.
        """
        if self.png is not None:
            check_matplotlib()
        taken = [path.absolute() for path in others if path is not None]
        for option, path in self.targets():
            if path.absolute() in taken:
                raise MisconfiguredError(
                    option, str(path), "another option names the same file",
                    "Give each a file of its own.",
                )  # fmt: skip
            taken.append(path.absolute())
            if not path.exists() or path.is_dir():
                with written_whole(path, option):
                    pass
                path.unlink()

    def write(self, report: Report) -> None:
        """Write them.

        Raises:
            MisconfiguredError: A file cannot be written.
        """
        if self.html is not None:
            with written_whole(self.html, "--html") as file:
                file.write(html_page(report))
        if self.png is not None:
            with written_whole(self.png, "--png") as file:
                write_png(report, file)
