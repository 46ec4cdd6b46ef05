"""Claims that are read without the library are read as the library reads them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochfence.epochs import claims, schemas
from epochfence.epochs.claims import claim_key, claim_value, decode_claim
from epochfence.epochs.values import MAX_EPOCH, Claim

TEXTS = st.text(max_size=90)
NUMBERS = st.integers(0, MAX_EPOCH) | st.integers(0, 300)
CLAIMS = st.builds(
    Claim,
    scope=st.from_regex(r"\A[A-Za-z0-9._/-]{1,80}\Z"),
    epoch=st.integers(1, MAX_EPOCH) | st.integers(1, 300),
    previous=NUMBERS,
    grant_id=st.from_regex(r"\A[0-9a-f]{16}\Z"),
    holder=TEXTS,
    claimed_at=st.integers(-(2**63), MAX_EPOCH),
    attributes=st.dictionaries(TEXTS, TEXTS, max_size=4),
)


def by_the_library(key: bytes, value: bytes) -> Claim | str:
    """What is read where nothing is read plainly."""

    def nothing(_: bytes) -> None:
        return None

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(claims, "_read_plainly", nothing)
        return outcome(key, value)


def outcome(key: bytes, value: bytes) -> Claim | str:
    try:
        return decode_claim(key, value)
    except (schemas.Undecodable, schemas.UnknownFingerprint) as error:
        return type(error).__name__


@given(CLAIMS)
def test_a_claim(claim: Claim) -> None:
    key, value = claim_key(claim), claim_value(claim)
    assert decode_claim(key, value) == by_the_library(key, value) == claim


@given(CLAIMS, st.data())
@example(
    Claim("s", 1, 0, "0" * 16, "h", 5, {"a": "b"}), None
)  # spelt out below, byte by byte
def test_a_damaged_claim(claim: Claim, data: st.DataObject | None) -> None:
    """Bytes replaced, taken out, put in, cut off: read alike, or refused alike."""
    key, value = claim_key(claim), claim_value(claim)
    if data is None:
        damaged = [
            value[:at] + new + value[at + drop :]
            for at in range(len(value) + 1)
            for drop in (0, 1)
            for new in (b"", b"\x00", b"\x01", b"\x02", b"\x80", b"\x80\x00", b"\xff")
        ]
    else:
        at = data.draw(st.integers(0, len(value)))
        drop = data.draw(st.integers(0, 3))
        new = data.draw(st.binary(max_size=3))
        damaged = [value[:at] + new + value[at + drop :]]
    for one in damaged:
        assert outcome(key, one) == by_the_library(key, one), one


def test_most_are_read_plainly() -> None:
    """Else the whole is in vain."""
    claim = Claim("orders", 7, 6, "0" * 16, "pod-7", 1_700_000_000_000, {"url": "x"})

    def refused(_: bytes) -> None:
        raise AssertionError("the library was asked")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schemas, "decode", refused)
        assert decode_claim(claim_key(claim), claim_value(claim)) == claim
