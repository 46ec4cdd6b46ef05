"""However records are handed in, and wherever it stops, an audit says the same."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec
from confluent_kafka import TIMESTAMP_CREATE_TIME, Message
from hypothesis import given
from hypothesis import settings as unhurried
from hypothesis import strategies as st

from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.partition_audit import PartitionAudit, PartitionState
from epochfence.replay.partition_replay import PartitionReplay
from epochfence.replay.report import Finding, Report
from epochfence.replay.summing_up import sum_up
from epochfence.replay.timeline import Timeline
from epochfence.replay.what_if import Changes, Verdicts, WhatIfState
from support.histories import Header, barrier, ledger, stamp, start

KNOWN = ledger(
    *(("s", epoch) for epoch in range(1, 6)),
    *(("r/0", epoch) for epoch in range(1, 4)),
    ("s", 3, "z"),
)
LIFE, EARLIER = "L" * 22, "E" * 22

_stamps = st.one_of(
    st.builds(stamp, st.integers(1, 6), st.just("s")),
    st.builds(stamp, st.integers(1, 4), st.just("r/0")),
    st.builds(stamp, st.integers(2, 4), st.just("s"), st.just("z")),
    st.just(("epochfence", b"damaged")),
    st.just(("trace", b"1")),
)
_headers = st.one_of(
    st.lists(_stamps, max_size=3),
    st.builds(barrier, st.integers(1, 6)).map(lambda header: [header]),
)
#: Headers that some records share, how far the offset moves before each of them, and
#: whether the broker's leader changes before the first.
_stretches = st.lists(
    st.tuples(
        _headers,
        st.lists(st.integers(1, 3), min_size=1, max_size=12),
        st.sampled_from([0, 0, 0, 1]),
    ),
    max_size=8,
)
_rows = st.lists(
    st.builds(
        start,
        st.integers(1, 6),
        st.integers(0, 60),
        st.sampled_from(["s", "r/0"]),
        st.just("a"),
        st.sampled_from([None, 0, 1, 2]),
        st.sampled_from([None, LIFE, EARLIER]),
    ),
    max_size=3,
)
_settings = st.sampled_from(
    [
        FenceSettings(unstamped="quarantine"),
        FenceSettings(["s"], unstamped="admit"),
        FenceSettings(["s"], unstamped="admit-until-first-stamp"),
        FenceSettings(["s", "r/0"], unstamped="quarantine"),
        FenceSettings(unstamped="quarantine", authority="max-seen"),
        FenceSettings(unstamped="admit", authority="max-seen", max_jump=2),
    ]
)
_Stretches = list[tuple[list[Header], list[int], int]]


def message(offset: int, headers: Sequence[Header], leader_epoch: int = 0) -> Message:
    return Message(
        topic="t",
        partition=0,
        offset=offset,
        headers=[*headers],
        timestamp=(TIMESTAMP_CREATE_TIME, 1000 + 7 * offset),
        leader_epoch=leader_epoch,
    )


def messages_of(stretches: _Stretches) -> list[Message]:
    found: list[Message] = []
    offset, leader_epoch = -1, 0
    for headers, steps, changes in stretches:
        leader_epoch += changes
        for step in steps:
            offset += step
            found.append(message(offset, headers, leader_epoch))
    return found


def in_batches(messages: list[Message], sizes: list[int]) -> list[list[Message]]:
    sizes_for_ever = itertools.cycle(sizes or [1])
    rest, batches = messages, list[list[Message]]()
    while rest:
        size = next(sizes_for_ever)
        batches.append(rest[:size])
        rest = rest[size:]
    return batches


class Judging:
    """A partition that is judged, by other settings too."""

    def __init__(self, settings: FenceSettings, rows: list[EpochStart]) -> None:
        self.settings, self.rows = settings, rows
        self.verdicts = Verdicts()
        self.begin(None, None)

    def begin(self, state: PartitionState | None, other: WhatIfState | None) -> None:
        others = [
            (
                self._audit(
                    FenceSettings(unstamped="admit", authority="max-seen"),
                    None if other is None else other.state,
                ),
                Changes(() if other is None else other.changes),
            )
        ]
        main = self._audit(self.settings, state)
        self.replay = PartitionReplay(main, others, self.verdicts)

    def _audit(
        self, settings: FenceSettings, state: PartitionState | None
    ) -> PartitionAudit:
        return PartitionAudit("t", 0, settings, KNOWN, self.rows, state)

    def leave_and_go_on(self) -> None:
        """As with a checkpoint: through JSON."""
        kept = msgspec.json.encode((self.replay.audit.state(), self.replay.what_if()))
        state, (other,) = msgspec.json.decode(
            kept, type=tuple[PartitionState, list[WhatIfState]]
        )
        self.begin(state, other)

    def found(self) -> object:
        """All that it knows."""
        state = self.replay.audit.state()
        (other,) = self.replay.what_if()
        return copy.deepcopy([_comparable(state), _comparable(other.state), other])


def _comparable(state: PartitionState) -> object:
    """What is found, and of the picture what does not depend on where it was left."""
    spans, marks = Counter[object](), Counter[object]()
    for span in state.timeline.spans:
        spans[span.scope, span.epoch] += span.records
    for mark in state.timeline.marks:
        marks[mark.kind, mark.reason, mark.scope, mark.epoch] += mark.records
    state.timeline = Timeline()
    return state, spans, marks


@unhurried(deadline=None)
@given(_stretches, st.lists(st.integers(1, 30), max_size=4), _settings, _rows)
def test_in_batches_it_says_the_same_as_one_by_one(
    stretches: _Stretches,
    sizes: list[int],
    settings: FenceSettings,
    rows: list[EpochStart],
) -> None:
    messages = messages_of(stretches)
    one_by_one, batched = Judging(settings, rows), Judging(settings, rows)
    for one in messages:
        one_by_one.replay.take_messages(LIFE, [one])
    for batch in in_batches(messages, sizes):
        batched.replay.take_messages(LIFE, batch)
    assert batched.verdicts.offsets == one_by_one.verdicts.offsets
    assert batched.verdicts.verdicts == one_by_one.verdicts.verdicts
    assert batched.found() == one_by_one.found()


@unhurried(deadline=None)
@given(
    _stretches,
    st.lists(st.integers(1, 30), max_size=4),
    st.sets(st.integers(0, 20)),
    _settings,
    _rows,
)
def test_wherever_it_is_left_it_goes_on_as_if_it_had_not_been(
    stretches: _Stretches,
    sizes: list[int],
    left_after: set[int],
    settings: FenceSettings,
    rows: list[EpochStart],
) -> None:
    whole, parts = Judging(settings, rows), Judging(settings, rows)
    for number, batch in enumerate(in_batches(messages_of(stretches), sizes)):
        whole.replay.take_messages(LIFE, batch)
        parts.replay.take_messages(LIFE, batch)
        if number in left_after:
            parts.leave_and_go_on()
    assert parts.verdicts.verdicts == whole.verdicts.verdicts
    assert parts.found() == whole.found()


@unhurried(deadline=None)
@given(_stretches, _settings, _rows)
def test_what_is_counted_adds_up(
    stretches: _Stretches, settings: FenceSettings, rows: list[EpochStart]
) -> None:
    judging = Judging(settings, rows)
    messages = messages_of(stretches)
    judging.replay.take_messages(LIFE, messages)
    state = judging.replay.audit.state()
    rejected = sum(one.is_rejected for one in judging.verdicts.verdicts)
    barriers = sum(one.kind == "barrier" for one in judging.verdicts.verdicts)
    assert state.records == len(messages)
    assert sum(one.records for one in state.rejections) == rejected
    assert sum(one.records for one in state.timeline.marks) == rejected + barriers


# What a report says of epochs that are known beforehand.


def report_of(
    messages: list[Message], rows: list[EpochStart], read_from: int = 0
) -> Report:
    settings = FenceSettings(["s"], unstamped="quarantine")
    audit = Audit(settings, LedgerSource(KNOWN, "ledger.jsonl"), rows)
    replay = PartitionReplay(audit.partition("t", 0))
    replay.take_messages(LIFE, messages)
    return sum_up(audit, "t", bounds={("t", 0): (read_from, 100)})


def finding(report: Report, code: str) -> Finding:
    (found,) = [one for one in report.findings if one.code == code]
    return found


def test_a_start_that_a_row_tells_is_found_where_it_is_read() -> None:
    messages = [
        message(0, [stamp(1)]),
        message(1, [barrier(2)]),
        message(2, [stamp(2)]),
        message(3, [stamp(1)]),
    ]
    rows = [
        start(1, 0, leader_epoch=0, topic_id=LIFE),
        start(2, 1, leader_epoch=0, topic_id=LIFE),
    ]
    with_table, without = report_of(messages, rows), report_of(messages, [])
    assert with_table.partitions == without.partitions
    assert with_table.findings == without.findings
    old, new = with_table.partitions[0].epochs
    assert (old.start_offset, new.start_offset) == (0, 1)
    assert old.overlap is not None
    assert old.overlap.wrote_on_ms == 14


def test_evidence_may_lie_below_what_was_read() -> None:
    rows = [start(2, 5, leader_epoch=0, topic_id=LIFE)]
    stale = [message(50, [stamp(1)]), message(60, [stamp(3)])]
    report = report_of(stale, rows, read_from=50)
    began, rejected = finding(report, "stale-writes").evidence
    assert (began.offset, began.epoch, rejected.offset) == (5, 2, 50)
    old = report.partitions[0].epochs[0]
    # Epoch 3 came later: it is not what deposed epoch 1, nor did it write on before.
    assert old.succeeded_by == 2
    assert old.overlap is not None
    assert old.overlap.wrote_on_ms is None


def test_evidence_of_a_life_that_was_not_read_is_not_made_up() -> None:
    rows = [start(2, 5, leader_epoch=0, topic_id=EARLIER)]
    report = report_of([message(50, [stamp(1)])], rows)
    (rejected,) = finding(report, "stale-writes").evidence
    assert rejected.offset == 50


def test_an_epoch_may_have_begun_before_what_was_read() -> None:
    """Then nobody can say that it has no barrier."""
    messages = [message(50, [stamp(1)]), message(51, [stamp(2)])]
    codes = [one.epoch for one in report_of(messages, [], 50).findings]
    assert codes == [2]
    codes = [one.epoch for one in report_of(messages, []).findings]
    assert codes == [1, 2]


def test_a_run_ends_under_the_leader_epoch_of_its_last_record() -> None:
    settings = FenceSettings([], unstamped="quarantine")
    judging = Judging(settings, [])
    # A verdict that rests on what the ledger lacks is a run of its own.
    made_up: list[tuple[str, bytes | None]] = [
        ("epochfence-barrier", b"6:0061000000000006:s")
    ]
    for one in messages_of([(made_up, [1], 0), ([], [1], 1)]):
        judging.replay.take_messages(LIFE, [one])
    (ungranted,) = [
        one
        for one in judging.replay.audit.state().rejections
        if one.reason == "ungranted"
    ]
    assert ungranted.last == ungranted.first
