"""What holds of every election whose places are kept: in a line, or by a Lease."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epochfence import ElectionUnavailable, MisconfiguredError
from support.cut_network import CutNetwork
from support.lines import (
    LONG_S,
    EtcdLine,
    LeaseOffice,
    Line,
    Office,
    ZookeeperLine,
)
from support.waiting import wait_until

_SCRIPT = Path(__file__).parents[1] / "support" / "line_candidate.py"
_WAIT_S = 60
_MOMENT_S = 5


@pytest.fixture(params=["etcd", "zookeeper"])
def line(request: pytest.FixtureRequest) -> Iterator[Line]:
    server = request.getfixturevalue(request.param)
    line = EtcdLine(server) if request.param == "etcd" else ZookeeperLine(server)
    yield line
    server.heal()  # else closing takes long
    line.close()


@pytest.fixture(params=["etcd", "zookeeper", "lease_server"])
def office(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Office]:
    server = request.getfixturevalue(request.param)
    kinds: dict[str, Callable[[Any], Office]] = {
        "etcd": EtcdLine,
        "zookeeper": ZookeeperLine,
        "lease_server": lambda server: LeaseOffice(server, tmp_path),
    }
    office = kinds[request.param](server)
    yield office
    server.heal()  # else closing takes long
    office.close()


def test_who_came_first_is_next(line: Line) -> None:
    first, second, third = (line.open() for _ in range(3))
    assert first.campaign(_WAIT_S)
    assert not second.campaign(0)
    assert not third.campaign(0)
    assert line.count() == 3
    first.resign()
    assert not third.campaign(0)
    assert second.campaign(_WAIT_S)
    assert not first.campaign(0)  # behind the third by now
    second.resign()
    assert not first.campaign(0)
    assert third.campaign(_WAIT_S)


def test_each_winner_has_a_higher_number(office: Office) -> None:
    numbers: list[int] = []
    first, second = office.open(), office.open()
    for candidate in (first, second, first):
        assert office.number(candidate) is None
        assert candidate.campaign(_WAIT_S)
        number = office.number(candidate)
        assert number is not None
        assert candidate.campaign(0)
        assert office.number(candidate) == number
        numbers.append(number)
        candidate.resign()
        assert office.number(candidate) is None
    assert numbers == sorted(set(numbers))


def test_who_waits_follows_at_once(line: Line) -> None:
    """Long before anybody could be taken for dead."""
    first, second = line.open(), line.open()
    assert first.campaign(_WAIT_S)
    elected: list[bool] = []
    waiting = threading.Thread(target=lambda: elected.append(second.campaign(LONG_S)))
    waiting.start()
    wait_until(lambda: line.count() == 2, _WAIT_S, "the second one waits")
    begun = time.monotonic()
    first.resign()
    waiting.join(LONG_S)
    assert elected == [True]
    assert time.monotonic() - begun < _MOMENT_S


def test_who_is_stopped_is_replaced_and_knows_when_it_wakes(office: Office) -> None:
    other = office.open()
    command = [sys.executable, str(_SCRIPT), json.dumps(office.told(office.shortest_s))]
    environment = {**os.environ, "PYTHONPATH": str(_SCRIPT.parents[1])}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=environment,
    ) as sleeper:  # fmt: skip
        assert sleeper.stdin is not None
        assert sleeper.stdout is not None
        try:
            assert json.loads(sleeper.stdout.readline()) is True
            sleeper.send_signal(signal.SIGSTOP)
            assert other.campaign(_WAIT_S)
            sleeper.send_signal(signal.SIGCONT)
            sleeper.stdin.write("awake?\n")
            sleeper.stdin.flush()
            knew_after_s = json.loads(sleeper.stdout.readline())
            assert knew_after_s is not None
            assert knew_after_s < 1
            assert not other.lost.is_set()
        finally:
            sleeper.kill()


def test_a_server_that_stands_still_deposes_by_the_clock(office: Office) -> None:
    candidate = office.open(office.shortest_s)
    assert candidate.campaign(_WAIT_S)
    number = office.number(candidate)
    office.server.freeze()
    begun = time.monotonic()
    assert candidate.lost.wait(_WAIT_S)
    assert time.monotonic() - begun < office.shortest_s + 1
    assert office.number(candidate) is None
    begun = time.monotonic()
    with pytest.raises(ElectionUnavailable, match=r"no answer|no session|no other"):
        candidate.campaign(0)
    assert time.monotonic() - begun < office.shortest_s + _MOMENT_S
    office.server.thaw()
    wait_until(lambda: _stands(office, candidate), _WAIT_S, "it is elected again")
    again = office.number(candidate)
    assert again is not None
    assert number is not None
    assert again > number


def _stands(office: Office, candidate: Any) -> bool:
    try:
        return bool(candidate.campaign(1))
    except ElectionUnavailable:
        return False


def test_a_server_that_restarts_soon_deposes_nobody(office: Office) -> None:
    elected, other = office.open(15), office.open(15)
    assert elected.campaign(_WAIT_S)
    number = office.number(elected)
    assert not other.campaign(0)
    office.server.stop()
    with pytest.raises(ElectionUnavailable, match=r"for 'office-.*127\.0\.0\.1"):
        other.campaign(0)
    office.server.start()
    wait_until(lambda: _answers(other), _WAIT_S, "the other one has been answered")
    assert not elected.lost.is_set()
    assert elected.campaign(0)
    assert office.number(elected) == number
    elected.resign()
    assert other.campaign(_WAIT_S)


def _answers(candidate: Any) -> bool:
    try:
        assert not candidate.campaign(0)
    except ElectionUnavailable:
        return False
    return True


def test_who_is_cut_off_knows_when_another_is_elected(line: Line) -> None:
    """Neither side is told: each goes by the other's silence.

    And who stands in the line stays there, without a call of `campaign`.
    """
    second, third = line.open(line.shortest_s), line.open()
    with CutNetwork(line.port) as network:
        cut_off = line.open(line.shortest_s, network.port)
        assert cut_off.campaign(_WAIT_S)
        assert not second.campaign(0)
        network.cut()
        assert not third.campaign(line.shortest_s * 1.5)
        assert second.campaign(_WAIT_S)
        assert cut_off.lost.wait(1)  # of which a busy machine may need some
        begun = time.monotonic()
        cut_off.close()
        assert time.monotonic() - begun < 2 * _MOMENT_S


def test_a_broken_connection_is_no_lost_office(office: Office) -> None:
    other = office.open()
    with CutNetwork(office.port) as network:
        elected = office.open(port=network.port)
        assert elected.campaign(_WAIT_S)
        network.reset()
        # Asked at another connection, since the first one is gone.
        assert not other.campaign(0.5)
        assert not elected.lost.is_set()
        assert elected.campaign(0)
        elected.resign()
        assert other.campaign(_WAIT_S)


def test_a_server_that_is_not_there(office: Office) -> None:
    candidate = office.open(port=1)
    begun = time.monotonic()
    for _ in range(2):
        with pytest.raises(ElectionUnavailable, match="refused"):
            candidate.campaign(_WAIT_S)
    assert time.monotonic() - begun < _MOMENT_S
    candidate.resign()
    assert candidate.lost.is_set()


def test_a_forked_process_has_no_office_and_ends_none(office: Office) -> None:
    elected, other = office.open(), office.open()
    assert elected.campaign(_WAIT_S)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answers = [str(elected.lost.is_set())]
        try:
            elected.campaign(0)
        except RuntimeError as error:
            answers.append(str(error))
        elected.close()
        os.write(write, "; ".join(answers).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with open(read, "rb") as answers_of_child:
        answer = answers_of_child.read().decode()
    assert answer.startswith("True; the election was opened before a fork")
    assert not other.campaign(0)
    assert not elected.lost.is_set()


def test_what_an_election_does_not_do(office: Office) -> None:
    with office.open() as candidate:
        with pytest.raises(TypeError, match="cannot be pickled"):
            pickle.dumps(candidate)
        never: Any
        for never in (-1, float("nan"), True, None, "1"):
            with pytest.raises(MisconfiguredError, match="only look"):
                candidate.campaign(never)
    with pytest.raises(RuntimeError, match="closed"):
        candidate.campaign(0)
