"""Questions to ZooKeeper that end in time; what it says no with, sorted."""

from __future__ import annotations

import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from math import ceil
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionClosedError,
    ConnectionLoss,
    InvalidACLError,
    KazooException,
    NoAuthError,
    NoNodeError,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState, KeeperState

from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.epochs.errors import MisconfiguredError

_log = logging.getLogger(__name__)

#: What of a client's settings is ours to say.
_OURS = ("hosts", "timeout", "client_id", "handler", "read_only")

#: What kazoo would take for the name of a host: anything.
_SERVER = re.compile(r"(?:\[[^\s\[\]/]+\]|[^\s:/@\[\]]+)(?::[0-9]{1,5})?\Z")

#: How often it is looked whether a client has connected.
_POLL_S = 0.02

#: How often a wait for an answer looks whether there is a connection.
_SLICE_S = 0.2

#: So many servers at least can be tried as long as a session lasts.
_TRIES = 3

#: How long a question waits for a connection that was lost: the next server is soon
#: found, as a rule.
_RECONNECT_S = 1.0

#: How long leaving may hold up its caller; a thread goes on with it after that.
_LEAVE_S = 1.0
_AGAIN_S = 0.2


def checked_settings(settings: Mapping[str, Any] | None) -> dict[str, Any]:
    """What is given to a client besides its servers and its time.

    Raises:
        MisconfiguredError: It cannot be.
    """
    if settings is None:
        return {}
    if not isinstance(settings, Mapping):
        raise MisconfiguredError(
            "settings", ..., "a mapping of settings is expected",
            "Give {'use_ssl': True, 'ca': path}, for instance.",
        )  # fmt: skip
    for name in _OURS:
        if name in settings:
            raise MisconfiguredError(
                name, settings[name], "the election sets this itself",
                "Give the servers as `connect`, the time as session_timeout_s=...",
            )  # fmt: skip
    if settings.get("sasl_options") and find_spec("puresasl") is None:
        raise MisconfiguredError(
            "sasl_options", ..., "kazoo needs pure-sasl for them",
            "Install it: pip install 'kazoo[sasl]'",
        )  # fmt: skip
    for name in ("ca", "certfile", "keyfile"):
        path = settings.get(name)
        if path is not None:
            _check_readable(name, path)
    return dict(settings)


def new_client(
    hosts: str, session_s: float, settings: Mapping[str, Any]
) -> KazooClient:
    """A client that is not started.

    Raises:
        MisconfiguredError: It cannot be made so.
    """
    servers, _, path = hosts.partition("/")
    are_servers = all(_SERVER.match(one.strip()) for one in servers.split(","))
    try:
        if not are_servers or path.startswith("/"):
            raise ValueError(hosts)
        client = KazooClient(hosts=_repeated(hosts), timeout=session_s, **settings)
    except (AttributeError, ValueError):
        raise MisconfiguredError(
            "connect", hosts, "not servers of ZooKeeper",
            "Give host:port of one or of several, with commas, and behind the last one "
            "the path under which all is to be (host:2181/path), or none.",
        ) from None  # fmt: skip
    except (TypeError, KazooException) as error:
        raise MisconfiguredError(
            "settings", ..., f"kazoo does not take them: {error}",
            "Give what KazooClient takes, such as auth_data, default_acl, use_ssl, ca.",
        ) from error  # fmt: skip
    return client


def _check_readable(name: str, path: Any) -> None:
    try:
        with open(path, "rb"):
            return
    except OSError as error:
        raise MisconfiguredError(
            name, path, f"it cannot be read: {error.strerror}", "Give a PEM file."
        ) from error


def _repeated(hosts: str) -> str:
    """The same servers, more than once where they are few.

    One that is starting may take a connection and never answer. kazoo waits for it as
    long as the session lasts, divided by the number of servers: alone, it would cost
    the session.
    """
    servers, slash, path = hosts.partition("/")
    times = ceil(_TRIES / len(servers.split(",")))
    return f"{','.join([servers] * times)}{slash}{path}"


def hosts_of(client: KazooClient) -> list[tuple[str, int]]:
    """The servers of a client, each once."""
    return list(dict.fromkeys(client.hosts or []))


class ZookeeperSession:
    """A client's session, as an election uses it.

    Args:
        client: The client; where it is given by the user, it runs already.
        is_own: Whether the client is the election's own, with one session.
        answer_s: How long a question may take.
    """

    def __init__(self, client: KazooClient, is_own: bool, answer_s: float) -> None:
        self._client = client
        self._is_own = is_own
        self._answer_s = answer_s

    def start(self) -> None:
        """Connect, where the client is the election's own.

        Raises:
            NoAnswerError: No server answers.
            MisconfiguredError: They let this client not in, or it does not run.
        """
        client, states = self._client, list[str]()
        if self._is_own:
            self._find_server()
            client.add_listener(states.append)
            client.start_async()
        deadline = time.monotonic() + self._answer_s
        while not client.connected:
            if client.client_state == KeeperState.AUTH_FAILED or (
                KazooState.LOST in states and client.client_state == KeeperState.CLOSED
            ):
                raise _not_let_in()
            if not self._is_own and client.client_state == KeeperState.CLOSED:
                raise MisconfiguredError(
                    "connect", ..., "the client does not run",
                    "Give one that was started, and is stopped after the election.",
                )  # fmt: skip
            if time.monotonic() >= deadline:
                raise NoAnswerError(f"no session within {self._answer_s:g} s")
            time.sleep(_POLL_S)

    def _find_server(self) -> None:
        """See that a server listens: kazoo goes on trying, and does not tell why."""
        reasons: dict[str, None] = {}
        hosts = hosts_of(self._client)
        share_s = self._answer_s / len(hosts)
        for host, port in hosts:
            try:
                socket.create_connection((host, port), share_s).close()
            except OSError as error:
                reasons[f"{host}:{port}: {error.strerror or error}"] = None
            else:
                return
        raise NoAnswerError("; ".join(reasons))

    def ask(self, question: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The answer to one of the client's `..._async` questions.

        Raises:
            NoAnswerError: There is none now.
            PlaceLostError: The session is over, or what was asked about is gone.
            MisconfiguredError: It is refused, and would be again.
        """
        self._wait_for_connection()
        try:
            return self._answer_to(question(*arguments, **named))
        except AuthFailedError as error:
            raise _not_let_in() from error
        except (NoAuthError, InvalidACLError) as error:
            raise MisconfiguredError(
                "connect", ..., "ZooKeeper does not allow this client to use the "
                f"election's nodes ({type(error).__name__})",
                "Give the credentials that they were made with (auth_data=...), or "
                "have their ACL allow this client to read, create and delete.",
            ) from error  # fmt: skip
        except (ConnectionLoss, OperationTimeoutError, SessionMovedError) as error:
            raise NoAnswerError(f"{type(error).__name__}") from error
        except (SessionExpiredError, ConnectionClosedError, NoNodeError) as error:
            # An own client that was not stopped ends for one reason only.
            if self._is_own and isinstance(error, ConnectionClosedError):
                raise _not_let_in() from error
            raise PlaceLostError(type(error).__name__) from error
        except KazooException as error:
            raise NoAnswerError(f"{type(error).__name__} {error}".strip()) from error

    def _answer_to(self, asked: Any) -> Any:
        deadline = time.monotonic() + self._answer_s
        while True:
            try:
                return asked.get(timeout=_SLICE_S)
            except KazooTimeoutError:
                # What is asked just after a connection was lost is kept, too.
                self._wait_for_connection()
                if time.monotonic() >= deadline:
                    raise NoAnswerError(
                        f"no answer within {self._answer_s:g} s"
                    ) from None

    def _wait_for_connection(self) -> None:
        """Have nothing asked without one: kazoo would keep it, and not answer."""
        deadline = time.monotonic() + min(_RECONNECT_S, self._answer_s)
        while self._client.client_state == KeeperState.CONNECTING:
            if time.monotonic() >= deadline:
                raise NoAnswerError("the connection is lost, and there is no other yet")
            time.sleep(_POLL_S)

    def leave(self, parent: str, name: str) -> None:
        """Have the node gone whose name begins so: bounded, and silent.

        Where there is no connection just now, a thread goes on with it: the session may
        last for long, and its node would block the office.
        """
        work = self._end if self._is_own else self._remove
        thread = threading.Thread(
            target=work, args=(parent, name), name="epochfence-election-leave",
            daemon=True,
        )  # fmt: skip
        thread.start()
        thread.join(_LEAVE_S)

    def _end(self, parent: str, name: str) -> None:
        # A client that is stopped without a connection closes no session: its node
        # would be there until the session's time is over.
        deadline = time.monotonic() + self._answer_s
        while self._client.state == KazooState.SUSPENDED:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
        try:
            self._client.stop()
            self._client.close()
        except Exception:  # kazoo raises bare ones where its thread does not end
            _log.warning("a client of ZooKeeper does not end in order", exc_info=True)

    def _remove(self, parent: str, name: str) -> None:
        client = self._client
        while client.state != KazooState.LOST:
            try:
                for child in self.ask(client.get_children_async, parent):
                    if child.startswith(name):
                        self.ask(client.delete_async, f"{parent}/{child}")
                return
            except NoAnswerError:
                time.sleep(_AGAIN_S)
            except (PlaceLostError, MisconfiguredError):
                return


def _not_let_in() -> MisconfiguredError:
    return MisconfiguredError(
        "connect", ..., "ZooKeeper does not let this client in",
        "Give credentials that it knows (auth_data=... or sasl_options=...).",
    )  # fmt: skip
