"""`epochfence leader run`: programs that run only while somebody leads."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from epochfence import Ledger
from support import auditing
from support.brokers import KafkaBroker
from support.leases import LeasePlace
from support.ledgers import LedgerTopics
from support.reading import read_all
from support.waiting import wait_until

_WAIT_S = 60

#: Writes what it finds in its environment, and stays; tells of SIGTERM.
_PROGRAM = """
import os, signal, sys, time
def told(*_):
    print("told to end", file=out, flush=True)
    sys.exit(0)
signal.signal(signal.SIGTERM, told)
out = open(sys.argv[1], "a")
names = ("SCOPE", "EPOCH", "GRANT_ID", "HOLDER", "STAMP")
print(*(os.environ["EPOCHFENCE_" + name] for name in names), file=out, flush=True)
time.sleep(600)
"""

_SOON = ("-X", "session.timeout.ms=1500", "-X", "heartbeat.interval.ms=200")


class Runner:
    """The command at work, as a process."""

    def __init__(
        self, topics: LedgerTopics, scope: str, folder: Path, *rest: str
    ) -> None:
        self._log = folder / f"log-{secrets.token_hex(4)}"
        self.out = folder / f"out-{secrets.token_hex(4)}"
        arguments = [
            "leader", "run", "--scope", scope,
            *(() if "--election" in rest else _SOON),
            *("-b", topics.kafka.bootstrap_servers),
            *("--coordination-topic", topics.coordination_topic),
            *("--table-topic", topics.table_topic),
            *(rest or ["--", sys.executable, "-c", _PROGRAM, str(self.out)]),
        ]  # fmt: skip
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "epochfence", *arguments], stderr=log
            )

    @property
    def said(self) -> list[str]:
        """What the program has said."""
        return self.out.read_text().splitlines() if self.out.exists() else []

    @property
    def log(self) -> str:
        """What the command has said."""
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(_WAIT_S)


@pytest.fixture
def scope() -> str:
    return f"billing-{secrets.token_hex(6)}"


@pytest.fixture
def runners() -> Iterator[list[Runner]]:
    made: list[Runner] = []
    yield made
    for runner in made:
        with suppress(ProcessLookupError):
            runner.process.send_signal(signal.SIGCONT)
            runner.process.terminate()
        runner.wait()


def program(*arguments: str) -> list[str]:
    return ["--", sys.executable, "-c", *arguments]


def test_a_program_runs_while_this_process_leads(
    kafka: KafkaBroker,
    topics: LedgerTopics,
    ledger: Ledger,
    scope: str,
    runners: list[Runner],
    tmp_path: Path,
) -> None:
    orders = kafka.create_topic("orders", partitions=2)
    out = tmp_path / "told"
    rest = ["--topic", orders, "--holder", "pod-7", *program(_PROGRAM, str(out))]
    runners.append(Runner(topics, scope, tmp_path, *rest))
    runners[0].out = out
    wait_until(lambda: runners[0].said, _WAIT_S, "the program runs")
    ledger.refresh()
    grant = ledger.leader(scope)
    assert grant is not None
    stamp = f"1:{grant.grant_id}:{scope}"
    assert runners[0].said == [f"{scope} 1 {grant.grant_id} pod-7 {stamp}"]
    barriers = [record.headers() for record in read_all(kafka, orders)]
    assert barriers == [[("epochfence-barrier", stamp.encode())]] * 2
    runners[0].process.terminate()
    assert runners[0].wait() == 0
    assert runners[0].said[1:] == ["told to end"]


def test_a_leader_that_sleeps_is_followed_and_its_program_ends(
    topics: LedgerTopics, scope: str, runners: list[Runner], tmp_path: Path
) -> None:
    first = Runner(topics, scope, tmp_path)
    runners.append(first)
    wait_until(lambda: first.said, _WAIT_S, "the first leads")
    second = Runner(topics, scope, tmp_path)
    runners.append(second)
    first.process.send_signal(signal.SIGSTOP)
    wait_until(lambda: second.said, _WAIT_S, "the second leads")
    assert second.said[0].split()[1] == "2"
    first.process.send_signal(signal.SIGCONT)
    wait_until(lambda: "told to end" in first.said, _WAIT_S, "its program ends")
    assert first.process.poll() is None
    assert "waiting" in first.log


def test_the_election_may_be_in_kubernetes(
    topics: LedgerTopics,
    kubernetes: LeasePlace,
    scope: str,
    runners: list[Runner],
    tmp_path: Path,
) -> None:
    out = tmp_path / "told"
    rest = ["--election", "kubernetes", "--election-server", kubernetes.kubeconfig]
    runners.append(Runner(topics, scope, tmp_path, *rest, *program(_PROGRAM, str(out))))
    runners[0].out = out
    try:
        wait_until(lambda: runners[0].said, _WAIT_S, "the program runs")
        spec = kubernetes.read(scope).spec
        assert spec is not None
        assert f":{runners[0].process.pid}:" in (spec.holder_identity or "")
        runners[0].process.terminate()
        assert runners[0].wait() == 0
        spec = kubernetes.read(scope).spec
        assert spec is not None
        assert spec.holder_identity == ""
    finally:
        kubernetes.delete(scope)


def test_who_ends_by_itself_ends_it(
    topics: LedgerTopics, scope: str, runners: list[Runner], tmp_path: Path
) -> None:
    for code, exit_code in (("raise SystemExit(7)", 7), (
        "import os; os.kill(os.getpid(), 9)", 137
    )):  # fmt: skip
        runners.append(Runner(topics, scope, tmp_path, *program(code)))
        assert runners[-1].wait() == exit_code


def test_once_a_leadership_is_over(
    topics: LedgerTopics,
    ledger: Ledger,
    scope: str,
    runners: list[Runner],
    tmp_path: Path,
) -> None:
    out = tmp_path / "told"
    rest = ["--once", "--grace", "0.1", *program(_PROGRAM, str(out))]
    runner = Runner(topics, scope, tmp_path, *rest)
    runners.append(runner)
    wait_until(out.exists, _WAIT_S, "it leads")
    ledger.claim(scope, holder="somebody else")
    assert runner.wait() == 1
    assert "somebody else" in runner.log


def test_what_does_not_end_is_killed_with_all_it_has_started(
    topics: LedgerTopics, scope: str, runners: list[Runner], tmp_path: Path
) -> None:
    out = tmp_path / "told"
    stubborn = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        f"if child: open({str(out)!r}, 'w').write(str(child))\n"
        "time.sleep(600)\n"
    )
    runner = Runner(topics, scope, tmp_path, "--grace", "0.2", *program(stubborn))
    runners.append(runner)
    wait_until(lambda: out.exists() and out.read_text(), _WAIT_S, "it runs")
    runner.process.terminate()
    assert runner.wait() == 0

    def is_gone() -> bool:
        try:
            os.kill(int(out.read_text()), 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{out.read_text()}/stat").read_text().rpartition(")")[2]
        return state.split()[0] == "Z"

    wait_until(is_gone, _WAIT_S, "its child is gone")


@pytest.mark.parametrize(
    ("rest", "told"),
    [
        (["--", "no-such-program"], "no such program"),
        (["--", __file__], "may not be executed"),
        (["--election", "etcd", "--", "true"], "nothing says where the election by et"),
        (["--election-server", "", "--election", "postgres", "--", "true"], "nothing"),
        (
            ["--election", "etcd", "--election-server", "a b", "--", "true"],
            "not servers of etcd",
        ),
        (
            ["--election", "etcd", "--election-server", "a", *_SOON, "--", "true"],
            "only an election on Kafka is held by a group",
        ),
        (["-X", "group.protocol=consumer", "--", "true"], "group.protocol"),
        (["-X", "session.timeout.ms=soon", "--", "true"], "session.timeout.ms"),
        (["--election-server", "x", "--", "true"], "held on its brokers"),
        (
            ["--election", "postgres", "--election-server", "x=", "--", "true"],
            "connect",
        ),
        (
            [
                "--election",
                "kubernetes",
                "--election-server",
                "gone.yaml",
                "--",
                "true",
            ],
            "there is no such file",
        ),
        (["--election", "raft", "--", "true"], "raft"),
        ([], "COMMAND"),
        (["--topic", "not-there", "--", "true"], "no such topic"),
    ],
)
def test_what_makes_no_sense(topics: LedgerTopics, rest: list[str], told: str) -> None:
    with topics.open():
        result = auditing.run(
            *("leader", "run", "--scope", "s"),
            *("-b", topics.kafka.bootstrap_servers),
            *("--coordination-topic", topics.coordination_topic),
            *("--table-topic", topics.table_topic),
            *rest,
        )
    assert result.exit_code == 2
    assert told in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.parametrize("name", ["etcd", "kubernetes", "postgres", "zookeeper"])
def test_a_client_that_is_not_installed(
    topics: LedgerTopics, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, f"epochfence.elections.{name}", None)
    result = auditing.run(
        *("leader", "run", "--scope", "s", "-b", topics.kafka.bootstrap_servers),
        *("--coordination-topic", topics.coordination_topic),
        *("--table-topic", topics.table_topic),
        *("--election", name, "--election-server", "x", "--", "true"),
    )
    assert result.exit_code == 2
    assert f"pip install 'epochfence[{name}]'" in " ".join(result.output.split())


def test_what_kazoo_says_of_a_server_that_is_none(
    topics: LedgerTopics, scope: str, tmp_path: Path, runners: list[Runner]
) -> None:
    """Kafka's port, taken for ZooKeeper's: told once a try, in our words."""
    server = topics.kafka.bootstrap_servers.split(",")[0]
    runner = Runner(
        topics, scope, tmp_path,
        *("--election", "zookeeper", "--election-server", server, "--", "true"),
    )  # fmt: skip
    runners.append(runner)
    wait_until(lambda: "no session within" in runner.log, _WAIT_S, "it is told")
    assert "Connection dropped" not in runner.log


@pytest.mark.parametrize("wrong", ["lingr.ms=5", "acks=1"])
def test_a_wrong_setting_costs_no_epoch(
    topics: LedgerTopics, scope: str, wrong: str
) -> None:
    """It is told before the candidacy: a claim could not be taken back."""
    result = auditing.run(
        *("leader", "run", "--scope", scope, "-b", topics.kafka.bootstrap_servers),
        *("--coordination-topic", topics.coordination_topic),
        *("--table-topic", topics.table_topic),
        *("-X", wrong, "--", "true"),
    )
    assert result.exit_code == 2
    assert wrong.partition("=")[0] in result.output
    with topics.open() as ledger:
        assert ledger.leader(scope) is None
