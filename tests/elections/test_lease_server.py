"""The recording of a real kube-apiserver: told again, and told to what stands in."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path

import pytest

from support.lease_fake import FakeLeases
from support.lease_http import Answer, LeaseServer, Question
from support.lease_recording import Exchange, Likeness, Replay, read_recording
from support.lease_stories import STORIES, Teller

_RECORDING = read_recording()


def test_every_story_is_recorded() -> None:
    assert _RECORDING.stories.keys() == STORIES.keys()


@pytest.mark.parametrize("name", STORIES)
def test_the_election_does_as_it_did_at_a_real_server(
    name: str, tmp_path: Path
) -> None:
    replay = Replay(_RECORDING.stories[name])
    with LeaseServer(replay.answer) as server:
        STORIES[name](Teller(server.url, tmp_path))
    assert replay.faults == []
    assert replay.is_over()


@pytest.mark.parametrize("name", STORIES)
def test_what_stands_in_answers_as_the_real_one(name: str) -> None:
    leases, likeness = FakeLeases(), Likeness()
    for number, one in enumerate(_RECORDING.stories[name]):
        answer = leases.answer(Question(**likeness.of(asdict(one.question))))
        likeness.check(asdict(one.answer), asdict(answer), f"{name} {number}")


def test_what_is_not_as_recorded_is_seen() -> None:
    question = Question("PUT", "/x", "admin", {"uid": "a", "spec": 1, "list": [{}]})
    told = Exchange(question, Answer(200, {"uid": "a", "resourceVersion": "7"}))
    other = {"uid": "b", "spec": 1, "list": [{}]}
    replay = Replay([told, told])
    first = replay.answer(replace(question, body=other))
    assert first == Answer(200, {"uid": "b", "resourceVersion": "7"})
    assert replay.faults == []
    for wrong in (
        {**other, "uid": "c"}, {**other, "spec": 2}, {"uid": "b"}, {**other, "more": 1},
        {**other, "list": []}, {**other, "spec": None},
    ):  # fmt: skip
        replay = Replay([told, told])
        replay.answer(replace(question, body=other))
        assert replay.answer(replace(question, body=wrong)).status == 500
        assert len(replay.faults) == 1
    assert replay.answer(question).status == 500
    assert replay.faults[1].endswith("there were no more questions")
