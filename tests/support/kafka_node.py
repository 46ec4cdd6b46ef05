"""One Kafka node: a Java process that a test may kill, freeze, thaw and restart."""

import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient

from support.cluster_view import ClusterView, ask
from support.kafka_jars import find_java, kafka_classpath
from support.scratch import Scratch
from support.unavailable import StartFailed
from support.waiting import wait_until

LOOPBACK = "127.0.0.1"

_START_TIMEOUT_S = 90
_FORMAT_TIMEOUT_S = 90
_VIEW_TIMEOUT_S = 3
_LOG_TAIL_LINES = 40

# The first compiler stage and the serial collector start fastest and need least
# memory. Without performance data and with a temporary folder of its own, a killed
# process leaves no file behind elsewhere.
_JAVA_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData")

_LOG_CONFIGURATION = """\
<Configuration status="WARN">
  <Appenders>
    <Console name="out">
      <PatternLayout pattern="%d %p %m (%c{1})%n%throwable"/>
    </Console>
  </Appenders>
  <Loggers><Root level="INFO"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""


def pick_ports(count: int) -> list[int]:
    """Return free loopback ports that stay free while their node is down.

    The system hands out ports above 32,000 to outgoing connections: one of those
    could be taken by a client while its node is being restarted.
    """
    chance = secrets.SystemRandom()  # pytest-randomly seeds the ordinary one alike
    ports: list[int] = []
    while len(ports) < count:
        port = chance.randrange(20_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
        if port not in ports:
            ports.append(port)
    return ports


@dataclass(frozen=True)
class KafkaRuntime:
    """Where Java and Kafka are."""

    java: str
    classpath: str

    @classmethod
    def find(cls) -> "KafkaRuntime":
        """Find Java and Kafka's jars, or raise `Unavailable`."""
        return cls(java=find_java(), classpath=kafka_classpath())

    def command(self, folder: Path, *arguments: str) -> list[str]:
        """Return the command that runs a class of Kafka's."""
        options = [*_JAVA_OPTIONS, f"-Djava.io.tmpdir={folder}"]
        return [self.java, *options, "-cp", self.classpath, *arguments]


class KafkaNode:
    """A broker that is its own controller, alone or as one of several voters.

    States: down, running, paused. `kill`, `resume` and `start` are also allowed where
    they have nothing to do, so that a clean-up need not know what a test has done;
    `pause` needs a running node, and a paused one must be resumed or killed first.
    """

    def __init__(
        self,
        node_id: int,
        port: int,
        properties: Mapping[str, str],
        scratch: Scratch,
        runtime: KafkaRuntime,
    ) -> None:
        self.node_id = node_id
        self.bootstrap_servers = f"{LOOPBACK}:{port}"
        self._scratch = scratch
        self._runtime = runtime
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        self._folder = scratch.path / f"node-{node_id}"
        self._folder.mkdir()
        self._log = self._folder / "server.log"
        own = {"node.id": str(node_id), "log.dirs": str(self._folder / "data")}
        lines = [f"{name}={value}" for name, value in {**properties, **own}.items()]
        self._properties = self._folder / "server.properties"
        self._properties.write_text("\n".join([*lines, ""]))
        (self._folder / "log4j2.xml").write_text(_LOG_CONFIGURATION)

    @property
    def is_running(self) -> bool:
        """True while the process lives and is not paused."""
        return self._is_alive() and not self._paused

    def format(self, *arguments: str) -> None:
        """Prepare the empty data folder; the node must never have been started."""
        tool = ("kafka.tools.StorageTool", "format", "-c", str(self._properties))
        answer = subprocess.run(
            self._runtime.command(self._folder, "-Xmx128m", *tool, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_FORMAT_TIMEOUT_S,
            check=False,
        )
        if answer.returncode != 0:
            raise StartFailed(f"formatting node {self.node_id}:\n{answer.stdout}")

    def start(self) -> None:
        """Start the process where it is down, and wait until it answers."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process where it is down, and do not wait.

        Nodes that need each other to answer are all launched first.
        """
        if self._paused:
            raise RuntimeError(f"node {self.node_id} is paused: resume or kill it")
        if self._is_alive():
            return
        self.kill()  # reaps a process that ended by itself
        logging = f"-Dlog4j2.configurationFile={self._folder / 'log4j2.xml'}"
        memory = ("-Xms192m", "-Xmx384m")
        main = ("kafka.Kafka", str(self._properties))
        with self._log.open("ab") as log:
            # In a session of its own, a Ctrl-C at the terminal ends pytest alone,
            # which then ends the nodes in its order.
            self._process = subprocess.Popen(
                self._runtime.command(self._folder, *memory, logging, *main),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
            )
        self._scratch.register(self._folder.name, self._process.pid)

    def wait_until_ready(self) -> None:
        """Wait until the node answers and is itself among the cluster's brokers."""
        try:
            wait_until(self._answers, _START_TIMEOUT_S, f"node {self.node_id} answers")
        except TimeoutError as error:
            raise StartFailed(f"{error}\n{self.log_tail()}") from error

    def kill(self) -> None:
        """End the process as a power cut would; nothing is flushed or handed over."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None
        self._paused = False
        self._scratch.forget(self._folder.name)

    def pause(self) -> None:
        """Freeze the process: connections stay open, nothing answers."""
        self._signal(signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a paused process go on, which believes that no time has passed."""
        if self._paused:
            self._signal(signal.SIGCONT)
            self._paused = False

    def view(self) -> ClusterView | None:
        """Return the cluster as this node sees it; None where it does not answer.

        The client is a fresh one as it knows, and so asks, this node only.
        """
        servers = {"bootstrap.servers": self.bootstrap_servers}
        return ask(AdminClient({**servers, "log_level": 0}), _VIEW_TIMEOUT_S)

    def log_tail(self) -> str:
        """Return the last lines that the node logged."""
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        tail = text.splitlines()[-_LOG_TAIL_LINES:]
        return "\n".join([f"--- end of the log of node {self.node_id}:", *tail])

    def _answers(self) -> bool:
        if not self._is_alive():
            raise StartFailed(f"node {self.node_id} ended\n{self.log_tail()}")
        # Before it listens there is no need to bring up a client.
        host, port = self.bootstrap_servers.split(":")
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((host, int(port))) != 0:
                return False
        view = self.view()
        return view is not None and self.node_id in view.brokers

    def _is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None or not self._is_alive():
            raise RuntimeError(f"node {self.node_id} is down")
        os.kill(self._process.pid, number)
