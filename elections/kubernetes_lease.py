"""Questions to Kubernetes about one Lease; what it says no with, sorted."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from kubernetes.client import (
    ApiClient,
    ApiException,
    CoordinationV1Api,
    V1Lease,
    V1LeaseSpec,
    V1ObjectMeta,
)
from urllib3.exceptions import (
    HTTPError,
    NewConnectionError,
    ProtocolError,
    SSLError,
    TimeoutError,
)

from epochfence.elections.errors import NoAnswerError
from epochfence.elections.http_texts import is_tls_refusal, point_of, shortened
from epochfence.elections.keeper import now_s
from epochfence.epochs.errors import MisconfiguredError

_BAD_REQUEST, _NOT_KNOWN, _NOT_ALLOWED, _NOT_FOUND = 400, 401, 403, 404
_CONFLICT, _INVALID, _TOO_MANY, _SERVER_ERROR = 409, 422, 429, 500


class LeaseWrittenError(Exception):
    """Another has written the Lease, or made or deleted it, since it was read."""


class LeaseQuestions:
    """Asks about one Lease. May be used by several threads.

    Args:
        client: Asks.
        namespace: The Lease's.
        name: The Lease's.
        answer_s: How long a question may take, about.
        patience_s: How long a refusal of what was allowed before counts as no answer.
    """

    def __init__(
        self,
        client: ApiClient,
        namespace: str,
        name: str,
        answer_s: float,
        *,
        patience_s: float,
    ) -> None:
        self._client = client
        self._api = CoordinationV1Api(client)
        self._namespace = namespace
        self._name = name
        self._answer_s = answer_s
        self._patience_s = patience_s
        #: Of each verb that was allowed before: since when it is refused, or infinity.
        self._refused_since: dict[str, float] = {}

    @property
    def place(self) -> str:
        """Where the Lease is, for people."""
        host = self._client.configuration.host
        return f"the Lease {self._namespace}/{self._name} of Kubernetes ({host})"

    def read(self) -> V1Lease | None:
        """The Lease as it is now, or None.

        Raises:
            NoAnswerError: The server does not answer now.
            MisconfiguredError: It refuses, and would refuse again.
        """
        try:
            return self._ask(
                "get",
                lambda: self._api.read_namespaced_lease(
                    self._name, self._namespace, _request_timeout=self._answer_s
                ),
            )
        except _NotFoundError:
            return None

    def create(self, spec: V1LeaseSpec) -> V1Lease:
        """Make it.

        Raises:
            LeaseWrittenError: It is there already.
            NoAnswerError: The server does not answer now; it may have done it.
            MisconfiguredError: It refuses, and would refuse again.
        """
        lease = V1Lease(
            api_version="coordination.k8s.io/v1", kind="Lease", spec=spec,
            metadata=V1ObjectMeta(name=self._name, namespace=self._namespace),
        )  # fmt: skip
        try:
            return self._ask(
                "create",
                lambda: self._api.create_namespaced_lease(
                    self._namespace, lease, _request_timeout=self._answer_s
                ),
            )
        except _NotFoundError as error:
            raise MisconfiguredError(
                "namespace", self._namespace, "there is no such namespace",
                f"Give one that is there, or: kubectl create namespace "
                f"{self._namespace}",
            ) from error  # fmt: skip

    def replace(self, lease: V1Lease) -> V1Lease:
        """Write it, if nobody has written it since it was read.

        Raises:
            LeaseWrittenError: Somebody has, or it was deleted.
            NoAnswerError: The server does not answer now; it may have done it.
            MisconfiguredError: It refuses, and would refuse again.
        """
        try:
            return self._ask(
                "update",
                lambda: self._api.replace_namespaced_lease(
                    self._name, self._namespace, lease, _request_timeout=self._answer_s
                ),
            )
        except _NotFoundError as error:
            raise LeaseWrittenError("it was deleted") from error

    def close(self) -> None:
        """Close what is open to the server."""
        self._client.close()

    def _ask(self, verb: str, question: Callable[[], V1Lease]) -> V1Lease:
        try:
            lease = self._answer_to(question)
        except MisconfiguredError as error:
            if self._may_pass(verb):
                raise NoAnswerError(error.problem) from error
            raise
        except (_NotFoundError, LeaseWrittenError):
            self._refused_since[verb] = math.inf  # who is refused is not told so much
            raise
        self._refused_since[verb] = math.inf
        return lease

    def _may_pass(self, verb: str) -> bool:
        """Whether a refusal is one of what was allowed before, and not for too long."""
        if verb not in self._refused_since:
            return False
        since = self._refused_since[verb] = min(self._refused_since[verb], now_s())
        return now_s() < since + self._patience_s

    def _answer_to(self, question: Callable[[], V1Lease]) -> V1Lease:
        try:
            try:
                lease = question()
            except ProtocolError:
                # A connection that the server has closed since it was last used. To
                # ask twice is no harm: no Lease is written twice from one version.
                lease = question()
            if not lease.metadata or not lease.metadata.resource_version:
                raise self._strange("it gives no Lease")
        except ApiException as error:
            raise self._refusal(error) from error
        except HTTPError as error:
            raise self._failure(error) from error
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise self._strange("its answer cannot be read") from error
        return lease

    def _failure(self, error: HTTPError) -> Exception:
        """What it means that there is no answer."""
        if isinstance(error, SSLError):
            return self._tls(str(error))
        # In some versions of urllib3, to be refused is to be late.
        is_late = isinstance(error, TimeoutError)
        if is_late and not isinstance(error, NewConnectionError):
            return NoAnswerError(f"no answer within {self._answer_s:.3g} s")
        return NoAnswerError(point_of(str(error)))

    def _refusal(self, error: ApiException) -> Exception:
        """What an answer that is no Lease means."""
        status, body = error.status or 0, error.body or error.reason or ""
        answer = _status_in(body)
        said = shortened(answer.get("message", body))
        if not status:
            return self._tls(said)
        if status == _BAD_REQUEST and is_tls_refusal(said):
            return self._tls(said)
        if status == _NOT_KNOWN:
            return MisconfiguredError(
                "connect", ..., f"{self.place} is closed to this client: {said}",
                "Log in as somebody that the cluster knows: see the user of the "
                "kubeconfig's context, or the pod's service account.",
            )  # fmt: skip
        if status == _NOT_ALLOWED:
            return MisconfiguredError(
                "connect", ..., f"{self.place} is closed to this client: {said}",
                f"Allow it, by a Role and a RoleBinding in the namespace "
                f"{self._namespace}, the verbs get, create and update on leases of "
                f"coordination.k8s.io.",
            )  # fmt: skip
        if status >= _SERVER_ERROR or status == _TOO_MANY:
            return NoAnswerError(f"{status} {said}".rstrip())
        # Of a path that it does not know it says 404, too, but not what is not found.
        is_of_nothing = status == _NOT_FOUND and "kind" not in answer.get("details", {})
        if not answer or is_of_nothing:
            return self._strange(f"{status} {said}".rstrip())
        if status == _NOT_FOUND:
            return _NotFoundError(said)
        if status == _CONFLICT:
            return LeaseWrittenError(said)
        return MisconfiguredError(
            "connect", ..., f"{self.place} is refused: {said}",
            "See what the cluster's own rules (a webhook, a quota) say of Leases.",
        )  # fmt: skip

    def _tls(self, said: str) -> Exception:
        if not is_tls_refusal(said):
            return NoAnswerError(point_of(said))
        return MisconfiguredError(
            "connect", ..., f"no secure connection: {point_of(said)}",
            "Give the server's address as it has it, with https://, and the authority "
            "that signed its certificate (certificate-authority in the kubeconfig).",
        )  # fmt: skip

    def _strange(self, said: str) -> MisconfiguredError:
        return MisconfiguredError(
            "connect", ..., f"what answers at {self._client.configuration.host} is not "
            f"the API of Kubernetes: {said}",
            "Give the address of the cluster's API server.",
        )  # fmt: skip


class _NotFoundError(Exception):
    """What was asked about is not there."""


def _status_in(body: str) -> dict[str, Any]:
    """Kubernetes's own word on an error, empty where it is none."""
    try:
        answer = json.loads(body)
    except ValueError:
        return {}
    is_own = isinstance(answer, dict) and answer.get("kind") == "Status"
    return answer if is_own else {}


def now() -> datetime:
    """The time as a Lease tells it, for people and for other clients.

    Never a whole second: the client would write it without its microseconds, which
    Kubernetes does not take.
    """
    time = datetime.now(timezone.utc)
    return time.replace(microsecond=time.microsecond or 1)
