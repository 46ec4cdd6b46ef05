"""The demo, run as a user runs it, and what it leaves behind."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

_PATIENCE_S = 60


class Demo:
    """`epochfence demo`, running."""

    def __init__(self, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "epochfence", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append(line.rstrip())

    @property
    def pid(self) -> int:
        """The process that owns the broker."""
        return self._process.pid

    def has_said(self, words: str) -> bool:
        """Whether a line of its output has these words, or it has ended."""
        is_said = any(words in line for line in list(self.lines))
        return is_said or self._process.poll() is not None

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end; give its exit code."""
        code = self._process.wait(_PATIENCE_S)
        self._reader.join(_PATIENCE_S)
        return code

    def leaders(self) -> list[int]:
        """The processes that it has started and that are still there."""
        mark = f'"parent": {self.pid},'
        return [pid for pid, arguments in _processes() if mark in arguments]

    def close(self) -> None:
        """End it, and whatever a fault of it has left behind."""
        if self._process.poll() is None:
            self._process.kill()
        self.ended()
        if self._process.stdout is not None:
            self._process.stdout.close()


def _processes() -> Iterator[tuple[int, str]]:
    """Every process, and what it was started with."""
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile
            arguments = (folder / "cmdline").read_bytes()  # of a dead one, nothing
            yield int(folder.name), arguments.decode(errors="replace")


@contextmanager
def running_demo(*arguments: str) -> Generator[Demo]:
    """A demo that is ended in any case."""
    demo = Demo(*arguments)
    try:
        yield demo
    finally:
        demo.close()


def problems(lines: Sequence[str], code: int) -> list[str]:
    """What is not as it should be in the output of a demo that has ended."""
    text = "\n".join(lines)
    found: list[str] = []
    if code != 0:
        found.append(f"exit code {code}")
    wrong = re.findall(r"^(\w+) +(\d+)  by pod-7  WRONG +(\d+)  by pod-8", text, re.M)
    if len(wrong) != 3:
        found.append(f"{len(wrong)} items are wrong, not 3")
    for item, bad, right in wrong:
        if bad == right:
            found.append(f"{item} is the same for both")
        blamed = re.search(
            rf"^{item}: {bad} instead of {right}, by the record at offset (\d+)",
            text,
            re.M,
        )
        if blamed is None:
            found.append(f"no record is named for {item}")
            continue
        told = f"fence: rejects offset {blamed[1]}, stale-epoch: epoch 1 of pod-7"
        if told not in text:
            found.append(f"the record blamed for {item} was not rejected")
    return found
