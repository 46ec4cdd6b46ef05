"""Which cluster, and as whom: by a pod's service account, or by a kubeconfig file."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes import config
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from epochfence.elections.errors import NoAnswerError
from epochfence.elections.http_texts import shortened
from epochfence.epochs.errors import MisconfiguredError

#: For a process in a pod: the cluster's own address, and the pod's service account.
IN_CLUSTER = "in-cluster"

#: Where a pod finds which namespace it is in.
POD_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")

#: What is meant where a kubeconfig tells none.
_NAMESPACE = "default"

#: What the loader says of a kubeconfig that is none.
_SAID = (ConfigException, yaml.YAMLError, OSError, ValueError)
#: Where it stumbles instead: over a text, say, where a mapping should be.
_STUMBLES = (TypeError, KeyError, AttributeError)


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
    paths = [Path(path).expanduser() for path in connect.split(os.pathsep) if path]
    for path in paths:
        if path.is_dir():
            raise _wrong(connect, f"{path} is a folder")
    if not any(path.is_file() for path in paths):
        raise _wrong(connect, "there is no such file")
    given: dict[str, Any] = {"config_file": connect, "context": context}
    client = _loaded(
        connect,
        lambda meant: config.load_kube_config(**given, client_configuration=meant),
    )
    return client, _namespace_of_context(connect, context)


def _loaded(connect: str, load: Callable[[Configuration], object]) -> ApiClient:
    meant = Configuration()
    meant.host = ""  # else it would be localhost where none is told
    try:
        with _complaints() as said:
            load(meant)
    except _SAID as error:
        raise _wrong(connect, shortened(str(error))) from error
    except _STUMBLES as error:
        raise _wrong(connect, "it is no kubeconfig") from error
    if said:
        raise MisconfiguredError(
            "connect", connect, f"its login command failed: {shortened(said[0])}",
            "See that the command of the context's user (exec) works for this process: "
            "that it is there, and finds what it needs.",
        )  # fmt: skip
    _check_server(connect, meant.host)
    _check_certificates(connect, meant)
    _tell_of_later_logins(meant)
    # Else urllib3 would try again, and an answer would take several times as long.
    meant.retries = False
    return ApiClient(meant)


@contextmanager
def _complaints() -> Generator[list[str], None, None]:
    """What the loader says of a login command that failed: to the root logger only.

    The login is then left out, and the server would say no more than "Unauthorized".
    """
    said: list[str] = []
    caller = threading.get_ident()

    def take(record: logging.LogRecord) -> bool:
        if record.thread != caller or record.module != "kube_config":
            return True
        said.append(record.getMessage().removeprefix("exec: "))
        return False

    root, silent = logging.getLogger(), logging.NullHandler()
    root.addFilter(take)
    # One without a handler would be given one for good, which writes to stderr.
    root.addHandler(silent)
    try:
        yield said
    finally:
        root.removeHandler(silent)
        root.removeFilter(take)


def _tell_of_later_logins(configuration: Configuration) -> None:
    """Have a login that is over, and cannot be had anew, be no answer."""
    meant: Any = configuration  # the library types its hook as None
    refresh: Callable[[Configuration], None] | None = meant.refresh_api_key_hook
    if refresh is None:
        return

    def refresh_aloud(_: Configuration) -> None:
        with _complaints() as said:
            refresh(configuration)
        meant.refresh_api_key_hook = refresh_aloud  # it sets itself there
        if said:
            raise NoAnswerError(f"the login command failed: {shortened(said[0])}")

    meant.refresh_api_key_hook = refresh_aloud


def _check_server(connect: str, server: str) -> None:
    if not server:
        raise _wrong(connect, "its cluster has no server")
    try:
        parts = urlsplit(server)
        is_url = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        is_url = False
    else:
        is_url = is_url and bool(parts.hostname) and not set(server) & set(" \t\n")
    if not is_url:
        raise MisconfiguredError(
            "connect", connect, f"its server {server!r} is no URL",
            "Have the kubeconfig's cluster name one such as https://10.0.0.1:6443.",
        )  # fmt: skip


def _check_certificates(connect: str, meant: Configuration) -> None:
    """See that they can be used: else it looks as if the network were bad."""
    context = ssl.create_default_context()
    name = "certificate-authority"
    try:
        if meant.ssl_ca_cert:
            context.load_verify_locations(meant.ssl_ca_cert)
        name = "client-certificate, with its client-key,"
        if meant.cert_file:
            # Without a password, whoever has a key with one would be asked for it.
            context.load_cert_chain(meant.cert_file, meant.key_file, password="")
    except OSError as error:  # SSLError is one
        raise MisconfiguredError(
            "connect", connect, f"its {name} cannot be used: {error.strerror or error}",
            "Give it in PEM: as a file, or its base64 as ...-data.",
        ) from error  # fmt: skip


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
