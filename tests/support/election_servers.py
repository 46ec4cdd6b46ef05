"""Servers of the tests' own, each one process on the loopback.

Etcd and ZooKeeper, which elect, and Redis, which counts.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import etcd3gw
import redis
import requests
from kazoo.client import KazooClient

from support.kafka_jars import find_java
from support.kafka_node import LOOPBACK, pick_ports
from support.scratch import Scratch
from support.unavailable import StartFailed, Unavailable
from support.waiting import wait_until

_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_LOG_TAIL_LINES = 30

#: Where Debian puts it; it names the other jars that it needs.
_ZOOKEEPER_JAR = Path("/usr/share/java/zookeeper.jar")


class ElectionServer(ABC):
    """A server that a test may freeze, thaw, stop and start again.

    `thaw`, `stop` and `start` are also allowed where they have nothing to do.
    """

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        self._log = scratch.path / "server.log"

    @abstractmethod
    def _command(self) -> list[str]: ...

    @abstractmethod
    def _answers(self) -> bool: ...

    def start(self) -> None:
        """Start it where it is down, and wait until it answers."""
        if self._process is None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command(),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self._scratch.path,
                    start_new_session=True,
                )
            self._scratch.register("server", self._process.pid)
        try:
            wait_until(self._is_up, _START_TIMEOUT_S, f"{type(self).__name__} answers")
        except TimeoutError as error:
            raise StartFailed(f"{error}\n{self._log_tail()}") from error

    def _is_up(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise StartFailed(f"{type(self).__name__} ended\n{self._log_tail()}")
        return self._answers()

    def stop(self) -> None:
        """End it as a crash would."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait(_STOP_TIMEOUT_S)
        self._process = None
        self._scratch.forget("server")

    def freeze(self) -> None:
        """Have it stand still, with every connection open."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def heal(self) -> None:
        """Have it run, whatever a test has done."""
        self.thaw()
        self.start()

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


class Etcd(ElectionServer):
    """One member, which is the cluster.

    Args:
        is_secure: Whether it speaks TLS alone, by a certificate that it makes itself.
    """

    def __init__(self, scratch: Scratch, is_secure: bool = False) -> None:
        super().__init__(scratch)
        found = shutil.which("etcd")
        if found is None:
            raise Unavailable("no etcd: install one: apt-get install etcd-server")
        self._program = found
        self.port, self._peer_port = pick_ports(2)
        self._is_secure = is_secure
        protocol = "https" if is_secure else "http"
        self.endpoint = f"{protocol}://{LOOPBACK}:{self.port}"
        self._data = scratch.path / "data"
        self._restored = 0
        #: The authority of its certificate, which is the certificate itself.
        self.ca = self._data / "fixtures" / "client" / "cert.pem"
        #: The certificate, and its key.
        self.certificate = (self.ca, self.ca.with_name("key.pem"))

    def _command(self) -> list[str]:
        options = {
            "listen-client-urls": self.endpoint,
            "advertise-client-urls": self.endpoint,
            "listen-peer-urls": f"http://{LOOPBACK}:{self._peer_port}",
        }
        given = [f"--{name}={at}" for name, at in options.items()]
        secure = ["--auto-tls"] if self._is_secure else []
        return [self._program, *self._membership(), *given, *secure]

    def _membership(self) -> list[str]:
        peer = f"http://{LOOPBACK}:{self._peer_port}"
        return [
            "--name=one", f"--data-dir={self._data}", f"--initial-cluster=one={peer}",
            f"--initial-advertise-peer-urls={peer}",
        ]  # fmt: skip

    def back_up(self) -> Path:
        """Have it write all that it holds into a file."""
        saved = self._scratch.path / "backup.db"
        saved.unlink(missing_ok=True)
        self._run("etcdctl", f"--endpoints={self.endpoint}", "snapshot", "save", saved)
        return saved

    def restore(self, saved: Path) -> None:
        """Have it start again with what it held at a backup."""
        self.stop()
        self._restored += 1
        self._data = self._scratch.path / f"restored-{self._restored}"
        # From 3.5 on, a tool of its own does it.
        tool = "etcdutl" if shutil.which("etcdutl") else "etcdctl"
        self._run(tool, "snapshot", "restore", saved, *self._membership())
        self.start()

    @staticmethod
    def _run(tool: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [tool, *map(str, arguments)],
            env={**os.environ, "ETCDCTL_API": "3"},
            capture_output=True,
            text=True,
            check=False,
            timeout=_START_TIMEOUT_S,
        )
        if done.returncode != 0:
            raise StartFailed(f"{tool}: {done.stdout}{done.stderr}")

    def _answers(self) -> bool:
        try:
            verify = str(self.ca) if self._is_secure else True
            return requests.get(f"{self.endpoint}/health", timeout=3, verify=verify).ok
        except OSError:  # of requests, too; or the certificate is not there yet
            return False

    @contextmanager
    def client(self) -> Generator[etcd3gw.Etcd3Client, None, None]:
        """A client that looks into it, and changes things."""
        with requests.Session() as session:
            yield etcd3gw.Etcd3Client(
                host=LOOPBACK, port=self.port, api_path="/v3/", session=session
            )

    def enable_users(self, *users: str) -> None:
        """Have it ask who somebody is; each one's password is the name.

        None but `root` may do anything yet.
        """
        with self.client() as client:
            for user in ("root", *users):
                self._tell(client, "auth/user/add", name=user, password=user)
            self._tell(client, "auth/user/grant", user="root", role="root")
            self._tell(client, "auth/enable")

    @staticmethod
    def _tell(client: etcd3gw.Etcd3Client, path: str, **what: object) -> None:
        client.post(client.get_url(path), json=what)


class Zookeeper(ElectionServer):
    """One server, alone."""

    def __init__(self, scratch: Scratch) -> None:
        super().__init__(scratch)
        if not _ZOOKEEPER_JAR.is_file():
            raise Unavailable("no ZooKeeper: install one: apt-get install zookeeper")
        self._java = find_java()
        (self.port,) = pick_ports(1)
        self.hosts = f"{LOOPBACK}:{self.port}"
        self._data = scratch.path / "data"
        settings = {
            "tickTime": "200",
            "minSessionTimeout": "400",
            "maxSessionTimeout": "60000",
            "dataDir": str(self._data),
            "clientPort": str(self.port),
            "clientPortAddress": LOOPBACK,
            "maxClientCnxns": "0",
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "*",
        }
        lines = [f"{name}={value}" for name, value in settings.items()]
        self._config = scratch.path / "zoo.cfg"
        self._config.write_text("\n".join([*lines, ""]))

    def _command(self) -> list[str]:
        return [
            self._java, "-Xmx128m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-XX:-UsePerfData", f"-Djava.io.tmpdir={self._scratch.path}",
            "-cp", str(_ZOOKEEPER_JAR),
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._config),
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with socket.create_connection((LOOPBACK, self.port), 3) as connection:
                connection.sendall(b"ruok")
                return connection.recv(16) == b"imok"
        except OSError:
            return False

    def lose_all(self) -> None:
        """Have it start again with nothing."""
        self.stop()
        shutil.rmtree(self._data)
        self.start()

    @contextmanager
    def client(self) -> Generator[Any, None, None]:
        """A KazooClient that runs; as Any, since it has no types."""
        client = KazooClient(self.hosts)
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()


class Redis(ElectionServer):
    """One server, which writes nothing down."""

    def __init__(self, scratch: Scratch) -> None:
        super().__init__(scratch)
        found = shutil.which("redis-server")
        if found is None:
            raise Unavailable("no Redis: install one: apt-get install redis-server")
        self._program = found
        (self.port,) = pick_ports(1)

    def _command(self) -> list[str]:
        return [
            self._program, "--port", str(self.port), "--bind", LOOPBACK, "--save", "",
            "--appendonly", "no", "--dir", str(self._scratch.path),
        ]  # fmt: skip

    def _answers(self) -> bool:
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.ConnectionError:
            return False

    @contextmanager
    def client(self) -> Generator[redis.Redis, None, None]:
        """A client."""
        with redis.Redis(LOOPBACK, self.port, socket_timeout=10) as client:
            yield client


S = TypeVar("S", bound=ElectionServer)


def _started(stack: ExitStack, server: S) -> S:
    stack.callback(server.stop)
    server.start()
    return server


def start_etcd(stack: ExitStack, is_secure: bool = False) -> Etcd:
    """An etcd of the tests' own.

    Raises:
        Unavailable: It is not installed.
    """
    return _started(stack, Etcd(stack.enter_context(Scratch("etcd")), is_secure))


def start_zookeeper(stack: ExitStack) -> Zookeeper:
    """A ZooKeeper of the tests' own.

    Raises:
        Unavailable: It is not installed.
    """
    return _started(stack, Zookeeper(stack.enter_context(Scratch("zookeeper"))))


def start_redis(stack: ExitStack) -> Redis:
    """A Redis of the tests' own.

    Raises:
        Unavailable: It is not installed.
    """
    return _started(stack, Redis(stack.enter_context(Scratch("redis"))))


def check_etcd_tools() -> None:
    """See that an etcd can be backed up and restored here.

    Raises:
        Unavailable: What does it is not installed.
    """
    if shutil.which("etcdctl") is None:
        raise Unavailable("no etcdctl: install it: apt-get install etcd-client")
