"""Takeover after takeover, on a real Kafka, by each kind of election."""

from __future__ import annotations

import random
from contextlib import ExitStack, closing

import pytest

from support.elections import SOON, an_office
from support.leaders_storm import Storm, open_doors
from support.ledgers import unnamed_topics

_CANDIDATES = 5
_SUCCESSIONS = 10


@pytest.mark.parametrize("kind", SOON)
def test_leaders_count_on_without_a_gap(
    kind: str, request: pytest.FixtureRequest
) -> None:
    told = an_office(kind, request)
    with ExitStack() as stack:
        kafka, doors = open_doors(stack, _CANDIDATES, told)
        storm = stack.enter_context(
            closing(Storm(kafka, unnamed_topics(kafka), told, doors))
        )
        storm.play(random.Random(kind), _SUCCESSIONS)
        assert storm.check() > _SUCCESSIONS
