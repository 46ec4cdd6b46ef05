"""Sink runners in threads, and what ended them."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from epochfence import SinkRunner

#: A run that was stopped returns within this time.
_END_S = 60


class Run:
    """A runner at work in a thread of its own."""

    def __init__(self, runner: SinkRunner, topics: list[str]) -> None:
        self.runner = runner
        self.error: BaseException | None = None
        self._topics = topics
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.runner.run(self._topics)
        except BaseException as error:
            self.error = error

    @property
    def is_over(self) -> bool:
        """Whether it has returned, or raised."""
        return not self._thread.is_alive()

    def end(self) -> None:
        """Stop it, and wait until it has returned."""
        self.runner.stop()
        self._thread.join(_END_S)
        assert self.is_over, "the runner does not return"


@contextmanager
def running(runner: SinkRunner, *topics: str) -> Generator[Run, None, None]:
    """Run a runner while the block lasts; what it raised is raised."""
    run = Run(runner, list(topics))
    try:
        yield run
    finally:
        run.end()
    if run.error is not None:
        raise run.error
