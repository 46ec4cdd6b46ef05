"""A candidate that wins, and is stopped before it claims, does not lead."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from support.brokers import KafkaBroker
from support.candidate import number, opened
from support.elections import SOON, an_office
from support.ledgers import unnamed_topics

_SCRIPT = Path(__file__).parents[1] / "support" / "candidate.py"
_WAIT_S = 60


@pytest.mark.parametrize(
    ("kind", "by_sequence"), [*((kind, False) for kind in SOON), ("postgres", True)]
)
def test_who_is_stopped_after_the_election_loses_the_claim(
    kind: str, by_sequence: bool, kafka: KafkaBroker, request: pytest.FixtureRequest
) -> None:
    """Even with a number from elsewhere that is above the successor's."""
    topics = unnamed_topics(kafka)
    told = {
        **an_office(kind, request),
        "servers": kafka.bootstrap_servers,
        **topics.names,
    }
    if by_sequence:
        told["sequence"] = f'"{told["scope"]}"'
        with psycopg.connect(told["conninfo"]) as connection:
            connection.execute(f"CREATE SEQUENCE {told['sequence']}".encode())
    command = [sys.executable, str(_SCRIPT), json.dumps(told)]
    with (
        topics.open() as ledger,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as sleeper,
    ):
        assert sleeper.stdin is not None
        assert sleeper.stdout is not None
        try:
            assert json.loads(sleeper.stdout.readline()) is True
            sleeper.send_signal(signal.SIGSTOP)
            election = opened(told)
            seen = ledger.refresh().epoch_of(told["scope"])
            assert election.campaign(_WAIT_S)
            leadership = ledger.claim(
                told["scope"], holder="successor", seen=seen, exactly=number(told)
            )
            sleeper.send_signal(signal.SIGCONT)
            sleeper.stdin.write("claim\n")
            sleeper.stdin.flush()
            assert json.loads(sleeper.stdout.readline()) == "successor"
            assert json.loads(sleeper.stdout.readline()) is True
            ledger.verify(leadership)
            assert not election.lost.is_set()
            election.close()
        finally:
            if sleeper.poll() is None:
                sleeper.kill()
