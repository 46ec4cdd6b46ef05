"""Stands in for Kubernetes's API of Leases, where there is no real one.

Tests compare it with a real one's recorded answers. It has one namespace, `default`;
who may do what is fixed; and it does not say which client has set which field.
"""

from __future__ import annotations

import re
import uuid
from datetime import datetime, timezone
from typing import Any

from support.lease_http import Answer, Question

#: Users, by tokens that are their names: one may do everything, one nothing.
ADMIN, MALLORY, READER = "admin", "mallory", "reader"

_RIGHTS = {
    ADMIN: {"get", "create", "update", "delete"},
    MALLORY: set[str](),
    READER: {"get"},
}
_VERBS = {"GET": "get", "POST": "create", "PUT": "update", "DELETE": "delete"}
_NAMESPACE = "default"
_GROUP = "coordination.k8s.io"
_PATH = re.compile(rf"/apis/{_GROUP}/v1/namespaces/([^/]+)/leases(?:/([^/]+))?\Z")
_TIME = re.compile(r"([0-9-]{10}T[0-9:]{8})(\.[0-9]{6})?(Z|[+-][0-9:]{5})\Z")


class _RefusedError(Exception):
    """A question is refused, in Kubernetes's words."""

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None
    ) -> None:
        super().__init__(message)
        body = {
            "kind": "Status", "apiVersion": "v1", "metadata": {},
            "status": "Failure", "message": message, "reason": reason, "code": code,
        }  # fmt: skip
        if details is not None:
            body["details"] = details
        self.answer = Answer(code, body)


class FakeLeases:
    """The Leases, and what is answered to questions about them."""

    def __init__(self) -> None:
        self._leases: dict[str, dict[str, Any]] = {}
        self._version = 0

    def answer(self, question: Question) -> Answer:
        """What the real one would answer."""
        try:
            return self._answered(question)
        except _RefusedError as refused:
            return refused.answer

    def _answered(self, question: Question) -> Answer:
        if question.token not in _RIGHTS:
            raise _RefusedError(401, "Unauthorized", "Unauthorized", None)
        match = _PATH.match(question.path)
        if match is None:
            raise _RefusedError(
                404, "NotFound", "the server could not find the requested resource", {}
            )
        namespace, name = match.groups()
        self._check_rights(question, namespace, name)
        if question.method == "POST":
            return self._created(namespace, question.body)
        if question.method == "PUT":
            return self._replaced(name, question.body)
        found = self._leases.get(name) if namespace == _NAMESPACE else None
        if found is None:
            raise _RefusedError(
                404, "NotFound", f'leases.{_GROUP} "{name}" not found', _details(name)
            )
        if question.method == "GET":
            return Answer(200, found)
        del self._leases[name]
        self._version += 1
        details = {**_details(name), "uid": found["metadata"]["uid"]}
        return Answer(
            200,
            {
                "kind": "Status", "apiVersion": "v1", "metadata": {},
                "status": "Success", "details": details,
            },
        )  # fmt: skip

    @staticmethod
    def _check_rights(question: Question, namespace: str, name: str | None) -> None:
        verb = _VERBS[question.method]
        if verb in _RIGHTS[question.token]:
            return
        raise _RefusedError(
            403, "Forbidden",
            f'leases.{_GROUP} {_quoted(name)}is forbidden: User "{question.token}" '
            f'cannot {verb} resource "leases" in API group "{_GROUP}" in the namespace '
            f'"{namespace}"',
            _details(name),
        )  # fmt: skip

    def _created(self, namespace: str, body: dict[str, Any]) -> Answer:
        name = body["metadata"]["name"]
        _check_spec(name, body["spec"])
        if namespace != _NAMESPACE:
            raise _RefusedError(
                404, "NotFound", f'namespaces "{namespace}" not found',
                {"name": namespace, "kind": "namespaces"},
            )  # fmt: skip
        if name in self._leases:
            raise _RefusedError(
                409, "AlreadyExists", f'leases.{_GROUP} "{name}" already exists',
                _details(name),
            )  # fmt: skip
        metadata = {
            "name": name,
            "namespace": namespace,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": f"{datetime.now(timezone.utc):%Y-%m-%dT%H:%M:%SZ}",
        }
        return Answer(201, self._kept(metadata, body["spec"]))

    def _replaced(self, name: str, body: dict[str, Any]) -> Answer:
        _check_spec(name, body["spec"])
        held = self._leases[name]["metadata"] if name in self._leases else {}
        meant = body["metadata"]
        if meant["uid"] != held.get("uid", ""):
            raise _conflict(
                name,
                f"StorageError: invalid object, Code: 4, Key: /registry/leases/"
                f"{_NAMESPACE}/{name}, ResourceVersion: 0, AdditionalErrorMsg: "
                f"Precondition failed: UID in precondition: {meant['uid']}, UID in "
                f"object meta: {held.get('uid', '')}",
            )
        if meant["resourceVersion"] != held["resourceVersion"]:
            raise _conflict(
                name,
                "the object has been modified; please apply your changes to the latest "
                "version and try again",
            )
        return Answer(200, self._kept(held, body["spec"]))

    def _kept(self, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
        self._version += 1
        self._leases[metadata["name"]] = lease = {
            "kind": "Lease",
            "apiVersion": f"{_GROUP}/v1",
            "metadata": {**metadata, "resourceVersion": str(self._version)},
            "spec": spec,
        }
        return lease


def _quoted(name: str | None) -> str:
    return "" if name is None else f'"{name}" '


def _details(name: str | None) -> dict[str, Any]:
    named = {} if name is None else {"name": name}
    return {**named, "group": _GROUP, "kind": "leases"}


def _conflict(name: str, why: str) -> _RefusedError:
    return _RefusedError(
        409, "Conflict",
        f'Operation cannot be fulfilled on leases.{_GROUP} "{name}": {why}',
        _details(name),
    )  # fmt: skip


def _check_spec(name: str, spec: dict[str, Any]) -> None:
    for field in ("acquireTime", "renewTime"):
        if field not in spec:
            continue
        match = _TIME.match(spec[field])
        assert match is not None, f"no time: {spec[field]}"
        if match[2] is None:
            raise _RefusedError(
                400, "BadRequest",
                f'Lease in version "v1" cannot be handled as a Lease: parsing time '
                f'"{spec[field]}" as "2006-01-02T15:04:05.000000Z07:00": cannot parse '
                f'"{match[3]}" as ".000000"',
                None,
            )  # fmt: skip
    for field, lowest, problem in (
        ("leaseDurationSeconds", 1, "greater than 0"),
        ("leaseTransitions", 0, "greater than or equal to 0"),
    ):
        if spec.get(field, lowest) < lowest:
            _refuse_value(name, field, spec[field], problem)


def _refuse_value(name: str, field: str, value: int, problem: str) -> None:
    message = f"Invalid value: {value}: must be {problem}"
    cause = {
        "reason": "FieldValueInvalid", "message": message, "field": f"spec.{field}",
    }  # fmt: skip
    details = {"name": name, "group": _GROUP, "kind": "Lease", "causes": [cause]}
    raise _RefusedError(
        422, "Invalid", f'Lease.{_GROUP} "{name}" is invalid: spec.{field}: {message}',
        details,
    )  # fmt: skip
