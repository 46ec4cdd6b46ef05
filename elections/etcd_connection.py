"""Questions to etcd, by its JSON gateway; what it says no with, sorted."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from etcd3gw import Etcd3Client
from etcd3gw.exceptions import (
    ApiVersionDiscoveryFailedError,
    ConnectionFailedError,
    ConnectionTimeoutError,
    Etcd3Exception,
    InternalServerError,
)
from requests.auth import AuthBase

from epochfence.elections.errors import NoAnswerError, PlaceLostError
from epochfence.elections.http_texts import is_tls_refusal, point_of, shortened
from epochfence.epochs.errors import MisconfiguredError

T = TypeVar("T")

_PORT = 2379

# Codes of gRPC, in the answers of etcd.
_INVALID, _NOT_FOUND, _NOT_ALLOWED, _NOT_ENABLED = 3, 5, 7, 9
_UNIMPLEMENTED, _NOT_LOGGED_IN = 12, 16

#: A token of before a user, a role or a password was changed.
_OLD_TOKEN = "revision of auth store is old"


@dataclass(frozen=True)
class Login:
    """Who asks, and by which certificates. None: not used."""

    user: str | None = None
    password: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        for names in (("user", "password"), ("cert", "key")):
            given = [name for name in names if getattr(self, name) is not None]
            if len(given) == 1:
                raise MisconfiguredError(
                    given[0], ..., "it is of no use alone",
                    f"Give {names[0]} and {names[1]}, or neither.",
                )  # fmt: skip
        for name in ("ca", "cert", "key"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise MisconfiguredError(
                    name, path, "there is no such file", "Give the path of a PEM file."
                )


def checked_endpoints(endpoints: str) -> list[str]:
    """The servers of a comma-separated list, each as protocol://host:port.

    Raises:
        MisconfiguredError: It is no such list.
    """
    try:
        found = [_endpoint(one.strip()) for one in endpoints.split(",")]
    except (AttributeError, ValueError):
        raise MisconfiguredError(
            "endpoints", ..., "not servers of etcd",
            "Give host:port, or https://host:port, of one or of several, with commas; "
            "a user and a password by themselves (user=..., password=...).",
        ) from None  # fmt: skip
    return found


def _endpoint(text: str) -> str:
    parts = urlsplit(text if "://" in text else f"http://{text}")
    rest = (parts.path.strip("/"), parts.query, parts.fragment, parts.username or "")
    if parts.scheme not in ("http", "https") or not parts.hostname or any(rest):
        raise ValueError(text)
    if re.search(r"\s", parts.hostname):
        raise ValueError(text)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{parts.port or _PORT}"


class _Token(AuthBase):
    """What a request is let in by. (Without one, `.netrc` would be asked for it.)"""

    value: str | None = None

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        if self.value is not None:
            request.headers["Authorization"] = self.value
        return request


class EtcdConnection:
    """Asks one server after another until one answers. Used by one thread at a time.

    Args:
        endpoints: As `checked_endpoints` gives them.
        login: Who asks.
        answer_s: How long a question may take, about.
    """

    def __init__(self, endpoints: Sequence[str], login: Login, answer_s: float) -> None:
        self._login = login
        self._token = _Token()
        self._session = requests.Session()
        self._session.auth = self._token
        if login.ca is not None:
            self._session.verify = login.ca
            # Else what the environment names (REQUESTS_CA_BUNDLE) would come before it.
            self._session.trust_env = False
        if login.cert is not None and login.key is not None:
            self._session.cert = (login.cert, login.key)
        self._answer_s = answer_s / len(endpoints)
        self._clients = [self._client(endpoint) for endpoint in endpoints]

    def _client(self, endpoint: str) -> Etcd3Client:
        parts = urlsplit(endpoint)
        return Etcd3Client(
            host=parts.hostname or "", port=parts.port or _PORT, protocol=parts.scheme,
            timeout=self._answer_s, session=self._session,
        )  # fmt: skip

    def ask(self, question: Callable[[Etcd3Client], T]) -> T:
        """The answer to a question that may be asked again.

        Raises:
            NoAnswerError: No server has one.
            PlaceLostError: There is no such lease.
            MisconfiguredError: The question is refused, and would be again.
        """
        reasons: dict[str, None] = {}
        for _ in self._clients:
            client = self._clients[0]
            try:
                return self._ask_as_user(client, question)
            except Etcd3Exception as error:
                reasons[self._reason(error)] = None
            except (
                requests.RequestException,
                KeyError,
                ValueError,
                TypeError,
            ) as error:
                said = shortened(f"{type(error).__name__}: {error}")
                reasons[f"an answer that cannot be read ({said})"] = None
            # The next one, from now on: this one may be down for long.
            self._clients.append(self._clients.pop(0))
        raise NoAnswerError("; ".join(reasons))

    def _ask_as_user(
        self, client: Etcd3Client, question: Callable[[Etcd3Client], T]
    ) -> T:
        if self._token.value is None:
            self._log_in(client)
        try:
            return question(client)
        except Etcd3Exception as error:
            code, said = _said(error)
            if code != _NOT_LOGGED_IN and _OLD_TOKEN not in said:
                raise
        # Tokens end, too: after five minutes without a question, as a rule.
        self._log_in(client)
        return question(client)

    def _log_in(self, client: Etcd3Client) -> None:
        if self._login.user is None:
            return
        self._token.value = None
        who = {"name": self._login.user, "password": self._login.password}
        try:
            answer = client.post(client.get_url("/auth/authenticate"), json=who)
        except Etcd3Exception as error:
            if _said(error)[0] == _NOT_ENABLED:
                return  # everybody may do everything
            raise
        self._token.value = answer["token"]

    def _reason(self, error: Etcd3Exception) -> str:
        """Why there is no answer now; raises where asking again would be no use."""
        code, said = _said(error)
        if is_tls_refusal(said):
            raise MisconfiguredError(
                "endpoints", ..., f"no secure connection: {point_of(said)}",
                "Give http:// or https:// as the server has it, for https the "
                "authority that signed its certificate (ca=...), and where it asks for "
                "one, a certificate of this client (cert=..., key=...).",
            ) from error  # fmt: skip
        if code == _NOT_FOUND:
            raise PlaceLostError(said) from error
        if code in (_INVALID, _NOT_ALLOWED, _NOT_LOGGED_IN):
            raise MisconfiguredError(
                "user", ... if self._login.user is None else self._login.user,
                f"etcd refuses: {said}",
                "Give a user and a password that etcd knows (user=..., password=...), "
                "with a role that may read and write the keys of elections.",
            ) from error  # fmt: skip
        if isinstance(error, ConnectionTimeoutError):
            return f"no answer within {self._answer_s:.3g} s"
        if isinstance(error, ConnectionFailedError):
            return point_of(said)
        is_strange = isinstance(error, ApiVersionDiscoveryFailedError) or (
            code is None and not isinstance(error, InternalServerError)
        )
        if is_strange or code == _UNIMPLEMENTED:
            raise MisconfiguredError(
                "endpoints", ..., f"what answers there is not the JSON gateway of "
                f"etcd 3.4 or later: {shortened(said)}",
                "Give the servers' client addresses; etcd serves the gateway there "
                "unless it was started with --enable-grpc-gateway=false.",
            ) from error  # fmt: skip
        return shortened(said)

    def close(self) -> None:
        """Close what is open to the servers."""
        self._session.close()


def _said(error: Etcd3Exception) -> tuple[int | None, str]:
    """The code of an answer, where it is etcd's own, and its text."""
    text = error.detail_text or str(error)
    try:
        answer: Any = json.loads(text)
        return int(answer["code"]), str(answer["message"])
    except (ValueError, KeyError, TypeError):
        return None, text
