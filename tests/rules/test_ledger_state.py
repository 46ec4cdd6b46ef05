"""The ledger as a fold: the sentences of docs/rules.md on claims and grants."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from fastavro import schemaless_writer

from epochfence import Claim, LedgerRegressed, MisconfiguredError
from epochfence.epochs import schemas
from epochfence.epochs.claims import (
    claim_key,
    claim_value,
    decode_claim,
    plan_epoch,
    sync_key,
)
from epochfence.epochs.errors import ClaimLost, EpochExhausted
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from support.histories import claim, ledger

CLAIM = Claim("orders/3", 34, 33, "9f3a1c22d4e5b6a7", "pod-7", 1_700_000_000_000)


@pytest.mark.rule(7)
def test_a_claim_on_the_wire() -> None:
    assert claim_key(CLAIM) == b"claim/orders/3/34/9f3a1c22d4e5b6a7"
    # The bytes are spelt out: this form may never change, or old ledgers are lost.
    assert claim_value(CLAIM).hex() == (
        "c301b45d02b2a24ec502"  # marker and fingerprint
        "106f72646572732f33"  # scope
        "4442"  # epoch, previous
        "20396633613163323264346535623661370a706f642d37"  # grant id, holder
        "80a0abfef96200"  # claimed at, no attributes
    )
    assert decode_claim(claim_key(CLAIM), claim_value(CLAIM)) == CLAIM


@pytest.mark.rule(7)
def test_attributes_travel() -> None:
    told = Claim("s", 1, 0, CLAIM.grant_id, "h", 0, {"url": "http://pod-7", "ä": "ö"})
    assert decode_claim(claim_key(told), claim_value(told)) == told


@pytest.mark.rule(8)
def test_a_value_in_another_form_is_no_claim() -> None:
    good = claim_value(CLAIM)
    body = good[10:]
    odd = {
        "trailing byte": good + b"\0",
        "cut": good[:-1],
        "empty body": good[:10],
        "marker only": good[:2],
        "overlong number": good[:19] + b"\xc4\x00" + good[20:],
        "map in a block of negative count": good[:-1] + b"\x01\x00\x00",
        "text that is not UTF-8": good.replace(b"pod-7", b"pod-\xff"),
        "huge length": good[:10] + b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01" + body,
        "not ours": b"\0" + good[1:],
    }
    state = LedgerState()
    fates = {name: state.apply(claim_key(CLAIM), odd[name]).fate for name in odd}
    assert fates == dict.fromkeys(odd, "passed-over")
    with pytest.raises(Undecodable, match="does not decode"):
        decode_claim(claim_key(CLAIM), odd["cut"])


@pytest.mark.rule(9)
def test_a_sync_changes_nothing() -> None:
    state = LedgerState()
    assert state.apply(sync_key("9f3a1c22d4e5b6a7"), None).fate == "sync"
    assert (list(state.claims()), state.passed_over) == ([], 0)


@pytest.mark.rule(10)
@pytest.mark.parametrize("key", [claim_key(CLAIM), sync_key("0" * 16), b"junk", None])
def test_an_unknown_fingerprint_stops_the_reader(key: bytes | None) -> None:
    with pytest.raises(UnknownFingerprint, match="0102030405060708"):
        LedgerState().apply(key, bytes.fromhex("c3010102030405060708"))


@pytest.mark.rule(11)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"claim/orders/3/35/9f3a1c22d4e5b6a7", claim_value(CLAIM)),
        (b"claim/orders/3/034/9f3a1c22d4e5b6a7", claim_value(CLAIM)),
        (None, claim_value(CLAIM)),
        (claim_key(CLAIM), None),
        (claim_key(CLAIM), b""),
        (b"sync/9f3a1c22d4e5b6a7", b""),
        (b"sync/9F3A1C22D4E5B6A7", None),
        (b"sync/", None),
        (b"junk", b"junk"),
        (None, None),
    ],
)
def test_other_records_are_passed_over_and_counted(
    key: bytes | None, value: bytes | None
) -> None:
    state = LedgerState()
    outcome = state.apply(key, value)
    assert (outcome.fate, state.passed_over, state.scopes()) == ("passed-over", 1, [])
    assert outcome.problem


@pytest.mark.rule(11)
@pytest.mark.parametrize(
    "wrong", [{"scope": "a b"}, {"epoch": 0}, {"epoch": -1}, {"grant_id": "X" * 16}]
)
def test_a_claim_of_what_cannot_be_is_passed_over(wrong: dict[str, Any]) -> None:
    record = {name: getattr(CLAIM, name) for name in CLAIM.__slots__} | wrong
    value = schemas.encode(schemas.CLAIM, record)
    key = f"claim/{record['scope']}/{record['epoch']}/{record['grant_id']}".encode()
    assert LedgerState().apply(key, value).fate == "passed-over"


@pytest.mark.rule(53)
def test_a_row_is_no_claim() -> None:
    row = schemas.encode(
        schemas.EPOCH_START_ROW,
        {"written_by": "x", "written_at": 0, "settings_digest": ""},
    )
    assert LedgerState().apply(claim_key(CLAIM), row).fate == "passed-over"


@pytest.mark.rule(12)
def test_a_claim_wins_above_every_earlier_one() -> None:
    state = LedgerState()
    told = [("s", 1, "a"), ("s", 1, "b"), ("s", 5, "b"), ("s", 4, "a"), ("r", 2, "a")]
    fates = [state.add(claim(*one)).fate for one in told]
    assert fates == ["granted", "lost", "granted", "lost", "granted"]
    assert state.epoch_of("s") == 5
    assert state.scopes() == ["r", "s"]
    assert state.is_grant("s", 5, claim("s", 5, "b").grant_id)
    assert not state.is_grant("s", 4, claim("s", 4, "a").grant_id)
    assert state.find("s", 4, claim("s", 4, "a").grant_id) == claim("s", 4, "a")


@pytest.mark.rule(13)
def test_a_claim_read_twice_changes_nothing() -> None:
    state = ledger(("s", 1, "a"), ("s", 2, "b"))
    before = list(state.claims())
    for one in (claim("s", 1, "a"), claim("s", 2, "b")):
        assert state.add(one).fate == "repeated"
    assert list(state.claims()) == before


@pytest.mark.rule(12, 14)
def test_every_small_log_has_one_grant_per_epoch_whatever_is_cleaned() -> None:
    """All logs of up to 5 claims to epochs 1 to 3 by two candidates.

    Cleaning removes superseded syncs only, so what is left is the same sequence of
    claims: a stretch of it read again must change nothing either.
    """
    kinds = list(itertools.product((1, 2, 3), "ab"))
    for length in range(6):
        for log in itertools.product(kinds, repeat=length):
            claims = [claim("s", epoch, who) for epoch, who in dict.fromkeys(log)]
            state = LedgerState(claims)
            grants = [one.epoch for one, won in state.claims() if won]
            assert grants == sorted(set(grants))
            dumb = [
                one.epoch
                for index, one in enumerate(claims)
                if all(one.epoch > other.epoch for other in claims[:index])
            ]
            assert grants == dumb
            for one in claims:
                assert state.add(one).fate == "repeated"


@pytest.mark.rule(16)
def test_the_epoch_to_claim() -> None:
    latest = claim("s", 7)
    assert plan_epoch("s", None) == 1
    assert plan_epoch("s", latest) == 8
    assert plan_epoch("s", latest, seen=7) == 8
    assert plan_epoch("s", None, seen=0) == 1
    assert plan_epoch("s", latest, at_least=5) == 8
    assert plan_epoch("s", latest, at_least=50) == 50
    assert plan_epoch("s", latest, exactly=9) == 9
    assert plan_epoch("s", latest, seen=7, exactly=9) == 9
    assert plan_epoch("s", None, seen=0, exactly=9) == 9


@pytest.mark.rule(17)
@pytest.mark.parametrize("asked", [{"seen": 6}, {"seen": 0}, {"exactly": 7}])
def test_what_cannot_win_is_lost_at_once(asked: dict[str, Any]) -> None:
    with pytest.raises(ClaimLost) as lost:
        plan_epoch("s", claim("s", 7), **asked)
    assert (lost.value.latest_epoch, lost.value.holder) == (7, "holder-a")


@pytest.mark.rule(16)
def test_a_number_from_elsewhere_does_not_win_over_who_claimed_meanwhile() -> None:
    """Who sleeps before it takes a number gets one above its successor's."""
    with pytest.raises(ClaimLost) as lost:
        plan_epoch("s", claim("s", 8), seen=7, exactly=9)
    assert (lost.value.claimed_epoch, lost.value.latest_epoch) == (9, 8)
    assert not lost.value.is_exact


@pytest.mark.rule(17)
@pytest.mark.parametrize(
    ("asked", "is_behind"),
    [
        ({"exactly": 7}, True),
        ({"exactly": 7, "seen": 7}, True),
        ({"exactly": 5, "seen": 6}, True),
        ({"exactly": 7, "seen": 6}, False),
        ({"seen": 6}, False),
    ],
)
def test_a_number_that_is_not_above_what_was_seen_has_fallen_behind(
    asked: dict[str, Any], is_behind: bool
) -> None:
    with pytest.raises(ClaimLost) as lost:
        plan_epoch("s", claim("s", 7), **asked)
    assert lost.value.is_exact is is_behind
    assert lost.value.latest_epoch == 7


@pytest.mark.rule(20)
@pytest.mark.parametrize("latest", [None, claim("s", 7)])
def test_a_ledger_below_what_was_seen_is_given_no_number_from_elsewhere(
    latest: Claim | None,
) -> None:
    for number in (8, 9, 10):
        with pytest.raises(LedgerRegressed) as regressed:
            plan_epoch("s", latest, seen=9, exactly=number)
        known = 0 if latest is None else 7
        assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (known, 9)


def test_a_huge_number_from_elsewhere_is_the_one_that_is_named() -> None:
    with pytest.raises(MisconfiguredError, match="allow_jump") as huge:
        plan_epoch("s", None, seen=0, exactly=2**32 + 1)
    assert (huge.value.setting, huge.value.value) == ("exactly", 2**32 + 1)


@pytest.mark.rule(18)
@pytest.mark.parametrize("name", ["seen", "at_least", "exactly"])
def test_a_huge_jump_is_asked_for_twice(name: str) -> None:
    latest = claim("s", 7)
    far = 7 + 2**32 + (0 if name == "seen" else 1)
    asked: dict[str, Any] = {name: far}
    with pytest.raises(MisconfiguredError, match="allow_jump"):
        plan_epoch("s", latest, **asked)
    assert plan_epoch("s", latest, allow_jump=True, **asked) == 8 + 2**32
    asked[name] -= 1
    assert plan_epoch("s", latest, **asked) == 7 + 2**32


def test_the_last_epoch_ends_a_scope() -> None:
    last = claim("s", 2**63 - 1)
    with pytest.raises(EpochExhausted):
        plan_epoch("s", last)
    with pytest.raises(EpochExhausted):
        plan_epoch("s", last, seen=2**63 - 1)


@pytest.mark.parametrize(
    "asked",
    [
        {"seen": 1, "at_least": 2},
        {"at_least": 2, "exactly": 2},
        {"seen": 1, "at_least": 2, "exactly": 2},
        {"seen": -1, "exactly": 2},
        {"seen": -1},
        {"exactly": 0},
        {"exactly": 2**63},
        {"at_least": 2**63},
    ],
)
def test_arguments_that_make_no_sense(asked: dict[str, Any]) -> None:
    with pytest.raises(MisconfiguredError, match=next(iter(asked))):
        plan_epoch("s", None, **asked)


@pytest.mark.rule(20)
def test_a_regress_is_seen() -> None:
    state = ledger(("s", 4))
    state.check_not_below([("s", 4), ("s", 2), ("~epoch", 99)])
    with pytest.raises(LedgerRegressed) as regressed:
        state.check_not_below([("s", 4), ("s", 5)])
    assert (regressed.value.ledger_epoch, regressed.value.seen_epoch) == (4, 5)
    with pytest.raises(LedgerRegressed, match="no epoch at all"):
        state.check_not_below([("unheard-of", 1)])


def test_values_of_an_unknown_shape_are_refused_when_written() -> None:
    """Guards the guard of rule 8: what fastavro writes is what it reads."""
    from io import BytesIO

    buffer = BytesIO()
    schemaless_writer(buffer, schemas.CLAIM.parsed, {**_fields(), "attributes": {}})
    assert schemas.CLAIM.header + buffer.getvalue() == claim_value(CLAIM)


def _fields() -> dict[str, Any]:
    return {name: getattr(CLAIM, name) for name in CLAIM.__slots__}
