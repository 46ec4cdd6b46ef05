"""Draws docs/takeover.svg from the recording in examples/takeover.

    python docs/draw_takeover.py

Each record is judged by the fence itself, so the picture shows what happens.
"""

from __future__ import annotations

from pathlib import Path

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.files import read_ledger, read_records

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "docs" / "takeover.svg"
RECORDING = ROOT / "examples" / "takeover"

CELL, LEFT, TOP, ROW = 44, 96, 64, 92
#: Fill and text of each epoch: told apart in grey as well.
EPOCHS = {1: ("#b9dcf2", "#0b3c5d"), 2: ("#f6c667", "#5b3a00")}
TITLE = "pod-7 was stopped, pod-8 took over, pod-7 woke up and wrote on"
FONT = 'font-family="Helvetica, Arial, sans-serif"'


def draw() -> str:
    """The picture, as SVG."""
    audit = Audit(
        FenceSettings(["orders-writer"], unstamped="quarantine"),
        LedgerSource(LedgerState(read_ledger(str(RECORDING / "ledger.jsonl"))), "file"),
    )
    rows: dict[int, list[str]] = {}
    width = 0
    for _, record in read_records(str(RECORDING / "orders.jsonl")):
        verdict = audit.partition(record.topic, record.partition).judge(
            record.topic_id,
            record.leader_epoch,
            record.offset,
            record.timestamp,
            record.headers,
            record.value,
        )
        [stamp] = verdict.stamps
        x, y = LEFT + record.offset * CELL, TOP + record.partition * ROW
        width = max(width, x + CELL + 24)
        is_barrier = verdict.kind == "barrier"
        rows.setdefault(record.partition, []).append(
            _cell(x, y, stamp.epoch, record.offset, is_barrier, verdict.is_rejected)
        )
    height = TOP + len(rows) * ROW + 44
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img" aria-label="Two partitions: '
        f"records of epoch 1, a barrier, records of epoch 2, and among them records of "
        f'epoch 1, crossed out">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(24, 34, TITLE, 17, "#222222", "start"),
    ]
    for number, cells in sorted(rows.items()):
        y = TOP + number * ROW
        parts.append(_text(24, y + 28, f"orders[{number}]", 14, "#222222", "start"))
        parts += cells
    parts += _legend(height - 30)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cell(
    x: int, y: int, epoch: int, offset: int, is_barrier: bool, is_rejected: bool
) -> str:
    fill, ink = EPOCHS[epoch]
    size = CELL - 6
    parts = [_text(x + size / 2, y + size + 16, str(offset), 11, "#777777")]
    if is_barrier:
        parts.append(
            f'<rect x="{x + size / 2 - 4:g}" y="{y - 8}" width="8" '
            f'height="{size + 12}" fill="{ink}"/>'
        )
        return "".join(parts)
    parts.append(
        f'<rect x="{x}" y="{y}" width="{size}" height="{size}" rx="4" fill="{fill}" '
        f'stroke="{ink}"/>'
    )
    parts.append(_text(x + size / 2, y + size / 2 + 6, str(epoch), 17, ink))
    if is_rejected:
        parts.append(
            f'<path d="M{x + 3} {y + 3}L{x + size - 3} {y + size - 3}M{x + size - 3} '
            f'{y + 3}L{x + 3} {y + size - 3}" stroke="#c1121f" '
            f'stroke-width="4" opacity="0.75"/>'
        )
    return "".join(parts)


def _legend(y: int) -> list[str]:
    entries = (
        (1, False, False, "by pod-7"),
        (2, False, False, "by pod-8"),
        (2, True, False, "barrier: an epoch begins"),
        (1, False, True, "by pod-7, too late: never delivered"),
    )
    parts: list[str] = []
    x = 24
    for epoch, is_barrier, is_rejected, text in entries:
        cell = _cell(0, 0, epoch, 0, is_barrier, is_rejected)
        without_offset = cell[cell.index("</text>") + len("</text>") :]
        parts.append(
            f'<g transform="translate({x} {y - 4}) scale(0.5)">{without_offset}</g>'
        )
        parts.append(_text(x + 26, y + 11, text, 13, "#222222", "start"))
        x += 52 + 6 * len(text)
    return parts


def _text(
    x: float, y: float, text: str, size: int, fill: str, anchor: str = "middle"
) -> str:
    return (
        f'<text x="{x:g}" y="{y:g}" {FONT} font-size="{size}" fill="{fill}" '
        f'text-anchor="{anchor}">{text}</text>'
    )


if __name__ == "__main__":
    TARGET.write_text(draw(), encoding="ascii")
