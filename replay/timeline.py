"""The picture of a partition, coarse enough to be drawn: spans of epochs, and marks.

However many records there are, there are a few thousand spans and marks at most: where
there would be more, those that lie close together are put into one. Nothing is left
out: every record that is not simply admitted is counted in some mark.
"""

from __future__ import annotations

import msgspec

from epochfence.epochs.verdicts import Kind, Reason
from epochfence.replay.places import RecordPlace

#: Spans and marks of one partition, before they are put together.
MOST = 2_000

#: Scopes of one partition that have a lane of their own; the rest share one.
MOST_SCOPES = 100

#: The lane of the rest. No scope can be called so.
OTHER_SCOPES = "(other scopes)"

#: The resolution at which everything is close together, other lives included.
COARSEST = 2**62

_Bucket = tuple[int, int, str | None, str, str]


class Span(msgspec.Struct):
    """Records of a scope, admitted one after the other.

    Attributes:
        scope: Whose.
        epoch: Their epoch; the lowest, where several short ones were put together.
        last_epoch: The highest.
        first: The first record.
        last: The last.
        records: How many, barriers included.
    """

    scope: str
    epoch: int
    last_epoch: int
    first: RecordPlace
    last: RecordPlace
    records: int


class Mark(msgspec.Struct):
    """Records of the same kind, close together: barriers, or rejected ones.

    Attributes:
        kind: `barrier`, `stale` or `quarantined`.
        reason: Why, for rejected ones.
        scope: The scope that decided, None where none did.
        epoch: The lowest epoch among them, None where none was read.
        last_epoch: The highest.
        first: The first record.
        last: The last.
        records: How many.
    """

    kind: Kind
    reason: Reason
    scope: str | None
    epoch: int | None
    last_epoch: int | None
    first: RecordPlace
    last: RecordPlace
    records: int


class Timeline(msgspec.Struct):
    """Spans and marks of one partition, in the order of the log.

    Attributes:
        resolution: Offsets that lie in the same stretch of so many are close together;
            2^62: all of them are, those of other lives of the topic too.
        spans: What was admitted.
        marks: Barriers, and what was rejected.
    """

    resolution: int = 1
    spans: list[Span] = []
    marks: list[Mark] = []


class TimelineBuilder:
    """Draws a timeline while records go by.

    Args:
        timeline: What was drawn so far.
        most: How many spans, and how many marks, there may be.
    """

    def __init__(self, timeline: Timeline | None = None, most: int = MOST) -> None:
        timeline = Timeline() if timeline is None else timeline
        self._resolution = timeline.resolution
        self._spans = list(timeline.spans)
        self._marks: dict[_Bucket, Mark] = {}
        self._latest: dict[str, Span] = {span.scope: span for span in self._spans}
        self._most = most
        self._lanes = {span.scope for span in self._spans}
        self._lanes |= {one.scope for one in timeline.marks if one.scope is not None}
        for mark in timeline.marks:
            self._put(mark)

    @property
    def timeline(self) -> Timeline:
        """What was drawn so far."""
        marks = sorted(self._marks.values(), key=lambda m: _order(m.first))
        return Timeline(self._resolution, list(self._spans), marks)

    def admit(
        self,
        scope: str,
        epoch: int,
        first: RecordPlace,
        last: RecordPlace,
        records: int,
    ) -> None:
        """Records of an epoch were admitted."""
        scope = self._lane(scope)
        span = self._latest.get(scope)
        if (
            span is not None
            and span.epoch == span.last_epoch == epoch
            and span.last.life == first.life
        ):
            span.last = last
            span.records += records
            return
        span = Span(scope, epoch, epoch, first, last, records)
        self._spans.append(span)
        self._latest[scope] = span
        if len(self._spans) > self._most:
            self.coarsen()

    def mark(
        self,
        kind: Kind,
        reason: Reason,
        scope: str | None,
        epoch: int | None,
        first: RecordPlace,
        last: RecordPlace,
        records: int,
    ) -> None:
        """There were barriers, or records that were rejected."""
        lane = None if scope is None else self._lane(scope)
        self._put(Mark(kind, reason, lane, epoch, epoch, first, last, records))
        if len(self._marks) > self._most:
            self.coarsen()

    def _lane(self, scope: str) -> str:
        if scope not in self._lanes:
            if len(self._lanes) >= MOST_SCOPES:
                return OTHER_SCOPES
            self._lanes.add(scope)
        return scope

    def _put(self, mark: Mark) -> None:
        bucket = (
            *self._stretch(mark.first), mark.scope, mark.kind, mark.reason
        )  # fmt: skip
        there = self._marks.get(bucket)
        if there is None:
            self._marks[bucket] = mark
            return
        there.last = mark.last
        there.records += mark.records
        there.epoch = _lowest(there.epoch, mark.epoch)
        there.last_epoch = _highest(there.last_epoch, mark.last_epoch)

    def coarsen(self) -> None:
        """Put together what lies close, until half of the room is free."""
        while len(self._spans) > self._most // 2 or len(self._marks) > self._most // 2:
            self._resolution = self._coarser()
            marks, self._marks = self._marks, {}
            for mark in sorted(marks.values(), key=lambda m: _order(m.first)):
                self._put(mark)
            self._join_spans()
            if self._resolution == COARSEST:
                return  # one for each lane and reason: these stay

    def _coarser(self) -> int:
        farthest = max(
            [span.last.offset for span in self._spans]
            + [mark.last.offset for mark in self._marks.values()]
        )
        # Beyond the farthest offset, only lives of the topic are left to be joined.
        coarser = COARSEST if self._resolution > farthest else self._resolution * 2
        return min(coarser, COARSEST)

    def _stretch(self, place: RecordPlace) -> tuple[int, int]:
        """What else lies in the same one is close."""
        if self._resolution == COARSEST:
            return 0, 0
        return place.life, place.offset // self._resolution

    def _join_spans(self) -> None:
        spans: list[Span] = []
        self._latest.clear()
        for span in self._spans:
            before = self._latest.get(span.scope)
            if before is not None and self._is_close(before, span):
                before.epoch = min(before.epoch, span.epoch)
                before.last_epoch = max(before.last_epoch, span.last_epoch)
                before.last = span.last
                before.records += span.records
                continue
            spans.append(span)
            self._latest[span.scope] = span
        self._spans = spans

    def _is_close(self, before: Span, span: Span) -> bool:
        return self._stretch(before.first) == self._stretch(span.first)


def coarser(timeline: Timeline, most: int) -> Timeline:
    """The same picture with at most so many spans, and so many marks.

    One for each lane, reason and life stays in any case.
    """
    if max(len(timeline.spans), len(timeline.marks)) <= most:
        return timeline
    resolution = timeline.resolution
    drawn: list[Span | Mark] = [*timeline.spans, *timeline.marks]
    farthest = max(one.last.offset for one in drawn)
    while _buckets(timeline, resolution * 2) > most and resolution <= farthest:
        resolution *= 2
    copied = Timeline(
        resolution,
        [msgspec.structs.replace(one) for one in timeline.spans],
        [msgspec.structs.replace(one) for one in timeline.marks],
    )
    builder = TimelineBuilder(copied, 2 * most)
    builder.coarsen()
    return builder.timeline


def _buckets(timeline: Timeline, resolution: int) -> int:
    """How many spans, or marks, there are at most when close ones are put together."""
    spans = {
        (one.first.life, one.first.offset // resolution, one.scope)
        for one in timeline.spans
    }
    marks = {_bucket(one, resolution) for one in timeline.marks}
    return max(len(spans), len(marks))


def _bucket(mark: Mark, resolution: int) -> _Bucket:
    at = mark.first.offset // resolution
    return mark.first.life, at, mark.scope, mark.kind, mark.reason


def _order(place: RecordPlace) -> tuple[int, int]:
    return place.life, place.offset


def _lowest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else min(one, other)


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
