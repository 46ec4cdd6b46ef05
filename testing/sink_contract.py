"""What every sink must do, as tests: `class TestMySink(SinkContract)`."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence

import pytest
from confluent_kafka import Message

from epochfence.consumers.dead_letters import DeadLetter
from epochfence.consumers.sink import Sink, SinkBatch
from epochfence.epochs.errors import SinkFenced
from epochfence.epochs.values import EpochStart, Position, SinkPosition, SinkState

#: What `SinkContract.open_failing` cannot apply: a message with this value.
FAILING = b"cannot be applied"

_LIFE = "KTgZ3vR0Q0-1_abcdefghi"
_GRANT_ID = "9f3a1c22d4e5b6a7"
_TOPIC = "orders"
_ROUNDS = 20
_WAIT_S = 30


class SinkContract(ABC):
    """Tests that a sink must pass, run by pytest in a subclass of yours.

    Each test gets stores of its own: `open` and `applied` go by attributes that a
    fixture of yours sets (`autouse=True`).
    """

    @abstractmethod
    def open(self) -> Sink:
        """Another instance of the sink, on the test's one store.

        It applies each message so that `applied` finds its value. (A sink of yours
        that takes a function: one that stores `message.value()`.)
        """

    @abstractmethod
    def applied(self) -> list[bytes]:
        """The values of the messages that were applied, in any order."""

    def open_failing(self) -> Sink:
        """Another instance, which fails at a message whose value is `FAILING`.

        It has applied those before by then, and raises what you like. (A sink of
        yours that takes a function: one that raises.) Until you override it, the test
        that needs it is skipped.
        """
        pytest.skip("override SinkContract.open_failing: nothing fails here yet")

    def rejected(self) -> list[bytes]:
        """The values of the rejected records that were kept, in any order.

        For sinks that keep them (`keeps_rejected`). Until you override it, the test
        that needs it is skipped.
        """
        pytest.skip("override SinkContract.rejected: no rejected records are kept here")

    def test_an_empty_store_knows_nothing(self) -> None:
        assert self.open().load(_TOPIC, 0) is None

    def test_what_was_written_is_loaded_by_another_instance(self) -> None:
        first = _batch([b"a", b"b"], None, _at(2), [_began(1, 0)])
        self.open().write([first])
        assert self.open().load(_TOPIC, 0) == SinkState(_at(2), (_began(1, 0),))
        assert self.open().load(_TOPIC, 1) is None
        assert sorted(self.applied()) == [b"a", b"b"]

    def test_positions_go_on(self) -> None:
        sink = self.open()
        sink.write([_batch([b"a"], None, _at(1), [_began(1, 0)])])
        sink.write([_batch([b"b"], _at(1), _at(2), [])])
        sink.write([_batch([], _at(2), _at(9), [_began(2, 5)])])
        state = self.open().load(_TOPIC, 0)
        assert state is not None
        assert state.position == _at(9)
        assert set(state.starts) == {_began(1, 0), _began(2, 5)}
        assert sorted(self.applied()) == [b"a", b"b"]

    @pytest.mark.parametrize(
        "expected",
        [
            None,
            SinkPosition(_LIFE, 3, 1),
            SinkPosition(_LIFE, 4, 2),
            SinkPosition(_LIFE, None, 2),
            SinkPosition(None, 3, 2),
            SinkPosition(_LIFE[::-1], 3, 2),
        ],
    )
    def test_an_instance_that_is_behind_changes_nothing(
        self, expected: SinkPosition | None
    ) -> None:
        ahead = self.open()
        ahead.write([_batch([b"a"], None, _at(2), [_began(1, 0)])])
        with pytest.raises(SinkFenced) as fenced:
            self.open().write([_batch([b"z"], expected, _at(3), [_began(2, 2)])])
        assert (fenced.value.topic, fenced.value.partition) == (_TOPIC, 0)
        assert fenced.value.found == _at(2)
        assert fenced.value.expected == (expected or (None, None, None))
        assert self.open().load(_TOPIC, 0) == SinkState(_at(2), (_began(1, 0),))
        assert self.applied() == [b"a"]
        ahead.write([_batch([b"b"], _at(2), _at(3), [])])
        assert sorted(self.applied()) == [b"a", b"b"]

    def test_an_empty_store_is_not_what_was_expected(self) -> None:
        with pytest.raises(SinkFenced) as fenced:
            self.open().write([_batch([b"z"], _at(2), _at(3), [])])
        assert fenced.value.found == (None, None, None)
        assert self.open().load(_TOPIC, 0) is None
        assert self.applied() == []

    def test_all_partitions_of_a_transaction_or_none(self) -> None:
        sink = self.open()
        both = [
            _batch([b"a"], None, _at(1), [], partition=0),
            _batch([b"b"], None, _at(1), [], partition=1),
        ]
        sink.write(both)
        with pytest.raises(SinkFenced) as fenced:
            sink.write(
                [
                    _batch([b"c"], _at(1), _at(2), [], partition=0),
                    _batch([b"d"], None, _at(2), [], partition=1),
                ]
            )
        assert fenced.value.partition == 1
        for partition in (0, 1):
            assert sink.load(_TOPIC, partition) == SinkState(_at(1))
        assert sorted(self.applied()) == [b"a", b"b"]

    def test_what_cannot_be_applied_changes_nothing(self) -> None:
        sink = self.open_failing()
        sink.write([_batch([b"a"], None, _at(1), [_began(1, 0)])])
        start = _began(2, 1, partition=1)
        with pytest.raises(Exception) as failed:  # noqa: PT011 - whatever it raises
            sink.write(
                [
                    _batch([b"y"], _at(1), _at(2), [_began(2, 1)]),
                    _batch([b"z", FAILING], None, _at(2), [start], partition=1),
                ]
            )
        assert not isinstance(failed.value, SinkFenced)
        assert self.open().load(_TOPIC, 0) == SinkState(_at(1), (_began(1, 0),))
        assert self.open().load(_TOPIC, 1) is None
        assert self.applied() == [b"a"]
        # Nothing is left of it that keeps this instance, or another, from going on.
        sink.write([_batch([b"b"], _at(1), _at(2), [])])
        self.open().write([_batch([b"c"], None, _at(2), [start], partition=1)])
        assert self.open().load(_TOPIC, 1) == SinkState(_at(2), (start,))
        assert sorted(self.applied()) == [b"a", b"b", b"c"]

    def test_what_was_rejected_is_kept_with_its_batch_or_not_at_all(self) -> None:
        assert self.rejected() == []
        sink = self.open_failing()
        with_letter = [_letter(b"late", 0)]
        sink.write([_batch([b"a"], None, _at(2), [], rejected=with_letter)])
        assert self.rejected() == [b"late"]
        another = [_letter(b"later", 2)]
        with pytest.raises(SinkFenced):
            self.open().write([_batch([], _at(1), _at(3), [], rejected=another)])
        with pytest.raises(Exception):  # noqa: B017, PT011 - whatever it raises
            sink.write([_batch([FAILING], _at(2), _at(4), [], rejected=another)])
        assert self.rejected() == [b"late"]
        self.open().write([_batch([], _at(2), _at(3), [], rejected=another)])
        assert sorted(self.rejected()) == [b"late", b"later"]
        assert self.applied() == [b"a"]

    def test_starts_are_facts_and_may_be_told_again(self) -> None:
        sink = self.open()
        begun = [
            _began(1, 0),
            EpochStart(_TOPIC, None, 0, "~gen", 0, None, Position(None, 7)),
            EpochStart(_TOPIC, None, 0, "~gen", 2**63 - 1, None, Position(0, 2**40)),
        ]
        sink.write([_batch([], None, _at(8), begun)])
        sink.write([_batch([], _at(8), _at(9), [*begun, _began(1, 1)])])
        state = self.open().load(_TOPIC, 0)
        assert state is not None
        assert len(state.starts) == 4
        assert set(state.starts) == {*begun, _began(1, 1)}

    def test_what_is_not_known_is_kept_so(self) -> None:
        unknown = SinkPosition(None, None, 2**62)
        self.open().write([_batch([], None, unknown, [])])
        assert self.open().load(_TOPIC, 0) == SinkState(unknown)
        self.open().write([_batch([b"a"], unknown, _at(2**62 + 1), [])])
        assert self.open().load(_TOPIC, 0) == SinkState(_at(2**62 + 1))

    def test_partitions_are_apart(self) -> None:
        begun = [_began(1, 0), _began(1, 0, partition=1), _began(2, 5, partition=1)]
        self.open().write(
            [
                _batch([], None, _at(1), begun[:1], partition=0),
                _batch([], None, _at(7), begun[1:], partition=1),
            ]
        )
        sink = self.open()
        assert sink.load(_TOPIC, 0) == SinkState(_at(1), (begun[0],))
        other = sink.load(_TOPIC, 1)
        assert other is not None
        assert (other.position, set(other.starts)) == (_at(7), set(begun[1:]))

    def test_of_two_instances_at_once_one_wins(self) -> None:
        """What is compared is locked until the transaction ends."""
        sinks = [self.open(), self.open()]
        for round_number in range(_ROUNDS):
            before = _at(round_number) if round_number else None
            barrier = threading.Barrier(len(sinks))
            won: list[int] = []

            def write(
                number: int,
                before: SinkPosition | None = before,
                after: SinkPosition = _at(round_number + 1),  # noqa: B008
                barrier: threading.Barrier = barrier,
                won: list[int] = won,
            ) -> None:
                batch = _batch([b"%d" % number], before, after, [])
                barrier.wait(_WAIT_S)
                try:
                    sinks[number].write([batch])
                except SinkFenced:
                    return
                won.append(number)

            threads = [threading.Thread(target=write, args=(n,)) for n in (0, 1)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_WAIT_S)
            assert len(won) == 1, f"of round {round_number}: {won}"
        assert len(self.applied()) == _ROUNDS

    def test_topics_are_apart(self) -> None:
        sink = self.open()
        sink.write([_batch([b"a"], None, _at(1), [])])
        other = _batch([b"b"], None, _at(7), [], topic="payments")
        sink.write([other])
        state = sink.load("payments", 0)
        assert state is not None
        assert state.position.next_offset == 7
        assert sink.load(_TOPIC, 0) == SinkState(_at(1))


def _at(next_offset: int) -> SinkPosition:
    return SinkPosition(_LIFE, 3, next_offset)


def _began(epoch: int, offset: int, partition: int = 0) -> EpochStart:
    at = Position(3, offset)
    return EpochStart(_TOPIC, _LIFE, partition, "w", epoch, _GRANT_ID, at)


def _batch(
    values: Sequence[bytes],
    expected: SinkPosition | None,
    position: SinkPosition,
    starts: Sequence[EpochStart],
    *,
    partition: int = 0,
    topic: str = _TOPIC,
    rejected: Sequence[DeadLetter] = (),
) -> SinkBatch:
    first = position.next_offset - len(values)
    messages = [
        Message(
            topic=topic, partition=partition, offset=first + n, leader_epoch=3,
            key=value, value=value,
        )
        for n, value in enumerate(values)
    ]  # fmt: skip
    return SinkBatch(
        topic, partition, messages, expected, position, starts, starts, rejected
    )


def _letter(value: bytes, offset: int) -> DeadLetter:
    return DeadLetter(
        topic=_TOPIC, topic_id=_LIFE, partition=0, leader_epoch=3, offset=offset,
        timestamp=None, key=None, value=value,
        headers=(("trace", b"1"), ("trace", None)), verdict="stale",
        reason="stale-epoch", scope="w", epoch=1, current_epoch=2,
        holder="pod-7", rejected_at=1_700_000_000_000,
    )  # fmt: skip
