"""The fence for people with their own loop."""

from __future__ import annotations

from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, Message

from epochfence import (
    EpochStart,
    Fence,
    ForeignHeader,
    MisconfiguredError,
    Position,
    Verdict,
)

LIFE = "KTgZ3vR0Q0-1_abcdefghi"
NEXT_LIFE = "AAAAAAAAAAAAAAAAAAAAAA"


def fence(**options: Any) -> Fence:
    """A fence that goes by the epochs of another system, and so needs no ledger."""
    options.setdefault("require", {"t": [], "u": []})
    options.setdefault("unstamped", "quarantine")
    return Fence(None, stamps=ForeignHeader("gen", "decimal"), **options)


def record(
    offset: int,
    epoch: int | None,
    *,
    topic: str = "t",
    partition: int = 0,
    leader_epoch: int = 1,
) -> Message:
    return Message(
        topic=topic,
        partition=partition,
        offset=offset,
        leader_epoch=leader_epoch,
        headers=[] if epoch is None else [("gen", b"%d" % epoch)],
        value=b"v",
    )


def begun(epoch: int, offset: int, topic_id: str | None = None) -> EpochStart:
    return EpochStart("t", topic_id, 0, "~gen", epoch, None, Position(1, offset))


def test_only_what_may_be_applied_passes() -> None:
    alone = fence()
    messages = [record(n, epoch) for n, epoch in enumerate([1, 1, 2, 1, None, 2])]
    passed = alone.filter(messages)
    assert passed == [messages[n] for n in (0, 1, 2, 5)]
    assert alone.counts == {"ok": 4, "stale-epoch": 1, "unstamped": 1}
    # From an earlier offset again: the verdicts of before.
    assert alone.filter(messages[1:4]) == messages[1:3]


def test_partitions_and_topics_are_apart_and_events_stay_in_their_place() -> None:
    alone = fence()
    event = Message(topic="t", partition=1, error=KafkaError(KafkaError._PARTITION_EOF))
    messages = [
        record(0, 5),
        record(0, 3, partition=1),
        event,
        record(0, 2, topic="u"),
        record(1, 4),
        record(1, 3, partition=1),
    ]
    assert alone.filter(messages) == [*messages[:4], messages[5]]
    assert alone.filter([]) == []


def test_starts_go_out_once_and_come_in_again() -> None:
    alone = fence()
    alone.filter([record(0, 1), record(1, 2), record(0, 7, partition=1)])
    found = alone.take_new_starts()
    assert [(start.partition, start.epoch) for start in found] == [
        (0, 1),
        (0, 2),
        (1, 7),
    ]
    assert alone.take_new_starts() == []
    assert set(alone.starts) == set(found)
    # In the middle of the log, with what is known and without.
    assert fence(starts=found).filter([record(5, 1)]) == []
    later = fence()
    later.add_starts(found)
    assert set(later.starts) == set(found)
    assert later.filter([record(5, 1)]) == []
    assert fence().filter([record(5, 1)]) != []
    # Others may tell of a start while it runs.
    running = fence()
    assert running.filter([record(5, 1)]) != []
    running.add_starts([begun(3, 6)])
    assert running.filter([record(6, 1)]) == []
    assert running.filter([record(5, 1)]) != []


def test_starts_of_an_earlier_life_go_on_counting() -> None:
    alone = fence(starts=[begun(4, 900, LIFE)])
    alone.enter_life("t", LIFE)
    assert alone.filter([record(3, 2)]) != []
    alone.enter_life("t", NEXT_LIFE)
    assert alone.filter([record(0, 2)]) == []
    new = [start for start in alone.starts if start.topic_id == NEXT_LIFE]
    assert new == []


def test_one_record_with_everything_one_may_ask() -> None:
    told: list[tuple[int | None, Verdict]] = []

    def on_rejected(message: Message, verdict: Verdict) -> None:
        told.append((message.offset(), verdict))

    alone = fence(on_rejected=on_rejected)
    first = alone.judge(record(0, 3))
    assert (first.kind, first.reason, first.current_epoch) == ("admitted", "ok", 3)
    assert first.starts == (begun(3, 0),)
    assert alone.take_new_starts() == [begun(3, 0)]
    late = alone.judge(record(1, 2))
    assert (late.kind, late.reason, late.current_epoch) == ("stale", "stale-epoch", 3)
    assert late.cause is not None
    assert late.cause.epoch == 2
    assert told == [(1, late)]
    assert alone.counts == {"ok": 1, "stale-epoch": 1}


def test_what_makes_no_sense() -> None:
    with pytest.raises(MisconfiguredError, match="has no ledger to ask"):
        Fence(None, require={"t": ["s"]})
    alone = fence(require={"t": []})
    with pytest.raises(MisconfiguredError, match="listed: t"):
        alone.filter([record(0, 1), record(0, 1, topic="u")])
    with pytest.raises(MisconfiguredError, match="listed: t"):
        alone.judge(record(0, 1, topic="u"))
    event = Message(error=KafkaError(KafkaError._PARTITION_EOF), topic="t", partition=0)
    with pytest.raises(MisconfiguredError, match="an event of the client"):
        alone.judge(event)
    undecided = fence(unstamped=None)
    with pytest.raises(MisconfiguredError, match="admit-until-first-stamp"):
        undecided.filter([record(0, None)])


@pytest.mark.skipif(
    not hasattr(confluent_kafka, "Messages"), reason="this client has no share groups"
)
def test_a_batch_of_a_share_group_is_refused() -> None:
    kind: Any = confluent_kafka.Messages
    batch = kind.__new__(kind)
    with pytest.raises(MisconfiguredError, match="KIP-932"):
        fence().filter(batch)
