"""Dead letters: one spelling in rows and headers; what the runner hands to a sink."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from epochfence import SinkRunner, SqliteSink, Verdict
from epochfence.cli import app
from epochfence.consumers.dead_letters import (
    DEAD_LETTER_HEADER,
    DeadLetter,
    headers_of_letter,
    letter_of_message,
    letter_of_row,
    row_of_letter,
)
from epochfence.testing import MemoryLedger, MemoryLog, MemoryProducer, MemorySink
from epochfence.testing.plugin import Zombie
from support.running import running
from support.waiting import wait_until

numbers = st.integers(0, 2**63 - 1)
raw = st.none() | st.binary(max_size=20)
text = st.text(max_size=20)
letters = st.builds(
    DeadLetter,
    topic=st.text(min_size=1, max_size=20),
    topic_id=st.none() | text,
    partition=st.integers(0, 2**31 - 1),
    leader_epoch=st.none() | st.integers(0, 2**31 - 1),
    offset=numbers,
    timestamp=st.none() | numbers,
    key=raw,
    value=raw,
    headers=st.lists(
        st.tuples(text | st.sampled_from(["epochfence", "epochfence-barrier"]), raw),
        max_size=4,
    ).map(lambda pairs: tuple(sorted(pairs, key=is_others))),
    verdict=st.sampled_from(["stale", "quarantined"]),
    reason=st.sampled_from(["stale-epoch", "malformed"]),
    scope=st.none() | text,
    epoch=st.none() | numbers,
    current_epoch=st.none() | numbers,
    holder=st.none() | text,
    rejected_at=numbers,
)


def is_others(header: tuple[str, bytes | None]) -> bool:
    """In a topic, the fence's own headers come first."""
    return not header[0].startswith("epochfence")


@given(letters)
def test_a_row_holds_all_of_it(letter: DeadLetter) -> None:
    with sqlite3.connect(":memory:") as database:
        (row,) = database.execute(
            f"SELECT {', '.join('?' * 16)}", row_of_letter(letter)
        ).fetchall()
    assert letter_of_row(row) == letter
    database.close()


@given(letters)
def test_a_record_holds_all_of_it(letter: DeadLetter) -> None:
    headers: Any = headers_of_letter(letter)
    record = Message(key=letter.key, value=letter.value, headers=headers)
    assert letter_of_message(record) == letter


@pytest.mark.parametrize(
    "value", [None, b"", b"{", b"[]", b"{}", b'{"headers":[]}', b"[" * 100_000, b"\xff"]
)
def test_a_record_that_is_none(value: bytes | None) -> None:
    headers: Any = [(DEAD_LETTER_HEADER, value)]
    assert letter_of_message(Message(value=b"v", headers=headers)) is None
    assert letter_of_message(Message(value=b"v")) is None


@pytest.fixture
def producer(memory_log: MemoryLog, memory_ledger: MemoryLedger) -> MemoryProducer:
    memory_log.create_topic("orders", partitions=1)
    leader = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="a"))
    leader.take_over(["orders"])
    return leader


def runner_of(ledger: MemoryLedger, sink: MemorySink, **options: Any) -> SinkRunner:
    return SinkRunner(
        {"group.id": "g"}, ledger, sink,
        require={"orders": ["w"]}, batch_wait_s=0.01, longest_wait_s=0.1, **options,
    )  # fmt: skip


def wait_for(sink: MemorySink, offset: int) -> None:
    def is_there() -> bool:
        state = sink.state("orders")
        return state is not None and state.position.next_offset == offset

    wait_until(is_there, 30, f"the sink comes to {offset}")


def write_late(producer: MemoryProducer, zombie: Zombie, count: int) -> None:
    producer.hold()
    for number in range(count):
        producer.produce("orders", f"late {number}")
    zombie(producer)


def test_each_is_handed_over_once_whatever_fails(
    producer: MemoryProducer, memory_ledger: MemoryLedger, zombie: Zombie
) -> None:
    producer.produce("orders", "a")
    write_late(producer, zombie, 3)
    sink = MemorySink()
    sink.fail(times=3)
    sink.lose_outcome(times=2)
    told: list[Message] = []

    def tell(message: Message, _: Verdict) -> None:
        told.append(message)

    runner = runner_of(memory_ledger, sink, on_rejected=tell)
    with running(runner, "orders"):
        wait_for(sink, 6)
    found = sink.rejected("orders")
    assert [one.value for one in found] == [b"late 0", b"late 1", b"late 2"]
    assert [one.holder for one in found] == ["a"] * 3
    assert [one.offset for one in found] == [3, 4, 5]
    assert [message.offset() for message in told] == [3, 4, 5]
    with running(runner_of(memory_ledger, sink), "orders"):
        producer.flush()
    assert len(sink.rejected("orders")) == 3


def test_each_is_handed_over_once_when_the_group_is_shared_out_anew(
    producer: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    zombie: Zombie,
) -> None:
    write_late(producer, zombie, 3)
    sink = MemorySink()
    sink.fail(times=1)
    with running(runner_of(memory_ledger, sink), "orders"):
        wait_until(lambda: sink.failures, 30, "the first write or load has failed")
        memory_log.rebalance("g")
        wait_for(sink, 5)
        memory_log.rebalance("g")
    assert [one.offset for one in sink.rejected("orders")] == [2, 3, 4]


def test_many_rejected_do_not_wait_for_messages(
    producer: MemoryProducer, memory_ledger: MemoryLedger, zombie: Zombie
) -> None:
    write_late(producer, zombie, 50)
    sink = MemorySink()
    runner = runner_of(memory_ledger, sink, batch_size=10)
    with running(runner, "orders"):
        wait_for(sink, 52)
    assert len(sink.rejected("orders")) == 50


def test_none_are_kept_unless_asked_for(
    producer: MemoryProducer,
    memory_ledger: MemoryLedger,
    zombie: Zombie,
    tmp_path: Path,
) -> None:
    write_late(producer, zombie, 3)
    path = tmp_path / "orders.db"
    with SqliteSink(path, nothing) as sink:
        runner = SinkRunner(
            {"group.id": "g"}, memory_ledger, sink,
            require={"orders": ["w"]}, batch_wait_s=0.01,
        )  # fmt: skip

        def is_there() -> bool:
            at = runner.progress.positions.get(("orders", 0))
            return at is not None and at.next_offset == 5

        with running(runner, "orders"):
            wait_until(is_there, 30, "all is read")
    assert "no dead letters are kept there" in refused("--sqlite", str(path))


def nothing(*_: object) -> None:
    """What is applied does not matter here."""


def refused(*options: str) -> str:
    """What `deadletters list` says, and ends with 2."""
    ran = CliRunner().invoke(
        app, ["deadletters", "list", *options], catch_exceptions=False
    )
    assert ran.exit_code == 2
    return ran.output


def test_stores_that_are_none(tmp_path: Path) -> None:
    missing = tmp_path / "missing.db"
    assert "unable to open" in refused("--sqlite", str(missing))
    assert not missing.exists()
    text = tmp_path / "text.db"
    text.write_text("no database, but long enough to be looked at" * 10)
    assert "not a database" in refused("--sqlite", str(text))
    said = refused("--postgres", "postgresql://nobody:secret@127.0.0.1:1/none")
    assert "refused" in said
    assert "secret" not in said
    assert "one place" in refused()
    assert "one place" in refused("--sqlite", "a", "--postgres", "b")
    assert "no broker is named" in refused("--from-topic", "dead")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--all"], "it is not said how"),
        (["--as-leader", "w"], "it is not said which ones"),
        (["name", "--all", "--as-leader", "w"], "it is not said which ones"),
        (["--all", "--unstamped"], "it would be rejected again"),
        (["--all", "--unstamped", "--as-leader", "w"], "it is not said how"),
    ],
)
def test_half_a_decision(options: list[str], said: str) -> None:
    ran = CliRunner().invoke(
        app, ["deadletters", "redrive", "--sqlite", "a.db", *options],
        catch_exceptions=False,
    )  # fmt: skip
    assert ran.exit_code == 2
    assert said in ran.output
