"""A fenced consumer's settings: what the client underneath gets, and what we do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from confluent_kafka import KafkaError, TopicPartition

from epochfence.epochs.connection import Config
from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import StampReader
from epochfence.epochs.values import check_function

Mode = Literal["enforce", "dry-run"]
OnCommit = Callable[[KafkaError | None, list[TopicPartition]], None]
#: What a topic's records must carry: its scopes, or all the settings of its fence.
Require = Mapping[str, Iterable[str] | FenceSettings]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}\Z")

_RESET = {
    "smallest": "earliest", "earliest": "earliest", "beginning": "earliest",
    "largest": "latest", "latest": "latest", "end": "latest",
    "error": "error",
}  # fmt: skip


@dataclass(frozen=True)
class Policies:
    """What the client would do by itself, and the shell does in its place.

    Attributes:
        is_auto_commit: Whether offsets are committed from time to time.
        commit_interval_s: How often.
        is_auto_store: Whether a message counts as done when the next is asked for.
        reset: Where to start without a committed offset, or outside of the log:
            `earliest`, `latest`, or `error` (the application is told).
        is_incremental: Whether the group's assignments come as differences.
        on_commit: Is told of each commit.
    """

    is_auto_commit: bool
    commit_interval_s: float
    is_auto_store: bool
    reset: str
    is_incremental: bool
    on_commit: OnCommit | None


def split_config(config: Config) -> tuple[dict[str, Any], Policies]:
    """The client's part of a user's config, and the policies carried out here.

    Raises:
        MisconfiguredError: No group, a share group, or a value that none can have.
    """
    if not isinstance(config, Mapping):
        raise MisconfiguredError(
            "config", config, "a mapping of settings is expected",
            "Give {'bootstrap.servers': 'host:port', 'group.id': 'my-group'}.",
        )  # fmt: skip
    for name in config:
        if not isinstance(name, str):
            raise MisconfiguredError(
                "config", name, "no setting's name", "Use names such as 'group.id'."
            )
    client = dict(config)
    _check_group(client)
    topic_level = client.pop("default.topic.config", None) or {}
    if not isinstance(topic_level, Mapping):
        raise MisconfiguredError(
            "default.topic.config", topic_level, "no mapping", "Use settings' names."
        )
    reset = client.pop("auto.offset.reset", topic_level.get("auto.offset.reset"))
    interval_ms = _milliseconds(client, "auto.commit.interval.ms", 5000)
    on_commit = client.pop("on_commit", None)
    check_function("on_commit", on_commit)
    strategy = str(client.get("partition.assignment.strategy", ""))
    protocol = str(client.get("group.protocol", "classic")).lower()
    return client, Policies(
        is_auto_commit=_flag(client, "enable.auto.commit", True) and interval_ms > 0,
        commit_interval_s=interval_ms / 1000,
        is_auto_store=_flag(client, "enable.auto.offset.store", True),
        reset=_reset(reset),
        is_incremental=protocol == "consumer" or "cooperative" in strategy,
        on_commit=cast("OnCommit | None", on_commit),
    )


def _check_group(client: Mapping[str, Any]) -> None:
    group = client.get("group.id")
    if not isinstance(group, str) or not group:
        raise MisconfiguredError(
            "group.id", group, "a consumer needs a group, to keep its offsets in",
            "Name one: {'group.id': 'my-group'}.",
        )  # fmt: skip
    is_share_group = str(client.get("group.protocol", "")).lower() == "share"
    for name in client:
        if is_share_group or name.startswith("share."):
            raise MisconfiguredError(
                "group.protocol" if is_share_group else name,
                client["group.protocol"] if is_share_group else client[name],
                "share groups (KIP-932) break the order within a partition, on which "
                "fencing rests",
                "Use an ordinary group: leave it out.",
            )  # fmt: skip


def _milliseconds(client: dict[str, Any], name: str, default: int) -> int:
    value = client.pop(name, default)
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal():
        raise MisconfiguredError(name, value, "no time", "Use milliseconds.")
    return int(text)


def _flag(client: dict[str, Any], name: str, default: bool) -> bool:
    value = client.pop(name, default)
    text = str(value).strip().lower()
    if text not in ("true", "false", "1", "0"):
        raise MisconfiguredError(name, value, "neither true nor false", "Use one.")
    return text in ("true", "1")


def _reset(value: object) -> str:
    if value is None:
        return "latest"  # as the client has it
    reset = _RESET.get(str(value).strip().lower())
    if reset is None:
        raise MisconfiguredError(
            "auto.offset.reset", value, "no such policy",
            "Use earliest, latest or error.",
        )  # fmt: skip
    return reset


def check_mode(mode: str) -> Mode:
    """Give `mode` back if it is one; a misspelt one never means "off"."""
    if mode not in ("enforce", "dry-run"):
        raise MisconfiguredError("mode", mode, "no mode", "Use enforce or dry-run.")
    return mode  # type: ignore[return-value]


def settings_by_topic(
    require: Require,
    *,
    unstamped: str | None,
    authority: str | None,
    stamps: StampReader | None,
    max_jump: int | None,
    is_dry_run: bool = False,
) -> dict[str, FenceSettings]:
    """The fence's settings for each topic.

    A dry run rejects nothing, so that nobody has to decide on unstamped records
    before: it counts them as those that would be rejected.

    Raises:
        MisconfiguredError: A setting is misspelt or contradicts another.
    """
    if not isinstance(require, Mapping):
        raise MisconfiguredError(
            "require", require, "it does not say which topics require what",
            "Give {topic: [scope, ...]}; [] means that any stamp satisfies.",
        )  # fmt: skip
    if not require:
        raise MisconfiguredError(
            "require", {}, "it lists no topic",
            "Give {topic: [scope, ...]}; [] means that any stamp satisfies.",
        )  # fmt: skip
    by_topic: dict[str, FenceSettings] = {}
    for topic, wanted in require.items():
        if not isinstance(topic, str) or not _TOPIC.match(topic):
            raise MisconfiguredError(
                "require", topic, "no topic can have this name",
                "Use topics' names as keys, each in full: patterns are only for "
                "subscribe.",
            )  # fmt: skip
        if isinstance(wanted, FenceSettings):
            by_topic[topic] = wanted
        else:
            by_topic[topic] = FenceSettings(
                wanted,
                unstamped=unstamped,
                authority=authority,
                stamps=stamps,
                max_jump=max_jump,
            )
        if is_dry_run:
            by_topic[topic] = by_topic[topic].decided()
    return by_topic


def unlisted(topic: str, listed: Iterable[str]) -> MisconfiguredError:
    """The error for a topic of which nobody said what its records must carry."""
    names = ", ".join(sorted(listed)) or "none"
    return MisconfiguredError(
        "require", topic,
        f"it does not say what the records of this topic must carry (listed: {names})",
        f"Add {topic!r}: [scope, ...]; [] means that any stamp satisfies.",
    )  # fmt: skip


def without_auto_commit(config: Config) -> dict[str, Any]:
    """A consumer's settings for those who commit nothing by themselves.

    Raises:
        MisconfiguredError: They are none, or ask for automatic commits.
    """
    if not isinstance(config, Mapping):
        raise MisconfiguredError(
            "config", config, "no settings of a client",
            "Give, for instance, {'bootstrap.servers': ..., 'group.id': ...}.",
        )  # fmt: skip
    settings: dict[str, Any] = dict(config)
    asked = settings.setdefault("enable.auto.commit", False)
    if str(asked).lower() not in ("false", "0"):
        raise MisconfiguredError(
            "enable.auto.commit", asked, "only the sink knows what is done",
            "Leave it out: offsets are committed after the sink has stored them.",
        )  # fmt: skip
    return settings
