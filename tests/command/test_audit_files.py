"""`epochfence audit` over files: what it prints, how it ends, what it refuses."""

from __future__ import annotations

import base64
import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.auditing import Line, run, write_lines
from support.histories import grant_id, stamp


def encoded(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def record(offset: int, *headers: tuple[str, bytes | None], **more: Any) -> Line:
    return {
        "topic": "orders",
        "partition": 0,
        "offset": offset,
        "key": encoded(b"k"),
        "value": encoded(b"v"),
        "headers": [[name, encoded(value)] for name, value in headers],
        **more,
    }


def claim_line(epoch: int, **more: Any) -> Line:
    return {
        "type": "claim",
        "scope": "s",
        "epoch": epoch,
        "previous": epoch - 1,
        "grant_id": grant_id(epoch),
        "holder": f"pod-{epoch}",
        "claimed_at": 1_700_000_000_000,
        **more,
    }


def start_line(epoch: int, offset: int, **more: Any) -> Line:
    return {
        "topic": "orders",
        "partition": 0,
        "scope": "s",
        "epoch": epoch,
        "start_offset": offset,
        **more,
    }


TAKEOVER = [record(0, stamp(1)), record(1, stamp(2)), record(2, stamp(1))]
LEDGER = [claim_line(1), claim_line(2)]


class Files:
    """A folder of files, and `audit` over them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.records = write_lines(folder / "records.jsonl", TAKEOVER)
        self.ledger = write_lines(folder / "ledger.jsonl", LEDGER)

    def fails(self, *arguments: object) -> str:
        """The message on stderr of a call that must be refused."""
        result = run("audit", *arguments)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())

    def fails_midway(self, *arguments: object) -> str:
        """The same where what was judged before is reported, and called partial."""
        result = run("audit", *arguments)
        assert result.exit_code == 2, result.output
        assert "Partial: " in result.stdout
        assert "1 record: 1 admitted" in result.stdout
        assert "Traceback" not in result.stderr
        return " ".join(result.stderr.split())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def test_the_report(files: Files) -> None:
    result = run("audit", files.records, "--ledger", files.ledger)
    assert result.exit_code == 0
    assert result.stderr == ""
    assert "3 records: 2 admitted, 0 barriers, 1 stale, 0 quarantined." in result.stdout
    assert "pod-1" in result.stdout
    assert "stale-epoch" in result.stdout


def test_the_report_as_json(files: Files) -> None:
    result = run("audit", files.records, "--ledger", files.ledger, "--format", "json")
    report = json.loads(result.stdout)
    assert (report["report"], report["version"]) == ("epochfence-audit", 1)
    assert report["ledger"]["grants"] == 2
    assert report["settings"]["stamp"] == "epochfence"
    assert report["rejected_total"] == 1
    assert report["verdicts"] == [
        {"verdict": "admitted", "reason": "ok", "records": 2},
        {"verdict": "stale", "reason": "stale-epoch", "records": 1},
    ]
    (rejected,) = report["rejected_shown"]
    assert (rejected["offset"], rejected["holder"]) == (2, "pod-1")
    (partition,) = report["partitions"]
    first, second = partition["epochs"]
    assert (first["epoch"], first["start_offset"], first["rejected"]) == (1, 0, 1)
    assert (second["epoch"], second["start_offset"], second["rejected"]) == (2, 1, 0)


def test_verdict_lines(files: Files) -> None:
    verdicts = files.folder / "verdicts.jsonl"
    run("audit", files.records, "--ledger", files.ledger, "--verdicts", verdicts)
    lines = [json.loads(line) for line in verdicts.read_text().splitlines()]
    assert lines[2] == {
        "topic": "orders",
        "partition": 0,
        "offset": 2,
        "verdict": "stale",
        "reason": "stale-epoch",
        "scope": "s",
        "epoch": 1,
        "current_epoch": 2,
    }


@pytest.mark.parametrize(
    ("records", "fail_on", "exit_code"),
    [
        (TAKEOVER, "never", 0),
        (TAKEOVER, "quarantined", 0),
        (TAKEOVER, "rejected", 1),
        ([record(0)], "quarantined", 1),
        ([record(0)], "rejected", 1),
        ([record(0, stamp(1))], "rejected", 0),
        ([], "rejected", 0),
    ],
)
def test_exit_codes(
    files: Files, records: list[Line], fail_on: str, exit_code: int
) -> None:
    write_lines(files.records, records)
    result = run("audit", files.records, "--ledger", files.ledger, "--fail-on", fail_on)
    assert result.exit_code == exit_code


def test_records_from_the_standard_input(files: Files) -> None:
    from typer.testing import CliRunner

    from epochfence.cli import app

    result = CliRunner().invoke(
        app,
        ["audit", "-", "--ledger", str(files.ledger)],
        input=files.records.read_bytes(),
    )
    assert "3 records" in result.stdout


def test_a_verdict_file_never_replaces_an_input(files: Files) -> None:
    before = files.records.read_bytes()
    for target in (files.records, files.ledger):
        message = files.fails(
            *(files.records, "--ledger", files.ledger, "--verdicts", target)
        )
        assert "input" in message
    assert files.records.read_bytes() == before


def test_a_verdict_file_is_whole_or_what_it_was(files: Files) -> None:
    verdicts = files.folder / "verdicts.jsonl"
    verdicts.write_text("before\n")
    files.records.write_text(json.dumps(TAKEOVER[0]) + "\n{")
    good = (files.records, "--ledger", files.ledger)
    said = files.fails_midway(*good, "--verdicts", verdicts)
    assert f"{verdicts} was not written: not all was judged" in said
    assert verdicts.read_text() == "before\n"
    assert len(list(files.folder.iterdir())) == 3


def test_a_full_disk_is_said(files: Files) -> None:
    good = (files.records, "--ledger", files.ledger)
    assert "No space left" in files.fails(*good, "--verdicts", "/dev/full")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "epochfence", "audit", *map(str, good)],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert done.stderr == (
        "epochfence: cannot write the output: No space left on device\n"
    )


def test_a_closed_standard_input_is_said(files: Files) -> None:
    command = [sys.executable, "-m", "epochfence", "audit", "-"]
    done = subprocess.run(
        ["sh", "-c", '"$@" <&-', "sh", *command, "--ledger", str(files.ledger)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "no standard input" in done.stderr


def test_a_reader_that_has_seen_enough_is_no_error(files: Files) -> None:
    many = [record(offset, stamp(1), topic="t" * 99) for offset in range(5000)]
    for offset, one in enumerate(many):
        one["partition"], one["offset"] = offset, 0
    write_lines(files.records, many)
    command = [sys.executable, "-m", "epochfence", "audit", str(files.records)]
    done = subprocess.run(
        ["sh", "-c", '"$@" | head -1', "sh", *command, "--ledger", str(files.ledger)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stderr, len(done.stdout.splitlines())) == ("", 1)


def test_with_max_seen_a_ledger_only_names_the_holders(files: Files) -> None:
    table = write_lines(files.folder / "table.jsonl", [start_line(1, 0)])
    write_lines(files.ledger, [])
    options = ("--ledger", files.ledger, "--table", table, "--authority", "max-seen")
    result = run("audit", files.records, *options)
    assert result.exit_code == 0
    assert "2 admitted, 0 barriers, 1 stale" in result.stdout


def test_a_foreign_header(files: Files) -> None:
    write_lines(
        files.records,
        [record(n, ("term", str(term).encode())) for n, term in enumerate((4, 5, 4))],
    )
    result = run("audit", files.records, "--stamp", "term:decimal")
    assert result.stderr == ""
    assert "2 admitted, 0 barriers, 1 stale" in result.stdout


def test_what_looks_like_a_mistake_is_remarked_on(files: Files) -> None:
    typo = run("audit", files.records, "--stamp", "trem:decimal")
    assert typo.exit_code == 0
    assert "no record carries a stamp 'trem:decimal'" in typo.stderr
    scope = run("audit", files.records, "--ledger", files.ledger, "--scope", "q")
    assert "of q. These scopes are there: s. Is --scope misspelt?" in scope.stderr
    both = ("--scope", "s", "--scope", "q")
    both_told = run("audit", files.records, "--ledger", files.ledger, *both)
    assert "of q. These scopes are there: s." in both_told.stderr
    write_lines(files.records, [record(0)])
    bare = run("audit", files.records, "--ledger", files.ledger, "--scope", "q")
    assert "of q. Are --stamp and --scope what you mean?" in bare.stderr
    any_scope = run("audit", files.records, "--ledger", files.ledger)
    assert "of any scope. Are --stamp" in any_scope.stderr
    write_lines(files.ledger, [])
    empty = run("audit", files.records, "--ledger", files.ledger)
    assert "the ledger grants nothing" in empty.stderr
    assert "0 claims" in empty.stdout


def test_a_byte_order_mark_is_passed_over(files: Files) -> None:
    files.records.write_bytes(b"\xef\xbb\xbf" + files.records.read_bytes())
    result = run("audit", files.records, "--ledger", files.ledger)
    assert "3 records" in result.stdout


def test_a_packed_file_is_named_as_one(files: Files) -> None:
    files.records.write_bytes(gzip.compress(files.records.read_bytes()))
    assert "gzip" in files.fails(files.records, "--ledger", files.ledger)
    files.records.write_text("{}", encoding="utf-16")
    assert "UTF-16" in files.fails(files.records, "--ledger", files.ledger)


def test_nothing_is_cut_in_a_narrow_terminal(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "h" * 90
    write_lines(files.ledger, [claim_line(1, holder=long), claim_line(2)])
    monkeypatch.setenv("COLUMNS", "40")
    result = run("audit", files.records, "--ledger", files.ledger)
    assert long in result.stdout
    assert "…" not in result.stdout
    assert [line for line in result.stdout.splitlines() if line != line.rstrip()] == []


def test_an_empty_file(files: Files) -> None:
    files.records.write_text("")
    result = run("audit", files.records, "--ledger", files.ledger)
    assert result.exit_code == 0
    assert "No records." in result.stdout


def test_a_closed_standard_output_is_no_fault(files: Files) -> None:
    command = [sys.executable, "-m", "epochfence", "audit", str(files.records)]
    done = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *command, "--ledger", str(files.ledger)],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_other_alphabets_are_printed_somehow(files: Files) -> None:
    write_lines(files.ledger, [claim_line(1, holder="José"), claim_line(2)])
    done = subprocess.run(
        [
            *(sys.executable, "-m", "epochfence", "audit", str(files.records)),
            *("--ledger", str(files.ledger)),
        ],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert done.returncode == 0
    assert b"Jos\\xe9" in done.stdout


def test_a_table_known_beforehand(files: Files) -> None:
    table = write_lines(files.folder / "table.jsonl", [start_line(2, 0)])
    result = run("audit", files.records, "--ledger", files.ledger, "--table", table)
    assert "1 admitted, 0 barriers, 2 stale" in result.stdout


def test_a_header_of_a_megabyte_is_a_counted_verdict(files: Files) -> None:
    huge = ("epochfence", b"1" * 1_000_000)
    write_lines(files.records, [record(0, huge), record(1, stamp(1))])
    result = run("audit", files.records, "--ledger", files.ledger)
    assert "1 admitted, 0 barriers, 0 stale, 1 quarantined" in result.stdout


def test_what_others_wrote_cannot_drive_the_terminal(files: Files) -> None:
    evil = "\x1b[2J[red]:boom:\n"
    write_lines(files.ledger, [claim_line(1, holder=evil), claim_line(2)])
    result = run("audit", files.records, "--ledger", files.ledger)
    assert "\x1b" not in result.stdout
    assert "\\x1b[2J[red]:boom:\\n" in result.stdout


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", ["line 2", "not JSON"]),
        ("\x00\x01", ["line 2", "not JSON"]),
        ("[]", ["line 2"]),
        ('{"topic":"orders"}', ["line 2", "partition"]),
        (json.dumps({**TAKEOVER[1], "offset": "1"}), ["line 2", "offset", "int"]),
        (json.dumps({**TAKEOVER[1], "offset": -1}), ["line 2", "offset"]),
        (json.dumps({**TAKEOVER[1], "offset": 2**63}), ["line 2", "offset"]),
        (json.dumps({**TAKEOVER[1], "value": "%%%"}), ["line 2", "value", "ase64"]),
        (json.dumps({**TAKEOVER[1], "leaderepoch": 1}), ["line 2", "leaderepoch"]),
        (json.dumps({**TAKEOVER[1], "headers": [["a"]]}), ["line 2", "headers"]),
        (json.dumps(TAKEOVER[0]), ["line 2", "offset 0", "order"]),
    ],
)
def test_a_broken_line_is_named(files: Files, line: str, words: list[str]) -> None:
    lines = [json.dumps(TAKEOVER[0]), line, json.dumps(TAKEOVER[2])]
    files.records.write_text("\n".join(lines))
    message = files.fails_midway(files.records, "--ledger", files.ledger)
    assert [word for word in words if word not in message] == []


def test_a_line_that_is_not_utf_8_is_named(files: Files) -> None:
    good = json.dumps(TAKEOVER[0]).encode()
    files.records.write_bytes(good + b"\n" + good.replace(b"orders", b"ord\xffrs"))
    assert "line 2" in files.fails_midway(files.records, "--ledger", files.ledger)


def positions(*places: tuple[int | None, int]) -> list[Line]:
    return [
        record(offset, stamp(1), leader_epoch=leader_epoch)
        for leader_epoch, offset in places
    ]


@pytest.mark.rule(4, 30)
@pytest.mark.parametrize(
    ("records", "bad_line"),
    [
        (positions((1, 10), (2, 7), (2, 8)), None),
        (positions((2, 7), (1, 10)), 2),
        (positions((1, 10), (1, 10)), 2),
        (positions((None, 5), (1, 6), (None, 7)), None),
        (positions((None, 5), (1, 5)), 2),
        # Each in order with the one before it, but not with all.
        (positions((1, 10), (2, 7), (None, 8)), 3),
        (positions((None, 10), (1, 11), (2, 9)), 3),
        ([record(5, stamp(1), topic_id="a"), record(0, stamp(1), topic_id="b")], None),
        (
            [
                record(5, stamp(1), topic_id="a"),
                record(0, stamp(1), topic_id="b"),
                record(6, stamp(1), topic_id="a"),
            ],
            3,
        ),
    ],
)
def test_records_stand_in_order_of_position(
    files: Files, records: list[Line], bad_line: int | None
) -> None:
    write_lines(files.records, records)
    result = run("audit", files.records, "--ledger", files.ledger)
    if bad_line is None:
        assert result.exit_code == 0, result.output
    else:
        assert result.exit_code == 2
        assert f"line {bad_line}:" in result.stderr


def test_partitions_may_interleave(files: Files) -> None:
    places = [(0, 0), (1, 0), (0, 1), (1, 1)]
    records = [record(offset, stamp(1), partition=part) for part, offset in places]
    write_lines(files.records, records)
    result = run("audit", files.records, "--ledger", files.ledger)
    assert "4 records: 4 admitted" in result.stdout


@pytest.mark.parametrize(
    ("claim", "words"),
    [
        ({"epoch": 2**63}, ["line 2", "2^63-1"]),
        ({"epoch": 0}, ["line 2", "epoch = 0"]),
        ({"scope": "a b"}, ["line 2", "a b", "A-Z a-z 0-9"]),
        ({"grant_id": "XYZ"}, ["line 2", "grant_id", "hex"]),
        ({"type": "grant"}, ["line 2", "'grant'"]),
        ({"holder": None}, ["line 2", "holder"]),
        ({"attributes": {"a": 1}}, ["line 2", "attributes"]),
        ({"extra": 1}, ["line 2", "extra"]),
    ],
)
def test_a_broken_ledger_line_is_named(
    files: Files, claim: Line, words: list[str]
) -> None:
    write_lines(files.ledger, [claim_line(1), {**claim_line(2), **claim}])
    message = files.fails(files.records, "--ledger", files.ledger)
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(
    ("start", "words"),
    [
        ({"epoch": 0}, ["line 1", "epoch"]),
        ({"scope": "a b"}, ["line 1", "a b"]),
        ({"scope": "~term", "epoch": -1}, ["line 1", "epoch"]),
        ({"scope": "~term", "grant_id": "0" * 16}, ["line 1", "foreign"]),
        ({"scope": "~"}, ["line 1", "'~'"]),
        ({"grant_id": "X"}, ["line 1", "grant_id"]),
        ({"start_offset": -1}, ["line 1", "start_offset"]),
    ],
)
def test_a_broken_table_line_is_named(
    files: Files, start: Line, words: list[str]
) -> None:
    table = write_lines(files.folder / "t.jsonl", [{**start_line(1, 0), **start}])
    message = files.fails(files.records, "--ledger", files.ledger, "--table", table)
    assert [word for word in words if word not in message] == []


@pytest.mark.rule(20)
def test_a_ledger_below_the_table(files: Files) -> None:
    table = write_lines(files.folder / "table.jsonl", [start_line(9, 0)])
    message = files.fails(files.records, "--ledger", files.ledger, "--table", table)
    for words in ("--ledger", "epoch 2", "epoch 9", "ledger export"):
        assert words in message


BAD_OPTIONS: list[tuple[list[str], list[str]]] = [
    ([], ["one source of records", "--topic"]),
    (["RECORDS"], ["--authority", "--ledger FILE", "max-seen"]),
    (["RECORDS", "--topic", "t"], ["one source of records", "--topic"]),
    (["--topic", "t"], ["-b", "no broker"]),
    (["RECORDS", "--ledger", "LEDGER", "-p", "3"], ["--partition"]),
    (["RECORDS", "--ledger", "LEDGER", "-X", "a=b"], ["--property", "--topic"]),
    (["RECORDS", "--ledger", "LEDGER", "--coordination-topic", "c"], ["--coord"]),
    (["orders"], ["orders", "No such file", "--topic"]),
    (
        ["RECORDS", "--stamp", "t:decimal", "--ledger", "LEDGER"],
        ["--ledger", "foreign"],
    ),
    (
        ["LEDGER", "--ledger", "LEDGER"],
        ["line 1", "not a line of a record file", "ledger file"],
    ),
    (
        ["RECORDS", "--ledger", "LEDGER", "--verdicts", "-"],
        ["--verdicts", "/dev/stdout"],
    ),
    (["--topic", "t", "-b", "http://x:9092"], ["'http://x:9092' is no address"]),
    (["nowhere.jsonl", "--ledger", "LEDGER"], ["nowhere.jsonl", "No such file"]),
    ([".", "--ledger", "LEDGER"], [".", "directory"]),
    (["RECORDS", "--ledger", "nowhere"], ["nowhere", "No such file"]),
    (["RECORDS", "--ledger", "LEDGER", "--table", "nowhere"], ["nowhere"]),
    (["RECORDS", "--ledger", "RECORDS"], ["line 1"]),
    (["RECORDS", "--ledger", "LEDGER", "--scope", "a b"], ["scope", "'a b'"]),
    (
        ["RECORDS", "--ledger", "LEDGER", "--stamp", "term"],
        ["stamp = 'term'", "HEADER"],
    ),
    (["RECORDS", "--timeout", "inf"], ["--timeout"]),
    (["RECORDS", "--stamp", "term:hex"], ["'hex'", "int64be", "decimal"]),
    (["RECORDS", "--stamp", "t:decimal", "--authority", "ledger"], ["max-seen"]),
    (["RECORDS", "--stamp", "t:decimal", "--scope", "s"], ["~t"]),
    (["RECORDS", "--ledger", "LEDGER", "--max-jump", "5"], ["max_jump", "max-seen"]),
    (["RECORDS", "--authority", "max-seen", "--max-jump", "0"], ["max_jump"]),
    (["RECORDS", "--ledger", "LEDGER", "--authority", "seen"], ["--authority"]),
    (["RECORDS", "--ledger", "LEDGER", "--unstamped", "drop"], ["--unstamped"]),
    (["RECORDS", "--ledger", "LEDGER", "--format", "xml"], ["--format"]),
    (["RECORDS", "--ledger", "LEDGER", "--fail-on", "stale"], ["--fail-on"]),
    (["RECORDS", "--ledger", "LEDGER", "--verdicts", "no/where"], ["--verdicts"]),
    (["RECORDS", "--ledgr", "LEDGER"], ["--ledgr"]),
    (["RECORDS", "LEDGER"], ["LEDGER"]),
]


@pytest.mark.parametrize(
    ("options", "words"), BAD_OPTIONS, ids=[" ".join(one) for one, _ in BAD_OPTIONS]
)
def test_bad_options(
    files: Files,
    options: list[str],
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("EPOCHFENCE_BOOTSTRAP_SERVERS", raising=False)
    names = {"RECORDS": str(files.records), "LEDGER": str(files.ledger)}
    message = files.fails(*(names.get(option, option) for option in options))
    wanted = [names.get(word, word) for word in words]
    assert [word for word in wanted if word not in message] == []
