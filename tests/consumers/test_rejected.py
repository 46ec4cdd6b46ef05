"""What becomes of rejected messages: a callback, lines in the log, a dry run."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import Message

from epochfence import Verdict
from epochfence.testing import MemoryConsumer, MemoryLedger, MemoryLog, MemoryProducer
from epochfence.testing.plugin import Depose

LOGGER = "epochfence.consumers.rejections"
REQUIRE = {"orders": ["w"]}


def test_they_are_handed_to_a_callback_and_told_with_their_holder(
    takeover: list[bytes],
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    caplog: pytest.LogCaptureFixture,
) -> None:
    rejected: list[tuple[int | None, Verdict]] = []

    def on_rejected(message: Message, verdict: Verdict) -> None:
        rejected.append((message.offset(), verdict))

    made_up = [("epochfence", b"77:0123456789abcdef:v")]
    memory_log.append("orders", "x", headers=made_up)
    with (
        caplog.at_level(logging.WARNING, LOGGER),
        MemoryConsumer(
            memory_ledger, require={"orders": []}, on_rejected=on_rejected
        ) as consumer,
    ):
        consumer.subscribe(["orders"])
        assert [message.value() for message in consumer] == takeover
    assert [(offset, v.reason) for offset, v in rejected] == [
        (9, "stale-epoch"), (10, "stale-epoch"), (11, "stale-epoch"), (14, "ungranted"),
    ]  # fmt: skip
    assert [r.getMessage() for r in caplog.records if r.name == LOGGER] == [
        "orders[0] offset 9 rejected: stale-epoch, scope 'w' epoch 1 held by 'pod', "
        "while epoch 2 is current",
        "orders[0] offset 14 rejected: ungranted, scope 'v' epoch 77, while none is "
        "current",
        "orders[0]: 2 more rejected, the last at offset 11: stale-epoch",
    ]


def test_a_flood_of_zombies_is_no_flood_of_lines(
    leader: MemoryProducer,
    memory_log: MemoryLog,
    memory_ledger: MemoryLedger,
    depose: Depose,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (first,) = leader.leaderships
    stale = [("epochfence", first.stamp_value)]
    MemoryProducer(memory_ledger, depose(first)).take_over(["orders"])
    for _ in range(5000):
        memory_log.append("orders", "late", headers=stale)
    with (
        caplog.at_level(logging.WARNING, "epochfence"),
        MemoryConsumer(memory_ledger, require=REQUIRE) as consumer,
    ):
        consumer.subscribe(["orders"])
        assert list(consumer) == []
        assert consumer.counts == {"barrier": 2, "stale-epoch": 5000}
    assert len(caplog.records) == 2


def test_a_failing_callback_loses_nothing(
    takeover: list[bytes], memory_ledger: MemoryLedger
) -> None:
    seen: list[int | None] = []

    def on_rejected(message: Message, _: Verdict) -> None:
        seen.append(message.offset())
        if len(seen) == 1:
            raise ValueError("not today")

    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, on_rejected=on_rejected)
    consumer.subscribe(["orders"])
    with pytest.raises(ValueError, match="not today"):
        consumer.consume(1000)
    assert [message.value() for message in consumer] == takeover
    assert seen == [9, 10, 11]


def test_in_dry_run_everything_but_barriers_is_delivered(
    takeover: list[bytes], memory_ledger: MemoryLedger
) -> None:
    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, mode="dry-run")
    consumer.subscribe(["orders"])
    values = [message.value() for message in consumer]
    assert consumer.counts == {"ok": 9, "barrier": 2, "stale-epoch": 3}
    assert len(values) == 12
    assert set(takeover) < set(values)
    assert values == sorted(value or b"" for value in values)


def test_a_dry_run_needs_no_decision_on_what_has_no_stamps(
    memory_log: MemoryLog, memory_ledger: MemoryLedger
) -> None:
    memory_log.create_topic("orders")
    for value in ("a", "b", "c"):
        memory_log.append("orders", value)
    leader = MemoryProducer(memory_ledger, memory_ledger.claim("w", holder="pod"))
    leader.take_over(["orders"])
    for value in ("d", "e"):
        leader.produce("orders", value)
    consumer = MemoryConsumer(memory_ledger, require=REQUIRE, mode="dry-run")
    consumer.subscribe(["orders"])
    assert b"".join(message.value() or b"" for message in consumer) == b"abcde"
    assert consumer.counts == {"ok": 2, "barrier": 1, "unstamped": 3}
