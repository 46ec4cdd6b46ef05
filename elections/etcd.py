"""An election by keys of etcd: whoever has the oldest one is elected."""

from __future__ import annotations

import os
import socket
import time
from base64 import b64encode
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from urllib.parse import quote

from etcd3gw import Etcd3Client, Lease

from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.elections.etcd_connection import (
    EtcdConnection,
    Login,
    checked_endpoints,
)
from epochfence.elections.keeper import Keeper, now_s
from epochfence.elections.line import LineElection, Place
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.values import check_scope, check_timeout

#: etcd does not let a lease end earlier, as a rule.
_SHORTEST_TTL_S = 2
_LONGEST_TTL_S = 3600


def election_prefix(scope: str) -> str:
    """What the keys of an office's candidates begin with.

    `epochfence-election/`, the scope with each `/` as `%2F`, and `/`. No prefix is one
    of another.
    """
    return f"epochfence-election/{quote(check_scope(scope), safe='')}/"


class EtcdElection(LineElection):
    """Elects by keys with a lease, as etcd's own elections do.

    Each candidate has a key, `election_prefix(scope)` and the lease's id in lower-case
    hex digits, whose value tells people whose it is. The oldest key (the lowest create
    revision) is that of whoever is elected: `etcdctl elect --listen` follows it.

    - **How soon another is elected.** After `resign`: when the next candidate looks
      (`interval_s`). After a crash, a pause or a cut network: `ttl_s`, in which etcd
      hears nothing of a candidate (and longer after etcd itself has elected a leader,
      since that one gives each lease its whole time anew). A candidate that gets no
      answer finds `lost` set by then too, counted from when it asked; one whose key or
      lease was deleted, within a third of `ttl_s`.
    - **Who comes next** is who came first. A candidate looks only at the key right
      before its own.
    - **Its candidacy goes on** between calls of `campaign`, and so does an office that
      it got meanwhile. Whoever does not want the office any more resigns.
    - **Elected, and lost, means out**: it stands again only with the next `campaign`.

    etcd 3.4 or later, by its JSON gateway. Where etcd has users, one is needed that may
    read and write the keys that begin with `election_prefix(scope)`.

    Args:
        endpoints: The servers, such as `https://a:2379,https://b:2379`; they are asked
            one after another until one answers.
        scope: The office: what is led.
        user: A user of etcd, where it has users.
        password: The user's.
        ca: A file with the authority that signed the servers' certificates (then no
            proxy that the environment names is used); else those that Python's requests
            trusts.
        cert: A file with this client's certificate, where the servers ask for one.
        key: A file with the certificate's key.
        ttl_s: How long etcd hears nothing of a candidate before it is dead; whole
            seconds. Questions take a third of it at most.
        interval_s: How often a waiting candidate looks.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        endpoints: str,
        scope: str,
        *,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        ttl_s: int = 10,
        interval_s: float = 0.5,
    ) -> None:
        super().__init__()
        self._prefix = election_prefix(scope)
        self._scope = scope
        self._endpoints = checked_endpoints(endpoints)
        self._login = Login(user, password, ca, cert, key)
        if type(ttl_s) is not int or not _SHORTEST_TTL_S <= ttl_s <= _LONGEST_TTL_S:
            raise MisconfiguredError(
                "ttl_s", ttl_s, "no time that etcd gives a lease",
                f"Use whole seconds from {_SHORTEST_TTL_S} to {_LONGEST_TTL_S}.",
            )  # fmt: skip
        self._ttl_s = ttl_s
        self._interval_s = check_timeout(interval_s, "interval_s")

    @property
    def revision(self) -> int | None:
        """The create revision of the key that the office was won with.

        Each winner's is higher than the one's before, as long as etcd's data is not
        restored from a backup: that takes its revisions back, and nothing tells. None
        while this candidate is not elected.
        """
        return self._won_with()

    def _join(self, on_end: Callable[[Place], None]) -> Place:
        return _EtcdPlace(
            partial(EtcdConnection, self._endpoints, self._login, self._ttl_s / 3),
            self._prefix, self._ttl_s, self._interval_s, on_end,
        )  # fmt: skip

    @property
    def _name(self) -> str:
        return f"for {self._scope!r} in etcd ({', '.join(self._endpoints)})"


class _EtcdPlace(Place):
    """A lease, and soon a key."""

    def __init__(
        self,
        connect: Callable[[], EtcdConnection],
        prefix: str,
        ttl_s: int,
        interval_s: float,
        on_end: Callable[[Place], None],
    ) -> None:
        self._prefix = prefix
        self._interval_s = interval_s
        self._ahead = ""
        self.number = 0  # until the key is there
        self._connection = connect()
        asked_at = now_s()
        try:
            lease = self._connection.ask(lambda client: client.lease(ttl_s))
        except BaseException:
            self._connection.close()
            raise
        self._lease_id = lease.id
        self._key = f"{prefix}{lease.id:x}"
        # The keeper's thread has a connection of its own.
        self._keeping = connect()
        self.keeper = Keeper(self._confirm, ttl_s, asked_at, lambda: on_end(self))
        self.keeper.start()

    def is_first(self) -> bool:
        if not self.number:
            self.number = self._enter()
        # In one transaction: its own key is there still, and which one is before it.
        answer = self._do(
            _compared(self._key, self.number),
            [
                {
                    "request_range": {
                        "key": _encoded(self._prefix),
                        "range_end": _encoded(_behind(self._prefix)),
                        "max_create_revision": str(self.number - 1),
                        "sort_target": "CREATE",
                        "sort_order": "DESCEND",
                        "limit": 1,
                        "keys_only": True,
                    }
                }
            ],
        )
        if not answer.get("succeeded"):
            raise PlaceLostError("its key was deleted")
        keys = answer["responses"][0]["response_range"].get("kvs", [])
        self._ahead = keys[0]["key"] if keys else ""
        return not keys

    def _enter(self) -> int:
        """The create revision of its key, which may be there from a first try."""
        put = {
            "key": _encoded(self._key),
            "value": _encoded(f"{socket.gethostname()}:{os.getpid()}"),
            "lease": str(self._lease_id),
        }
        answer = self._do(
            _compared(self._key, 0),
            [{"request_put": put}],
            [{"request_range": {"key": _encoded(self._key)}}],
        )
        if answer.get("succeeded"):
            return int(answer["header"]["revision"])
        (found,) = answer["responses"][0]["response_range"]["kvs"]
        return int(found["create_revision"])

    def _do(
        self, compare: object, then: list[object], otherwise: list[object] | None = None
    ) -> Any:
        transaction = {
            "compare": [compare],
            "success": then,
            "failure": otherwise or [],
        }
        return self._connection.ask(lambda client: client.transaction(transaction))

    def wait(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while (left_s := deadline - time.monotonic()) > 0:
            if self.keeper.ended.wait(min(left_s, self._interval_s)):
                return
            if not self._connection.ask(self._is_ahead):
                return

    def _is_ahead(self, client: Etcd3Client) -> bool:
        question = {"key": self._ahead, "count_only": True}
        answer = client.post(client.get_url("/kv/range"), json=question)
        return "count" in answer

    def _confirm(self) -> bool:
        def refreshed(client: Etcd3Client) -> int:
            return Lease(self._lease_id, client).refresh()

        if self._keeping.ask(refreshed) <= 0:
            return False
        number = self.number
        if not number:
            return True
        found = self._keeping.ask(lambda client: client.get(self._key, metadata=True))
        return [int(key.get("create_revision", 0)) for _, key in found] == [number]

    def leave(self) -> None:
        self.keeper.stop()
        # Where nothing answers, it runs out.
        with suppress(NoAnswerError, PlaceLostError, MisconfiguredError):
            self._connection.ask(lambda client: Lease(self._lease_id, client).revoke())
        self._connection.close()
        self._keeping.close()


def _compared(key: str, create_revision: int) -> dict[str, Any]:
    return {
        "key": _encoded(key),
        "target": "CREATE",
        "result": "EQUAL",
        "create_revision": str(create_revision),
    }


def _encoded(text: str) -> str:
    return b64encode(text.encode()).decode()


def _behind(prefix: str) -> str:
    return f"{prefix[:-1]}{chr(ord(prefix[-1]) + 1)}"
