"""Records what a real kube-apiserver answers, for the tests that go without one.

    python tests/record_kubernetes.py path/to/kube-apiserver

It starts the program with an etcd of its own, tells it the stories of
`support.lease_stories`, and writes the exchanges into `tests/data`. Then it runs the
tests of the election by a Lease against that very server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path

import urllib3

from support.kube_apiserver import KubeApiserver, start_kube_apiserver
from support.lease_http import Answer, LeaseServer, Question, ask
from support.lease_recording import RECORDING, Exchange, Recording
from support.lease_stories import STORIES, Teller
from support.leases import KUBERNETES_VARIABLE
from support.unavailable import Unavailable

_TESTS = Path(__file__).parent / "elections"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("program", help="kube-apiserver")
    parser.add_argument(
        "--only-test", action="store_true", help="keep the recording that is there"
    )
    asked = parser.parse_args()
    # The server has made its certificate itself.
    urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        try:
            server = start_kube_apiserver(stack, asked.program)
        except Unavailable as reason:
            parser.exit(2, f"{reason}\n")
        if not asked.only_test:
            recording = _recorded(server, folder)
            recording.write(RECORDING)
            for name, exchanges in recording.stories.items():
                print(f"{name}: {len(exchanges)} exchanges")
        print(f"recorded with, and tested against: {server.version()}", flush=True)
        return _tested(server.kubeconfig(folder))


def _recorded(server: KubeApiserver, folder: Path) -> Recording:
    stories = {name: _told(server.url, name, folder) for name in STORIES}
    return Recording(
        server=f"kube-apiserver {server.version()}",
        client=f"kubernetes {version('kubernetes')}",
        date=datetime.now(timezone.utc).date().isoformat(),
        stories=stories,
    )


def _told(url: str, name: str, folder: Path) -> list[Exchange]:
    exchanges: list[Exchange] = []

    def pass_on(question: Question) -> Answer:
        answer = ask(url, question)
        exchanges.append(Exchange(question, answer))
        return answer

    with LeaseServer(pass_on) as between:
        STORIES[name](Teller(between.url, folder))
    return exchanges


def _tested(kubeconfig: Path) -> int:
    command = [sys.executable, "-m", "pytest", "-k", "kubernetes", str(_TESTS)]
    environment = {**os.environ, KUBERNETES_VARIABLE: str(kubeconfig)}
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
