"""Where a reader begins that finds a commit, and whether it knows enough there."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.resuming import (
    Resumption,
    count_below,
    has_all,
    metadata_at,
    resume,
)
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.starts import CommitMetadata
from epochfence.epochs.values import EpochStart
from support.histories import History, barrier, ledger, stamp, start

LIFE = "KTgZ3vR0Q0-1_abcdefghi"
OTHER = "AAAAAAAAAAAAAAAAAAAAAA"
NO_LIFE = CommitMetadata(None, 2)
FULL = CommitMetadata(LIFE, 2, {"s": 4})


def new_fence(*starts: EpochStart) -> PartitionFence:
    settings = FenceSettings(["s"], unstamped="quarantine")
    fence = PartitionFence("t", 0, settings, ledger(("s", 1), ("s", 4)), starts)
    fence.enter_life(LIFE)
    return fence


@pytest.mark.rule(56, 57)
@pytest.mark.parametrize(
    ("metadata", "topic_id", "expected"),
    [
        (FULL.encode(), LIFE, Resumption(9, 3, FULL)),
        (None, LIFE, Resumption(9, 3)),
        ("", LIFE, Resumption(9, 3)),
        ("another tool's", LIFE, Resumption(9, 3)),
        ('{"epochfence":2,"t":null}', LIFE, Resumption(9, 3)),
        # Beyond what its writer had judged.
        (CommitMetadata(LIFE).encode(), LIFE, Resumption(9, 3)),
        # Another life: from its start, whatever the offset.
        (FULL.encode(), OTHER, Resumption(None)),
        (CommitMetadata(LIFE).encode(), OTHER, Resumption(None)),
        # Nobody knows which life: what lies below has to be read.
        (NO_LIFE.encode(), LIFE, Resumption(9, 3)),
        (FULL.encode(), None, Resumption(9, 3)),
        # The embedded broker has no ids.
        (NO_LIFE.encode(), None, Resumption(9, 3, NO_LIFE)),
    ],
)  # fmt: skip
def test_where_a_commit_has_a_reader_begin(
    metadata: str | None, topic_id: str | None, expected: Resumption
) -> None:
    assert resume(9, 3, metadata, topic_id) == expected


@pytest.mark.rule(54)
def test_a_commit_counts_what_lies_below_it() -> None:
    fence = new_fence(
        start(1, 0, leader_epoch=3, topic_id=LIFE),
        start(4, 9, leader_epoch=3, topic_id=LIFE),
        start(2, 50, topic_id=OTHER),
    )
    # The start at the offset itself may not be known to whoever commits there.
    assert metadata_at(fence, 3, 9) == CommitMetadata(LIFE, 2, {"s": 2})
    assert metadata_at(fence, 3, 10) == CommitMetadata(LIFE, 3, {"s": 4})
    assert metadata_at(fence, None, 0) == CommitMetadata(LIFE, 1, {"s": 2})
    # Cut off under leader epoch 3, it counts for what came under a later one.
    assert metadata_at(fence, 5, 4).starts == 3
    assert metadata_at(fence, 2, 100).starts == 1
    assert count_below(fence, 3, 9) == 2


@pytest.mark.rule(56)
def test_what_a_commit_tells_of_has_to_be_known() -> None:
    first = start(1, 0, leader_epoch=3, topic_id=LIFE)
    second = start(4, 9, leader_epoch=3, topic_id=LIFE)
    told = metadata_at(new_fence(first, second), 3, 10)
    assert has_all(new_fence(first, second), 3, 10, told)
    assert not has_all(new_fence(first), 3, 10, told)
    assert not has_all(new_fence(second), 3, 10, told)
    # As many, but others: the epochs tell.
    elsewhere = start(2, 1, leader_epoch=3, topic_id=LIFE)
    assert not has_all(new_fence(first, elsewhere), 3, 10, told)
    # One at the offset itself makes up for none that is missing below.
    late = start(4, 10, leader_epoch=3, topic_id=LIFE)
    assert not has_all(new_fence(first, late), 3, 10, CommitMetadata(LIFE, 2))
    # "At least": more is no harm.
    assert has_all(new_fence(first, second, elsewhere), 3, 10, told)


@pytest.mark.rule(54, 56)
@given(
    epochs=st.lists(st.sampled_from([1, 2, 3, 4]), max_size=12),
    offset=st.integers(0, 12),
    data=st.data(),
)
def test_whoever_committed_may_resume_with_its_rows_and_not_without(
    epochs: list[int], offset: int, data: st.DataObject
) -> None:
    granted = ledger(*(("s", epoch) for epoch in (1, 2, 3, 4)))
    history = History(granted)
    for number, epoch in enumerate(epochs):
        header = stamp(epoch) if number % 2 else barrier(epoch)
        history.verdict(header, leader_epoch=3)
    told = metadata_at(history.fence, 3, offset)
    rows = history.fence.starts
    again = History(granted, starts=rows).fence
    assert has_all(again, 3, offset, told)
    below = [row for row in rows if row.position.offset < offset]
    assert told.starts == len(below)
    if below:
        lost = data.draw(st.sampled_from(below))
        rest = History(granted, starts=[row for row in rows if row != lost]).fence
        assert not has_all(rest, 3, offset, told)
