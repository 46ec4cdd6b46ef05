"""What a forked process is told."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable


def told_in_child(calls: Iterable[Callable[[], object]]) -> list[str]:
    """Make calls in a forked process; what each that raised a `RuntimeError` said."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        told: list[str] = []
        for call in calls:
            try:
                call()
            except RuntimeError as error:
                told.append(str(error))
        os.write(writing, "\n".join(told).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read().splitlines()
    os.waitpid(child, 0)
    return said
