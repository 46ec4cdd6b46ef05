"""`epochfence audit` over Parquet, and its verdicts as Parquet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import ForeignField
from epochfence.replay import parquet_verdicts
from epochfence.replay.arrow_records import columns_of, needs_value
from epochfence.replay.audit import Audit
from epochfence.replay.parquet_source import audit_parquet
from epochfence.replay.parquet_verdicts import ParquetVerdicts
from support.arrow_worlds import (
    SCHEMA,
    Json,
    audit_of,
    engine_says,
    lives_of,
    table_of,
)
from support.auditing import run, settings_options, write_lines
from support.worlds import world

ADMIT = ["--unstamped", "admit", "--authority", "max-seen"]


def line(offset: int, partition: int = 0, **more: Any) -> Json:
    return {
        "topic": "orders",
        "partition": partition,
        "offset": offset,
        "key": None,
        "value": None,
        "headers": [],
        **more,
    }


def written(folder: Path, name: str, *records: Json, rows: int = 1000) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table_of(records), path, row_group_size=rows)
    return path


def fails(*arguments: object) -> str:
    """The message on stderr of a call that must be refused."""
    result = run("audit", *arguments)
    assert result.exit_code == 2, result.output
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def command(made: Json, folder: Path) -> list[object]:
    """The options for a world."""
    found: list[object] = [
        *settings_options(made["settings"]),
        *("--table", write_lines(folder / "table.jsonl", made["table"])),
    ]
    if made["ledger"] is not None:
        found += ["--ledger", write_lines(folder / "ledger.jsonl", made["ledger"])]
    return found


@pytest.mark.parametrize("seed", range(20))
def test_shuffled_rows_in_many_files_are_judged_alike(
    seed: int, tmp_path: Path
) -> None:
    made = world(seed, 100)
    table = table_of(made["records"], seed)
    data = tmp_path / "data"
    data.mkdir()
    for start in range(0, 100, 20):
        name = f"part-{(start * 7) % 100:03d}.parquet"
        pq.write_table(table.slice(start, 20), data / name, row_group_size=7)
    out = tmp_path / "verdicts.parquet"
    result = run("audit", data, *command(made, tmp_path), "--parquet", out)
    assert result.exit_code == 0, result.output
    found = Counter(
        (one["topic"], one["partition"], one["offset"], one["verdict"], one["reason"],
         one["scope"], one["epoch"], one["current_epoch"])
        for one in pq.read_table(out).to_pylist()
    )  # fmt: skip
    told = engine_says(made, audit_of(made))
    assert found == Counter(
        (place[0], place[1], place[4], *verdict) for place, verdict in told.items()
    )


def test_the_report_is_that_of_the_record_file(tmp_path: Path) -> None:
    made = world(7, 300)
    # Parquet gives timestamps to every row or none; lives as numbers.
    for record, _ in zip(made["records"], lives_of(made["records"]), strict=True):
        record.setdefault("timestamp", None)
    lines = write_lines(tmp_path / "records.jsonl", made["records"])
    path = tmp_path / "records.parquet"
    pq.write_table(table_of(made["records"]), path)
    reports = []
    for source in (lines, path):
        result = run("audit", source, *command(made, tmp_path), "--format", "json")
        assert result.exit_code == 0, result.output
        report = json.loads(result.stdout)
        del report["source"]
        reports.append(report)
    assert reports[0] == reports[1]


def test_a_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    path = written(tmp_path, "records", line(0), line(1))
    result = run("audit", path, *ADMIT)
    assert result.exit_code == 0, result.output
    assert "2 records" in result.stdout


def test_files_are_read_in_the_order_of_their_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without anything that sorts: their names do not matter."""
    monkeypatch.setitem(sys.modules, "epochfence.replay.duckdb_sorting", None)
    written(tmp_path, "a.parquet", line(2), line(3), line(1, 1))
    written(tmp_path, "b.parquet", line(0), line(1), line(0, 1))
    written(tmp_path, "_temporary/c.parquet", line(0))
    result = run("audit", tmp_path, *ADMIT)
    assert result.exit_code == 0, result.output
    assert "6 records" in result.stdout


def test_what_is_out_of_order_is_named_where_nothing_sorts_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "epochfence.replay.duckdb_sorting", None)
    path = written(tmp_path, "a.parquet", line(0), line(2), line(1), rows=2)
    message = fails(tmp_path, *ADMIT)
    assert f"{path}, row group 1: orders[0] offset 1" in message
    assert "comes after offset 2" in message
    assert "pip install 'epochfence[duckdb]'" in message


def test_a_record_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "a.parquet", line(0), line(1))
    written(tmp_path, "b.parquet", line(1), line(2))
    assert "offset 1" in fails(tmp_path, *ADMIT)


def test_lives_need_a_number(tmp_path: Path) -> None:
    first, second = "a" * 22, "b" * 22
    table = table_of([line(0, topic_id=first), line(0, topic_id=second)])
    pq.write_table(table, tmp_path / "a.parquet")
    assert run("audit", tmp_path, *ADMIT).exit_code == 0
    pq.write_table(table.drop_columns(["life"]), tmp_path / "a.parquet")
    assert "column 'life'" in fails(tmp_path, *ADMIT)


@pytest.mark.parametrize(
    ("name", "kind", "problem"),
    [
        ("headers", None, "column 'headers' is missing"),
        ("headers", pa.map_(pa.string(), pa.binary()), "column 'headers' is map"),
        ("offset", pa.string(), "column 'offset' is string; an integer is expected"),
        ("timestamp", pa.string(), "column 'timestamp' is string"),
        ("topic", pa.binary(), "column 'topic' is binary; a string is expected"),
    ],
)
def test_columns_that_are_not_as_they_should_be(
    name: str, kind: Any, problem: str, tmp_path: Path
) -> None:
    fields = [field for field in SCHEMA if field.name != name]
    if kind is not None:
        fields.append(pa.field(name, kind))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.schema(fields).empty_table(), path)
    message = fails(tmp_path, *ADMIT)
    assert str(path) in message
    assert problem in message


def test_a_record_without_a_place(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = table_of([line(0), line(1)])
    at = table.schema.get_field_index("offset")
    holes = table.set_column(at, "offset", pa.array([0, None], pa.int64()))
    pq.write_table(holes, path)
    assert "lacks its topic, its partition or its offset" in fails(path, *ADMIT)


def test_values_are_read_only_if_the_stamp_lies_there() -> None:
    payload = FenceSettings(stamps=ForeignField("term", lambda value: None))
    for settings, is_read in ((FenceSettings(), False), (payload, True)):
        columns = columns_of(SCHEMA, needs_value(settings))
        assert ("value" in columns) is is_read
        assert "key" not in columns


def test_a_stamp_in_the_payload(tmp_path: Path) -> None:
    def term(value: bytes | None) -> int | None:
        return None if value is None else int(value)

    records = [line(0, value="Mg=="), line(1, value="MQ==")]  # 2, then 1
    path = written(tmp_path, "a.parquet", *records)
    settings = FenceSettings(stamps=ForeignField("term", term))
    report = audit_parquet(Audit(settings, None), str(path)).report
    assert [(one.verdict, one.records) for one in report.verdicts] == [
        ("admitted", 1),
        ("stale", 1),
    ]


def test_a_damaged_file_keeps_what_was_judged_before(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", *(line(n) for n in range(40)), rows=10)
    table = pq.read_table(path)
    pq.write_table(
        table, path, row_group_size=10, compression="none", write_page_checksum=True
    )
    group = pq.read_metadata(path).row_group(2)
    (at,) = (
        group.column(number).data_page_offset
        for number in range(group.num_columns)
        if group.column(number).path_in_schema == "offset"
    )
    content = bytearray(path.read_bytes())
    for n in range(at + 20, at + 60):
        content[n] ^= 0xFF
    path.write_bytes(content)
    out = tmp_path / "verdicts.parquet"
    result = run("audit", path, *ADMIT, "--format", "json", "--parquet", out)
    assert result.exit_code == 2
    report = json.loads(result.stdout)
    assert report["records"] == 20
    assert "row group 2 is damaged" in report["partial"]
    assert "row group 2 is damaged" in result.stderr
    assert not out.exists()


def test_a_file_that_is_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path, "a.parquet", line(0))
    path.write_bytes(path.read_bytes()[:-20])
    assert "not a whole Parquet file" in fails(path, *ADMIT)


def test_a_folder_without_parquet(tmp_path: Path) -> None:
    assert "no *.parquet is in this folder" in fails(tmp_path, *ADMIT)


def test_row_groups_of_verdicts_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_verdicts, "_ROWS_PER_GROUP", 10)
    path = written(tmp_path, "a.parquet", *(line(n) for n in range(25)))
    out = tmp_path / "verdicts.parquet"
    with out.open("wb") as file, ParquetVerdicts(file) as verdicts:
        settings = FenceSettings(unstamped="admit", authority="max-seen")
        audit_parquet(Audit(settings, None), str(path), verdicts=verdicts)
    metadata = pq.read_metadata(out)
    groups = [metadata.row_group(n).num_rows for n in range(metadata.num_row_groups)]
    assert groups == [10, 10, 5]
    assert "RLE_DICTIONARY" in metadata.row_group(0).column(0).encodings


@pytest.mark.parametrize("arguments", [["data.parquet"], ["--parquet", "out.parquet"]])
def test_without_the_extra(arguments: list[str], tmp_path: Path) -> None:
    written(tmp_path, "data.parquet", line(0))
    (tmp_path / "none.jsonl").write_text("")
    records = [] if arguments == ["data.parquet"] else ["none.jsonl"]
    code = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from epochfence.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "audit", *records, *arguments, *ADMIT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    assert "pip install 'epochfence[parquet]'" in done.stderr
    assert "Traceback" not in done.stderr
