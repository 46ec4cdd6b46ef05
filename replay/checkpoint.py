"""What an audit knows, kept in a file so that it can go on after an interruption."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.starts import row_key
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import LedgerSource
from epochfence.replay.files import InvalidFileError
from epochfence.replay.report import SettingsReport
from epochfence.replay.slices import SliceState
from epochfence.replay.topic_source import Slice


class Checkpoint(msgspec.Struct):
    """How far an audit of a topic has come.

    Attributes:
        topic: The topic.
        settings: What its records must carry.
        what_if: The other settings.
        asked: Which part of it was asked for, as it was asked.
        ledger: The ledger's name, None where there is none.
        ledger_offset: Where the reading of that topic ended, None for a file.
        ledger_digest: Of what a ledger's file says, None for a topic, which only grows.
        table_digest: Of the epoch starts known beforehand.
        slices: What there is to judge, with the ends that were captured.
        states: How far each has come; those that are not there were not begun.
        version: Of this form.
    """

    topic: str
    settings: SettingsReport
    what_if: list[SettingsReport]
    asked: str
    ledger: str | None
    ledger_offset: int | None
    ledger_digest: str | None
    table_digest: str
    slices: list[Slice]
    states: dict[str, SliceState] = {}
    version: int = 1


class CheckpointFile:
    """Keeps a checkpoint.

    Args:
        path: The file, which need not be there.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> Checkpoint | None:
        """What was kept, None where nothing was.

        Raises:
            InvalidFileError: The file holds something else.
        """
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise InvalidFileError(str(self.path), None, problem) from error
        try:
            found = msgspec.json.decode(content, type=Checkpoint)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidFileError(
                str(self.path), None,
                f"this is no checkpoint of an audit: {error}. Name another file, or "
                f"remove it to begin anew.",
            ) from error  # fmt: skip
        if found.version != 1:
            raise InvalidFileError(
                str(self.path), None,
                f"another version of this program wrote it (form {found.version}). "
                f"Remove it to begin anew.",
            )  # fmt: skip
        return found

    def save(self, checkpoint: Checkpoint) -> None:
        """Keep it in place of what was kept.

        Raises:
            MisconfiguredError: The file cannot be written.
        """
        unfinished = self.path.with_name(self.path.name + ".unfinished")
        try:
            unfinished.write_bytes(msgspec.json.encode(checkpoint))
            unfinished.replace(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)  # it may be what fills the disk
            raise MisconfiguredError(
                "--checkpoint", str(self.path), f"cannot be written: {error.strerror}",
                "Name a file that may be written, in a folder that exists.",
            ) from error  # fmt: skip

    def remove(self) -> None:
        """The audit is complete."""
        self.path.unlink(missing_ok=True)


def table_digest(rows: Iterable[EpochStart]) -> str:
    """Tells epoch starts known beforehand from others."""
    return _digest(sorted({row_key(row) for row in rows}))


def ledger_digest(source: LedgerSource | None) -> str | None:
    """Tells what a ledger's file says from what another one says."""
    if source is None or source.is_topic:
        return None
    return _digest(msgspec.json.encode(one) for one in source.state.claims())


def _digest(parts: Iterable[bytes]) -> str:
    found = hashlib.sha256()
    for part in parts:
        found.update(part + b"\n")
    return found.hexdigest()[:16]


def check_same(before: Checkpoint, now: Checkpoint, path: Path) -> None:
    """See that a checkpoint is of the very audit that is asked for now.

    Raises:
        MisconfiguredError: It is of another one.
    """
    for name in (
        "topic", "asked", "settings", "what_if", "ledger", "ledger_digest",
        "table_digest",
    ):  # fmt: skip
        was, is_now = getattr(before, name), getattr(now, name)
        if was != is_now:
            raise MisconfiguredError(
                "--checkpoint", str(path),
                f"it is of another audit: its {name.replace('_', '-')} was {was!r}, "
                f"and is {is_now!r} now",
                "Give the options of that audit, another file, or remove this one to "
                "begin anew.",
            )  # fmt: skip
    lives = {one.topic_id for one in before.slices} ^ {
        one.topic_id for one in now.slices
    }
    if lives:
        raise MisconfiguredError(
            "--checkpoint", str(path),
            f"topic {now.topic} was deleted and made anew since",
            "Remove the file to begin anew.",
        )  # fmt: skip
    if (now.ledger_offset or 0) < (before.ledger_offset or 0):
        raise MisconfiguredError(
            "--checkpoint", str(path),
            f"the ledger {now.ledger} ended at offset {before.ledger_offset} then, and "
            f"ends at {now.ledger_offset} now",
            "It was made anew, or a broker tells an old end: see to that first.",
        )  # fmt: skip
