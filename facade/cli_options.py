"""Options that several commands share: the cluster, in kcat's letters; the fence."""

from __future__ import annotations

import getpass
import os
import socket
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader
from epochfence.epochs.verdicts import REJECTED, Kind

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
TableTopic = Annotated[
    str, typer.Option(metavar="NAME", help="The topic of the max-epoch table.")
]


class AuthorityChoice(str, Enum):
    """Who says which epochs exist."""

    ledger = "ledger"
    max_seen = "max-seen"


class UnstampedChoice(str, Enum):
    """What becomes of a record without a required stamp."""

    quarantine = "quarantine"
    admit = "admit"
    admit_until_first_stamp = "admit-until-first-stamp"


class FailOn(str, Enum):
    """Which records make a command end with exit code 1."""

    rejected = "rejected"
    quarantined = "quarantined"
    never = "never"

    def is_met(self, kind: Kind) -> bool:
        """Whether a record with such a verdict does."""
        if self is FailOn.rejected:
            return kind in REJECTED
        return self is FailOn.quarantined and kind == "quarantined"


Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--scope",
        metavar="S",
        help="A scope whose stamp every record must carry. May be repeated. "
        "Without it, any stamp satisfies.",
    ),
]
StampOption = Annotated[
    str,
    typer.Option(
        metavar="STAMP",
        help="epochfence, or another system's header as HEADER:int64be or "
        "HEADER:decimal.",
    ),
]
Authority = Annotated[
    AuthorityChoice | None,
    typer.Option(
        help="Who says which epochs exist. Default: ledger for the stamp epochfence, "
        "max-seen for a foreign header.",
        show_default=False,
    ),
]
Unstamped = Annotated[
    UnstampedChoice,
    typer.Option(help="What becomes of a record without a required stamp."),
]
MaxJump = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="With max-seen: how far above the current epoch the next may be.",
    ),
]


#: What `--what-if` may name.
_WHAT_IF = ("scope", "stamp", "authority", "unstamped", "max-jump")


def fence_settings(
    scopes: list[str] | None,
    stamp: str,
    authority: AuthorityChoice | None,
    unstamped: UnstampedChoice,
    max_jump: int | None,
) -> FenceSettings:
    """The settings of a fence that the options name.

    Raises:
        MisconfiguredError: One of them is no setting, or contradicts another.
    """
    return FenceSettings(
        scopes or (),
        unstamped=unstamped.value,
        authority=None if authority is None else authority.value,
        stamps=stamp_reader(stamp),
        max_jump=max_jump,
    )


def what_if_settings(text: str, settings: FenceSettings) -> FenceSettings:
    """The settings of a fence that `--what-if` names; what it leaves out is the same.

    Raises:
        MisconfiguredError: It names no settings, or they contradict each other.
    """
    given: dict[str, list[str]] = {}
    for part in text.split(","):
        name, equals, value = part.strip().partition("=")
        if not equals or name not in _WHAT_IF:
            raise MisconfiguredError(
                "--what-if", text, f"{part.strip()!r} is no setting",
                f"Give some of {', '.join(f'{one}=…' for one in _WHAT_IF)}, with "
                f"commas between.",
            )  # fmt: skip
        given.setdefault(name, []).append(value.strip())
    for name, values in given.items():
        if name != "scope" and len(values) > 1:
            raise MisconfiguredError(
                "--what-if", text, f"{name} stands there twice", "Give it once."
            )
    one = {name: values[0] for name, values in given.items()}
    stamps = stamp_reader(one["stamp"]) if "stamp" in one else settings.stamps
    is_same_stamp = stamps.is_foreign == settings.stamps.is_foreign
    jump = one.get("max-jump")
    if jump is not None and not (jump.isascii() and jump.isdigit()):
        raise MisconfiguredError(
            "--what-if", text, f"max-jump {jump!r} is no number", "Use a whole number."
        )
    kept_authority = settings.authority if is_same_stamp else None
    return FenceSettings(
        given.get("scope", settings.require if is_same_stamp else ()),
        unstamped=one.get("unstamped", settings.unstamped),
        authority=one.get("authority", kept_authority),
        stamps=stamps,
        max_jump=settings.max_jump if jump is None else int(jump),
    )


def as_milliseconds(text: str | None, option: str) -> int | None:
    """A time of ISO 8601 as milliseconds since 1970; UTC where no zone is said.

    Raises:
        MisconfiguredError: It is no time.
    """
    if text is None:
        return None
    try:
        # Python before 3.11 knows no Z.
        moment = datetime.fromisoformat(text.removesuffix("Z"))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=timezone.utc)
        milliseconds = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        milliseconds = -1
    if milliseconds < 0:
        raise MisconfiguredError(
            option, text, "no time since 1970",
            "Use, for instance, 2026-11-30T22:15 or 2026-11-30T22:15:00+01:00.",
        )  # fmt: skip
    return milliseconds


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


def whoami() -> str:
    """Who claims, where nothing else is said: user@host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a user id without a name, as in many containers
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"


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
