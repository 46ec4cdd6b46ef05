"""PostgreSQL: the server that the environment names, or one of the tests' own."""

import os
import pwd
import secrets
import shutil
import signal
import subprocess
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from support.kafka_node import LOOPBACK, pick_ports
from support.scratch import Scratch
from support.unavailable import StartFailed, Unavailable
from support.waiting import wait_until

POSTGRES_VARIABLE = "EPOCHFENCE_TEST_POSTGRES"
HOW_TO_GET_POSTGRES = (
    f"set {POSTGRES_VARIABLE} to the conninfo of a server (of a superuser), or install "
    f"one: apt-get install postgresql"
)

_SUPERUSER = "postgres"
_START_TIMEOUT_S = 60
_STOP_TIMEOUT_S = 20
_LOG_TAIL_LINES = 30

# What it keeps need not outlive the machine; a deadlock is to be noticed soon.
_SETTINGS = {
    "listen_addresses": LOOPBACK,
    "fsync": "off",
    "max_connections": "60",
    "max_prepared_transactions": "4",
    "deadlock_timeout": "100ms",
    "shared_buffers": "32MB",
}


class Postgres:
    """A server, with what tests need to make databases and to look into them."""

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    @contextmanager
    def database(self) -> Generator[str, None, None]:
        """A database of its own, by its conninfo; dropped in the end."""
        name = f"epochfence_{secrets.token_hex(6)}"
        database = sql.Identifier(name)
        self._do(sql.SQL("CREATE DATABASE {}").format(database))
        yield make_conninfo(self._conninfo, dbname=name)
        self._do(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(database))

    @contextmanager
    def role(self) -> Generator[str, None, None]:
        """A role that may log in, and nothing else; its password is its name."""
        name = f"epochfence_{secrets.token_hex(6)}"
        role = sql.Identifier(name)
        self._do(sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(role, name))
        yield name
        self._do(sql.SQL("DROP ROLE {}").format(role))

    def _do(self, statement: sql.Composed) -> None:
        with psycopg.connect(self._conninfo, autocommit=True) as connection:
            connection.execute(statement)


class OwnPostgres(Postgres):
    """A server that the tests may stop and start again."""

    def __init__(self, binaries: Path, scratch: Scratch) -> None:
        self._binaries = binaries
        self._scratch = scratch
        self._process: subprocess.Popen[bytes] | None = None
        # Its binaries refuse to run as root, whose folders others cannot enter.
        self._owner = _unprivileged() if os.geteuid() == 0 else None
        self._folder = scratch.path / "postgres"
        self._log = scratch.path / "server.log"
        self._folder.mkdir(mode=0o700)
        if self._owner is not None:
            scratch.path.chmod(0o711)
            os.chown(self._folder, self._owner.pw_uid, self._owner.pw_gid)
        self._data = self._folder / "data"
        (self._port,) = pick_ports(1)
        super().__init__(
            make_conninfo(
                host=LOOPBACK, port=self._port, user=_SUPERUSER, dbname="postgres"
            )
        )

    def create(self) -> None:
        """Make the data folder."""
        made = self._run(
            "initdb", "--pgdata", str(self._data), "--auth", "trust", "--no-sync",
            "--username", _SUPERUSER, "--encoding", "UTF8", "--locale", "C",
        )  # fmt: skip
        if made.wait(_START_TIMEOUT_S) != 0:
            raise StartFailed(f"initdb\n{self._log_tail()}")

    def start(self) -> None:
        """Start it where it is down, and wait until it answers."""
        if self._process is not None and self._process.poll() is None:
            return
        settings = {**_SETTINGS, "unix_socket_directories": str(self._folder)}
        options = [f"-c{name}={value}" for name, value in settings.items()]
        self._process = self._run(
            "postgres", "-D", str(self._data), "-p", str(self._port), *options
        )
        self._scratch.register("server", self._process.pid)
        try:
            wait_until(self._answers, _START_TIMEOUT_S, "PostgreSQL answers")
        except TimeoutError as error:
            raise StartFailed(f"{error}\n{self._log_tail()}") from error

    def stop(self) -> None:
        """End it, with every connection; at once where it does not end in time."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_STOP_TIMEOUT_S)
        self._process = None
        self._scratch.forget("server")

    def _run(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        owner = self._owner
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [str(self._binaries / program), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self._folder,
                start_new_session=True,
                user=None if owner is None else owner.pw_uid,
                group=None if owner is None else owner.pw_gid,
                extra_groups=None if owner is None else [],
            )

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise StartFailed(f"PostgreSQL ended\n{self._log_tail()}")
        try:
            psycopg.connect(self._conninfo, connect_timeout=3).close()
        except psycopg.OperationalError:
            return False
        return True

    def _log_tail(self) -> str:
        lines = self._log.read_text(errors="replace").splitlines()
        return "\n".join(lines[-_LOG_TAIL_LINES:])


def open_postgres(stack: ExitStack) -> Postgres:
    """The server that the environment names, or else one of the tests' own.

    Raises:
        Unavailable: There is neither.
    """
    named = os.environ.get(POSTGRES_VARIABLE)
    if not named:
        return start_postgres(stack)
    conninfo_to_dict(named)
    return Postgres(named)


def start_postgres(stack: ExitStack) -> OwnPostgres:
    """A server of the tests' own.

    Raises:
        Unavailable: Its binaries are not installed.
    """
    binaries = _find_binaries()
    server = OwnPostgres(binaries, stack.enter_context(Scratch("postgres")))
    stack.callback(server.stop)
    server.create()
    server.start()
    return server


def _find_binaries() -> Path:
    # Debian keeps them off the PATH, a folder for each version.
    debian = Path("/usr/lib/postgresql").glob("*/bin/postgres")
    found = sorted(debian, key=lambda path: float(path.parts[-3]))
    on_path = shutil.which("postgres")
    if on_path is not None:
        found.append(Path(on_path).resolve())
    if not found:
        raise Unavailable(f"no PostgreSQL: {HOW_TO_GET_POSTGRES}")
    return found[-1].parent


def _unprivileged() -> pwd.struct_passwd:
    for name in ("postgres", "nobody"):
        with suppress(KeyError):
            return pwd.getpwnam(name)
    raise Unavailable("PostgreSQL does not run as root, and there is no other user")
