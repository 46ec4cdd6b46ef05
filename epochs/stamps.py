"""Stamps on the wire: what a message says about the leadership behind it.

A `StampReader` turns a message's headers into a `Reading`. It does so in two
steps, because nearly all messages of a partition carry the same stamp: `key`
finds the bytes that matter (cheap, once per message), `read` decodes them (once
per distinct key: its caller remembers).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import FOREIGN_PREFIX, MAX_EPOCH, Stamp

#: The header that carries a stamp, once for each scope.
STAMP_HEADER = "epochfence"
#: The only header of ours on a barrier.
BARRIER_HEADER = "epochfence-barrier"
#: The optional position of a message in its leader's own source.
CURSOR_HEADER = "epochfence-cursor"
#: The longest cursor.
MAX_CURSOR_BYTES = 1000
#: Every header name that begins so is ours.
RESERVED_PREFIX = "epochfence"

_JUDGED_HEADERS = frozenset((STAMP_HEADER, BARRIER_HEADER))

#: The longest header value that can be a stamp: epoch, grant id, scope, two colons.
MAX_STAMP_BYTES = 19 + 1 + 16 + 1 + 200

Headers = Iterable[tuple[str, bytes | None]]
#: Stands for headers that the client could not read: they are malformed.
UNREADABLE: Headers = (("", None),)

Problem = Literal["malformed", "ambiguous"]


def without_ours(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers that are not ours, in order."""
    return [one for one in headers if not one[0].startswith(RESERVED_PREFIX)]


_STAMP = re.compile(rb"([1-9][0-9]{0,18}):([0-9a-f]{16}):([A-Za-z0-9._/-]{1,200})\Z")
_DECIMAL = re.compile(rb"(?:0|[1-9][0-9]{0,18})\Z")


class Reading(NamedTuple):
    """What the headers of one message say.

    Attributes:
        stamps: The stamps, in order; empty where there is a problem.
        is_barrier: Whether the message is a barrier.
        problem: Why the headers cannot be judged, None where they can.
    """

    stamps: tuple[Stamp, ...]
    is_barrier: bool = False
    problem: Problem | None = None


_MALFORMED = Reading((), problem="malformed")
_AMBIGUOUS = Reading((), problem="ambiguous")


def encode_stamp(stamp: Stamp) -> bytes:
    """The value of the header that carries `stamp`: `epoch:grant id:scope`, ASCII."""
    return f"{stamp.epoch}:{stamp.grant_id}:{stamp.scope}".encode("ascii")


def decode_stamp(value: bytes | None) -> Stamp | None:
    """The stamp that a header value spells, None where it is malformed."""
    if value is None or len(value) > MAX_STAMP_BYTES:
        return None
    match = _STAMP.match(value)
    if match is None:
        return None
    epoch = int(match[1])
    if epoch > MAX_EPOCH:
        return None
    return Stamp(match[3].decode("ascii"), epoch, match[2].decode("ascii"))


@runtime_checkable
class StampReader(Protocol):
    """Finds the stamps of a message. See `OwnStamps` and `ForeignHeader`."""

    @property
    def name(self) -> str:
        """Names this reader in a digest of settings: equal names read alike."""
        ...

    @property
    def is_foreign(self) -> bool:
        """Whether the epochs come from elsewhere: no ledger knows them."""
        ...

    @property
    def scope(self) -> str | None:
        """The one scope that this reader finds, None where it can find any."""
        ...

    def key(self, headers: Headers | None, value: bytes | None) -> Hashable:
        """All that matters for this message's reading: equal keys, equal readings."""
        ...

    def read(self, key: Hashable) -> Reading:
        """Decode a key that `key` gave."""
        ...


class OwnStamps:
    """Reads the `epochfence` and `epochfence-barrier` headers."""

    name = "epochfence"
    is_foreign = False
    scope = None

    def key(self, headers: Headers | None, value: bytes | None) -> Hashable:
        """One stamp header's bytes, else a tuple of every header that matters."""
        found: bytes | tuple[tuple[str, bytes | None], ...] = ()
        for name, content in headers or ():
            if name not in _JUDGED_HEADERS:
                continue
            if found == () and content is not None and name == STAMP_HEADER:
                found = content
                continue
            if isinstance(found, bytes):
                found = ((STAMP_HEADER, found),)
            found = (*found, (name, content))
        return found

    def read(self, key: Hashable) -> Reading:
        """Decode the headers of one message."""
        if isinstance(key, bytes):
            stamp = decode_stamp(key)
            return _MALFORMED if stamp is None else Reading((stamp,))
        pairs: tuple[tuple[str, bytes | None], ...] = key  # type: ignore[assignment]
        is_barrier = any(name == BARRIER_HEADER for name, _ in pairs)
        if is_barrier and len(pairs) > 1:
            return _MALFORMED
        return _combine([decode_stamp(value) for _, value in pairs], is_barrier)


def _combine(stamps: list[Stamp | None], is_barrier: bool = False) -> Reading:
    """Malformed before ambiguous: a damaged stamp is damaged, whatever its twin."""
    good = tuple(stamp for stamp in stamps if stamp is not None)
    if len(good) < len(stamps):
        return _MALFORMED
    if len({stamp.scope for stamp in good}) < len(good):
        return _AMBIGUOUS
    return Reading(good, is_barrier)


class ForeignHeader:
    """Reads the epochs that another system writes into a header of its own.

    Args:
        header: The header's name; the epochs belong to the scope `~<header>`.
        encoding: `int64be` (8 bytes, big-endian, signed) or `decimal` (ASCII).

    Raises:
        MisconfiguredError: The header is ours or empty, or the encoding unknown.
    """

    is_foreign = True

    def __init__(self, header: str, encoding: str) -> None:
        decoders = {"int64be": _decode_int64be, "decimal": _decode_decimal}
        if not isinstance(header, str) or not isinstance(encoding, str):
            raise MisconfiguredError(
                "stamp", f"{header!r}, {encoding!r}", "two texts are expected",
                "Use ForeignHeader('generation', 'decimal').",
            )  # fmt: skip
        if encoding not in decoders:
            raise MisconfiguredError(
                "stamp", f"{header}:{encoding}", f"{encoding!r} is no encoding",
                "Use HEADER:int64be or HEADER:decimal, or epochfence.",
            )  # fmt: skip
        if not header or header.startswith(RESERVED_PREFIX):
            raise MisconfiguredError(
                "stamp", f"{header}:{encoding}", f"{header!r} cannot be foreign",
                "Name the other system's header; names that begin with "
                "'epochfence' are read by the stamp 'epochfence'.",
            )  # fmt: skip
        self.header = header
        self.scope = FOREIGN_PREFIX + header
        self.name = f"{header}:{encoding}"
        self._decode = decoders[encoding]
        self._encoding = encoding

    def __repr__(self) -> str:
        return f"ForeignHeader({self.header!r}, {self._encoding!r})"

    def key(self, headers: Headers | None, value: bytes | None) -> Hashable:
        """One header's bytes, else a tuple of the values of all with that name."""
        wanted = self.header
        found: bytes | tuple[bytes | None, ...] = ()
        for name, content in headers or ():
            if name == wanted:
                if found == () and content is not None:
                    found = content
                    continue
                if isinstance(found, bytes):
                    found = (found,)
                found = (*found, content)
        return found

    def read(self, key: Hashable) -> Reading:
        """Decode the header values of one message."""
        values: tuple[bytes | None, ...] = (
            (key,) if isinstance(key, bytes) else key  # type: ignore[assignment]
        )
        return _combine([self._stamp(self._decode(value)) for value in values])

    def _stamp(self, epoch: int | None) -> Stamp | None:
        return None if epoch is None else Stamp(self.scope, epoch, None)


class ForeignField:
    """Reads the epochs that another system writes into the payload.

    Args:
        field: Names the field; the epochs belong to the scope `~<field>`.
        extract: Gives the epoch in a value (which may be None: a tombstone), None
            where it holds none. What it cannot read, as a `ValueError`, `TypeError` or
            `LookupError` tells, is malformed; so is what it gives of another type than
            `int`.

    Raises:
        MisconfiguredError: The name is empty or ours, or nothing can be called.
    """

    is_foreign = True

    def __init__(
        self, field: str, extract: Callable[[bytes | None], int | None]
    ) -> None:
        if not isinstance(field, str) or not field or field.startswith(RESERVED_PREFIX):
            raise MisconfiguredError(
                "stamp", field, "it names no field of another system's",
                "Use ForeignField('generation', function).",
            )  # fmt: skip
        if not callable(extract):
            raise MisconfiguredError(
                "stamp", extract, "it cannot be called",
                "Give a function that takes a value and gives the epoch in it.",
            )  # fmt: skip
        self.scope = FOREIGN_PREFIX + field
        self.name = f"{field}:payload"
        self._extract = extract
        self._field = field

    def __repr__(self) -> str:
        return f"ForeignField({self._field!r}, ...)"

    def key(self, headers: Headers | None, value: bytes | None) -> Hashable:
        """The epoch itself; -1 (no epoch is negative) where it is damaged."""
        try:
            epoch = self._extract(value)
        except (ValueError, TypeError, LookupError):
            return -1
        return epoch if epoch is None or type(epoch) is int else -1

    def read(self, key: Hashable) -> Reading:
        """Wrap the epoch into a reading."""
        if key is None:
            return Reading(())
        if not isinstance(key, int) or not 0 <= key <= MAX_EPOCH:
            return _MALFORMED
        return Reading((Stamp(self.scope, key, None),))


def _decode_int64be(value: bytes | None) -> int | None:
    if value is None or len(value) != 8 or value[0] & 0x80:
        return None
    return int.from_bytes(value, "big")


def _decode_decimal(value: bytes | None) -> int | None:
    if value is None or not _DECIMAL.match(value):
        return None
    epoch = int(value)
    return epoch if epoch <= MAX_EPOCH else None


def stamp_reader(spelling: str) -> StampReader:
    """The reader that `spelling` names: `epochfence` or `HEADER:ENCODING`.

    Raises:
        MisconfiguredError: It names none.
    """
    if spelling == OwnStamps.name:
        return OwnStamps()
    header, _, encoding = spelling.rpartition(":")
    if not header:
        raise MisconfiguredError(
            "stamp", spelling, "no stamp is spelt so",
            "Use epochfence, HEADER:int64be or HEADER:decimal.",
        )  # fmt: skip
    return ForeignHeader(header, encoding)
