"""Options that several commands share: how to reach the cluster, in kcat's letters."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from epochfence.epochs.errors import MisconfiguredError

BootstrapServer = Annotated[
    str | None,
    typer.Option(
        "-b",
        "--bootstrap-server",
        metavar="HOST:PORT[,…]",
        envvar="EPOCHFENCE_BOOTSTRAP_SERVERS",
        help="Brokers to connect to first.",
    ),
]
Properties = Annotated[
    list[str] | None,
    typer.Option(
        "-X",
        "--property",
        metavar="NAME=VALUE",
        help="A librdkafka setting, such as security.protocol=SSL. May be repeated.",
    ),
]
CommandConfig = Annotated[
    Path | None,
    typer.Option(
        "-F",
        "--command-config",
        metavar="FILE",
        help="A file of such settings, one name=value a line.",
    ),
]
CoordinationTopic = Annotated[
    str,
    typer.Option(metavar="NAME", help="The topic that holds the ledger."),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.1,
        max=3600,
        help="How long the cluster may take.",
    ),
]


def kafka_config(
    bootstrap_server: str | None,
    properties: list[str] | None,
    command_config: Path | None,
) -> dict[str, Any]:
    """The connection settings that the options name.

    Raises:
        MisconfiguredError: No broker is named, or a setting cannot be read.
    """
    config: dict[str, Any] = {}
    if command_config is not None:
        config.update(_read_properties(command_config))
    config.update(_split(text, "-X") for text in properties or ())
    if bootstrap_server is not None:
        config["bootstrap.servers"] = bootstrap_server
    if "bootstrap.servers" not in config:
        raise MisconfiguredError(
            "-b/--bootstrap-server", None, "no broker is named",
            "Give -b HOST:PORT, or set EPOCHFENCE_BOOTSTRAP_SERVERS.",
        )  # fmt: skip
    return config


def _read_properties(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise MisconfiguredError(
            "-F/--command-config", str(path), f"cannot be read: {error}",
            "Give a text file with one name=value a line.",
        ) from error  # fmt: skip
    properties = [
        (number, line.strip())
        for number, line in enumerate(lines, 1)
        if line.strip() and not line.lstrip().startswith(("#", "!"))
    ]
    return dict(_split(line, f"{path}, line {number}") for number, line in properties)


def _split(text: str, where: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip() or value.endswith("\\"):
        # Without the text: it may be a password, or a part of one.
        raise MisconfiguredError(
            where, ..., "not of the form name=value, on one line",
            "Use, for instance, security.protocol=SSL.",
        )  # fmt: skip
    return name.strip(), value.strip()
