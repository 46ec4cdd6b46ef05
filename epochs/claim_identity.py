"""Whose claim a record is, told without reading all of it.

A ledger is loaded record by record, and asking the Avro library for each takes most
of the time. What follows tells what nearly every claim is, and nothing else: it agrees
with `claims.decode_claim` wherever it has an answer
(tests/rules/test_claim_identity.py), and has none where only the library can tell.
"""

from __future__ import annotations

import re
from functools import lru_cache

from epochfence.epochs import schemas

#: Scope, epoch and grant id of a claim: no two claims share them.
ClaimIdentity = tuple[str, int, str]

_SCOPE_IN_KEY = re.compile(rb"claim/([A-Za-z0-9._/-]{1,200})\Z")

# An Avro long that is not negative: its first byte is even, and the last of several is
# not 0 in the shortest form. The largest, of ten bytes, are left to the library.
_LONG = rb"(?:[%b]|[%b][\x80-\xff]{0,7}[\x01-\x7f])" % (
    b"".join(b"\\x%02x" % byte for byte in range(0x00, 0x80, 2)),
    b"".join(b"\\x%02x" % byte for byte in range(0x80, 0x100, 2)),
)
# Epoch, previous, grant id.
_MIDDLE = re.compile(rb"(%b)%b\x20([0-9a-f]{16})" % (_LONG, _LONG), re.DOTALL)
_CLAIMED_AT = re.compile(_LONG, re.DOTALL)

#: So many scopes, epochs and sets of attributes are kept as looked at: those of one
#: claim come again in others.
_KEPT = 4096


def plain_identity(key: bytes | None, value: bytes | None) -> ClaimIdentity | None:
    """The identity of a well-formed claim; None where only the library can tell."""
    if key is None or value is None:
        return None
    try:
        named, number, grant_id = key.rsplit(b"/", 2)
        head, scope = _head(named)
        middle = _MIDDLE.match(value, len(head))
        if not value.startswith(head) or middle is None or middle[2] != grant_id:
            return None
        epoch = _epoch(number, middle[1])
        length, at = _number(value, middle.end())
        end = at + length
        value[at:end].decode("utf-8")  # holder
        claimed_at = _CLAIMED_AT.match(value, end)
        if claimed_at is None or not _are_attributes(value[claimed_at.end() :]):
            return None
    except (IndexError, ValueError):
        return None
    return scope, epoch, grant_id.decode("ascii")


@lru_cache(_KEPT)
def _head(named: bytes) -> tuple[bytes, str]:
    """What the values of a scope's claims begin with, by the beginning of their keys.

    Raises:
        ValueError: It names no scope.
    """
    spelt = _SCOPE_IN_KEY.match(named)
    if spelt is None:
        raise ValueError("not the key of a claim")
    scope = spelt[1]
    twice = 2 * len(scope)
    length = bytes([twice] if twice < 0x80 else [twice & 0x7F | 0x80, twice >> 7])
    return schemas.CLAIM.header + length + scope, scope.decode("ascii")


@lru_cache(_KEPT)
def _epoch(number: bytes, encoded: bytes) -> int:
    """The epoch that a key's number and a value's Avro long both tell.

    Raises:
        ValueError: They do not agree.
    """
    epoch, _ = _number(encoded, 0)
    if epoch == 0 or b"%d" % epoch != number:
        raise ValueError("not the epoch of the key")
    return epoch


@lru_cache(_KEPT)
def _are_attributes(encoded: bytes) -> bool:
    """Whether the last bytes of a claim are its attributes, in their one form.

    Raises:
        IndexError, ValueError: They are not.
    """
    names: set[str] = set()
    end_of_block = 0
    pairs, at = _number(encoded, 0)
    for _ in range(pairs):
        for is_name in (True, False):
            length, at = _number(encoded, at)
            text = encoded[at : at + length].decode("utf-8")
            at += length
            if is_name:
                names.add(text)
    if pairs:
        end_of_block, at = _number(encoded, at)
    return not end_of_block and at == len(encoded) and len(names) == pairs


def _number(value: bytes, at: int) -> tuple[int, int]:
    """An Avro long that is not negative, in its shortest form, and where it ends.

    Raises:
        IndexError, ValueError: It is another.
    """
    byte = value[at]
    at += 1
    number, shift = byte & 0x7F, 7
    while byte >= 0x80:
        byte = value[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if not byte:
            raise ValueError("not in its shortest form")
    if number & 1 or number >> 64:
        raise ValueError("negative, or too large")
    return number >> 1, at
