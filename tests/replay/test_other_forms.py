"""The report as Markdown, as a picture and as JSON: each from the report alone."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest
from PIL import Image

from epochfence.audit_outputs import schema_text
from epochfence.replay.files import read_table
from epochfence.replay.markdown_report import MOST_FINDINGS, MOST_ROWS, markdown
from epochfence.replay.png_report import MOST_PARTITIONS, write_png
from epochfence.replay.report import Report, report_schema
from epochfence.replay.texts import duration, utc
from epochfence.replay.timeline import Mark, Timeline, coarser
from support.auditing import run
from support.reports import HOSTILE, INCIDENT, incident, takeover, wide

_ROOT = Path(__file__).parents[2]
_FILES = (
    INCIDENT / "payments.jsonl",
    "--ledger",
    INCIDENT / "ledger.jsonl",
    "--table",
    INCIDENT / "table.jsonl",
)


def cells(line: str) -> list[str]:
    """A row of a table, as GitHub takes it apart: an escaped bar is none."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def picture_of(report: Report) -> Image.Image:
    file = io.BytesIO()
    write_png(report, file)
    return Image.open(file)


# Markdown.


def test_a_ticket_has_the_findings_and_their_evidence() -> None:
    text = markdown(incident())
    assert "165 records: 114 admitted, 12 barriers, 14 stale, 25 quarantined" in text
    assert "**critical** (`conflicting-grants`)" in text
    rows = [cells(line) for line in text.splitlines() if line.startswith("| 4 |")]
    assert rows[1][:5] == ["4", "rejected", "`payments[0]`", "18", "0"]
    assert rows[1][6:] == ["`payments-writer`", "1", "`1fd6e0a96eacf1cb`", "`pod-1`"]
    assert "1.1 s" in text  # for how long pod-1 wrote on


def test_a_ticket_is_short_and_says_what_it_leaves_out() -> None:
    text = markdown(wide(300, 50))
    assert len(text.splitlines()) < 3 * MOST_FINDINGS + 4 * MOST_ROWS
    assert f"{300 - MOST_ROWS} more rows" in text
    assert f"{43 - MOST_FINDINGS} more findings" in text


def test_cells_are_escaped() -> None:
    text = markdown(takeover(HOSTILE))
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert {len(cells(line)) for line in tables} <= {5, 10, 11}
    # In a span of its own, whose fence is longer than the backquotes in it.
    assert all("``<" in line for line in tables if "<img" in line)
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    assert not any(re.search(r"(?<!\\)<", line) for line in prose)
    assert "\u202e" not in text


def test_no_records_as_markdown() -> None:
    empty = msgspec.structs.replace(takeover(), partitions=[], findings=[], verdicts=[])
    text = markdown(empty)
    assert "No records." in text
    assert "None." in text


# The picture.


def test_the_picture_shows_the_worst_partitions() -> None:
    three = picture_of(incident())
    many = picture_of(wide(30, 20))
    assert three.format == "PNG"
    assert three.width == many.width == 1440
    assert three.height < many.height < MOST_PARTITIONS * 250
    colours = three.convert("RGB").getcolors(2**24)
    assert colours is not None
    seen = {colour for count, colour in colours if count > 100}
    assert {(0x9C, 0xCA, 0xF2), (0xB3, 0x14, 0x1F), (0xFF, 0xFF, 0xFF)} <= seen


@pytest.mark.parametrize("holder", [HOSTILE, "$\\frac{", "\u4e2d\u6587" * 40, "a\nb"])
def test_any_holder_can_be_drawn(holder: str) -> None:
    assert picture_of(takeover(holder)).width == 1440


def test_no_records_as_a_picture() -> None:
    empty = msgspec.structs.replace(takeover(), partitions=[], findings=[], verdicts=[])
    assert picture_of(empty).height < 300


def test_the_greatest_numbers_can_be_drawn() -> None:
    report = takeover(first_epoch=2**63 - 2)
    (partition,) = report.partitions
    span = partition.timeline.spans[0]
    far = msgspec.structs.replace(span.last, offset=2**63 - 1)
    span.last = far
    assert picture_of(report).width == 1440


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "sys.modules['matplotlib'] = None\n"
        "from epochfence.__main__ import main\n"
        "main()\n"
    )
    target = tmp_path / "audit.png"
    arguments = ["audit", *map(str, _FILES), "--png", str(target)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "pip install 'epochfence[png]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not target.exists()


# JSON and its schema.


def test_the_schema_in_docs_is_that_of_the_code() -> None:
    committed = (_ROOT / "docs" / "audit-report.schema.json").read_text("utf-8")
    assert committed == schema_text()
    assert run("audit", "--schema").stdout == committed


@pytest.mark.parametrize(
    "report", [incident(), takeover(first_epoch=2**63 - 2), wide(3, 10)]
)
def test_reports_are_what_the_schema_says(report: Report) -> None:
    schema = report_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    told: Any = json.loads(msgspec.json.encode(report))
    jsonschema.Draft202012Validator(schema).validate(told)


def test_the_greatest_epoch_is_an_integer_of_the_report() -> None:
    told = json.loads(msgspec.json.encode(takeover(first_epoch=2**63 - 2)))
    (partition,) = told["partitions"]
    assert [one["epoch"] for one in partition["epochs"]] == [2**63 - 2, 2**63 - 1]


# The command.


def test_all_forms_at_once(tmp_path: Path) -> None:
    page, picture = tmp_path / "audit.html", tmp_path / "audit.png"
    result = run(
        "audit", *_FILES, "--format", "markdown", "--html", page, "--png", picture
    )
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.startswith("# epochfence audit\n")
    assert "`conflicting-grants`" in result.stdout
    assert b"payments-writer" in page.read_bytes()
    with Image.open(picture) as image:
        assert image.width == 1440
    assert {path.name for path in tmp_path.iterdir()} == {"audit.html", "audit.png"}


@pytest.mark.parametrize("option", ["--html", "--png"])
def test_an_input_is_not_written_over(option: str) -> None:
    ledger = INCIDENT / "ledger.jsonl"
    before = ledger.read_bytes()
    result = run("audit", *_FILES, option, ledger)
    assert result.exit_code == 2
    assert "it is an input of this audit" in " ".join(result.stderr.split())
    assert ledger.read_bytes() == before


def test_two_outputs_have_two_files(tmp_path: Path) -> None:
    same = tmp_path / "same"
    for options in (("--html", same, "--png", same), ("--html", same, "--verdicts")):
        more = (same,) if options[-1] == "--verdicts" else ()
        result = run("audit", *_FILES, *options, *more)
        assert result.exit_code == 2
        assert "names the same file" in " ".join(result.stderr.split())
        assert not same.exists()


@pytest.mark.parametrize("name", ["-", "nowhere/page.html", "."])
def test_a_page_that_cannot_be_written_is_told_before_reading(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("audit", *_FILES, "--html", name)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "cannot be written" in " ".join(result.stderr.split())


# What the forms rest on.


def test_an_epoch_whose_start_is_known_begins_there() -> None:
    """A table's starts are met in the log: a finding can point at them."""
    report = incident()
    (known,) = [
        one
        for one in read_table(str(INCIDENT / "table.jsonl"))
        if (one.partition, one.epoch) == (0, 3)
    ]
    partition = next(one for one in report.partitions if one.partition == 0)
    starts = {one.grant_id: one.start_offset for one in partition.epochs}
    assert starts[known.grant_id] == known.position.offset
    (conflict,) = [
        one
        for one in report.findings
        if (one.code, one.partition) == ("conflicting-grants", 0)
    ]
    began, rejected = conflict.evidence
    assert (began.grant_id, began.offset) == (known.grant_id, known.position.offset)
    assert rejected.holder == "pod-4"


def test_a_coarser_picture_counts_all_and_leaves_the_report_alone() -> None:
    (partition,) = wide(1, 2_000).partitions
    timeline = partition.timeline
    before = msgspec.json.encode(timeline)
    small = coarser(timeline, 100)
    assert len(small.spans) <= 100
    assert len(small.marks) <= 100
    assert len(small.spans) > 25
    assert sum(one.records for one in small.marks) == 2_000
    assert sum(one.records for one in small.spans) == 200_000
    assert msgspec.json.encode(timeline) == before
    assert coarser(Timeline(1, [], [Mark(*_one_mark())]), 1).marks


def _one_mark() -> tuple[Any, ...]:
    place = incident().partitions[0].timeline.marks[0].first
    return ("stale", "stale-epoch", "s", 1, 1, place, place, 1)


def test_texts_for_people() -> None:
    assert utc(1_700_000_000_007) == "2023-11-14 22:13:20.007"
    assert (utc(None), utc(10**18)) == ("-", str(10**18))
    assert [duration(ms) for ms in (None, -5, 1500, 150_000, 7_200_000)] == [
        "-", "-5 ms", "1.5 s", "2.5 minutes", "2.0 hours",
    ]  # fmt: skip
