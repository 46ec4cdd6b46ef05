"""How often Python looks for cycles, while millions of objects come and go."""

from __future__ import annotations

import gc
from collections.abc import Generator
from contextlib import contextmanager

#: Every batch of messages makes some thousands of lists and tuples, in no cycle.
_OBJECTS = 50_000


@contextmanager
def rarely_collected() -> Generator[None, None, None]:
    """Look for cycles less often. For a process that does nothing but replay."""
    before = gc.get_threshold()
    gc.set_threshold(max(_OBJECTS, before[0]) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
