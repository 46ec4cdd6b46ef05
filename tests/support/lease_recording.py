"""Exchanges with a real kube-apiserver, recorded once, and what they are compared by.

What differs from one run to the next (who stands, when, under which version) is bound:
each value of the recording stands for one of the present run, always the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from support.lease_http import Answer, Question

RECORDING = Path(__file__).parents[1] / "data" / "kubernetes-leases.json"

#: What is each run's own.
_BOUND = {"acquireTime", "holderIdentity", "renewTime", "resourceVersion", "uid"}

#: Which client has set which field, and a time in whole seconds: nothing reads them.
_PASSED_OVER = {"managedFields", "creationTimestamp"}


@dataclass(frozen=True)
class Exchange:
    """A question, and its answer."""

    question: Question
    answer: Answer


@dataclass(frozen=True)
class Recording:
    """Exchanges by story, and what they were recorded with."""

    server: str
    client: str
    date: str
    stories: Mapping[str, Sequence[Exchange]]

    def write(self, path: Path) -> None:
        """Write it into a file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_recording(path: Path = RECORDING) -> Recording:
    """Read it from a file."""
    found = json.loads(path.read_text())
    stories = {
        name: [
            Exchange(Question(**one["question"]), Answer(**one["answer"]))
            for one in exchanges
        ]
        for name, exchanges in found.pop("stories").items()
    }
    return Recording(**found, stories=stories)


class Likeness:
    """Which value of the present run each one of the recording stands for."""

    def __init__(self) -> None:
        self._present: dict[str, str] = {}

    def of(self, recorded: Any) -> Any:
        """What was recorded, in the present run's values."""
        if isinstance(recorded, dict):
            return {name: self.of(value) for name, value in recorded.items()}
        if isinstance(recorded, list):
            return [self.of(one) for one in recorded]
        if not isinstance(recorded, str):
            return recorded
        if recorded in self._present:
            return self._present[recorded]
        # An error's text names a Lease's uid.
        for value, present in self._present.items():
            if len(value) == len("00000000-0000-0000-0000-000000000000"):
                recorded = recorded.replace(value, present)
        return recorded

    def check(self, recorded: Any, present: Any, where: str = "") -> None:
        """Compare, and bind what is new.

        Raises:
            AssertionError: They are not alike.
        """
        if isinstance(recorded, dict) and isinstance(present, dict):
            names = recorded.keys() | present.keys()
            for name in sorted(names - _PASSED_OVER):
                assert name in recorded, f"{where}: {name} was not there"
                assert name in present, f"{where}: {name} is not there"
                self._check_field(name, recorded[name], present[name], where)
        elif isinstance(recorded, list) and isinstance(present, list):
            assert len(recorded) == len(present), where
            for one, other in zip(recorded, present, strict=True):
                self.check(one, other, where)
        else:
            assert self.of(recorded) == present, where

    def _check_field(self, name: str, recorded: Any, present: Any, where: str) -> None:
        where = f"{where}/{name}"
        if name in _BOUND and recorded and recorded not in self._present:
            assert present, where
            assert present not in self._present.values(), f"{where}: seen before"
            self._present[recorded] = present
        else:
            self.check(recorded, present, where)


class Replay:
    """Answers as it was recorded, question by question."""

    def __init__(self, exchanges: Sequence[Exchange]) -> None:
        self._left = list(exchanges)
        self._likeness = Likeness()
        #: What was asked that had not been.
        self.faults: list[str] = []

    def answer(self, question: Question) -> Answer:
        """The answer that was recorded."""
        try:
            assert self._left, "there were no more questions"
            recorded = self._left.pop(0)
            self._likeness.check(asdict(recorded.question), asdict(question))
        except AssertionError as fault:
            self.faults.append(f"{question.method} {question.path}: {fault}")
            return Answer(500, {"fault": str(fault)})
        return Answer(recorded.answer.status, self._likeness.of(recorded.answer.body))

    def is_over(self) -> bool:
        """Whether everything was asked."""
        return not self._left
