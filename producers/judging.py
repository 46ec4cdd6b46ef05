"""How the consumers of each topic judge, as far as a producer needs to know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.settings import FenceSettings

#: The settings of every topic, or those of each.
Settings = FenceSettings | Mapping[str, FenceSettings]


class Judging:
    """The fence settings of each topic.

    Args:
        settings: As the consumers judge; None: they require the scopes of these
            leaderships.
        leaderships: What the messages are stamped with.

    Raises:
        MisconfiguredError: The consumers do not go by the ledger.
    """

    def __init__(
        self, settings: Settings | None, leaderships: Sequence[Leadership]
    ) -> None:
        self._scopes = {held.scope for held in leaderships}
        if settings is None:
            settings = FenceSettings(
                [held.scope for held in leaderships], unstamped="quarantine"
            )
        self._settings = settings
        given = settings.values() if isinstance(settings, Mapping) else [settings]
        for one in given:
            _check(one)

    def of(self, topic: str) -> FenceSettings:
        """The settings of a topic.

        Raises:
            MisconfiguredError: There are none.
        """
        return settings_of(self._settings, topic)

    def check(self, topic: str, partitions: Iterable[int]) -> None:
        """See that the consumers of a topic can admit messages of this producer.

        Raises:
            MisconfiguredError: They require a scope that it does not stamp.
        """
        for partition in partitions:
            scope = self._missing(topic, partition)
            if scope is not None:
                raise MisconfiguredError(
                    "settings", list(self.of(topic).require),
                    f"{topic}[{partition}] requires stamps of scope {scope!r}, and "
                    f"this producer stamps {sorted(self._scopes)}",
                    "Give it that leadership too, or take over other partitions.",
                )  # fmt: skip

    def lets_in(self, topic: str, partition: int) -> bool:
        """Whether messages of this producer can be admitted on a partition."""
        return self._missing(topic, partition) is None

    def _missing(self, topic: str, partition: int) -> str | None:
        """A scope that is required there, and not stamped here."""
        settings = self.of(topic)
        if settings.unstamped == "admit":
            return None
        required = settings.required_scopes(partition)
        return next((scope for scope in required if scope not in self._scopes), None)


def settings_of(settings: Settings, topic: str) -> FenceSettings:
    """The settings of a topic.

    Raises:
        MisconfiguredError: There are none.
    """
    if isinstance(settings, FenceSettings):
        return settings
    found = settings.get(topic)
    if found is None:
        raise MisconfiguredError(
            "settings", list(settings), f"topic {topic} is not among them",
            "Say how its consumers judge, or give one setting for all topics.",
        )  # fmt: skip
    return found


def _check(settings: object) -> None:
    if not isinstance(settings, FenceSettings):
        raise MisconfiguredError(
            "settings", settings, "these are no fence settings",
            "Give FenceSettings, or a mapping of topics to them.",
        )  # fmt: skip
    if settings.authority != "ledger":
        raise MisconfiguredError(
            "settings", settings.authority,
            "where made-up epochs are admitted, nobody can say what is",
            "Use authority ledger for topics that are written to under a leadership.",
        )  # fmt: skip
