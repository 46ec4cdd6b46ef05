"""Cases from public reports of leadership gone wrong, through the public command.

tests/data/cases.jsonl names the report behind each.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.auditing import audit_verdicts

_DATA = Path(__file__).parent.parent / "data" / "cases.jsonl"
_CASES: list[dict[str, Any]] = [
    json.loads(line) for line in _DATA.read_text().splitlines()
]


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_case(case: dict[str, Any], tmp_path: Path) -> None:
    found = audit_verdicts(
        tmp_path, case["records"], case["ledger"], case["table"], case["settings"]
    )
    assert found == case["expected"]
