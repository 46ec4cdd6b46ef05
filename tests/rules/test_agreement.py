"""The fence against a second implementation that is dumb on purpose.

100,000 generated records: several scopes, zombies, losers, malformed, ambiguous and
made-up stamps, leader-epoch changes, recreated topics, foreign stamps, known starts.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.file_source import audit_file
from epochfence.replay.files import VerdictFile, read_ledger, read_table
from support.auditing import Line, run, settings_options, write_lines
from support.model import judge
from support.worlds import world

RECORDS = 100
WORLDS_PER_TEST = 100


@pytest.mark.rule(*range(21, 52))
@pytest.mark.parametrize("first", range(0, 1000, WORLDS_PER_TEST))
def test_agreement(first: int, tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    for seed in range(first, first + WORLDS_PER_TEST):
        made = world(seed, RECORDS)
        expected, expected_starts = judge(
            made["records"], made["ledger"], made["table"], made["settings"]
        )
        verdicts, starts = audited(tmp_path, made)
        assert verdicts == expected, f"world({seed}, {RECORDS})"
        assert starts == as_set(expected_starts), f"world({seed}, {RECORDS})"
        seen.update(one["reason"] for one in verdicts)
    assert sum(seen.values()) == WORLDS_PER_TEST * RECORDS
    assert len(seen) == 8, seen


def audited(folder: Path, made: Line) -> tuple[list[Line], set[str]]:
    """What an audit says of a world, and the starts that it found."""
    settings = made["settings"]
    ledger = None
    if made["ledger"] is not None:
        path = write_lines(folder / "ledger.jsonl", made["ledger"])
        ledger = LedgerSource(LedgerState(read_ledger(str(path))), str(path))
    table = tuple(read_table(str(write_lines(folder / "t.jsonl", made["table"]))))
    audit = Audit(
        FenceSettings(
            settings["scopes"],
            unstamped=settings["unstamped"],
            authority=settings["authority"],
            stamps=stamp_reader(settings["stamp"]),
            max_jump=settings["max_jump"],
        ),
        ledger,
        table,
    )
    records = write_lines(folder / "records.jsonl", made["records"])
    with (folder / "verdicts.jsonl").open("wb") as file:
        audit_file(audit, str(records), verdicts=VerdictFile(file))
    lines = (folder / "verdicts.jsonl").read_text().splitlines()
    names = ("topic", "partition", "offset", "verdict", "reason")
    verdicts = [{name: json.loads(line)[name] for name in names} for line in lines]
    found = [
        {
            "topic": start.topic,
            "topic_id": start.topic_id,
            "partition": start.partition,
            "scope": start.scope,
            "epoch": start.epoch,
            "grant_id": start.grant_id,
            "leader_epoch": start.position.leader_epoch,
            "start_offset": start.position.offset,
        }
        for partition in audit.partitions.values()
        for start in partition.starts_found
    ]
    return verdicts, as_set(found)


def as_set(starts: list[Line]) -> set[str]:
    return {json.dumps(start, sort_keys=True) for start in starts}


def test_the_command_agrees_too(tmp_path: Path) -> None:
    made = world(7, 500)
    expected, _ = judge(
        made["records"], made["ledger"], made["table"], made["settings"]
    )
    arguments: list[object] = [
        write_lines(tmp_path / "records.jsonl", made["records"]),
        *settings_options(made["settings"]),
        *("--table", write_lines(tmp_path / "table.jsonl", made["table"])),
        *("--format", "json"),
    ]
    if made["ledger"] is not None:
        ledger = write_lines(tmp_path / "ledger.jsonl", made["ledger"])
        arguments += ["--ledger", ledger]
    result = run("audit", *arguments)
    assert result.exit_code == 0, result.output
    counted = Counter((one["verdict"], one["reason"]) for one in expected)
    report = json.loads(result.stdout)
    assert report["records"] == 500
    assert {
        (one["verdict"], one["reason"]): one["records"] for one in report["verdicts"]
    } == counted
