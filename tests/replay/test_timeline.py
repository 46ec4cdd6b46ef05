"""The picture of a partition is bounded, and counts everything."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epochfence.epochs.verdicts import Kind, Reason
from epochfence.replay.places import RecordPlace
from epochfence.replay.timeline import MOST_SCOPES, Timeline, TimelineBuilder

MOST = 12

_KINDS: dict[str, tuple[Kind, Reason]] = {
    "barrier": ("barrier", "ok"),
    "stale": ("stale", "stale-epoch"),
    "quarantined": ("quarantined", "ungranted"),
}

_steps = st.lists(
    st.tuples(
        st.sampled_from(["admit", "barrier", "stale", "quarantined"]),
        st.sampled_from(["s", "r"]),
        st.integers(1, 4),  # the epoch
        st.integers(1, 5),  # how many records
        st.integers(1, 40),  # how far the offset moves
        st.sampled_from([0, 0, 0, 1]),  # whether the topic is made anew
    ),
    max_size=120,
)


@settings(deadline=None)
@given(_steps, st.booleans())
def test_nothing_is_lost(
    steps: list[tuple[str, str, int, int, int, int]], is_resumed: bool
) -> None:
    builder = TimelineBuilder(most=MOST)
    admitted = marked = offset = life = 0
    for what, scope, epoch, records, ahead, new_life in steps:
        life, offset = life + new_life, 0 if new_life else offset + ahead
        first = RecordPlace(offset, life=life)
        offset += records - 1
        last = RecordPlace(offset, life=life)
        if what == "admit":
            builder.admit(scope, epoch, first, last, records)
            admitted += records
        else:
            builder.mark(*_KINDS[what], scope, epoch, first, last, records)
            marked += records
        if is_resumed:
            kept = msgspec.json.encode(builder.timeline)
            builder = TimelineBuilder(
                msgspec.json.decode(kept, type=Timeline), most=MOST
            )
    drawn = builder.timeline
    assert sum(one.records for one in drawn.spans) == admitted
    assert sum(one.records for one in drawn.marks) == marked
    assert len(drawn.spans) <= MOST
    assert len(drawn.marks) <= MOST


@pytest.mark.parametrize("scopes", [1, MOST_SCOPES * 2])
def test_a_topic_that_is_made_anew_again_and_again(scopes: int) -> None:
    builder = TimelineBuilder()
    lives = 10_000
    for life in range(lives):
        place = RecordPlace(0, life=life)
        builder.admit(f"s{life % scopes}", 1, place, place, 1)
        builder.mark("stale", "stale-epoch", f"s{life % scopes}", 1, place, place, 1)
    drawn = msgspec.json.decode(msgspec.json.encode(builder.timeline), type=Timeline)
    assert sum(one.records for one in drawn.spans) == lives
    assert sum(one.records for one in drawn.marks) == lives
    assert len(drawn.spans) <= 2_000
    assert len(drawn.marks) <= 2_000
