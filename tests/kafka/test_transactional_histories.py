"""Random histories of leaders that write in transactions."""

from __future__ import annotations

import pytest

from epochfence import Ledger
from support.brokers import KafkaBroker
from support.transaction_play import play


@pytest.mark.parametrize("seed", range(2))
def test_confirm_says_what_readers_have(
    kafka: KafkaBroker, ledger: Ledger, seed: int
) -> None:
    play(kafka, ledger, seed, steps=30)
