"""What became of a deposed leader's messages, compared with what the whole log says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence import Claim, Deposed, EpochStart, Leadership, LedgerRegressed, Stamp
from epochfence.epochs.confirming import PartitionAnswer, first_outranked
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.holding import check_granted, check_rows, deposed_by
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import Outcome
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.verdicts import Verdict
from support.histories import Header, barrier, claim, grant_id, ledger, stamp, start

OWN = Stamp("s", 2, grant_id(2))
GRANTS = ledger(("s", 1), ("s", 2), ("s", 3), ("s", 4), ("x", 4), ("x", 5))
SETTINGS = FenceSettings(["s"], unstamped="quarantine")

#: What can lie at an offset; None: nothing.
RECORDS: dict[str, tuple[Header, ...] | None] = {
    "own": (stamp(2),),
    "own barrier": (barrier(2),),
    "before": (stamp(1),),
    "after": (stamp(3),),
    "barrier after": (barrier(3),),
    "long after": (stamp(4),),
    "made up": (stamp(9),),
    "unstamped": (),
    "own and more": (stamp(2), stamp(4, "x")),
    "x barrier": (barrier(5, "x"),),
    "after, x": (stamp(3), stamp(5, "x")),
    "after, stale x": (stamp(3), stamp(4, "x")),
    "gap": None,
}
FROM_SUCCESSORS = {"after", "barrier after", "long after", "after, x", "after, stale x"}


@dataclass
class World:
    """A log, and what a deposed leader knows of it."""

    log: list[str]
    log_start: int
    barrier: int | None
    acknowledged: set[int]
    rows: list[EpochStart]

    @property
    def is_head_missing(self) -> bool:
        return (self.barrier or 0) < self.log_start


def judged(
    log: Sequence[str], rows: Sequence[EpochStart], begin: int, end: int
) -> tuple[dict[int, Verdict], PartitionFence]:
    """The verdicts of a reading from one offset to another."""
    fence = PartitionFence("t", 0, SETTINGS, GRANTS, rows)
    verdicts: dict[int, Verdict] = {}
    for offset in range(begin, end):
        headers = RECORDS[log[offset]]
        if headers is not None:
            verdict = fence.judge(None, offset, headers, None, ledger_complete=True)
            assert verdict is not None
            verdicts[offset] = verdict
    return verdicts, fence


@st.composite
def worlds(draw: st.DrawFn) -> World:
    log = draw(st.lists(st.sampled_from(sorted(RECORDS)), max_size=14))
    end = len(log)
    proved = [
        offset
        for offset, name in enumerate(log)
        if name == "own barrier" and not FROM_SUCCESSORS & set(log[:offset])
    ]
    at = draw(st.sampled_from([None, *proved]))
    own = {offset for offset, name in enumerate(log) if name == "own"}
    # Lost or cleaned away; not below a barrier that proves what lies before it.
    others = set(range(at or 0, end + 3)) - own
    acknowledged = draw(st.sets(st.sampled_from(sorted(own | others))))
    _, fence = judged(log, (), 0, end)
    rows = [row for row in fence.starts if draw(st.booleans())]
    return World(log, draw(st.integers(0, end)), at, acknowledged, rows)


def answered(world: World, at: int | None) -> dict[int, Outcome]:
    """The answer as the shell gets it, by offset."""
    answer = PartitionAnswer(
        OffsetRanges(world.acknowledged), (OWN,), at, world.log_start, len(world.log)
    )
    verdicts, fence = judged(world.log, world.rows, answer.read_from, answer.read_to)
    for offset, verdict in verdicts.items():
        answer.take(offset, RECORDS[world.log[offset]] or (), verdict)
    if answer.is_in_doubt:
        assert at is not None
        return answered(world, None)
    outcomes = answer.outcomes(first_outranked([OWN], None, fence.starts))
    found: dict[int, Outcome] = {}
    for name, offsets in outcomes.items():
        for offset in offsets:
            assert offset not in found, "one message, one outcome"
            found[offset] = name
    return found


@given(worlds())
def test_the_answer_is_what_the_whole_log_says(world: World) -> None:
    answers = answered(world, world.barrier)
    assert set(answers) == world.acknowledged
    verdicts, fence = judged(world.log, (), 0, len(world.log))
    outranked_from = min(
        (row.position.offset for row in fence.starts if row[3] == "s" and row[4] > 2),
        default=len(world.log) + 99,
    )
    for offset, answer in answers.items():
        name = world.log[offset] if offset < len(world.log) else "end"
        truth: str = "lost"
        if name == "own":
            truth = "fenced" if verdicts[offset].is_rejected else "admitted"
        if answer == "indeterminate":
            is_visible = offset >= world.log_start and name != "gap"
            assert world.is_head_missing or not is_visible
        elif answer == "fenced" and truth == "lost":
            # Nobody could see any more that it is lost; admitted it is by nobody.
            assert world.is_head_missing
            assert offset >= outranked_from
        else:
            assert answer == truth


@given(worlds())
def test_a_row_tells_what_the_log_has_lost(world: World) -> None:
    """With all rows at hand, what is fenced is called so, whatever retention took."""
    _, fence = judged(world.log, (), 0, len(world.log))
    world.rows = list(fence.starts)
    answers = answered(world, world.barrier)
    verdicts, _ = judged(world.log, (), 0, len(world.log))
    for offset in world.acknowledged:
        is_own = offset < len(world.log) and world.log[offset] == "own"
        if is_own and verdicts[offset].is_rejected:
            assert answers[offset] == "fenced"


def outcomes(
    log: list[str],
    *offsets: int,
    at: int | None = None,
    log_start: int = 0,
    rows: Sequence[EpochStart] = (),
) -> list[str]:
    """The outcomes of messages acknowledged at these offsets."""
    found = answered(World(log, log_start, at, set(offsets), list(rows)), at)
    return [found[offset] for offset in offsets]


def test_the_barrier_that_fences_a_message_lies_before_it() -> None:
    log = ["own barrier", "own", "barrier after", "own"]
    assert outcomes(log, 1, 3, at=0) == ["admitted", "fenced"]
    assert outcomes(log, 3) == ["fenced"]


def test_what_lies_before_the_own_barrier_is_admitted() -> None:
    assert outcomes(["own", "own barrier"], 0, at=1) == ["admitted"]
    assert outcomes(["own", "own", "own barrier"], 0, 1, at=2) == ["admitted"] * 2


@pytest.mark.parametrize("at_barrier", ["gap", "own", "x barrier", "before"])
def test_a_barrier_that_is_not_there_proves_nothing(at_barrier: str) -> None:
    """An unclean election took it."""
    log = ["barrier after", at_barrier, "own barrier", "own"]
    assert outcomes(log, 3, at=1) == ["fenced"]
    assert outcomes(["barrier after"], 0, 2, at=1) == ["lost"] * 2
    # Though everything was acknowledged below it.
    assert outcomes(["barrier after", "own"], 1, at=2) == ["fenced"]


def test_a_further_scope_that_the_barrier_hides_is_looked_up() -> None:
    """The successor's record is stale by its other scope: it opens no epoch."""
    log = ["x barrier", "own barrier", "after, stale x", "own"]
    assert outcomes(log, 3, at=1) == ["admitted"]
    log[2] = "after, x"
    assert outcomes(log, 3, at=1) == ["fenced"]


def test_lost_and_indeterminate() -> None:
    log = ["own barrier", "before", "gap", "own and more", "own barrier"]
    assert outcomes(log, 1, 2, 3, 4, 5, at=0) == [
        "lost",
        "indeterminate",
        "lost",
        "lost",
        "lost",
    ]


def test_the_barrier_is_gone_by_retention() -> None:
    log = ["own barrier", "own", "own", "own"]
    assert outcomes(log, 1, 3, at=0, log_start=2) == ["indeterminate"] * 2
    rows = [start(3, 2, who="a")]
    assert outcomes(log, 1, 3, at=0, log_start=2, rows=rows) == [
        "indeterminate",
        "fenced",
    ]
    conflict = [start(2, 1, who="b")]  # never in an intact ledger
    assert outcomes(log, 3, at=0, log_start=2, rows=conflict) == ["indeterminate"]
    log[2] = "barrier after"
    assert outcomes(log, 1, 3, at=0, log_start=2) == ["indeterminate", "fenced"]


def test_an_epoch_of_an_earlier_life_outranks_everything() -> None:
    now, then = "A" * 22, "B" * 22
    higher, lower = start(3, 70, topic_id=then), start(1, 5, topic_id=now)
    assert first_outranked([OWN], now, [higher, lower]) == 0
    assert first_outranked([OWN], then, [higher, lower]) == 70
    assert first_outranked([OWN], now, [lower, start(3, 0, scope="r")]) is None
    assert first_outranked([OWN], None, [start(3, 9), start(4, 7)]) == 7


def held(one: Claim) -> Leadership:
    def verify(leadership: Leadership, timeout_s: float) -> None:
        raise AssertionError("nobody asks the ledger here")

    return Leadership(one, verify, "a ledger")


def test_what_the_ledger_says_of_leaderships() -> None:
    both = [held(claim("r", 1)), held(claim("s", 2))]
    state = ledger(("r", 1), ("s", 2))
    check_granted(both, state)
    assert deposed_by(both, state) is None
    state = ledger(("r", 1), ("s", 2), ("s", 4, "b"))
    check_granted(both, state)
    deposed = deposed_by(both, state)
    assert isinstance(deposed, Deposed)
    assert (deposed.scope, deposed.held_epoch, deposed.seen_epoch) == ("s", 2, 4)
    for lost in (LedgerState(), ledger(("r", 1), ("s", 2, "b"))):
        with pytest.raises(LedgerRegressed):
            check_granted(both, lost)


@pytest.mark.parametrize(
    ("row", "is_regress"),
    [
        (start(2, 0), False),
        (start(2, 0, who=None), False),
        (start(1, 0, who="z"), False),
        (start(3, 0, scope="r"), False),
        (start(3, 0), True),
        (start(2, 0, who="b"), True),
    ],
)
def test_what_the_table_may_say_of_the_latest_leadership(
    row: EpochStart, is_regress: bool
) -> None:
    own = [held(claim("s", 2))]
    if not is_regress:
        check_rows(own, [row])
        return
    with pytest.raises(LedgerRegressed) as regressed:
        check_rows(own, [row])
    assert regressed.value.seen_epoch == row.epoch
