"""The stamp codec both ways, to the letter: docs/rules.md, "The stamp"."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence import MisconfiguredError, Stamp
from epochfence.epochs.stamps import (
    ForeignField,
    ForeignHeader,
    OwnStamps,
    Reading,
    StampReader,
    decode_stamp,
    encode_stamp,
    stamp_reader,
)
from epochfence.epochs.stamps import Headers as HeaderList

GOOD = b"34:9f3a1c22d4e5b6a7:orders-writer"
STAMP = Stamp("orders-writer", 34, "9f3a1c22d4e5b6a7")


def read(reader: StampReader, headers: HeaderList, value: bytes = b"") -> Reading:
    return reader.read(reader.key(headers, value))


@pytest.mark.rule(21)
def test_a_stamp_on_the_wire() -> None:
    assert encode_stamp(STAMP) == GOOD
    assert decode_stamp(GOOD) == STAMP
    assert read(OwnStamps(), [("epochfence", GOOD)]) == Reading((STAMP,))


@pytest.mark.rule(22)
@pytest.mark.parametrize(
    "value",
    [
        None,
        b"",
        b"34:9f3a1c22d4e5b6a7",
        b"34:9f3a1c22d4e5b6a7:",
        b":9f3a1c22d4e5b6a7:s",
        b"0:9f3a1c22d4e5b6a7:s",
        b"034:9f3a1c22d4e5b6a7:s",
        b"+34:9f3a1c22d4e5b6a7:s",
        b"-34:9f3a1c22d4e5b6a7:s",
        b" 34:9f3a1c22d4e5b6a7:s",
        b"3_4:9f3a1c22d4e5b6a7:s",
        b"34.0:9f3a1c22d4e5b6a7:s",
        "٣٤:9f3a1c22d4e5b6a7:s".encode(),
        b"9223372036854775808:9f3a1c22d4e5b6a7:s",
        b"99999999999999999999:9f3a1c22d4e5b6a7:s",
        b"34:9F3A1C22D4E5B6A7:s",
        b"34:9f3a1c22d4e5b6a:s",
        b"34:9f3a1c22d4e5b6a7:a b",
        b"34:9f3a1c22d4e5b6a7:~s",
        b"34:9f3a1c22d4e5b6a7:s\n",
        b"34:9f3a1c22d4e5b6a7:s\0",
        b"34:9f3a1c22d4e5b6a7:" + b"s" * 201,
        "34:9f3a1c22d4e5b6a7:ä".encode(),
        b"34:9f3a1c22d4e5b6a7:s" + b"x" * 1_000_000,
    ],
)
def test_malformed_stamps(value: bytes | None) -> None:
    assert decode_stamp(value) is None
    assert read(OwnStamps(), [("epochfence", value)]).problem == "malformed"
    assert read(OwnStamps(), [("epochfence-barrier", value)]).problem == "malformed"
    twice = read(OwnStamps(), [("epochfence", GOOD), ("epochfence", value)])
    assert twice.problem == "malformed"


@pytest.mark.rule(22)
def test_the_longest_stamp() -> None:
    longest = Stamp("s" * 200, 2**63 - 1, "0" * 16)
    assert decode_stamp(encode_stamp(longest)) == longest


@pytest.mark.rule(21, 22)
@given(st.binary(max_size=60) | st.from_regex(rb"[0-9]{1,20}:[0-9a-f]{16}:[a-z/]+"))
def test_what_decodes_encodes_to_the_same_bytes(value: bytes) -> None:
    stamp = decode_stamp(value)
    form = rb"[1-9][0-9]{0,18}:[0-9a-f]{16}:[A-Za-z0-9._/-]{1,200}"
    match = re.fullmatch(form, value)
    is_good = match is not None and int(value.split(b":")[0]) < 2**63
    assert (stamp is not None) == is_good
    if stamp is not None:
        assert encode_stamp(stamp) == value


@pytest.mark.rule(23)
def test_one_scope_twice_is_ambiguous() -> None:
    other = b"1:9f3a1c22d4e5b6a7:orders/3"
    twice = [("epochfence", GOOD), ("trace", b"1"), ("epochfence", GOOD)]
    assert read(OwnStamps(), twice).problem == "ambiguous"
    assert read(OwnStamps(), [*twice, ("epochfence", other)]).problem == "ambiguous"
    side_by_side = read(OwnStamps(), [("epochfence", GOOD), ("epochfence", other)])
    assert side_by_side.stamps == (STAMP, decode_stamp(other))


@pytest.mark.rule(24)
def test_a_barrier() -> None:
    reading = read(OwnStamps(), [("epochfence-barrier", GOOD), ("trace", b"1")])
    assert reading == Reading((STAMP,), is_barrier=True)


@pytest.mark.rule(25)
@pytest.mark.parametrize(
    "headers",
    [
        [("epochfence-barrier", GOOD), ("epochfence", GOOD)],
        [("epochfence", GOOD), ("epochfence-barrier", GOOD)],
        [("epochfence-barrier", GOOD), ("epochfence-barrier", GOOD)],
        [("epochfence-barrier", GOOD), ("epochfence", None)],
    ],
)
def test_a_barrier_with_company(headers: list[tuple[str, bytes | None]]) -> None:
    assert read(OwnStamps(), headers).problem == "malformed"


@pytest.mark.rule(26)
@pytest.mark.parametrize(
    "name", ["epochfence-cursor", "epochfence-x", "Epochfence", "epochfence ", ""]
)
def test_other_headers_have_no_part(name: str) -> None:
    assert read(OwnStamps(), [(name, b"junk")]) == Reading(())
    assert read(OwnStamps(), [(name, None), ("epochfence", GOOD)]).stamps == (STAMP,)


@pytest.mark.rule(27, 28)
@pytest.mark.parametrize(
    ("encoding", "value", "epoch"),
    [
        ("int64be", bytes(8), 0),
        ("int64be", (7).to_bytes(8, "big"), 7),
        ("int64be", (2**63 - 1).to_bytes(8, "big"), 2**63 - 1),
        ("decimal", b"0", 0),
        ("decimal", b"7", 7),
        ("decimal", str(2**63 - 1).encode(), 2**63 - 1),
    ],
)
def test_foreign_epochs(encoding: str, value: bytes, epoch: int) -> None:
    reader = stamp_reader(f"epoch:{encoding}")
    assert read(reader, [("epoch", value)]).stamps == (Stamp("~epoch", epoch, None),)


@pytest.mark.rule(27)
@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("int64be", None),
        ("int64be", b""),
        ("int64be", bytes(7)),
        ("int64be", bytes(9)),
        ("int64be", b"\xff" * 8),
        ("int64be", (2**63).to_bytes(8, "big")),
        ("decimal", None),
        ("decimal", b""),
        ("decimal", b"-1"),
        ("decimal", b"+1"),
        ("decimal", b"01"),
        ("decimal", b"00"),
        ("decimal", b"1_0"),
        ("decimal", b"7\n"),
        ("decimal", "٣".encode()),
        ("decimal", str(2**63).encode()),
        ("decimal", b"9" * 1_000_000),
    ],
)
def test_malformed_foreign_epochs(encoding: str, value: bytes | None) -> None:
    reader = stamp_reader(f"epoch:{encoding}")
    assert read(reader, [("epoch", value)]).problem == "malformed"


@pytest.mark.rule(23, 28)
def test_a_foreign_header_twice() -> None:
    reader = stamp_reader("epoch:decimal")
    assert read(reader, [("epoch", b"7"), ("epoch", b"7")]).problem == "ambiguous"
    assert read(reader, [("epoch", b"7"), ("epoch", None)]).problem == "malformed"


@pytest.mark.rule(29)
def test_our_headers_mean_nothing_where_foreign_stamps_are_read() -> None:
    reader = stamp_reader("epoch:decimal")
    ours = [("epochfence", b"junk"), ("epochfence-barrier", GOOD)]
    assert read(reader, ours) == Reading(())
    assert read(reader, [*ours, ("epoch", b"7")]).stamps[0].epoch == 7


def test_a_foreign_epoch_in_the_payload() -> None:
    def extract(value: bytes | None) -> int | None:
        return None if not value else int(value)

    reader = ForeignField("term", extract)
    assert read(reader, [], b"7").stamps == (Stamp("~term", 7, None),)
    assert read(reader, [], b"0").stamps == (Stamp("~term", 0, None),)
    assert read(reader, [], b"") == Reading(())
    for damaged in (b"x", b"-1", str(2**63).encode()):
        assert read(reader, [], damaged).problem == "malformed"

    def careless(value: bytes | None) -> Any:
        return json.loads(value or b"{}")["term"]

    reader = ForeignField("term", careless)
    assert read(reader, [], b'{"term":7}').stamps == (Stamp("~term", 7, None),)
    for odd in (b"{}", b"[]", b"7", b'{"term":true}', b'{"term":"7"}', b'{"term":[]}'):
        assert read(reader, [], odd).problem == "malformed"


@pytest.mark.parametrize(
    "spelling", ["epoch", "epoch:hex", ":decimal", "epochfence:decimal", "", "a:b:c"]
)
def test_misspelt_readers(spelling: str) -> None:
    with pytest.raises(MisconfiguredError, match="stamp"):
        stamp_reader(spelling)


WRONG_READERS: list[Callable[[], object]] = [
    lambda: ForeignHeader(len, "decimal"),  # type: ignore[arg-type]
    lambda: ForeignHeader("e", 5),  # type: ignore[arg-type]
    lambda: ForeignField(len, int),  # type: ignore[arg-type]
    lambda: ForeignField("", len),  # type: ignore[arg-type]
    lambda: ForeignField("epochfence", len),  # type: ignore[arg-type]
    lambda: ForeignField("generation", "x"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("make", WRONG_READERS)
def test_readers_of_nothing(make: Callable[[], object]) -> None:
    with pytest.raises(MisconfiguredError, match="stamp"):
        make()


def test_a_header_name_may_hold_a_colon() -> None:
    assert stamp_reader("a:b:decimal").scope == "~a:b"


def test_readers_are_what_they_say() -> None:
    for reader in (
        OwnStamps(),
        ForeignHeader("e", "decimal"),
        stamp_reader("e:int64be"),
    ):
        assert isinstance(reader, StampReader)
