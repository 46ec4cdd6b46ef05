"""What `epochfence audit` writes beside its report; what Parquet takes, loaded late."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.verdicts import Verdict
from epochfence.replay.files import VerdictFile
from epochfence.replay.sources import VerdictWriter
from epochfence.terminal import print_note, written_whole


class VerdictFiles:
    """Takes verdicts for several files.

    Args:
        writers: Those of the files.
    """

    def __init__(self, writers: Sequence[VerdictWriter]) -> None:
        self._writers = writers
        self.is_abandoned = False

    def abandon(self) -> None:
        """Say that not all was judged: no file is to be taken for a whole one."""
        self.is_abandoned = True

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Write what each file says of some records."""
        for writer in self._writers:
            writer.write(topic, partition, offsets, verdict)


@contextmanager
def verdict_files(
    lines: Path | None, parquet: Path | None
) -> Generator[VerdictFiles | None, None, None]:
    """The files of `--verdicts` and `--parquet`, there only if all was judged.

    Raises:
        MisconfiguredError: One cannot be written, or its extra is not installed.
    """
    targets = [one for one in (lines, parquet) if one is not None]
    if not targets:
        yield None
        return
    try:
        with ExitStack() as stack:
            writers: list[VerdictWriter] = []
            if lines is not None:
                file = stack.enter_context(written_whole(lines, "--verdicts"))
                writers.append(VerdictFile(file))
            if parquet is not None:
                module = with_parquet("parquet_verdicts", "--parquet", parquet)
                file = stack.enter_context(written_whole(parquet, "--parquet"))
                writers.append(stack.enter_context(module.ParquetVerdicts(file)))
            files = VerdictFiles(writers)
            yield files
            if files.is_abandoned:
                raise _Abandoned
    except _Abandoned:
        for target in targets:
            print_note(f"{target} was not written: not all was judged")


def with_parquet(name: str, option: str, value: object) -> Any:
    """A module of `epochfence.replay` that takes pyarrow.

    Raises:
        MisconfiguredError: The extra is not installed.
    """
    try:
        return import_module(f"epochfence.replay.{name}")
    except ImportError as error:
        raise MisconfiguredError(
            option, str(value), f"Parquet takes the extra 'parquet' ({error})",
            "Install it: pip install 'epochfence[parquet]'",
        ) from error  # fmt: skip


class _Abandoned(Exception):
    """A verdict file shall not be taken for a whole one."""
