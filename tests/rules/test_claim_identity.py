"""What is told of a claim without the library is what the library tells."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from epochfence.epochs import schemas
from epochfence.epochs.claim_identity import ClaimIdentity, plain_identity
from epochfence.epochs.claims import claim_key, claim_value, decode_claim
from epochfence.epochs.ledger_state import LedgerState
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


def by_the_library(key: bytes, value: bytes) -> ClaimIdentity | None:
    try:
        claim = decode_claim(key, value)
    except (schemas.Undecodable, schemas.UnknownFingerprint):
        return None
    return identity_of(claim)


def identity_of(claim: Claim) -> ClaimIdentity:
    return (claim.scope, claim.epoch, claim.grant_id)


def agree(key: bytes, value: bytes) -> bool:
    """Whether what is told without the library is what it tells, or nothing."""
    return plain_identity(key, value) in (None, by_the_library(key, value))


LONGEST = Claim("s" * 200, 2**62 - 1, 2**62 - 1, "f" * 16, "", 2**62 - 1)


@given(CLAIMS)
@example(LONGEST)
@example(dataclasses.replace(LONGEST, epoch=2**62))
@example(dataclasses.replace(LONGEST, previous=2**62))
@example(dataclasses.replace(LONGEST, claimed_at=2**62))
@example(dataclasses.replace(LONGEST, claimed_at=-1))
def test_a_claim(claim: Claim) -> None:
    key, value = claim_key(claim), claim_value(claim)
    assert by_the_library(key, value) == identity_of(claim)
    is_plain = max(claim.epoch, claim.previous, claim.claimed_at) < 2**62
    is_plain = is_plain and claim.claimed_at >= 0
    assert plain_identity(key, value) == (identity_of(claim) if is_plain else None)


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
        assert agree(key, one), one


@given(CLAIMS, st.integers(0), st.binary(max_size=2))
def test_a_damaged_key(claim: Claim, at: int, new: bytes) -> None:
    key = claim_key(claim)
    at %= len(key) + 1
    for end in (at, at + 1):
        assert agree(key[:at] + new + key[end:], claim_value(claim))


def test_a_key_of_another_claim() -> None:
    claim = Claim("orders", 7, 6, "0" * 16, "pod-7", 1_700_000_000_000, {"url": "x"})
    for other in (
        dataclasses.replace(claim, scope="orderz"),
        dataclasses.replace(claim, epoch=8),
        dataclasses.replace(claim, grant_id="1" * 16),
    ):
        assert plain_identity(claim_key(other), claim_value(claim)) is None


def test_what_is_no_claim_has_no_identity() -> None:
    value = claim_value(Claim("s", 1, 0, "0" * 16, "h", 5))
    for key in (None, b"", b"claim/s/9223372036854775808/" + b"0" * 16, b"sync/x"):
        assert plain_identity(key, value) is None
    assert plain_identity(b"claim/s/1/" + b"0" * 16, None) is None


def test_a_ledger_loads_without_the_library() -> None:
    """Else the whole is in vain. What is asked for is decoded then."""
    claim = Claim("orders", 7, 6, "0" * 16, "pod-7", 1_700_000_000_000, {"url": "x"})
    state = LedgerState()

    def refused(_: bytes) -> None:
        raise AssertionError("the library was asked")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schemas, "decode", refused)
        assert state.apply(claim_key(claim), claim_value(claim)).fate == "granted"
        assert state.apply(claim_key(claim), claim_value(claim)).fate == "repeated"
        assert (state.epoch_of("orders"), state.scopes()) == (7, ["orders"])
    assert state.latest("orders") == claim
    assert state.find("orders", 7, "0" * 16) == claim
    assert list(state.claims()) == [(claim, True)]
