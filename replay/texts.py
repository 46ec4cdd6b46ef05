"""Values of records as text for people: printable, and of a length that is known."""

from __future__ import annotations

from datetime import datetime, timezone


def printable(text: str) -> str:
    """`text` without what could move a terminal's cursor or turn writing around."""
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def shortened(text: str, most: int) -> str:
    """`text`, printable, with at most so many characters."""
    # Cut first: a text of a megabyte is not worth being looked through.
    text = printable(text[: most + 1])
    return text if len(text) <= most else text[: most - 1] + "…"


def utc(milliseconds: int | None) -> str:
    """Milliseconds since 1970 for people; anybody's clock: it may be no time."""
    if milliseconds is None:
        return "-"
    try:
        moment = datetime.fromtimestamp(milliseconds // 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return f"{moment:%Y-%m-%d %H:%M:%S}.{milliseconds % 1000:03d}"


def duration(milliseconds: int | None) -> str:
    """A time as people say it, with its sign."""
    if milliseconds is None:
        return "-"
    sign = "-" if milliseconds < 0 else ""
    milliseconds = abs(milliseconds)
    seconds = milliseconds / 1000
    if seconds < 1:
        return f"{sign}{milliseconds} ms"
    if seconds < 120:
        return f"{sign}{seconds:.1f} s"
    if seconds < 7200:
        return f"{sign}{seconds / 60:.1f} minutes"
    return f"{sign}{seconds / 3600:.1f} hours"


def counted(number: int, noun: str) -> str:
    """So many of them, for people."""
    return f"1 {noun}" if number == 1 else f"{number:,} {noun}s"
