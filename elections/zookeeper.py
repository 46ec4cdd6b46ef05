"""An election by nodes of ZooKeeper: whoever has the oldest one is elected."""

from __future__ import annotations

import os
import re
import secrets
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from kazoo.client import KazooClient
from kazoo.protocol.states import KazooState

from epochfence.elections.errors import PlaceLostError
from epochfence.elections.keeper import Keeper, now_s
from epochfence.elections.line import LineElection, Place
from epochfence.elections.zookeeper_session import (
    ZookeeperSession,
    checked_settings,
    hosts_of,
    new_client,
)
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_scope, check_timeout

_OUR_NODE = re.compile(r"[0-9a-f]{16}-([0-9]{10})\Z")


def election_path(scope: str) -> str:
    """The node under which those of an office's candidates are.

    `/epochfence-election/scope-`, and the scope with each `/` as `%2F`.
    """
    return f"/epochfence-election/scope-{quote(check_scope(scope), safe='')}"


class ZookeeperElection(LineElection):
    """Elects by ephemeral, sequential nodes.

    Each candidate has a node under `election_path(scope)`; what is in it tells people
    whose it is. The lowest sequence number is that of whoever is elected.

    - **How soon another is elected.** After `resign`, or when the process ends and
      closes its connection in order: at once. After a crash, a pause or a cut network:
      `session_timeout_s`, in which the server hears nothing of a session. A candidate
      that gets no answer finds `lost` set by then too, counted from when it asked; one
      whose node was deleted, at once.
    - **A connection that is lost is no lost office.** As long as the session may go on
      (kazoo's state SUSPENDED), its node is there and nobody else is elected: a server
      that is restarted, or a client that goes to the next one, deposes nobody. `lost`
      is set when the session has ended, or may have ended by this candidate's clock.
    - **Who comes next** is who came first. A candidate watches only the node right
      before its own.
    - **Its candidacy goes on** between calls of `campaign`, and so does an office that
      it got meanwhile. Whoever does not want the office any more resigns.
    - **Elected, and lost, means out**: it stands again only with the next `campaign`.

    With a string, each candidacy has a session of its own, which ends with it. A client
    of yours stays open, and its session too; its node alone is deleted.

    Args:
        connect: The servers, `host:port,host:port/path`, or a KazooClient that runs
            (with threads, which is kazoo's default).
        scope: The office: what is led.
        session_timeout_s: How long the server hears nothing of a session before it is
            over. Servers make it no longer than they allow (20 ticks, 40 s as a rule),
            and do not tell: ask for no more than that. For a client of yours, what it
            was made with.
        settings: What else KazooClient takes: `auth_data`, `default_acl`,
            `sasl_options`, `use_ssl`, `ca`, `certfile`, `keyfile`.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        connect: str | KazooClient,
        scope: str,
        *,
        session_timeout_s: float = 10.0,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        self._path = election_path(scope)
        self._scope = scope
        self._session_s = check_timeout(session_timeout_s, "session_timeout_s")
        self._settings = checked_settings(settings)
        self._connect = connect
        if isinstance(connect, str):
            new_client(connect, session_timeout_s, self._settings)  # raises if not
        elif not isinstance(connect, KazooClient):
            raise MisconfiguredError(
                "connect", connect, "neither servers nor a client",
                "Give host:port, with commas for several, or a KazooClient that runs.",
            )  # fmt: skip
        elif self._settings:
            raise MisconfiguredError(
                "settings", ..., "the client is made already",
                "Make your KazooClient with them, or give servers instead of it.",
            )  # fmt: skip

    @property
    def zxid(self) -> int | None:
        """The transaction (czxid) that made the node that the office was won with.

        Each winner's is higher than the one's before, as long as ZooKeeper's data is
        not lost or restored from a backup. None while this candidate is not elected.
        """
        return self._won_with()

    def _join(self, on_end: Callable[[Place], None]) -> Place:
        connect = self._connect
        is_own = isinstance(connect, str)
        if isinstance(connect, str):
            client = new_client(connect, self._session_s, self._settings)
        else:
            client = connect
        session = ZookeeperSession(client, is_own, self._session_s)
        return _ZookeeperPlace(client, session, self._path, self._session_s, on_end)

    @property
    def _name(self) -> str:
        where = self._connect
        if not isinstance(where, str):
            where = ",".join(f"{host}:{port}" for host, port in hosts_of(where))
        return f"for {self._scope!r} in ZooKeeper ({where})"


class _ZookeeperPlace(Place):
    """A node."""

    def __init__(
        self,
        client: KazooClient,
        session: ZookeeperSession,
        parent: str,
        session_s: float,
        on_end: Callable[[Place], None],
    ) -> None:
        self._client = client
        self._session = session
        self._parent = parent
        # Known before the node is: an answer that never came may have made one.
        self._unique = secrets.token_hex(8)
        self._news = threading.Event()
        self.keeper = Keeper(self._confirm, session_s, now_s(), lambda: on_end(self))
        try:
            session.start()
            self._node = self._made()
            client.add_listener(self._hear_of_state)
            self.keeper.hurry()  # so that it watches its node from now on
            self.keeper.start()
        except BaseException:
            self.leave()
            raise

    def _made(self) -> str:
        client = self._client
        if client.chroot and self._session.ask(client.exists_async, "/") is None:
            raise MisconfiguredError(
                "connect", ..., f"there is no node {client.chroot}",
                "Create the path that stands behind the servers, or give another.",
            )  # fmt: skip
        self._session.ask(client.ensure_path_async, self._parent)
        asked_at = now_s()
        path: str = self._session.ask(
            client.create_async,
            f"{self._parent}/{self._unique}-",
            f"{socket.gethostname()}:{os.getpid()}".encode(),
            ephemeral=True,
            sequence=True,
        )
        self.keeper.confirmed(asked_at)
        stat = self._session.ask(client.exists_async, path)
        if stat is None:
            raise PlaceLostError("its node was deleted")
        self.number = stat.czxid
        return path.rpartition("/")[2]

    def is_first(self) -> bool:
        self._news.clear()
        children = self._session.ask(self._client.get_children_async, self._parent)
        found = [
            (match[1], match[0]) for match in map(_OUR_NODE.match, children) if match
        ]
        line = [name for _, name in sorted(found)]
        if self._node not in line:
            raise PlaceLostError("its node was deleted")
        place = line.index(self._node)
        if place == 0:
            return True
        ahead = f"{self._parent}/{line[place - 1]}"
        if self._session.ask(self._client.exists_async, ahead, self._hear) is None:
            self._news.set()  # gone meanwhile
        return False

    def wait(self, timeout_s: float) -> None:
        self._news.wait(timeout_s)

    def _confirm(self) -> bool:
        stat = self._session.ask(
            self._client.exists_async, f"{self._parent}/{self._node}", self._hear_of_own
        )
        return stat is not None and stat.czxid == self.number

    # On the client's threads.

    def _hear(self, event: object) -> None:
        self._news.set()

    def _hear_of_own(self, event: object) -> None:
        self.keeper.hurry()

    def _hear_of_state(self, state: str) -> None:
        if state == KazooState.LOST:
            self.keeper.end()
        self.keeper.hurry()
        self._news.set()

    def leave(self) -> None:
        self._client.remove_listener(self._hear_of_state)
        self.keeper.stop()
        self._session.leave(self._parent, self._unique)
