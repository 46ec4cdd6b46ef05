"""The testing kit's topics."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME

from epochfence import MisconfiguredError
from epochfence.testing import MemoryLog


@pytest.fixture
def log() -> MemoryLog:
    made = MemoryLog()
    made.create_topic("t", partitions=3)
    return made


def test_a_record_is_a_message_of_the_client(log: MemoryLog) -> None:
    record = log.append(
        "t", "v", "k", 2, headers={"a": "text", "b": None}, timestamp=1_700
    )
    assert (record.topic(), record.partition(), record.offset()) == ("t", 2, 0)
    assert (record.key(), record.value()) == (b"k", b"v")
    assert record.headers() == [("a", b"text"), ("b", None)]
    assert record.timestamp() == (TIMESTAMP_CREATE_TIME, 1_700)
    assert record.leader_epoch() == 0
    assert record.error() is None
    assert log.append("t", None, partition=2).offset() == 1
    assert [one.offset() for one in log.records("t", 2)] == [0, 1]
    assert log.records("t", 1) == []


def test_partitions_are_chosen_by_the_key_or_in_turn(log: MemoryLog) -> None:
    # As librdkafka does: the CRC-32 of the key.
    chosen = {log.append("t", b"v", b"k").partition() for _ in range(3)}
    assert chosen == {0x0862575D % 3}
    in_turn = [log.append("t", b"v").partition() for _ in range(3)]
    assert sorted(number or 0 for number in in_turn) == [0, 1, 2]


def test_a_cut_log_goes_on_under_another_leader_epoch(log: MemoryLog) -> None:
    for value in "abc":
        log.append("t", value, partition=0)
    log.truncate("t", 0, 1)
    again = log.append("t", "d", partition=0)
    assert (again.offset(), again.leader_epoch()) == (1, 1)
    log.change_leader("t")
    assert log.append("t", "e", partition=0).leader_epoch() == 2
    assert [one.value() for one in log.records("t", 0)] == [b"a", b"d", b"e"]


def test_a_topic_made_anew_has_another_id(log: MemoryLog) -> None:
    before = log.topic_id("t")
    log.append("t", "v", partition=0)
    log.recreate("t", partitions=1)
    assert log.topic_id("t") not in (None, before)
    assert log.topics() == {"t": [0]}
    assert log.records("t") == []
    log.recreate("t")
    assert log.topics() == {"t": [0]}


def test_a_record_is_stored_twice(log: MemoryLog) -> None:
    record = log.append("t", "v", "k", 1, headers=[("a", b"1")])
    copy = log.repeat(record)
    assert (copy.offset(), copy.value(), copy.headers()) == (1, b"v", [("a", b"1")])


WRONG: list[tuple[Callable[[MemoryLog], object], str]] = [
    (lambda log: log.create_topic("t"), "it exists already"),
    (lambda log: log.create_topic("u", 0), "no topic has so many"),
    (lambda log: log.append("u", "v"), r"there is none \(there are: \['t'\]\)"),
    (lambda log: log.append("t", "v", partition=3), "t has 3 of them"),
    (lambda log: log.recreate("u"), "create_topic"),
    (lambda log: log.truncate("t", 0, 1), "ends at offset 0"),
    (lambda log: log.fail(ValueError()), "no error that the library"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("wrong", "said"), WRONG)
def test_what_makes_no_sense(
    log: MemoryLog, wrong: Callable[[MemoryLog], object], said: str
) -> None:
    with pytest.raises(MisconfiguredError, match=said):
        wrong(log)
