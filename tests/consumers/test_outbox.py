"""Messages on their way, and where their partitions then stand."""

from __future__ import annotations

from confluent_kafka import Message
from hypothesis import given
from hypothesis import strategies as st

from epochfence import FenceSettings
from epochfence.consumers.outbox import Outbox
from epochfence.consumers.partition import AssignedPartition


def partition(number: int) -> AssignedPartition:
    made = AssignedPartition("t", number, FenceSettings(), None)
    made.next_offset = 0
    return made


def message(number: int, offset: int) -> Message:
    return Message(topic="t", partition=number, offset=offset)


@given(
    batches=st.lists(st.lists(st.integers(0, 2), max_size=6), max_size=6),
    takes=st.lists(st.integers(1, 5), max_size=30),
    dropped=st.none() | st.integers(0, 2),
)
def test_positions_follow_what_was_handed_over(
    batches: list[list[int]], takes: list[int], dropped: int | None
) -> None:
    """Every third offset was rejected, so that ends lie behind the last message."""
    partitions = [partition(number) for number in range(3)]
    outbox = Outbox()
    at = [0, 0, 0]
    waiting: list[tuple[int, int]] = []
    ends = [0, 0, 0]
    handed: list[tuple[int, int]] = []
    steps = list(takes)
    for batch in batches:
        messages: list[Message] = []
        for number in batch:
            messages.append(message(number, at[number]))
            waiting.append((number, at[number]))
            at[number] += 1
        touched = set(batch)
        for number in touched:
            at[number] += 1  # a rejected one behind
            ends[number] = at[number]
        outbox.add(messages, {partitions[n]: ends[n] for n in touched})
        if steps:
            for one in outbox.take(steps.pop()):
                handed.append((one.partition() or 0, one.offset() or 0))
        assert handed + waiting[len(handed) :] == waiting
        if len(handed) == len(waiting):
            assert [p.next_offset for p in partitions] == ends
        for number in range(3):
            position = partitions[number].next_offset
            assert position is not None
            # Never beyond a message that waits, nor before one that was handed over.
            left = [at for place, at in waiting[len(handed) :] if place == number]
            gone = [at for place, at in handed if place == number]
            assert max([-1, *gone]) < position <= min([ends[number], *left])
            assert outbox.holds(("t", number)) or position == ends[number]
    if dropped is not None:
        before = partitions[dropped].next_offset
        outbox.drop([("t", dropped)])
        rest = outbox.take(1000)
        assert all(one.partition() != dropped for one in rest)
        assert partitions[dropped].next_offset == before
        assert not outbox.holds(("t", dropped))


def test_what_is_taken_whole_is_not_copied() -> None:
    outbox = Outbox()
    messages = [message(0, 0), message(0, 1)]
    outbox.add(messages, {partition(0): 2})
    assert outbox.take(2) is messages
    assert len(outbox) == 0


def test_a_batch_of_rejected_ones_moves_the_position() -> None:
    outbox = Outbox()
    one = partition(0)
    outbox.add([], {one: 7})
    assert one.next_offset == 7
    outbox.add([message(0, 7)], {one: 8})
    outbox.add([], {one: 9})
    assert one.next_offset == 7
    outbox.take(1)
    assert one.next_offset == 9
