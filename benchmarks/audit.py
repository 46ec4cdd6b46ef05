"""How fast `epochfence audit` judges a record file, and what memory it takes.

    python -m benchmarks.audit [--records 1000000] [--repeats 3]

Writes a record file of a topic with four partitions, a takeover every 2,500 records
of each, and a zombie in every twentieth record; then runs the command as its user
would, in a process of its own, and prints one JSON object: records a second by the
processor time of that process (medians over the repeats), and its peak memory, with
that for a file of a tenth the size beside it.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

PARTITIONS = 4
RECORDS_PER_EPOCH = 2_500
ZOMBIE_EVERY = 20
SCOPE = "orders-writer"


class Run(NamedTuple):
    """What one run of the command took."""

    cpu_s: float
    peak_mb: float


def encoded(value: bytes) -> str:
    return base64.b64encode(value).decode("ascii")


def grant_id(epoch: int) -> str:
    return f"{epoch:016x}"


def write_ledger(path: Path, epochs: int) -> None:
    """Write a ledger file that grants all epochs of the record file."""
    with path.open("w") as file:
        for epoch in range(1, epochs + 1):
            claim = {
                "type": "claim",
                "scope": SCOPE,
                "epoch": epoch,
                "previous": epoch - 1,
                "grant_id": grant_id(epoch),
                "holder": f"pod-{epoch}",
                "claimed_at": 1_700_000_000_000,
            }
            file.write(json.dumps(claim) + "\n")


def write_records(path: Path, records: int) -> int:
    """Write a record file; give the number of epochs in it."""
    value, trace = encoded(b"x" * 100), encoded(b"00-4bf92f3577b34da6-01")
    epoch = 0
    with path.open("w") as file:
        for number in range(records):
            offset, partition = divmod(number, PARTITIONS)
            epoch = 1 + offset // RECORDS_PER_EPOCH
            is_zombie = epoch > 1 and offset % ZOMBIE_EVERY == 7
            writer = epoch - 1 if is_zombie else epoch
            stamp = f"{writer}:{grant_id(writer)}:{SCOPE}".encode("ascii")
            record = {
                "topic": "orders",
                "topic_id": "KTgZ3vR0Q0-1_abcdefghi",
                "partition": partition,
                "offset": offset,
                "leader_epoch": 3,
                "timestamp": 1_700_000_000_000 + number,
                "key": encoded(b"key-%d" % (number % 1000)),
                "value": value,
                "headers": [["trace", trace], ["epochfence", encoded(stamp)]],
            }
            file.write(json.dumps(record) + "\n")
    return epoch


def run_audit(records: Path, ledger: Path) -> Run:
    """Run the command once."""
    command = [sys.executable, "-m", "epochfence", "audit", str(records)]
    process = subprocess.Popen(
        [*command, "--ledger", str(ledger)], stdout=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"audit ended with {process.returncode}")
    return Run(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def measure(records: int, repeats: int) -> dict[str, object]:
    """Measure both sizes, in turn."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = folder / "ledger.jsonl"
        large, small = folder / "large.jsonl", folder / "small.jsonl"
        write_ledger(ledger, write_records(large, records))
        write_records(small, records // 10)
        pairs = [
            (run_audit(large, ledger), run_audit(small, ledger)) for _ in range(repeats)
        ]
    cpu_s = [run.cpu_s for run, _ in pairs]
    return {
        "benchmark": "audit",
        "figure": "records per second of processor time",
        "value": round(records / statistics.median(cpu_s)),
        "spread": [round(records / max(cpu_s)), round(records / min(cpu_s))],
        "repeats": repeats,
        "records": records,
        "peak_mb": round(max(run.peak_mb for run, _ in pairs), 1),
        "peak_mb_of_a_tenth": round(max(run.peak_mb for _, run in pairs), 1),
        "versions": {
            "python": platform.python_version(),
            "epochfence": version("epochfence"),
            "msgspec": version("msgspec"),
        },
    }


def main() -> None:
    """Parse the arguments and print the figure."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n")[0],
        prog="python -m benchmarks.audit",
    )
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.records < 10 or options.repeats < 1:
        parser.error("at least 10 records and 1 repeat")
    print(json.dumps(measure(options.records, options.repeats)))


if __name__ == "__main__":
    main()
