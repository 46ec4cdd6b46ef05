"""Kubeconfig files of the tests' own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_kubeconfig(
    path: Path,
    server: str,
    token: str,
    *,
    namespace: str | None = None,
    authority: Path | None = None,
) -> Path:
    """A file with one context, `here`; in JSON, which is YAML, too."""
    cluster: dict[str, Any] = {"server": server}
    if authority is not None:
        cluster["certificate-authority"] = str(authority)
    context = {"cluster": "there", "user": "me"}
    if namespace is not None:
        context["namespace"] = namespace
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "there", "cluster": cluster}],
                "users": [{"name": "me", "user": {"token": token}}],
                "contexts": [{"name": "here", "context": context}],
                "current-context": "here",
            }
        )
    )
    return path
