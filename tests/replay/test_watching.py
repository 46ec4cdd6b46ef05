"""What a watch makes of records: the state, the picture, and what is new in it."""

from __future__ import annotations

import msgspec
import pytest

from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import Headers
from epochfence.epochs.values import Claim, EpochStart, Position
from epochfence.replay.summing_up import settings_report
from epochfence.replay.topic_source import Slice
from epochfence.replay.watch_picture import Picture, changes
from epochfence.replay.watching import (
    KEPT_LAST,
    Arrived,
    PartitionWatch,
    Recent,
    WatchState,
)
from epochfence.watch_tables import print_picture

_LIFE = "KTgZ3vR0Q0-1_abcdefghi"
_NEXT_LIFE = "KTgZ3vR0Q0-2_abcdefghi"
_OLD = Claim("w", 1, 0, "1" * 16, "pod-7", 1_700_000_000_000)
_NEW = Claim("w", 2, 1, "2" * 16, "pod-8", 1_700_000_060_000)
_SETTINGS = FenceSettings(["w"], unstamped="quarantine")


def _headers(claim: Claim, name: str = "epochfence") -> Headers:
    return ((name, f"{claim.epoch}:{claim.grant_id}:{claim.scope}".encode()),)


def _barrier(claim: Claim) -> Headers:
    return _headers(claim, "epochfence-barrier")


def _slice(partition: int = 0, start: int = 0, end: int | None = None) -> Slice:
    end = start if end is None else end
    return Slice("orders", _LIFE, partition, 0, start, end)


class _Watch:
    """A watch of one partition or several, fed by hand."""

    def __init__(
        self, *pieces: Slice, claims: tuple[Claim, ...] = (_OLD, _NEW),
        rows: tuple[EpochStart, ...] = (), settings: FenceSettings = _SETTINGS,
    ) -> None:  # fmt: skip
        self.settings = settings
        self.ledger = LedgerState(claims)
        self.state = WatchState(settings, self.ledger, rows)
        for piece in pieces or (_slice(),):
            self.state.begin(piece)
        self.now_s = 1_000.0

    def there(self, partition: int = 0) -> PartitionWatch:
        found = self.state.find("orders", partition)
        assert found is not None
        return found

    def take(
        self, headers: Headers, partition: int = 0, *, is_ledger_complete: bool = True
    ) -> bool:
        there = self.there(partition)
        record = Arrived(3, there.next_offset, 1_700_000_061_000, headers)
        return self.state.take(
            there, record, self.now_s, is_ledger_complete=is_ledger_complete
        )

    def picture(self) -> Picture:
        rejected = self.state.rejected(self.now_s)
        return Picture(
            at=1_700_000_070_000,
            topics=["orders"],
            settings=settings_report(self.settings),
            ledger=None,
            problem=None,
            verdicts=self.state.counts(),
            scopes=self.state.scopes(),
            partitions=[one.picture(self.now_s) for one in self.state.partitions],
            rejected=rejected,
            last_rejected=self.state.last_rejected(),
            attention=[str(one) for one in rejected if one.last_minute],
            notes=list(self.state.notes()),
        )


def test_a_takeover_with_a_zombie() -> None:
    watch = _Watch(_slice(0), _slice(1))
    watch.take(_barrier(_OLD))
    watch.take(_headers(_OLD))
    watch.take(_barrier(_NEW))
    (scope,) = watch.picture().scopes
    assert (scope.epoch, scope.holder, scope.since) == (2, "pod-8", _NEW.claimed_at)
    assert (scope.begun_on, scope.barriers, scope.partitions) == (1, 1, 2)
    watch.take(_headers(_NEW), 1)
    (scope,) = watch.picture().scopes
    assert (scope.begun_on, scope.barriers) == (2, 1)

    watch.take(_headers(_OLD))
    picture = watch.picture()
    (rejected,) = picture.rejected
    assert (rejected.reason, rejected.holder, rejected.epoch) == (
        *("stale-epoch", "pod-7"), 1,
    )  # fmt: skip
    assert (rejected.topic, rejected.partition, rejected.offset) == ("orders", 0, 3)
    assert picture.attention == [
        "pod-7 (epoch 1 of w) still writes: 1 stale in the last minute, new: look at it"
    ]
    (last,) = picture.last_rejected
    assert (last.offset, last.current_epoch, last.holder) == (3, 2, "pod-7")
    assert picture.summary() == (
        "5 records: 2 admitted, 2 barriers, 1 stale, 0 quarantined."
    )
    first = picture.partitions[0]
    assert (first.records, first.rejected, first.last_offset) == (4, 1, 3)
    assert first.records_per_s == 0.4


@pytest.mark.parametrize(
    ("before", "last", "trend"),
    [
        (0, 0, "over"), (0, 2, "new"), (1, 2, "rising"), (2, 2, "steady"),
        (2, 1, "falling"), (2, 0, "falling"),
    ],
)  # fmt: skip
def test_trends(before: int, last: int, trend: str) -> None:
    recent = Recent()
    if before:
        recent.add(120.0, before)
    if last:
        recent.add(155.0, last)
    assert recent.trend(160.0) == trend
    assert recent.within(160.0, 60) == before + last


def test_a_minute_later_it_is_over() -> None:
    watch = _Watch()
    watch.take(_barrier(_NEW))
    watch.take(_headers(_OLD))
    watch.now_s += 61
    picture = watch.picture()
    assert not picture.attention
    (rejected,) = picture.rejected
    assert (rejected.records, rejected.last_minute, rejected.trend) == (1, 0, "over")


def test_what_lay_there_before_is_no_rate() -> None:
    watch = _Watch(_slice(end=3))
    watch.take(_barrier(_NEW))
    watch.take(_headers(_OLD))
    assert watch.picture().partitions[0].is_catching_up
    watch.take(_headers(_OLD))
    assert not watch.picture().partitions[0].is_catching_up
    watch.take(_headers(_OLD))
    picture = watch.picture()
    assert (picture.rejected[0].records, picture.rejected[0].last_minute) == (3, 1)
    assert picture.partitions[0].records_per_s == 0.1


def test_an_open_end_is_an_end() -> None:
    watch = _Watch(_slice(end=9))
    watch.there().has_read_to(4, is_end=True)
    assert not watch.picture().partitions[0].is_catching_up


def test_no_verdict_before_the_ledger_is_read() -> None:
    watch = _Watch(claims=(_OLD,))
    watch.take(_barrier(_OLD))
    assert not watch.take(_headers(_NEW), is_ledger_complete=False)
    assert watch.picture().records == 1
    watch.ledger.add(_NEW)
    assert watch.take(_headers(_NEW), is_ledger_complete=False)
    made_up = Claim("w", 9, 0, "9" * 16, "nobody", 0)
    assert not watch.take(_headers(made_up), is_ledger_complete=False)
    assert watch.take(_headers(made_up))
    (rejected,) = watch.picture().rejected
    assert (rejected.reason, rejected.holder) == ("ungranted", None)
    assert str(rejected) == (
        "somebody (epoch 9 of w) writes: 1 quarantined (ungranted) in the last minute, "
        "new: look at it"
    )


def test_rows_of_the_table_tell_what_began_before() -> None:
    def row(offset: int, claim: Claim, topic_id: str = _LIFE) -> EpochStart:
        return EpochStart(
            "orders", topic_id, 0, "w", claim.epoch, claim.grant_id,
            Position(3, offset),
        )  # fmt: skip

    watch = _Watch(_slice(start=50), rows=(row(2, _OLD), row(30, _NEW)))
    assert not watch.picture().notes
    watch.take(_headers(_OLD))
    picture = watch.picture()
    assert [one.reason for one in picture.rejected] == ["stale-epoch"]
    (epoch,) = picture.partitions[0].epochs
    assert (epoch.epoch, epoch.start_offset, epoch.has_barrier) == (2, 30, False)
    # What lies behind the beginning is found there, and not taken beforehand.
    later = _Watch(_slice(start=10), rows=(row(2, _OLD), row(30, _NEW)))
    later.take(_headers(_OLD))
    assert not later.picture().rejected


def test_without_rows_it_is_said() -> None:
    (note,) = _Watch(_slice(start=50)).picture().notes
    assert "orders[0]" in note
    assert "--from-start" in note
    assert not _Watch().picture().notes


def test_a_scope_that_nobody_claimed_is_said() -> None:
    (note,) = _Watch(settings=FenceSettings(["v"], unstamped="admit")).picture().notes
    assert "scope v" in note
    assert "misspelt" in note


def test_another_life_of_the_topic() -> None:
    watch = _Watch(_slice(start=5))
    watch.take(_barrier(_NEW))
    watch.state.begin(Slice("orders", _NEXT_LIFE, 0, 0, 0, 0))
    watch.take(_headers(_OLD))
    (one,) = watch.picture().partitions
    assert (one.topic_id, one.read_from, one.last_offset) == (_NEXT_LIFE, 0, 0)
    assert one.rejected == 1  # starts of earlier lives go on counting


def test_many_made_up_stamps_stay_few_causes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epochfence.replay.watching.KEPT_CAUSES", 5)
    watch = _Watch()
    for epoch in range(10, 40):
        watch.take(_headers(Claim("w", epoch, 0, "9" * 16, "", 0)))
    picture = watch.picture()
    assert len(picture.rejected) == 6
    assert sum(one.records for one in picture.rejected) == 30
    assert "somebody writes: 25 quarantined (ungranted)" in picture.attention[0]
    assert len(picture.last_rejected) == KEPT_LAST


def test_foreign_epochs_begin_at_0() -> None:
    from epochfence.epochs.stamps import stamp_reader

    settings = FenceSettings(stamps=stamp_reader("gen:decimal"), unstamped="quarantine")
    watch = _Watch(settings=settings, claims=())
    watch.state = WatchState(settings, None)
    watch.state.begin(_slice())
    watch.take((("gen", b"0"),))
    (scope,) = watch.picture().scopes
    assert (scope.scope, scope.epoch, scope.holder) == ("~gen", 0, None)
    assert scope.since == 1_700_000_061_000


def test_what_is_new_is_told_once() -> None:
    watch = _Watch(_slice(0), _slice(1), claims=(_OLD,))
    watch.take(_barrier(_OLD))
    before = watch.picture()
    assert list(changes(None, before)) == [
        "orders: epoch 1 of w is held by pod-7, and has begun on 1 of 2 partitions",
        "orders[0]: epoch 1 of w began at offset 0 with its barrier",
    ]
    assert not list(changes(before, before))
    watch.ledger.add(_NEW)
    granted = watch.picture()
    assert list(changes(before, granted)) == [
        "orders: epoch 2 of w is held by pod-8, and has begun on 0 of 2 partitions"
    ]
    watch.take(_barrier(_NEW), 0)
    watch.take(_barrier(_NEW), 1)
    watch.take(_headers(_OLD))
    now = watch.picture()
    assert list(changes(granted, now)) == [
        "orders: epoch 2 of w has begun on all of 2 partitions",
        "orders[0]: epoch 2 of w began at offset 1 with its barrier",
        "orders[1]: epoch 2 of w began at offset 0 with its barrier",
        "1 record rejected (stale-epoch), the last at orders[0] offset 2: pod-7 (epoch "
        "1 of w) still writes: 1 stale in the last minute, new: look at it",
    ]
    lost = msgspec.structs.replace(now, problem="no answer")
    assert list(changes(now, lost)) == ["no answer"]
    assert list(changes(lost, now)) == ["the cluster answers again"]


def test_one_look_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    watch = _Watch(_slice(end=3))
    watch.take(_barrier(_NEW))
    watch.take(_headers(_OLD))
    watch.take(())
    print_picture(watch.picture())
    out = capsys.readouterr().out
    assert "pod-8" in out
    assert "orders[0] 1  stale-epoch  pod-7" in out
    assert "orders[0] 2  unstamped    -" in out
    assert out.endswith("3 records: 0 admitted, 1 barrier, 1 stale, 1 quarantined.\n")
