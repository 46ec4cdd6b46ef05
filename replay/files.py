"""Record files, ledger files, table files and verdict files: JSON lines.

Readers are generators: memory does not grow with the file. A line that is not
what it should be is named by its number.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any, TypeVar, cast

import msgspec
from confluent_kafka import Message

from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.messages import headers_of, timestamp_of
from epochfence.epochs.stamps import UNREADABLE
from epochfence.epochs.values import (
    Claim,
    EpochStart,
    Position,
    Stamp,
    check_epoch,
    check_grant_id,
    check_scope,
    is_foreign,
)
from epochfence.epochs.verdicts import Verdict

#: A longer line is no record: Kafka's largest message in base64 is far below it.
MAX_LINE_BYTES = 256 * 1024 * 1024

_BUFFER_BYTES = 1024 * 1024
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=249)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
Number = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
T = TypeVar("T")


@dataclass(eq=False)
class InvalidFileError(EpochfenceError):
    """A file, or a line of one, is not what it should be. Mend it."""

    path: str
    line: int | None
    problem: str

    def __str__(self) -> str:
        where = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{where}: {self.problem}"


class RecordLine(
    msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False, kw_only=True
):
    """A line of a record file: one Kafka record, bytes as base64."""

    topic: Name
    partition: Number
    offset: Offset
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    topic_id: str | None = None
    leader_epoch: Number | None = None
    timestamp: int | None = None

    @classmethod
    def of(
        cls, message: Message, *, topic_id: str | None, topic: str | None = None
    ) -> RecordLine:
        """The line for a record that was read from Kafka.

        Args:
            message: The record.
            topic_id: The life of the topic that it was read from.
            topic: Another name to give the topic; None: its own.
        """
        headers = headers_of(message)
        if headers is UNREADABLE:
            raise InvalidFileError(
                "record", None, f"offset {message.offset()} has a header name that "
                "is not UTF-8: a record file cannot hold it",
            )  # fmt: skip
        return cls(
            topic=topic or cast("str", message.topic()),
            topic_id=topic_id,
            partition=cast("int", message.partition()),
            offset=cast("int", message.offset()),
            leader_epoch=message.leader_epoch(),
            timestamp=timestamp_of(message),
            key=message.key(),
            value=message.value(),
            headers=list(headers),
        )


class ClaimLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line of a ledger file: one claim, in log order."""

    type: str
    scope: str
    epoch: int
    previous: int
    grant_id: str
    holder: str
    claimed_at: int
    attributes: dict[str, str] = {}


class StartLine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A line of a table file: one epoch start."""

    topic: Name
    partition: Number
    scope: str
    epoch: int
    start_offset: Offset
    grant_id: str | None = None
    topic_id: str | None = None
    leader_epoch: Number | None = None


@contextmanager
def _opened(path: str) -> Generator[IO[bytes], None, None]:
    if path == "-":
        # None where the standard input is closed, whatever its annotation says.
        standard_input = cast("IO[str] | None", sys.stdin)
        if standard_input is None:
            raise InvalidFileError(path, None, "there is no standard input")
        yield sys.stdin.buffer
        return
    try:
        file = open(path, "rb", buffering=_BUFFER_BYTES)  # noqa: SIM115
    except OSError as error:
        problem = f"cannot be opened: {error.strerror}"
        raise InvalidFileError(path, None, problem) from error
    with file:
        yield file


def _lines(path: str, kind: str, line_type: type[T]) -> Iterator[tuple[int, T]]:
    """Number and content of each line that is not blank."""
    decode = msgspec.json.Decoder(line_type).decode
    number = 0
    with _opened(path) as file:
        read = file.readline
        try:
            while line := read(MAX_LINE_BYTES):
                number += 1
                if number == 1:
                    line = line.removeprefix(_BYTE_ORDER_MARK)
                try:
                    yield number, decode(line)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    if not line.strip():
                        continue
                    problem = _problem(line, kind, error)
                    raise InvalidFileError(path, number, problem) from error
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise InvalidFileError(path, number, problem) from error


def _problem(line: bytes, kind: str, error: Exception) -> str:
    if isinstance(error, msgspec.ValidationError):
        kinds = {
            b'"claim"': "ledger",
            b'"headers"': "record",
            b'"start_offset"': "table",
        }
        named = [kind for mark, kind in kinds.items() if mark in line[:100_000]]
        looks = f" (it looks like a line of a {named[0]} file)" if named else ""
        return f"not a line of a {kind} file{looks}: {error}"
    if line.startswith(b"\x1f\x8b"):
        return "this is a gzip file; give it unpacked, with - as the file: zcat FILE |"
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "this is UTF-16; a file of JSON lines is UTF-8"
    return f"not JSON: {error}"


def read_records(path: str) -> Iterator[tuple[int, RecordLine]]:
    """The lines of a record file with their numbers; `-` is the standard input.

    Whether they stand in order is for the audit to see.

    Raises:
        InvalidFileError: The file or a line of it is bad.
    """
    return _lines(path, "record", RecordLine)


def read_ledger(path: str) -> Iterator[Claim]:
    """The claims of a ledger file, in log order.

    Raises:
        InvalidFileError: The file or a line of it is bad.
    """
    for number, line in _lines(path, "ledger", ClaimLine):
        if line.type != "claim":
            raise InvalidFileError(path, number, f"type {line.type!r} is not 'claim'")
        try:
            yield Claim(
                line.scope,
                line.epoch,
                line.previous,
                line.grant_id,
                line.holder,
                line.claimed_at,
                line.attributes,
            )
        except MisconfiguredError as error:
            raise InvalidFileError(path, number, str(error)) from error


def read_table(path: str) -> Iterator[EpochStart]:
    """The epoch starts of a table file.

    Raises:
        InvalidFileError: The file or a line of it is bad.
    """
    for number, line in _lines(path, "table", StartLine):
        try:
            _check_start(line)
        except MisconfiguredError as error:
            raise InvalidFileError(path, number, str(error)) from error
        yield EpochStart(
            line.topic,
            line.topic_id,
            line.partition,
            line.scope,
            line.epoch,
            line.grant_id,
            Position(line.leader_epoch, line.start_offset),
        )


def _check_start(line: StartLine) -> None:
    if is_foreign(line.scope):
        Stamp(line.scope, line.epoch, line.grant_id)
        return
    check_scope(line.scope)
    check_epoch(line.epoch)
    # Without one, a row stands for any grant of its epoch.
    if line.grant_id is not None:
        check_grant_id(line.grant_id)


class VerdictFile:
    """Writes a verdict file.

    Args:
        file: Where to.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encode = msgspec.json.Encoder().encode

    def write(
        self, topic: str, partition: int, offsets: Sequence[int], verdict: Verdict
    ) -> None:
        """Write a line for each record that a verdict was given to."""
        line: dict[str, Any] = {
            "topic": topic,
            "partition": partition,
            "offset": 0,
            "verdict": verdict.kind,
            "reason": verdict.reason,
        }
        if verdict.cause is not None:
            line["scope"] = verdict.cause.scope
            line["epoch"] = verdict.cause.epoch
        if verdict.current_epoch is not None:
            line["current_epoch"] = verdict.current_epoch
        for offset in offsets:
            line["offset"] = offset
            self._file.write(self._encode(line) + b"\n")


def is_parquet(path: str) -> bool:
    """Whether a name stands for Parquet: a folder, or a file that begins as such."""
    there = Path(path)
    if there.is_dir() or there.suffix == ".parquet":
        return True
    if not there.is_file():
        return False
    try:
        with there.open("rb") as file:
            return file.read(4) == b"PAR1"
    except OSError:
        return False  # whoever opens it next says why


def write_records(file: IO[bytes], records: Iterable[RecordLine]) -> None:
    """Write a record file."""
    encode = msgspec.json.Encoder().encode
    for record in records:
        file.write(encode(record) + b"\n")
