"""Elections of an application's own, which raise what no election should."""

from __future__ import annotations

import logging
import threading

import pytest
from confluent_kafka import KafkaError, KafkaException

from epochfence import ElectionUnavailable, EpochfenceError, SinkUnavailable
from epochfence.leading.tenure import State
from epochfence.testing import MemoryLedger
from support.local_election import LocalElection
from support.local_lead import SCOPE, NewLead
from support.producing import doing

pytestmark = pytest.mark.usefixtures("topic")


class Killed(BaseException):
    """As Ctrl-C is."""


ODD = pytest.mark.parametrize(
    "odd",
    [
        ValueError("odd"),
        KafkaException(KafkaError(KafkaError._TRANSPORT, "odd")),
        EpochfenceError("odd"),
        SinkUnavailable("orders", "odd"),
        Killed("odd"),
    ],
    ids=lambda odd: type(odd).__name__,
)


def has_no_thread() -> bool:
    """Whether no tenure is watched any more."""
    names = [thread.name for thread in threading.enumerate()]
    return f"epochfence-tenure-{SCOPE}" not in names


@ODD
def test_a_candidacy_that_fails_ends_it(
    new_lead: NewLead, election: LocalElection, odd: BaseException
) -> None:
    vars(election)["campaign"] = doing(odd)
    leading = new_lead()
    for stand in (leading.__enter__, lambda: leading.serve(doing(None))):
        with pytest.raises(type(odd), match="odd"):
            stand()
        assert leading.state == "ended"
    assert election.resignations == 2


@ODD
def test_a_resignation_that_fails_is_told(
    new_lead: NewLead, election: LocalElection, odd: BaseException
) -> None:
    told: list[tuple[State, str]] = []

    def note(state: State, reason: str) -> None:
        told.append((state, reason))

    leading = new_lead(on_state=note)
    vars(election)["resign"] = doing(odd)
    with pytest.raises(type(odd), match="odd"), leading as tenure:
        pass
    assert tenure.over.is_set()
    assert has_no_thread()
    assert told[-1][0] == leading.state == "ended"
    # The election did not hear of it: it is asked again before the next candidacy.
    del vars(election)["resign"]
    with leading as tenure:
        assert tenure.leadership.epoch == 2
    assert told[-1] == ("ended", "resigned")


@pytest.mark.parametrize("is_served", [True, False])
def test_it_hides_no_error_of_the_work(
    new_lead: NewLead,
    election: LocalElection,
    caplog: pytest.LogCaptureFixture,
    is_served: bool,
) -> None:
    leading = new_lead()
    vars(election)["resign"] = doing(ValueError("odd"))
    fail = doing(ZeroDivisionError("mine"))

    def lead_once() -> None:
        if is_served:
            leading.serve(fail)
        with leading:
            fail()

    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        lead_once()
    assert "took no resignation: ValueError('odd')" in caplog.text
    assert has_no_thread()


def test_an_election_that_does_not_answer_a_resignation(
    new_lead: NewLead, election: LocalElection, memory_ledger: MemoryLedger
) -> None:
    """Who was deposed stands again all the same."""
    epochs: list[int] = []
    resign = election.resign

    def unanswered() -> None:
        resign()
        raise ElectionUnavailable(SCOPE, "no server answers")

    vars(election)["resign"] = unanswered

    def work(tenure: object) -> None:
        epochs.append(memory_ledger.state.epoch_of(SCOPE) or 0)
        if len(epochs) == 1:
            memory_ledger.claim(SCOPE, holder="b")

    new_lead().serve(work)
    assert epochs == [1, 3]
    assert election.lost.is_set()
