"""Offsets, acknowledgements and receipts: what is remembered, and what is told."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence.epochs.acknowledged import Acknowledged, Acknowledgement, Asked
from epochfence.epochs.offset_ranges import OffsetRanges
from epochfence.epochs.receipts import (
    OUTCOMES,
    Outcome,
    Part,
    Receipt,
    Receipts,
    Undelivered,
)

offsets = st.integers(0, 30)


def is_compact(ranges: OffsetRanges) -> bool:
    """Whether the ranges are in order, and none is empty or touches the next."""
    ends = [edge for pair in ranges.ranges() for edge in pair]
    return all(low < high for low, high in pairwise(ends))


@given(st.lists(offsets))
def test_offsets_are_a_set(added: list[int]) -> None:
    ranges, model = OffsetRanges(), set[int]()
    for offset in added:
        assert ranges.add(offset) == (offset not in model)
        model.add(offset)
    assert list(ranges) == sorted(model)
    assert len(ranges) == len(model)
    assert bool(ranges) == bool(model)
    assert (ranges.start, ranges.end) == (
        (min(model), max(model) + 1) if model else (0, 0)
    )
    assert is_compact(ranges)
    assert [offset in ranges for offset in range(32)] == [
        offset in model for offset in range(32)
    ]
    assert ranges == OffsetRanges(sorted(model))
    assert "7" not in ranges
    assert ranges != added


@given(st.sets(offsets), st.sets(offsets), offsets, offsets)
def test_sets_of_offsets_combine(
    first: set[int], second: set[int], low: int, high: int
) -> None:
    one, other = OffsetRanges(first), OffsetRanges(second)
    assert set(one.between(low, high)) == {o for o in first if low <= o < high}
    assert set(one.without(other)) == first - second
    one.update(other)
    assert set(one) == first | second
    assert is_compact(one)
    assert set(one.split_off(low)) == {o for o in first | second if o >= low}
    assert set(one) == {o for o in first | second if o < low}
    one.add_range(low, high)
    assert set(one) == {o for o in first | second if o < low} | set(range(low, high))
    assert is_compact(one)


def test_consecutive_offsets_take_no_room() -> None:
    ranges = OffsetRanges(range(1_000_000))
    assert list(ranges.ranges()) == [(0, 1_000_000)]
    assert repr(OffsetRanges([1, 2, 3, 7])) == "OffsetRanges(1-3, 7-7)"


class Messages:
    """The dumb model: every message by itself, in the order of its report."""

    def __init__(self) -> None:
        self.standing: list[int] = []
        self.lost: list[int] = []

    def add(self, offset: int) -> None:
        self.cut_by(offset)
        self.standing.append(offset)

    def cut_by(self, offset: int) -> bool:
        """Take in that a message came to an offset; whether one was there."""
        is_again = offset in self.standing
        if is_again:
            self.lost += [one for one in self.standing if one >= offset]
            self.standing = [one for one in self.standing if one < offset]
        return is_again


@given(st.lists(st.lists(offsets | st.none())))
def test_acknowledgements(batches: list[list[int | None]]) -> None:
    """An offset that comes again tells of a truncation; falling back does not."""
    acknowledged, model = Acknowledged(), Messages()
    for batch in batches:
        acknowledged.add(batch)
        for offset in batch:
            if offset is not None:
                model.add(offset)
    assert list(acknowledged.standing) == sorted(model.standing)
    assert sorted(o for lost in acknowledged.lost for o in lost) == sorted(model.lost)
    none = sum(batch.count(None) for batch in batches)
    assert acknowledged.without_offset == none
    assert bool(acknowledged) == any(batches)


@given(st.lists(offsets | st.none()), st.lists(offsets | st.none()))
def test_acknowledgements_that_are_given_back(
    earlier: list[int | None], later: list[int | None]
) -> None:
    """Nothing is forgotten, and what a later truncation took is not called standing."""
    taken, at_once = Acknowledged(), Acknowledged()
    taken.add(earlier)
    since = Acknowledged(taken.standing)
    since.add(later)
    at_once.add([*earlier, *later])
    taken.extend(since)
    assert taken.without_offset == at_once.without_offset
    assert taken.standing == at_once.standing
    assert sorted(o for lost in taken.lost for o in lost) == sorted(
        o for lost in at_once.lost for o in lost
    )


def test_an_offset_that_comes_again_in_what_follows() -> None:
    """Nothing in it tells: it was taken in by itself."""
    earlier, later = Acknowledged(), Acknowledged()
    earlier.add([1, 2, 3, 7, 8])
    later.add([3, 4, 9])
    earlier.extend(later)
    assert list(earlier.standing) == [1, 2, 3, 4, 9]
    assert sorted(offset for lost in earlier.lost for offset in lost) == [3, 7, 8]
    assert earlier.is_truncated


class Fates:
    """The dumb model of who asked: what became of each, in the order of reports."""

    def __init__(self) -> None:
        self.where: dict[Asked, int | None] = {}
        self.fate: dict[Asked, str] = {}

    def add(self, offset: int | None, asked: Asked) -> None:
        self.where[asked] = offset
        self.fate[asked] = "nowhere" if offset is None else "standing"

    def truncate(self, offset: int) -> None:
        for asked, where in self.where.items():
            if where is not None and where >= offset:
                self.fate[asked] = "lost"


def fates(acknowledged: Acknowledged) -> dict[Asked, str]:
    """What is told of everybody who asked."""
    return {
        **dict.fromkeys(acknowledged.asked.values(), "standing"),
        **{asked: "lost" for _, asked in acknowledged.asked_lost},
        **dict.fromkeys(acknowledged.asked_nowhere, "nowhere"),
    }


asking = st.lists(st.tuples(offsets | st.none(), st.booleans()))


@given(st.lists(st.tuples(asking, st.booleans()), max_size=4))
def test_who_asked(
    batches: list[tuple[list[tuple[int | None, bool]], bool]],
) -> None:
    """However the reports are batched and given back, each is told of its own message:
    not of another that was acknowledged at the same offset. Nor is that forgotten of
    messages that are told of elsewhere, such as those of an aborted transaction."""
    acknowledged, model = Acknowledged(), Fates()
    standing = Messages()
    for batch, is_kept in batches:
        since = Acknowledged(acknowledged.standing) if is_kept else Acknowledged()
        reports: list[Acknowledgement] = []
        elsewhere: set[Asked] = set()
        for offset, is_asked in batch:
            if offset is not None:
                if standing.cut_by(offset):
                    model.truncate(offset)
                if is_kept:
                    standing.add(offset)
            asked = Asked(print)
            if is_asked and is_kept:
                model.add(offset, asked)
            elif is_asked:
                elsewhere.add(asked)
            reports.append((offset, asked) if is_asked else offset)
        since.add(reports)
        if is_kept:
            acknowledged.extend(since)
        else:
            assert {asked for _, asked in since.everyone()} == elsewhere
            for some in (*since.lost, since.standing):
                acknowledged.cut_by(some)
    assert fates(acknowledged) == model.fate
    assert list(acknowledged.standing) == sorted(standing.standing)
    assert all(offset == model.where[a] for offset, a in acknowledged.asked.items())
    assert all(offset == model.where[a] for offset, a in acknowledged.asked_lost)


PARTS = [
    Part("t", 0, "admitted", OffsetRanges([4, 5, 6])),
    Part("t", 0, "lost", OffsetRanges([6])),
    Part("t", 1, "fenced", OffsetRanges([4])),
    Part("u", 0, "indeterminate", OffsetRanges(), 2),
    Part("u", 1, "fenced", OffsetRanges()),
]


def test_receipts() -> None:
    failed = Undelivered("t", 0, "_MSG_TIMED_OUT", "Local: Message timed out", 3)
    receipts = Receipts(PARTS, [failed])
    assert list(receipts) == [
        Receipt("t", 0, 4, "admitted"),
        Receipt("t", 0, 5, "admitted"),
        Receipt("t", 0, 6, "admitted"),
        Receipt("t", 0, 6, "lost"),
        Receipt("t", 1, 4, "fenced"),
        Receipt("u", 0, None, "indeterminate"),
        Receipt("u", 0, None, "indeterminate"),
    ]
    assert len(receipts) == 7
    assert receipts.counts == {
        "admitted": 3,
        "fenced": 1,
        "lost": 1,
        "aborted": 0,
        "indeterminate": 2,
    }
    assert receipts.undelivered == (failed,)
    assert repr(receipts) == (
        "Receipts(admitted=3, fenced=1, lost=1, aborted=0, indeterminate=2, "
        "undelivered=3)"
    )


@pytest.mark.parametrize(
    ("place", "outcome"),
    [
        (("t", 0, 5), "admitted"),
        (("t", 0, 6), "lost"),  # whoever looks up the first must not hear of the second
        (("t", 1, 4), "fenced"),
        (("t", 1, 5), None),
        (("v", 0, 4), None),
        (("u", 0, 4), None),
    ],
)
def test_the_outcome_of_one_message(
    place: tuple[str, int, int], outcome: str | None
) -> None:
    assert Receipts(PARTS).outcome(*place) == outcome
    assert Receipts(reversed(PARTS)).outcome(*place) == outcome


def test_all_admitted_means_all() -> None:
    admitted = PARTS[:1]
    failed = Undelivered("t", 0, "_MSG_TIMED_OUT", "", 1)
    assert Receipts(admitted).are_all_admitted
    assert Receipts().are_all_admitted
    assert not Receipts(admitted, [failed]).are_all_admitted
    assert not Receipts(PARTS[1:2]).are_all_admitted
    nothing = Receipts()
    assert (len(nothing), bool(nothing)) == (0, True)


@given(st.lists(st.lists(st.tuples(offsets, st.sampled_from(OUTCOMES)))))
def test_answers_are_joined(answers: list[list[tuple[int, Outcome]]]) -> None:
    """Nothing is told twice, and nothing less often than it was."""
    several = [
        Receipts(
            [
                Part("t", offset % 2, outcome, OffsetRanges([offset]))
                for offset, outcome in answer
            ],
            [Undelivered("t", 0, "E", "first", 1)] if answer else [],
        )
        for answer in answers
    ]
    joined = Receipts.joined(several)
    expected = sorted(receipt for receipts in several for receipt in receipts)
    assert sorted(joined) == expected
    assert sum(failed.messages for failed in joined.undelivered) == sum(
        map(bool, answers)
    )
    assert Receipts.joined([joined, Receipts()]).counts == joined.counts


def test_answers_in_a_row_take_no_room() -> None:
    one_by_one = [
        Receipts([Part("t", 0, "admitted", OffsetRanges([offset]))])
        for offset in (3, 1, 2)
    ]
    joined = Receipts.joined(one_by_one)
    assert [receipt.offset for receipt in joined] == [1, 2, 3]
    assert len(vars(joined)["_parts"]) == 1
