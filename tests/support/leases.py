"""Where tests hold elections by a Lease: at a real Kubernetes, or at what stands in."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubernetes.client import ApiException, CoordinationV1Api, V1Lease

from epochfence.elections.kubernetes import lease_name
from epochfence.elections.kubernetes_config import open_client
from support.lease_fake import ADMIN, FakeLeases
from support.lease_http import LeaseServer
from support.scratch import Scratch

#: Names the kubeconfig of a cluster for tests.
KUBERNETES_VARIABLE = "EPOCHFENCE_TEST_KUBERNETES"

_CONFLICT, _NOT_FOUND = 409, 404


@dataclass(frozen=True)
class LeasePlace:
    """A cluster, by its kubeconfig, as an administrator sees it."""

    kubeconfig: str

    def read(self, scope: str) -> V1Lease:
        """The Lease of an office."""
        with self._api() as (api, namespace):
            return api.read_namespaced_lease(lease_name(scope), namespace)

    def change(self, scope: str, **fields: Any) -> None:
        """Write over what the Lease of an office says, whoever writes it meanwhile."""
        with self._api() as (api, namespace):
            while True:
                lease = api.read_namespaced_lease(lease_name(scope), namespace)
                for name, value in fields.items():
                    setattr(lease.spec, name, value)
                try:
                    api.replace_namespaced_lease(lease_name(scope), namespace, lease)
                    return
                except ApiException as error:
                    if error.status != _CONFLICT:
                        raise

    def delete(self, scope: str) -> None:
        """Delete the Lease of an office, where there is one."""
        with self._api() as (api, namespace):
            try:
                api.delete_namespaced_lease(lease_name(scope), namespace)
            except ApiException as error:
                if error.status != _NOT_FOUND:
                    raise

    @contextmanager
    def _api(self) -> Generator[tuple[CoordinationV1Api, str], None, None]:
        client, namespace = open_client(self.kubeconfig, None)
        try:
            yield CoordinationV1Api(client), namespace
        finally:
            client.close()


def open_leases(stack: ExitStack) -> LeasePlace:
    """The cluster that the environment names, or what stands in for one."""
    named = os.environ.get(KUBERNETES_VARIABLE)
    if named:
        return LeasePlace(named)
    server = stack.enter_context(LeaseServer(FakeLeases().answer))
    folder = stack.enter_context(Scratch("leases")).path
    return LeasePlace(server.kubeconfig(Path(folder), ADMIN))
