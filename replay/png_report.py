"""The picture of a report as PNG, for where no page can be shown; by matplotlib."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import IO, TYPE_CHECKING

import msgspec

from epochfence.epochs.errors import MisconfiguredError
from epochfence.replay.picture import (
    FILLS,
    Lane,
    colours_of,
    holders_of,
    lanes_of,
    rejected_of,
    worst_first,
)
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import PartitionReport, Report
from epochfence.replay.texts import shortened
from epochfence.replay.timeline import Mark, Span, coarser

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: How many partitions a picture shows, and how many scopes of each: the worst.
MOST_PARTITIONS = 8
MOST_LANES = 4

#: Spans and marks of a partition: more could not be told apart.
_MOST_DRAWN = 300

_WIDTH_INCHES = 12.0
_LANE_INCHES = 0.76
_HEAD_INCHES, _FOOT_INCHES, _AXIS_INCHES = 0.95, 0.25, 0.72
_DOTS_PER_INCH = 120

_INK, _SOFT, _BAD, _TRACK = "#1c1f23", "#5c6470", "#b3141f", "#eeefec"
#: The signs of what is not simply admitted: marker, and how it is called.
_SIGNS = {
    "stale": ("x", "stale"),
    "quarantined": ("D", "quarantined"),
    "conflict": ("^", "two grants of one epoch"),
}
_FLAG = [(0.0, 0.5), (1.0, 0.0), (0.0, -0.5), (0.0, 0.5)]
_BAND = 0.45


def check_matplotlib() -> None:
    """See that pictures can be drawn.

    Raises:
        MisconfiguredError: matplotlib is missing.
    """
    try:
        import_module("matplotlib.figure")
    except ImportError as error:
        raise MisconfiguredError(
            "--png", ..., "it takes matplotlib, which is not installed",
            "pip install 'epochfence[png]'",
        ) from error  # fmt: skip


def write_png(report: Report, file: IO[bytes]) -> None:
    """Draw the worst partitions of a report, by offset.

    Raises:
        MisconfiguredError: matplotlib is missing.
    """
    check_matplotlib()
    figure = _draw(report)
    with warnings.catch_warnings():
        # Of a holder's character that the font lacks: a box stands for it.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(file, format="png")


def _draw(report: Report) -> Figure:
    from matplotlib.figure import Figure

    partitions = worst_first(report)
    shown = [(one, _lanes(one)) for one in partitions[:MOST_PARTITIONS]]
    heights = [max(len(lanes), 1) * _LANE_INCHES for _, lanes in shown]
    left = len(partitions) - len(shown)
    foot = _FOOT_INCHES if left or not shown else 0.0
    height = _HEAD_INCHES + foot + sum(one + _AXIS_INCHES for one in heights)
    figure = Figure(
        figsize=(_WIDTH_INCHES, height), dpi=_DOTS_PER_INCH, facecolor="white"
    )

    def text(inches: float, words: str, size: float, colour: str) -> None:
        figure.text(
            0.02, 1 - inches / height, words, size=size, color=colour,
            parse_math=False, va="baseline",
        )  # fmt: skip

    text(0.36, f"epochfence audit: {shortened(report.source, 90)}", 13, _INK)
    text(0.62, report.summary(), 10, _SOFT)
    colours = colours_of(report)
    top = _HEAD_INCHES
    for (partition, lanes), tall in zip(shown, heights, strict=True):
        top += 0.22
        axes = figure.add_axes(
            (0.02, 1 - (top + tall) / height, 0.96, tall / height), frameon=False
        )
        _draw_partition(axes, partition, lanes, colours)
        top += tall + _AXIS_INCHES - 0.22
    _draw_legend(figure, height)
    if left > 0:
        text(height - 0.12, f"{left:,} more partitions are not shown.", 9, _SOFT)
    if not partitions:
        text(height - 0.3, "No records.", 10, _SOFT)
    return figure


def _lanes(partition: PartitionReport) -> list[Lane]:
    """The worst of them, in their order."""
    timeline = coarser(partition.timeline, _MOST_DRAWN)
    lanes = lanes_of(msgspec.structs.replace(partition, timeline=timeline))
    if len(lanes) <= MOST_LANES:
        return lanes
    kept = sorted(lanes, key=lambda lane: -lane.rejected)[:MOST_LANES]
    return [lane for lane in lanes if lane in kept]


def _draw_partition(
    axes: Axes,
    partition: PartitionReport,
    lanes: list[Lane],
    colours: dict[tuple[str, int], int],
) -> None:
    from matplotlib.ticker import MaxNLocator

    bases = _bases(partition)
    low, high = _extent(partition, bases)
    pad = max((high - low) * 0.012, 0.5)
    axes.set_xlim(low - pad, high + pad)
    axes.set_ylim(max(len(lanes), 1), 0)
    axes.set_yticks([])
    axes.tick_params(axis="x", colors=_SOFT, labelsize=8, length=3)
    axes.xaxis.set_major_locator(
        MaxNLocator(nbins=9, steps=[1, 2, 5, 10], integer=True)
    )
    if bases[-1] == bases[1]:  # else they are not offsets of one life
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    rejected = rejected_of(partition)
    title = f"{shortened(partition.topic, 60)}[{partition.partition}]"
    counts = f"{partition.records:,} records" + (
        f", {rejected:,} rejected" if rejected else ""
    )
    axes.set_title(
        f"{title}   {counts}", loc="left", size=10, color=_INK, parse_math=False, pad=5
    )
    holders = holders_of(partition)
    for row, lane in enumerate(lanes):
        _draw_lane(axes, row, lane, len(lanes) > 1, bases, colours, holders)


def _draw_lane(
    axes: Axes,
    row: int,
    lane: Lane,
    is_named: bool,
    bases: list[int],
    colours: dict[tuple[str, int], int],
    holders: dict[tuple[str, int], str],
) -> None:
    first, last = axes.get_xlim()
    band = row + 0.12
    axes.barh(band, last - first, _BAND, first, align="edge", color=_TRACK, zorder=0)
    if is_named:
        axes.text(
            last, band + _BAND + 0.25, shortened(lane.scope or "(no scope read)", 50),
            size=8, color=_SOFT, ha="right", va="center", parse_math=False,
        )  # fmt: skip
    for span in lane.spans:
        x = _x(span.first, bases)
        width = _x(span.last, bases) + 1 - x
        is_one = span.epoch == span.last_epoch
        axes.barh(
            band, width, _BAND, x, align="edge", edgecolor="#00000066", linewidth=0.7,
            color=FILLS[colours[lane.scope or "", span.epoch]] if is_one else "#c3c8d1",
            hatch=None if is_one else "////", zorder=1,
        )  # fmt: skip
        holder = holders.get((lane.scope or "", span.epoch), "")
        words = _fitting(span.epoch, holder if is_one else "", width / (last - first))
        axes.text(
            x + (last - first) * 0.0145, band + _BAND / 2, words if is_one else "",
            size=8.5, color="#14181d", weight="bold", va="center", parse_math=False,
            clip_on=True, zorder=2,
        )  # fmt: skip
    for mark in lane.marks:
        x = (_x(mark.first, bases) + _x(mark.last, bases) + 1) / 2
        if mark.kind == "barrier":
            x = _x(mark.first, bases)  # it stands before its epoch
            axes.vlines(x, band - 0.09, band + _BAND, colors=_INK, lw=2.2, zorder=3)
            axes.plot(
                [x], [band - 0.06], marker=_FLAG, ms=9, mew=0, color=_INK,
                clip_on=False, zorder=3,
            )  # fmt: skip
            continue
        sign = _sign(mark)
        y = band + _BAND + (0.12 if sign == "stale" else 0.28)
        axes.plot(
            [x], [y], marker=_SIGNS[sign][0], ms=6 if sign == "quarantined" else 7.5,
            mew=2 if sign == "stale" else 0, color=_BAD, zorder=4,
        )  # fmt: skip


def _fitting(epoch: int, holder: str, part: float) -> str:
    """What of a name fits into such a part of the width."""
    room = int(part * _WIDTH_INCHES * 0.96 * 12.5) - 3
    whole = f"epoch {epoch}" + (f", {shortened(holder, 40)}" if holder else "")
    for words in (whole, f"epoch {epoch}", str(epoch)):
        if len(words) <= room:
            return words
    return ""


def _sign(mark: Mark) -> str:
    return "conflict" if mark.reason == "conflict" else mark.kind


def _draw_legend(figure: Figure, height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    signs: list[Patch | Line2D] = [
        Patch(facecolor=FILLS[0], edgecolor="#00000066", label="admitted, by epoch"),
        Line2D([], [], color=_INK, marker="|", ms=11, mew=2.2, ls="", label="barrier"),
    ]
    signs += [
        Line2D([], [], color=_BAD, marker=marker, ms=6.5, mew=1.5, ls="", label=label)
        for marker, label in _SIGNS.values()
    ]
    figure.legend(
        handles=signs, loc="upper left", bbox_to_anchor=(0.01, 1 - 0.68 / height),
        ncol=len(signs), frameon=False, fontsize=9, labelcolor=_SOFT,
        borderpad=0, handletextpad=0.4, columnspacing=1.6,
    )  # fmt: skip


def _bases(partition: PartitionReport) -> list[int]:
    """Where on the axis each life of the topic begins: one lies behind the other."""
    ends = [0] * max(1, len(partition.topic_ids))
    for one in _drawn(partition):
        ends[one.last.life] = max(ends[one.last.life], one.last.offset + 1)
    bases = [0]
    for end in ends:
        bases.append(bases[-1] + end)
    return bases


def _drawn(partition: PartitionReport) -> list[Span | Mark]:
    return [*partition.timeline.spans, *partition.timeline.marks]


def _extent(partition: PartitionReport, bases: list[int]) -> tuple[float, float]:
    places = [place for one in _drawn(partition) for place in (one.first, one.last)]
    if not places:
        return 0, 1
    there = [_x(place, bases) for place in places]
    return min(there), max(there) + 1


def _x(place: RecordPlace, bases: list[int]) -> float:
    # Not as an integer: matplotlib takes none that passes 63 bits.
    return float(bases[place.life] + place.offset)
