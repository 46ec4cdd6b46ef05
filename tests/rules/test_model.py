"""The second implementation of the rules, and the worlds it is compared over."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from support.model import judge, ledger_grants, read_stamps
from support.worlds import monotone, world

CASES = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "data" / "cases.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]

SEEDS = range(51)
SIZE = 200

EVERY_OUTCOME = {
    ("admitted", "ok"),
    ("admitted", "unstamped"),
    ("barrier", "ok"),
    ("stale", "stale-epoch"),
    ("quarantined", "malformed"),
    ("quarantined", "ambiguous"),
    ("quarantined", "unstamped"),
    ("quarantined", "conflict"),
    ("quarantined", "ungranted"),
    ("quarantined", "implausible"),
}


@pytest.fixture(scope="module")
def worlds() -> list[dict[str, Any]]:
    """The worlds of the first seeds."""
    return [world(seed, SIZE) for seed in SEEDS]


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_the_model_agrees_with_the_reported_cases(case: dict[str, Any]) -> None:
    verdicts, _ = judge(
        case["records"], case["ledger"], case["table"], case["settings"]
    )
    assert verdicts == case["expected"]


def test_a_claim_wins_above_every_earlier_claim_of_its_scope() -> None:
    def claim(scope: str, epoch: int, grant_id: str) -> dict[str, Any]:
        return {"scope": scope, "epoch": epoch, "grant_id": grant_id * 16}

    claims = [
        claim("a", 3, "1"),
        claim("b", 1, "2"),
        claim("a", 3, "3"),
        claim("a", 2, "4"),
        claim("a", 9, "5"),
        claim("a", 9, "5"),
        claim("a", 8, "6"),
    ]
    assert ledger_grants(claims) == {
        ("a", 3, "1" * 16),
        ("b", 1, "2" * 16),
        ("a", 9, "5" * 16),
    }


def test_worlds_are_full_of_every_outcome(worlds: list[dict[str, Any]]) -> None:
    outcomes = Counter(
        (line["verdict"], line["reason"]) for one in worlds for line in judge(**one)[0]
    )
    assert outcomes.keys() == EVERY_OUTCOME
    assert min(outcomes.values()) >= 20, outcomes


def test_a_world_is_made_by_its_seed_alone(worlds: list[dict[str, Any]]) -> None:
    again = [world(seed, SIZE) for seed in SEEDS]
    assert json.dumps(again) == json.dumps(worlds)
    assert len({json.dumps(one) for one in worlds}) == len(worlds)
    assert all(len(one["records"]) == SIZE for one in worlds)


def in_order(earlier: dict[str, Any], later: dict[str, Any]) -> bool:
    """Whether two records of one life stand in order of position."""
    before, after = earlier.get("leader_epoch"), later.get("leader_epoch")
    if before is None or after is None:
        return bool(earlier["offset"] < later["offset"])
    return (before, earlier["offset"]) < (after, later["offset"])


def test_worlds_are_valid_input(worlds: list[dict[str, Any]]) -> None:
    for one in worlds:
        lives: dict[tuple[str, int], list[list[dict[str, Any]]]] = {}
        ids: dict[tuple[str, int], list[str | None]] = {}
        for record in one["records"]:
            here = (record["topic"], record["partition"])
            topic_id = record.get("topic_id")
            known = ids.setdefault(here, [None])
            if topic_id is not None and known[-1] is None:
                known[-1] = topic_id
            elif topic_id is not None and topic_id != known[-1]:
                assert topic_id not in known
                known.append(topic_id)
                lives[here].append([])
            life = lives.setdefault(here, [[]])[-1]
            assert all(in_order(earlier, record) for earlier in life)
            life.append(record)
        if one["settings"]["authority"] == "ledger":
            grants = ledger_grants(one["ledger"])
            for row in one["table"]:
                latest = max(
                    (epoch for scope, epoch, _ in grants if scope == row["scope"]),
                    default=0,
                )
                assert row["scope"].startswith("~") or row["epoch"] <= latest
        else:
            assert one["ledger"] is None


def test_what_is_not_admitted_might_as_well_not_be_there(
    worlds: list[dict[str, Any]],
) -> None:
    for one in worlds:
        # Who drops a record must not drop the topic id that others are to learn.
        if any(record.get("topic_id") is None for record in one["records"]):
            continue
        verdicts, starts = judge(**one)
        kept = [
            (record, verdict)
            for record, verdict in zip(one["records"], verdicts, strict=True)
            if verdict["verdict"] in ("admitted", "barrier")
        ]
        records = [record for record, _ in kept]
        again = judge(records, one["ledger"], one["table"], one["settings"])
        assert again == ([verdict for _, verdict in kept], starts)


def test_admitted_epochs_never_fall(worlds: list[dict[str, Any]]) -> None:
    orderly = [one for one in worlds if monotone(one)]
    assert len(orderly) > len(worlds) / 2
    for one in orderly:
        verdicts, _ = judge(**one)
        highest: dict[tuple[str, int, str], int] = {}
        for record, verdict in zip(one["records"], verdicts, strict=True):
            if verdict["verdict"] not in ("admitted", "barrier"):
                continue
            for stamp in read_stamps(record, one["settings"]["stamp"])[0]:
                here = (record["topic"], record["partition"], stamp.scope)
                assert stamp.epoch >= highest.get(here, 0)
                highest[here] = stamp.epoch
