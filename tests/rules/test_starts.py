"""Row keys and commit metadata: one fact, one spelling."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epochfence import EpochStart, Position
from epochfence.epochs.schemas import Undecodable, UnknownFingerprint
from epochfence.epochs.starts import (
    CommitMetadata,
    RowInfo,
    decode_commit_metadata,
    decode_row_key,
    decode_row_value,
    row_key,
    row_value,
)

ID = "9f3a1c22d4e5b6a7"
TOPIC_ID = "KTgZ3vR0Q0-1_abcdefghi"
START = EpochStart("orders", TOPIC_ID, 3, "orders-writer", 34, ID, Position(7, 120))
KEY = f'["orders","{TOPIC_ID}",3,"orders-writer",34,"{ID}",7,120]'.encode()


@pytest.mark.rule(52)
def test_a_row_key() -> None:
    assert row_key(START) == KEY
    assert decode_row_key(KEY) == START
    foreign = EpochStart("ä", None, 0, "~epoch", 0, None, Position(None, 5))
    assert row_key(foreign) == b'["\\u00e4",null,0,"~epoch",0,null,null,5]'
    assert decode_row_key(row_key(foreign)) == foreign


@pytest.mark.rule(52)
@pytest.mark.parametrize(
    "key",
    [
        None,
        b"",
        b"junk",
        b"{}",
        b"null",
        b"[1,2,3]",
        KEY.replace(b",", b", "),
        KEY + b" ",
        KEY.replace(b"34", b"34.0"),
        KEY.replace(b"34", b"034"),
        KEY.replace(b"34", b"0"),
        KEY.replace(b"34", b"true"),
        KEY.replace(b"34", b'"34"'),
        KEY.replace(b"120", b"-1"),
        KEY.replace(b"120", b"null"),
        KEY.replace(b'"orders",', b'"\\u006frders",'),
        KEY.replace(b'"orders",', b"null,"),
        KEY.replace(ID.encode(), ID.upper().encode()),
        KEY.replace(b'"orders-writer"', b'"a b"'),
        KEY.replace(b"120", b"9223372036854775808"),
        KEY.replace(b'"orders",', b'"",'),
        KEY.replace(TOPIC_ID.encode(), b"short"),
        KEY.replace(b'"orders-writer"', b'"~"'),
        b"[" * 100_000,
        b"\xff" + KEY,
    ],
)
def test_other_spellings_are_no_rows(key: bytes | None) -> None:
    with pytest.raises(Undecodable):
        decode_row_key(key)


@pytest.mark.rule(52)
@given(
    st.builds(
        EpochStart,
        st.text(min_size=1, max_size=20),
        st.none() | st.just(TOPIC_ID),
        st.integers(0, 2**31 - 1),
        st.just("s/1"),
        st.integers(1, 2**63 - 1),
        st.just(ID),
        st.builds(
            Position, st.none() | st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1)
        ),
    )
)
def test_row_keys_go_both_ways(start: EpochStart) -> None:
    assert decode_row_key(row_key(start)) == start


@pytest.mark.rule(53)
def test_a_row_value() -> None:
    info = RowInfo("pod-7", 1_700_000_000_000, "0123456789abcdef")
    value = row_value(info)
    assert value.hex().startswith("c301fff5503a2c482ec5")
    assert decode_row_value(value) == info
    for bad in (None, b"", value + b"\0", value[:-1]):
        with pytest.raises(Undecodable):
            decode_row_value(bad)
    with pytest.raises(UnknownFingerprint):
        decode_row_value(b"\xc3\x01" + bytes(8))


@pytest.mark.rule(54)
def test_commit_metadata() -> None:
    metadata = CommitMetadata(TOPIC_ID, 3, {"s": 4, "r": 2})
    text = '{"epochfence":1,"t":"%s","n":3,"e":{"r":2,"s":4}}' % TOPIC_ID  # noqa: UP031
    assert metadata.encode() == text
    assert decode_commit_metadata(text) == metadata
    beyond = CommitMetadata(TOPIC_ID)
    assert beyond.encode() == '{"epochfence":1,"t":"%s"}' % TOPIC_ID  # noqa: UP031
    assert decode_commit_metadata(beyond.encode()) == beyond
    assert json.loads(CommitMetadata(None, 0, {}).encode())["t"] is None
    assert "e" not in json.loads(metadata.encode(with_epochs=False))


@pytest.mark.rule(55)
def test_epochs_are_left_out_where_they_do_not_fit() -> None:
    scopes = {f"scope-{number:04}": 2**62 for number in range(200)}
    short = CommitMetadata(TOPIC_ID, 200, scopes).encode()
    assert json.loads(short) == {"epochfence": 1, "t": TOPIC_ID, "n": 200}

    def length(name_length: int) -> tuple[int, bool]:
        text = CommitMetadata(TOPIC_ID, 1, {"x" * name_length: 1}).encode()
        return len(text), "e" in json.loads(text)

    longest = 3500 - length(1)[0] + 1
    assert length(longest) == (3500, True)
    assert length(longest + 1)[1] is False


@pytest.mark.rule(54)
@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "junk",
        "[]",
        '"epochfence"',
        "{}",
        '{"epochfence":2,"t":null}',
        '{"epochfence":1,"t":7}',
        '{"epochfence":1,"t":null,"n":"3"}',
        '{"epochfence":1,"t":null,"n":-3}',
        '{"epochfence":1,"t":null,"n":true}',
        '{"epochfence":1,"t":"short"}',
        '{"epochfence":1.0,"t":null}',
        '{"epochfence":true,"t":null}',
        '{"epochfence":1,"t":null,"n":3,"e":{"s":-1}}',
        "[" * 100_000,
        '{"epochfence":1,"t":null,"n":3,"e":[]}',
        '{"epochfence":1,"t":null,"n":3,"e":{"s":"4"}}',
    ],
)
def test_metadata_of_another_tool(text: str | None) -> None:
    assert decode_commit_metadata(text) is None
