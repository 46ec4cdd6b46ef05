"""Arguments of a wrong kind: a clear error before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import OFFSET_END, TopicPartition

from epochfence import Fence, MisconfiguredError
from epochfence.consumers.arguments import (
    checked_count,
    checked_flag,
    checked_names,
    checked_partitions,
    checked_timeout,
    places_to_commit,
)
from epochfence.epochs.values import check_function

FOREIGN: dict[str, Any] = {"require": {"orders": []}, "authority": "max-seen"}


def alone(**options: Any) -> Fence:
    return Fence(None, **{**FOREIGN, **options})


WRONG: list[tuple[Callable[[], object], str]] = [
    (lambda: checked_timeout("1"), "timeout = '1'"),  # type: ignore[arg-type]
    (lambda: checked_timeout(True), "timeout = True"),
    (lambda: checked_count("6"), "num_messages = '6'"),  # type: ignore[arg-type]
    (lambda: checked_count(1.5), "num_messages = 1.5"),  # type: ignore[arg-type]
    (lambda: checked_names("orders"), "a list of names"),
    (lambda: checked_names([b"orders"]), "a list of names"),  # type: ignore[list-item]
    (lambda: checked_partitions("orders"), "list of TopicPartition"),  # type: ignore[arg-type]
    (lambda: checked_partitions([("orders", 0)]), "list of TopicPartition"),  # type: ignore[list-item]
    (lambda: checked_partitions([TopicPartition("orders", 0, -7)]), "offset = -7"),
    (lambda: check_function("on_commit", 5), "on_commit = 5"),
    (lambda: checked_flag("rebuild", "no"), "rebuild = 'no'"),  # type: ignore[arg-type]
    (lambda: places_to_commit("x", None), "message = 'x'"),  # type: ignore[arg-type]
    (lambda: places_to_commit(None, [5]), "offsets"),  # type: ignore[list-item]
    (lambda: alone(starts=None), "take_new_starts"),
    (lambda: alone(starts=[{"topic": "orders"}]), "take_new_starts"),
    (lambda: alone(on_rejected=5), "on_rejected"),
    (lambda: alone(require={}), "lists no topic"),
    (lambda: Fence("ledger", **FOREIGN), "no Ledger"),  # type: ignore[arg-type]
    (lambda: Fence(None, require={"orders": ["w"]}), "no ledger to ask"),
    (lambda: alone().judge("x"), "no message"),  # type: ignore[arg-type]
    (lambda: alone().filter(["x"]), "no message"),  # type: ignore[list-item]
]


@pytest.mark.parametrize(("call", "told"), WRONG)
def test_arguments_of_a_wrong_kind(call: Callable[[], object], told: str) -> None:
    with pytest.raises(MisconfiguredError) as refused:
        call()
    assert told in str(refused.value)


def test_arguments_of_the_right_kind() -> None:
    assert checked_timeout(None) < 0
    assert checked_timeout(2) == 2
    assert checked_count(0) == 0
    for wrong in (-1, 1_000_001):
        with pytest.raises(ValueError, match="1000000"):
            checked_count(wrong)
    end = TopicPartition("orders", 0, OFFSET_END)
    assert checked_partitions((end,)) == [end]
    assert places_to_commit(None, None) is None
    check_function("on_commit", None)
