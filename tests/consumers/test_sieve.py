"""Judging in bulk gives what judging one by one gives."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from epochfence import FenceSettings, MisconfiguredError
from epochfence.consumers.sieve import Sifted, sift
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of
from epochfence.epochs.values import EpochStart
from epochfence.epochs.verdicts import Verdict
from support.histories import Header, barrier, ledger, stamp, start

LEDGER = ledger(("s", 1), ("s", 2), ("s", 4), ("r", 3))
HEADERS: list[list[Header]] = [
    [stamp(1)],
    [stamp(2)],
    [stamp(4)],
    [stamp(3)],  # made up
    [stamp(2, who="b")],  # a loser
    [stamp(1), stamp(3, "r")],
    [stamp(2), ("trace", b"1")],
    [stamp(2), ("trace", b"2")],
    [barrier(2)],
    [barrier(4)],
    [("epochfence", b"damaged")],
    [],
]
STARTS = [start(1, 4), start(2, 9, leader_epoch=3), start(4, 30), start(3, 2, "r")]


def message(offset: int, headers: list[Header], leader_epoch: int = 3) -> Message:
    return Message(
        topic="t",
        partition=0,
        offset=offset,
        value=b"v",
        headers=list(headers),
        leader_epoch=leader_epoch,
    )


def one_by_one(
    fence: PartitionFence, messages: Iterable[Message]
) -> tuple[list[Verdict], list[EpochStart]]:
    verdicts: list[Verdict] = []
    for one in messages:
        offset = one.offset()
        assert offset is not None
        verdict = fence.judge(
            one.leader_epoch(), offset, headers_of(one), b"v", ledger_complete=True
        )
        assert verdict is not None
        verdicts.append(verdict)
    return verdicts, [start for verdict in verdicts for start in verdict.starts]


def new_fence(
    starts: Iterable[EpochStart], unstamped: str = "quarantine"
) -> PartitionFence:
    settings = FenceSettings(["s"], unstamped=unstamped)
    return PartitionFence("t", 0, settings, LEDGER, starts)


# Runs of equal headers, as a leader writes them.
RUNS = st.lists(
    st.tuples(st.sampled_from(HEADERS), st.integers(1, 6), st.integers(0, 1)),
    max_size=12,
)


@given(
    runs=RUNS,
    starts=st.lists(st.sampled_from(STARTS), unique=True),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=20),
    unstamped=st.sampled_from(["quarantine", "admit", "admit-until-first-stamp"]),
    is_complete=st.booleans(),
)
def test_in_bulk_as_one_by_one(
    runs: list[tuple[list[Header], int, int]],
    starts: list[EpochStart],
    cuts: list[int],
    unstamped: str,
    is_complete: bool,
) -> None:
    messages: list[Message] = []
    leader_epoch = 2
    for headers, count, newer in runs:
        leader_epoch += newer
        for _ in range(count):
            messages.append(message(len(messages), headers, leader_epoch))
    expected, opened = one_by_one(new_fence(starts, unstamped), messages)
    fence = new_fence(starts, unstamped)
    sifted = Sifted()
    rest = list(messages)
    for cut in [*cuts, *([len(messages)] * 2)]:
        batch, rest = rest[:cut], rest[cut:]
        before = sifted.judged
        if batch and not sift(fence, batch, sifted, ledger_complete=is_complete):
            # What it stops at, takes a complete ledger; nothing is judged twice.
            left = batch[sifted.judged - before :]
            assert left
            assert sift(fence, left, sifted, ledger_complete=True)
    pairs = list(zip(messages, expected, strict=True))
    assert sifted.judged == len(messages)
    assert sifted.passed == [m for m, v in pairs if v.kind == "admitted"]
    assert [m for m, _ in sifted.rejected] == [m for m, v in pairs if v.is_rejected]
    assert [v.reason for _, v in sifted.rejected] == [
        v.reason for _, v in pairs if v.is_rejected
    ]
    assert sifted.barriers == sum(v.kind == "barrier" for v in expected)
    assert sifted.in_order == sum(
        v.kind == "admitted" and v.reason == "ok" for v in expected
    )
    assert sifted.starts == opened
    assert set(fence.starts) == set(starts) | set(opened)


def test_a_threshold_between_the_first_and_the_last_is_not_overlooked() -> None:
    fence = new_fence([start(2, 5, leader_epoch=3)])
    sifted = Sifted()
    batch = [message(offset, [stamp(1)]) for offset in range(10)]
    assert sift(fence, batch, sifted, ledger_complete=True)
    assert sifted.passed == batch[:5]
    assert [m.offset() for m, _ in sifted.rejected] == [5, 6, 7, 8, 9]


def test_what_was_judged_before_an_undecided_record_is_kept() -> None:
    settings = FenceSettings(["s", "r"])
    fence = PartitionFence("t", 0, settings, LEDGER)
    sifted = Sifted()
    good = [message(0, [stamp(1), stamp(3, "r")])]
    other = PartitionFence("t", 0, FenceSettings(["s"]), LEDGER)
    assert sift(other, [message(0, [stamp(1)])], sifted, ledger_complete=True)
    with pytest.raises(MisconfiguredError, match="unstamped"):
        sift(fence, [message(0, [])], sifted, ledger_complete=True)
    assert sifted.judged == 1
    assert sift(fence, good, sifted, ledger_complete=True)


def test_in_dry_run_what_is_rejected_passes_in_its_place() -> None:
    fence = new_fence([start(2, 2, leader_epoch=3)])
    sifted = Sifted(is_dry_run=True)
    batch = [message(n, [stamp(1)]) for n in range(4)] + [message(4, [barrier(2)])]
    assert sift(fence, batch, sifted, ledger_complete=True)
    assert sifted.passed == batch[:4]
    assert len(sifted.rejected) == 2
    assert (sifted.in_order, sifted.barriers) == (2, 1)


def test_headers_that_cannot_be_read_are_judged_one_by_one() -> None:
    class Odd(Message):
        def headers(self) -> list[tuple[str, bytes | None]]:  # type: ignore[override]
            raise SystemError("not UTF-8")

    batch: list[Message] = [message(n, [stamp(1)]) for n in range(3)]
    batch.append(Odd(topic="t", partition=0, offset=3, leader_epoch=3))
    sifted = Sifted()
    assert sift(new_fence([]), batch, sifted, ledger_complete=True)
    assert sifted.passed == batch[:3]
    assert [v.reason for _, v in sifted.rejected] == ["malformed"]
