"""What the command prints, and how it ends.

Data goes to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Container, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

import typer
from confluent_kafka import KafkaException
from rich.cells import cell_len
from rich.console import Console

from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    EpochfenceError,
    MisconfiguredError,
    SinkFenced,
)
from epochfence.replay.texts import printable as printable

#: The exit codes of every command.
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

#: Whoever waits longer than this wants to know for what.
_SLOW_S = 2.0


def err() -> Console:
    """Where everything goes that is not data."""
    # Names and holders come from others: they are no markup.
    return Console(stderr=True, markup=False, highlight=False, emoji=False)


def as_utc(milliseconds: int) -> str:
    """Milliseconds since 1970 for people; anybody's clock, it may be no time at all."""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
    except (OverflowError, ValueError, OSError):
        return str(milliseconds)
    return moment.strftime("%Y-%m-%d %H:%M:%S")


def print_table(
    head: Sequence[str], rows: Iterable[Sequence[str]], right: Container[str] = ()
) -> None:
    """Print a table on stdout, good for eyes and for `awk` alike: nothing is cut.

    Args:
        head: The columns' names.
        rows: Their cells, which are printed as `printable` makes them.
        right: The columns that are flush right.
    """
    cells = [list(head), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        parts: list[str] = []
        for name, width, cell in zip(head, widths, line, strict=True):
            blanks = " " * (width - cell_len(cell))
            parts.append(blanks + cell if name in right else cell + blanks)
        print("  ".join(parts).rstrip())


@contextmanager
def reported_errors(if_interrupted: str = "") -> Generator[None, None, None]:
    """Turn an error on purpose into its message and the exit code for it.

    Args:
        if_interrupted: What the user should know where Ctrl-C ended the command.
    """
    with _warnings_on_stderr():
        try:
            yield
            sys.stdout.flush()
        except (ClaimLost, ClaimUnknown, SinkFenced) as error:
            _print_error(error)
            raise typer.Exit(EXIT_FAILED) from error
        except EpochfenceError as error:
            _print_error(error)
            raise typer.Exit(EXIT_BAD_INPUT) from error
        except KafkaException as error:
            _print_error(f"the cluster or its client refuses: {error.args[0].str()}")
            raise typer.Exit(EXIT_BAD_INPUT) from error
        except KeyboardInterrupt:
            _print_error(f"interrupted. {if_interrupted}".rstrip())
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:
            # The reader (head, less) has seen enough; nothing is wrong.
            _close_stdout()
            raise typer.Exit(0) from None
        except OSError as error:
            # All reading names its file itself: this is about what is written.
            _print_error(f"cannot write the output: {error.strerror or error}")
            _close_stdout()
            raise typer.Exit(EXIT_BAD_INPUT) from error


def _print_error(error: object) -> None:
    print_note(f"epochfence: {error}")


def print_note(text: str) -> None:
    """Print a line for people on stderr."""
    err().print(printable(text), soft_wrap=True)


@contextmanager
def told_if_slow(
    config: Mapping[str, object], timeout_s: float
) -> Generator[None, None, None]:
    """Say on stderr whom the command waits for, where that takes a while."""
    servers = config.get("bootstrap.servers")
    note = (
        f"waiting for {servers}, up to {timeout_s:g} s a question (--timeout sets it, "
        f"Ctrl-C ends it)"
    )
    timer = threading.Timer(_SLOW_S, print_note, [note])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def written_whole(path: Path, option: str) -> Generator[IO[bytes], None, None]:
    """A file that takes its name only when it is complete.

    Args:
        path: Its name; what stands there is replaced. A pipe or a device is written
            to as it is.
        option: Where the name came from.

    Raises:
        MisconfiguredError: It cannot be written, or is a folder, or `-`.
    """
    is_special = path.exists() and not path.is_file()
    unfinished = path if is_special else path.with_name(path.name + ".unfinished")
    try:
        if str(path) == "-":
            raise IsADirectoryError(0, "this option takes no -; use /dev/stdout")
        file = unfinished.open("wb")
    except OSError as error:
        raise MisconfiguredError(
            option, str(path), f"cannot be written: {error.strerror}",
            "Name a file that may be written, in a folder that exists.",
        ) from error  # fmt: skip
    try:
        with file:
            yield file
        if not is_special:
            unfinished.replace(path)
    except BaseException:
        if not is_special:
            unfinished.unlink(missing_ok=True)
        raise


def _close_stdout() -> None:
    """Python would complain once more when it flushes what is left at its exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _warnings_on_stderr() -> Generator[None, None, None]:
    """Print what the package logs, for the time of a command."""
    handler = _StderrHandler(logging.WARNING)
    # What the Kafka client says of its connections, again and again; our own errors
    # repeat what matters of it.
    handler.addFilter(lambda record: record.name != "epochfence.client")
    logger = logging.getLogger("epochfence")
    logger.addHandler(handler)
    # Likewise: Python prints what nobody handles.
    kazoo, silent = logging.getLogger("kazoo"), logging.NullHandler()
    kazoo.addHandler(silent)
    try:
        yield
    finally:
        kazoo.removeHandler(silent)
        logger.removeHandler(handler)


@contextmanager
def warnings_kept(most: int) -> Generator[deque[str], None, None]:
    """Keep what the package logs instead, where a screen takes the whole terminal.

    Args:
        most: How many of the last ones.
    """
    kept = deque[str](maxlen=most)
    logger = logging.getLogger("epochfence")
    before = list(logger.handlers)
    keeper = _KeepingHandler(kept)
    keeper.addFilter(lambda record: record.name != "epochfence.client")
    for handler in before:
        logger.removeHandler(handler)
    logger.addHandler(keeper)
    try:
        yield kept
    finally:
        logger.removeHandler(keeper)
        for handler in before:
            logger.addHandler(handler)


class _KeepingHandler(logging.Handler):
    def __init__(self, kept: deque[str]) -> None:
        super().__init__(logging.WARNING)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.append(f"{record.levelname.lower()}: {record.getMessage()}")


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print_note(f"{record.levelname.lower()}: {record.getMessage()}")
