"""Which cluster, and as whom: by a pod's service account, or by a kubeconfig file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from epochfence.epochs.errors import MisconfiguredError

#: For a process in a pod: the cluster's own address, and the pod's service account.
IN_CLUSTER = "in-cluster"

#: Where a pod finds which namespace it is in.
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

#: What is meant where a kubeconfig tells none.
_NAMESPACE = "default"

#: A kubeconfig that is none makes its loader stumble somewhere.
_NO_CONFIG = (
    ConfigException, yaml.YAMLError, OSError, ValueError, TypeError, KeyError,
    AttributeError,
)  # fmt: skip


def open_client(connect: str, context: str | None) -> tuple[ApiClient, str]:
    """A client that asks once for each question, and the namespace that is meant.

    Raises:
        MisconfiguredError: There is no such cluster, or nothing to log in by.
    """
    if not isinstance(connect, str) or not connect:
        raise _wrong(connect, "no cluster")
    if connect == IN_CLUSTER:
        if context is not None:
            raise MisconfiguredError(
                "context", context, "a pod has one cluster only",
                "Leave it out, or give a kubeconfig file as `connect`.",
            )  # fmt: skip
        return _loaded(connect, config.load_incluster_config), _namespace_of_pod()
    if not any(Path(path).expanduser().is_file() for path in _paths(connect)):
        raise _wrong(connect, "there is no such file")
    given: dict[str, Any] = {"config_file": connect, "context": context}
    client = _loaded(
        connect,
        lambda meant: config.load_kube_config(**given, client_configuration=meant),
    )
    return client, _namespace_of_context(connect, context)


def _paths(connect: str) -> list[str]:
    return [path for path in connect.split(os.pathsep) if path]


def _loaded(connect: str, load: Callable[[Configuration], object]) -> ApiClient:
    meant = Configuration()
    try:
        load(meant)
    except _NO_CONFIG as error:
        raise _wrong(connect, str(error).rstrip(".")) from error
    # Else urllib3 would try again, and an answer would take several times as long.
    meant.retries = False
    return ApiClient(meant)


def _wrong(connect: object, problem: str) -> MisconfiguredError:
    return MisconfiguredError(
        "connect", connect, problem,
        f"Give the path of a kubeconfig file (with context=..., where it is not its "
        f"current one), or {IN_CLUSTER!r} for a process in a pod whose service "
        f"account's token is mounted.",
    )  # fmt: skip


def _namespace_of_pod() -> str:
    try:
        return POD_NAMESPACE_FILE.read_text("utf-8").strip() or _NAMESPACE
    except OSError:
        return _NAMESPACE


def _namespace_of_context(connect: str, name: str | None) -> str:
    # `list_kube_config_contexts` wants a current one, though another may be meant.
    files: Any = KubeConfigMerger(connect)
    loader: Any = KubeConfigLoader(files.config, active_context=name)
    return str(loader.current_context["context"].get("namespace") or _NAMESPACE)
