"""How fast `epochfence audit` judges a record file, and what memory it takes.

A record file of a topic with four partitions, a takeover every 2,500 records of each,
and a zombie in every twentieth record; the command runs as its user would run it, in a
process of its own. Beside a process that does no more than `json.loads` of each line.
By processor time, start included.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from benchmarks.measuring import Figure, compare, in_turns

RECORDS = 500_000
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
    return run_apart([*command, "--ledger", str(ledger)])


#: What a process takes is told to its parent; a large parent's memory would count for
#: its own, from before it was replaced. So a small one starts it.
_STARTER = """
import json, resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
usage = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024]))
"""


def run_apart(command: list[str]) -> Run:
    """Run a command in a process of its own."""
    told = subprocess.run(
        [sys.executable, "-c", _STARTER, *command], capture_output=True, check=True
    )
    code, cpu_s, peak_mb = json.loads(told.stdout)
    if code != 0:
        raise SystemExit(f"{command[:4]} ended with {code}: {told.stderr.decode()}")
    return Run(cpu_s, peak_mb)


def parse(records: Path) -> float:
    """Read the file's lines with the standard library; give the processor time."""
    code = "import json, sys\nfor line in open(sys.argv[1], 'rb'): json.loads(line)"
    return run_apart([sys.executable, "-c", code, str(records)]).cpu_s


def measure(_: str | None, repeats: int) -> list[Figure]:
    """Measure the command and the plain reading, in turns; no broker is needed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ledger = folder / "ledger.jsonl"
        large, small = folder / "large.jsonl", folder / "small.jsonl"
        write_ledger(ledger, write_records(large, RECORDS))
        write_records(small, RECORDS // 10)
        peaks: list[float] = []

        def audited() -> float:
            run = run_audit(large, ledger)
            peaks.append(run.peak_mb)
            return RECORDS / run.cpu_s

        found = in_turns(
            {"plain": lambda: RECORDS / parse(large), "audit": audited}, repeats
        )
        of_a_tenth = run_audit(small, ledger).peak_mb
    return [
        compare(
            "audit",
            f"{RECORDS:,} records, to json.loads of each line",
            found["audit"],
            found["plain"],
            unit="records/s",
            is_rate=True,
        ),
        compare(
            "audit",
            "memory of a tenth of the records, to that of all",
            peaks,
            [of_a_tenth] * len(peaks),
            unit="MB",
        ),
    ]
