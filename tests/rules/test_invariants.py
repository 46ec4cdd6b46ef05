"""What must always hold, for every history that Hypothesis can think of.

Positions are complete here (topic id and leader epoch known), as they are on a real
cluster; where they are not, offsets of different lives cannot be told apart.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence import EpochStart, Position
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.verdicts import Verdict
from support.histories import Header, barrier, ledger, stamp

KNOWN = ledger(
    *(("s", epoch) for epoch in range(1, 6)),
    *(("r/0", epoch) for epoch in range(1, 4)),
    ("s", 3, "z"),
)
LIVES = ("first", "second", "third")


class Record(NamedTuple):
    life: int
    position: Position
    headers: tuple[Header, ...]


_stamps = st.one_of(
    st.builds(stamp, st.integers(1, 6), st.just("s")),
    st.builds(stamp, st.integers(1, 4), st.just("r/0")),
    st.builds(stamp, st.integers(2, 4), st.just("s"), st.just("z")),
    st.just(("epochfence", b"damaged")),
    st.just(("trace", b"1")),
)
_headers = st.one_of(
    st.lists(_stamps, max_size=3).map(tuple),
    st.builds(barrier, st.integers(1, 6)).map(lambda header: (header,)),
)
_steps = st.lists(
    st.tuples(
        _headers,
        st.integers(1, 3),  # how far the offset moves
        st.sampled_from([0, 0, 0, 0, 1]),  # whether the broker's leader changes
        st.sampled_from([0, 0, 0, 0, 0, 1]),  # whether the topic is made anew
        st.sampled_from([0, 0, 0, 0, 0, 5]),  # how much a new leader truncates
    ),
    max_size=40,
)
_settings = st.sampled_from(
    [
        FenceSettings(unstamped="quarantine"),
        FenceSettings(["s"], unstamped="admit"),
        FenceSettings(["s"], unstamped="admit-until-first-stamp"),
        FenceSettings(["s", "r/0"], unstamped="quarantine"),
        FenceSettings(unstamped="admit-until-first-stamp"),
        FenceSettings(unstamped="quarantine", authority="max-seen"),
        FenceSettings(unstamped="admit", authority="max-seen", max_jump=2),
    ]
)


def records_of(
    steps: list[tuple[tuple[Header, ...], int, int, int, int]],
) -> list[Record]:
    records: list[Record] = []
    life, leader_epoch, offset = 0, 0, -1
    for headers, ahead, new_leader, new_life, truncated in steps:
        if new_life and life + 1 < len(LIVES):
            life, leader_epoch, offset = life + 1, 0, -1
        leader_epoch += new_leader
        if new_leader:
            offset = max(-1, offset - truncated)
        offset += ahead
        records.append(Record(life, Position(leader_epoch, offset), headers))
    return records


histories = _steps.map(records_of)


def judge_one(fence: PartitionFence, record: Record) -> Verdict:
    fence.enter_life(LIVES[record.life])
    leader_epoch, offset = record.position
    verdict = fence.judge(leader_epoch, offset, record.headers, ledger_complete=True)
    assert verdict is not None
    return verdict


def new_fence(
    settings: FenceSettings, starts: tuple[EpochStart, ...] = ()
) -> PartitionFence:
    return PartitionFence("t", 0, settings, KNOWN, starts)


def judge_all(
    records: list[Record],
    settings: FenceSettings,
    starts: tuple[EpochStart, ...] = (),
) -> list[tuple[str, str]]:
    fence = new_fence(settings, starts)
    verdicts = [judge_one(fence, record) for record in records]
    return [(verdict.kind, verdict.reason) for verdict in verdicts]


@pytest.mark.rule(40, 46)
@given(histories, _settings)
def test_1_admitted_epochs_never_fall(
    records: list[Record], settings: FenceSettings
) -> None:
    fence = new_fence(settings)
    highest: dict[str, int] = {}
    for record in records:
        verdict = judge_one(fence, record)
        if not verdict.is_rejected:
            for one in verdict.stamps:
                assert one.epoch >= highest.get(one.scope, 0)
                highest[one.scope] = one.epoch


@pytest.mark.rule(50)
@given(histories, _settings, st.integers(0, 40))
def test_3_a_restart_changes_no_verdict(
    records: list[Record], settings: FenceSettings, at: int
) -> None:
    fence = new_fence(settings)
    before = [judge_one(fence, record) for record in records[:at]]
    after = judge_all(records[at:], settings, fence.starts)
    whole = judge_all(records, settings)
    assert [(one.kind, one.reason) for one in before] + after == whole


@pytest.mark.rule(31, 50)
@given(histories, _settings)
def test_3_a_table_that_runs_ahead_changes_no_verdict(
    records: list[Record], settings: FenceSettings
) -> None:
    # Only the present life of a topic can be read again.
    last = [record for record in records if record.life == records[-1].life]
    fence = new_fence(settings)
    for record in records[: len(records) - len(last)]:
        judge_one(fence, record)
    first_reading = [judge_one(fence, record) for record in last]
    expected = [(one.kind, one.reason) for one in first_reading]
    assert judge_all(last, settings, fence.starts) == expected
    # The same fence, moved back to each place in turn.
    for index, record in reversed(list(enumerate(last))):
        again = judge_one(fence, record)
        assert (again.kind, again.reason) == expected[index]
        assert again.starts == ()


@pytest.mark.rule(47)
@given(histories, _settings)
def test_4_dropping_what_was_rejected_changes_nothing(
    records: list[Record], settings: FenceSettings
) -> None:
    verdicts = judge_all(records, settings)
    kept = [
        (record, verdict)
        for record, verdict in zip(records, verdicts, strict=True)
        if verdict[0] in ("admitted", "barrier")
    ]
    again = judge_all([record for record, _ in kept], settings)
    assert again == [verdict for _, verdict in kept]


@pytest.mark.rule(45, 46)
@given(histories, _settings)
def test_5_after_a_barrier_nothing_lower_is_admitted(
    records: list[Record], settings: FenceSettings
) -> None:
    fence = new_fence(settings)
    barriers: dict[str, int] = {}
    for record in records:
        verdict = judge_one(fence, record)
        for one in verdict.stamps:
            if verdict.kind == "barrier":
                barriers[one.scope] = one.epoch
            elif verdict.kind == "admitted":
                assert one.epoch >= barriers.get(one.scope, 0)


@pytest.mark.rule(50)
def test_every_small_world() -> None:
    """All sequences of up to 5 records of 7 kinds, against a running maximum."""
    kinds: dict[str, tuple[Header, ...]] = {
        "1": (stamp(1),),
        "2": (stamp(2),),
        "3": (stamp(3),),
        "loser": (stamp(3, who="z"),),
        "made-up": (stamp(6),),
        "barrier": (barrier(2),),
        "none": (),
    }
    epochs = {"1": 1, "2": 2, "3": 3, "barrier": 2}
    settings = FenceSettings(unstamped="quarantine")
    for length in range(6):
        for names in itertools.product(kinds, repeat=length):
            fence = new_fence(settings)
            highest = 0
            for offset, name in enumerate(names):
                record = Record(0, Position(0, offset), kinds[name])
                kind = judge_one(fence, record).kind
                epoch = epochs.get(name)
                if epoch is not None and epoch >= highest:
                    highest = epoch
                    assert kind == ("barrier" if name == "barrier" else "admitted")
                elif epoch is not None or (name == "loser" and highest > 3):
                    assert kind == "stale"
                else:
                    assert kind == "quarantined"
