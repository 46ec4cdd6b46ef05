"""The fence, sentence by sentence: docs/rules.md, "The fence"."""

from __future__ import annotations

import tracemalloc

import pytest

from epochfence import MisconfiguredError, Position
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import UNREADABLE, stamp_reader
from support.histories import (
    AMBIGUOUS,
    CONFLICT,
    IMPLAUSIBLE,
    MALFORMED,
    STALE,
    UNGRANTED,
    UNSTAMPED,
    History,
    barrier,
    claim,
    ledger,
    stamp,
    start,
)

BAD = ("epochfence", b"damaged")
KNOWN = ledger(("s", 1), ("s", 2), ("s", 3), ("r", 1), ("r", 2), ("s", 2, "z"))


@pytest.mark.rule(30, 40, 46)
def test_a_takeover() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(1)) == "admitted"
    assert history.judge(stamp(2)) == "admitted"
    assert history.judge(stamp(1)) == STALE
    assert history.judge(stamp(2)) == "admitted"
    assert history.judge(stamp(3)) == "admitted"
    assert history.judge(stamp(2)) == STALE
    found = [(one.epoch, one.position.offset) for one in history.fence.starts]
    assert found == [(1, 0), (2, 1), (3, 4)]


@pytest.mark.rule(45, 46)
def test_a_barrier_fences_before_any_data() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(1)) == "admitted"
    assert history.judge(barrier(2)) == "barrier"
    assert history.judge(stamp(1)) == STALE
    assert history.judge(barrier(1)) == STALE
    assert history.judge(barrier(2)) == "barrier"


@pytest.mark.rule(31)
def test_a_start_counts_from_its_position_on() -> None:
    history = History(KNOWN, starts=[start(2, 10, leader_epoch=3)])
    assert history.judge(stamp(1), at=9, leader_epoch=3) == "admitted"
    assert history.judge(stamp(1), at=10, leader_epoch=3) == STALE
    # The same records once more, as after a restart: the same verdicts.
    assert history.judge(stamp(1), at=9, leader_epoch=3) == "admitted"
    assert history.judge(stamp(2), at=10, leader_epoch=3) == "admitted"
    # A lower offset under a later leader: the log was truncated and grew again.
    assert history.judge(stamp(1), at=5, leader_epoch=4) == STALE
    assert history.judge(stamp(1), at=50, leader_epoch=2) == "admitted"
    assert history.judge(stamp(1), at=9, leader_epoch=None) == "admitted"
    assert history.judge(stamp(1), at=10, leader_epoch=None) == STALE


@pytest.mark.rule(31, 51)
def test_starts_of_an_earlier_life_count_from_the_beginning() -> None:
    history = History(KNOWN, starts=[start(2, 1000, topic_id="old")])
    history.fence.enter_life("new")
    assert history.judge(stamp(1), at=0) == STALE
    assert history.judge(stamp(2), at=1) == "admitted"


@pytest.mark.rule(51)
def test_a_recreated_topic_does_not_begin_anew() -> None:
    history = History(KNOWN)
    history.fence.enter_life("first")
    assert history.judge(stamp(2), at=700) == "admitted"
    history.fence.enter_life("second")
    assert history.judge(stamp(1), at=0) == STALE
    assert history.judge(stamp(2), at=1) == "admitted"
    assert history.judge(stamp(3), at=2) == "admitted"
    assert [one.topic_id for one in history.fence.starts] == ["first", "second"]


@pytest.mark.rule(32)
def test_without_a_topic_id_all_is_of_one_life() -> None:
    history = History(KNOWN, starts=[start(2, 10, topic_id="x")])
    assert history.judge(stamp(1), at=9) == "admitted"
    history.fence.enter_life("y")
    assert history.judge(stamp(1), at=9) == STALE
    unnamed = History(KNOWN, starts=[start(2, 10)])
    unnamed.fence.enter_life("y")
    assert unnamed.judge(stamp(1), at=9) == "admitted"


@pytest.mark.rule(32, 51)
def test_a_life_that_learns_its_id_gives_it_to_its_starts() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(2), at=100) == "admitted"
    history.fence.enter_life("first")
    assert [one.topic_id for one in history.fence.starts] == ["first"]
    history.fence.enter_life(None)
    history.fence.enter_life("second")
    assert history.judge(stamp(1), at=0) == STALE


@pytest.mark.rule(33)
def test_the_highest_start_is_current_in_whatever_order_they_lie() -> None:
    history = History(KNOWN, starts=[start(3, 5), start(1, 7), start(2, 6)])
    assert history.judge(stamp(2), at=8) == STALE
    assert history.judge(stamp(3), at=8) == "admitted"


@pytest.mark.rule(34, 47)
def test_malformed_comes_first() -> None:
    history = History(KNOWN, FenceSettings(unstamped="admit"))
    assert history.judge(BAD) == MALFORMED
    assert history.judge(BAD, stamp(2), stamp(2)) == MALFORMED
    assert history.judge(stamp(3), barrier(3)) == MALFORMED
    assert history.fence.starts == ()
    assert history.judge(stamp(1)) == "admitted"


@pytest.mark.rule(35)
def test_ambiguous_comes_before_unstamped_and_stale() -> None:
    history = History(KNOWN, FenceSettings(["r"], unstamped="quarantine"))
    assert history.judge(stamp(1), stamp(1)) == AMBIGUOUS
    assert history.judge(stamp(2), stamp(3)) == AMBIGUOUS


@pytest.mark.rule(36)
def test_a_required_scope_without_a_stamp() -> None:
    one = History(KNOWN, FenceSettings(["s"], unstamped="quarantine"))
    assert one.judge() == UNSTAMPED
    assert one.judge(stamp(1, "r")) == UNSTAMPED
    assert one.judge(stamp(1, "r"), stamp(1)) == "admitted"
    both = History(KNOWN, FenceSettings(["s", "r"], unstamped="quarantine"))
    assert both.judge(stamp(1)) == UNSTAMPED
    assert both.judge(barrier(1)) == "barrier"
    any_one = History(KNOWN, FenceSettings([], unstamped="quarantine"))
    assert any_one.judge() == UNSTAMPED
    assert any_one.judge(("trace", b"1")) == UNSTAMPED
    assert any_one.judge(stamp(1, "r")) == "admitted"


@pytest.mark.rule(36)
def test_a_scope_may_be_named_per_partition() -> None:
    settings = FenceSettings(["orders/{partition}"], unstamped="quarantine")
    fence = PartitionFence("t", 3, settings, ledger(("orders/3", 1)))
    good = fence.judge(0, 0, [stamp(1, "orders/3")], ledger_complete=True)
    other = fence.judge(0, 1, [stamp(1, "orders/4")], ledger_complete=True)
    assert good is not None
    assert other is not None
    assert (good.kind, other.reason) == ("admitted", "unstamped")


@pytest.mark.rule(37, 45)
def test_unstamped_admit() -> None:
    history = History(KNOWN, FenceSettings(["s"], unstamped="admit"))
    assert history.judge() == "admitted/unstamped"
    assert history.judge(stamp(2)) == "admitted"
    assert history.judge() == "admitted/unstamped"
    # What it does carry is judged all the same, and opens an epoch.
    assert history.judge(stamp(2, "r")) == "admitted/unstamped"
    assert history.judge(stamp(1, "r")) == STALE
    assert history.judge(stamp(9, "r")) == UNGRANTED


@pytest.mark.rule(38)
def test_unstamped_admit_until_first_stamp() -> None:
    settings = FenceSettings(["s"], unstamped="admit-until-first-stamp")
    history = History(KNOWN, settings)
    assert history.judge() == "admitted/unstamped"
    assert history.judge(stamp(1, "r")) == "admitted/unstamped"
    assert history.judge(stamp(1)) == "admitted"
    assert history.judge() == UNSTAMPED
    assert history.judge(stamp(1, "r")) == UNSTAMPED
    # Read again from the start: as of its own place in the log.
    assert history.judge(at=0) == "admitted/unstamped"
    both = FenceSettings(["s", "r"], unstamped="admit-until-first-stamp")
    several = History(KNOWN, both)
    assert several.judge(stamp(1)) == "admitted/unstamped"
    assert several.judge(stamp(1)) == "admitted/unstamped"  # r has not begun
    assert several.judge() == UNSTAMPED  # s, which it lacks, has
    any_one = History(KNOWN, FenceSettings(unstamped="admit-until-first-stamp"))
    assert any_one.judge() == "admitted/unstamped"
    assert any_one.judge(barrier(1, "r")) == "barrier"
    assert any_one.judge() == UNSTAMPED
    earlier = History(KNOWN, settings, [start(1, 1000, topic_id="old")])
    earlier.fence.enter_life("new")
    assert earlier.judge() == UNSTAMPED


@pytest.mark.rule(39)
def test_unstamped_not_decided() -> None:
    history = History(KNOWN, FenceSettings(["s"]))
    with pytest.raises(MisconfiguredError) as stopped:
        history.judge()
    for choice in ("quarantine", "admit-until-first-stamp", "admit (", "t[0] offset 0"):
        assert choice in str(stopped.value)
    assert history.judge(stamp(1)) == "admitted"
    assert history.judge() == UNSTAMPED


@pytest.mark.rule(40)
def test_stale_is_tried_over_all_stamps_before_the_next_row() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(2), stamp(2, "r")) == "admitted"
    assert history.judge(stamp(2, who="z"), stamp(1, "r")) == STALE
    assert history.judge(stamp(9), stamp(1, "r")) == STALE


@pytest.mark.rule(41)
def test_another_grant_of_the_current_epoch() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(2)) == "admitted"
    assert history.judge(stamp(2, who="z")) == UNGRANTED
    assert history.judge(barrier(2, who="z")) == UNGRANTED
    # A row in the table says that another grant of epoch 3 was admitted: one of the
    # two logs was damaged.
    damaged = History(KNOWN, starts=[start(3, 0, who="q")])
    assert damaged.judge(stamp(3)) == CONFLICT
    # Two rows of one epoch: each record that a row says was admitted is so again.
    rows = [start(3, 0, who="q"), start(3, 5)]
    twice = History(KNOWN, starts=rows)
    assert twice.judge(stamp(3, who="q"), at=6) == "admitted"
    assert twice.judge(stamp(3), at=6) == "admitted"
    assert twice.judge(stamp(3, who="z"), at=6) == UNGRANTED
    both = ledger(("s", 3), ("r", 2), ("r", 3))
    several = History(both, starts=[start(3, 0, who="q"), start(2, 0, "r")])
    assert several.judge(stamp(2, "r", "z"), stamp(3)) == CONFLICT
    assert several.judge(stamp(3), stamp(2, "r", "z")) == CONFLICT
    seen = History()
    assert seen.judge(stamp(5)) == "admitted"
    assert seen.judge(stamp(5, who="z")) == CONFLICT


@pytest.mark.rule(42)
def test_a_start_without_a_grant_id_stands_for_any_grant() -> None:
    history = History(KNOWN, starts=[start(2, 0, who=None)])
    assert history.judge(stamp(2)) == "admitted"
    assert history.judge(stamp(2, who="z")) == UNGRANTED  # a claim that lost is none
    seen = History(starts=[start(2, 0, who=None)])
    assert seen.judge(stamp(2)) == "admitted"
    assert seen.judge(stamp(2, who="z")) == "admitted"


@pytest.mark.rule(43, 47)
def test_made_up_epochs_shut_nobody_out() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(2**63 - 1)) == UNGRANTED
    assert history.judge(barrier(99)) == UNGRANTED
    assert history.judge(stamp(1, "unheard-of")) == UNGRANTED
    assert history.judge(stamp(3), stamp(9, "r")) == UNGRANTED
    assert history.fence.starts == ()
    assert history.judge(stamp(1)) == "admitted"


@pytest.mark.rule(44)
def test_max_jump() -> None:
    settings = FenceSettings(
        stamps=stamp_reader("epoch:decimal"), max_jump=10, unstamped="quarantine"
    )
    history = History(settings=settings)
    assert history.judge(("epoch", b"5000")) == "admitted"  # nothing to compare with
    assert history.judge(("epoch", b"5011")) == IMPLAUSIBLE
    assert history.judge(("epoch", b"5010")) == "admitted"
    assert history.judge(("epoch", b"5009")) == STALE


@pytest.mark.rule(28)
def test_foreign_epoch_0_is_an_epoch() -> None:
    settings = FenceSettings(
        stamps=stamp_reader("epoch:decimal"), unstamped="admit-until-first-stamp"
    )
    history = History(settings=settings)
    assert history.judge() == "admitted/unstamped"
    assert history.judge(("epoch", b"0")) == "admitted"
    assert history.judge() == UNSTAMPED
    assert history.judge(("epoch", b"1")) == "admitted"
    assert history.judge(("epoch", b"0")) == STALE


@pytest.mark.rule(46)
def test_several_scopes_open_their_epochs_together() -> None:
    history = History(KNOWN)
    opened = history.verdict(stamp(2), stamp(1, "r"), leader_epoch=7).starts
    assert [(one.scope, one.epoch) for one in opened] == [("s", 2), ("r", 1)]
    assert {one.position for one in opened} == {Position(7, 0)}
    opened = history.verdict(stamp(2), stamp(2, "r"), leader_epoch=7).starts
    assert [(one.scope, one.epoch) for one in opened] == [("r", 2)]


@pytest.mark.rule(48)
def test_an_incomplete_ledger_decides_nothing() -> None:
    known = ledger(("s", 1))
    history = History(known)
    fence = history.fence
    assert history.judge(stamp(1)) == "admitted"

    def judge(*headers: tuple[str, bytes | None], complete: bool) -> str | None:
        verdict = fence.judge(None, 1, headers, ledger_complete=complete)
        return None if verdict is None else verdict.reason

    for made_up in (stamp(2), barrier(2), stamp(1, who="z")):
        assert judge(made_up, complete=False) is None
        assert fence.starts[1:] == ()
        assert judge(made_up, complete=True) == "ungranted"
        assert judge(made_up, complete=False) is None
    # What the ledger holds is decided without more.
    assert judge(stamp(1), complete=False) == "ok"
    known.add(claim("s", 2))
    assert judge(stamp(2), complete=False) == "ok"
    assert judge(stamp(1), complete=False) == "stale-epoch"
    # A stale stamp that no grant backs: has the ledger regressed? Look first.
    assert judge(stamp(1, who="z"), complete=False) is None
    assert judge(stamp(1, who="z"), complete=True) == "stale-epoch"
    assert judge(stamp(1, who="z"), complete=False) is None


@pytest.mark.rule(49)
def test_tombstones_are_fenced() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(2), value=None) == "admitted"
    assert history.judge(stamp(1), value=None) == STALE
    assert history.judge(value=None) == UNSTAMPED


def test_a_verdict_says_what_one_may_ask() -> None:
    history = History(KNOWN)
    history.judge(stamp(2))
    stale = history.verdict(stamp(1))
    assert stale.is_rejected
    assert stale.cause is not None
    assert (stale.cause.scope, stale.cause.epoch, stale.current_epoch) == ("s", 1, 2)
    good = history.verdict(stamp(2), leader_epoch=None)
    assert not good.is_rejected
    assert good.current_epoch == 2


def test_starts_that_others_found_count_from_then_on() -> None:
    history = History(KNOWN)
    assert history.judge(stamp(1), at=20) == "admitted"
    history.fence.add_starts([start(2, 10), start(2, 10)])
    assert history.judge(stamp(1), at=21) == STALE
    assert len(history.fence.starts) == 2
    assert len(history.fence.counting(Position(None, 15))) == 1


def test_the_ledger_may_be_replaced() -> None:
    history = History(ledger(("s", 1)))
    assert history.judge(stamp(1)) == "admitted"
    assert history.judge(stamp(2)) == UNGRANTED
    history.fence.ledger_replaced(KNOWN)
    assert history.judge(stamp(2)) == "admitted"


def test_headers_that_the_client_cannot_read_are_malformed() -> None:
    history = History(KNOWN, FenceSettings(unstamped="admit"))
    assert history.judge(*UNREADABLE) == "admitted/unstamped"  # only the object itself
    verdict = history.fence.judge(None, 1, UNREADABLE, ledger_complete=True)
    assert verdict is not None
    assert (verdict.kind, verdict.reason) == ("quarantined", "malformed")


def test_large_headers_are_not_remembered() -> None:
    """Anybody can send them: memory must not grow with what they send."""
    history = History(KNOWN)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(50):
            large = ("epochfence", b"%d" % number + b"x" * 200_000)
            assert history.judge(stamp(1), large) == MALFORMED
            many = [("epochfence", b"%d:%d" % (number, n)) for n in range(2000)]
            assert history.judge(*many) == MALFORMED
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 2_000_000


@pytest.mark.parametrize("settings", [FenceSettings(), FenceSettings(["s"])])
def test_authority_ledger_needs_a_ledger(settings: FenceSettings) -> None:
    with pytest.raises(MisconfiguredError, match="authority"):
        PartitionFence("t", 0, settings, None)
