"""Every so often."""

from __future__ import annotations

import time


class Often:
    """Says when a while has gone by since it last said so.

    Args:
        every_s: How long a while is.
    """

    def __init__(self, every_s: float) -> None:
        self._every_s = every_s
        self._at = time.monotonic() + every_s

    def __call__(self) -> bool:
        """Whether it is time."""
        now = time.monotonic()
        if now < self._at:
            return False
        self._at = now + self._every_s
        return True
