"""What the command prints, and how it ends.

Data goes to stdout; progress, warnings and errors go to stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress

import typer
from rich.console import Console
from rich.table import Table

from epochfence.epochs.errors import ClaimLost, ClaimUnknown, EpochfenceError

#: The exit codes of every command.
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

#: How wide a table may be where nobody looks at a terminal: nothing is cut.
_WIDTH_OF_A_FILE = 240


def _console(*, stderr: bool) -> Console:
    # Names and holders come from others: they are no markup.
    console = Console(stderr=stderr, markup=False, highlight=False, emoji=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _WIDTH_OF_A_FILE
    return console


def out() -> Console:
    """Where data goes."""
    return _console(stderr=False)


def err() -> Console:
    """Where everything else goes."""
    return _console(stderr=True)


def printable(text: str | None, missing: str = "") -> str:
    """`text` without what could move a terminal's cursor."""
    if text is None:
        return missing
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in text
    )


def plain_table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    """A table with a head and no lines, good for eyes and for `awk` alike."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        is_right = column in right
        table.add_column(column, justify="right" if is_right else "left", no_wrap=True)
    return table


@contextmanager
def reported_errors() -> Generator[None, None, None]:
    """Turn an error on purpose into its message and the exit code for it."""
    with _warnings_on_stderr():
        try:
            yield
            sys.stdout.flush()
        except (ClaimLost, ClaimUnknown) as error:
            _print_error(error)
            raise typer.Exit(EXIT_FAILED) from error
        except EpochfenceError as error:
            _print_error(error)
            raise typer.Exit(EXIT_BAD_INPUT) from error
        except KeyboardInterrupt:
            err().print("epochfence: interrupted.")
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
    err().print(f"epochfence: {printable(str(error))}", soft_wrap=True)


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
    try:
        yield
    finally:
        logger.removeHandler(handler)


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        text = printable(record.getMessage())
        err().print(f"{record.levelname.lower()}: {text}", soft_wrap=True)
