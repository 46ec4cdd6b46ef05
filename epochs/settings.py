"""The settings of a fence for one topic: what opens an epoch depends on them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.stamps import OwnStamps, StampReader
from epochfence.epochs.values import MAX_EPOCH, check_scope, is_foreign

Authority = Literal["ledger", "max-seen"]
Unstamped = Literal["quarantine", "admit", "admit-until-first-stamp"]

#: In the name of a required scope: the partition's number.
PARTITION_FIELD = "{partition}"
_FIELD = re.compile(r"\{[^{}]*\}")
_LONGEST_NUMBER = str(2**31 - 1)


class FenceSettings(BaseModel):
    """What a topic's records must carry, and who says which epochs exist.

    Args:
        require: The scopes whose stamps every record must carry; in a name,
            `{partition}` stands for the partition's number. Empty: any stamp
            satisfies.
        unstamped: What to do with a record that lacks a required stamp:
            `quarantine`, `admit`, or `admit-until-first-stamp` (until the first
            epoch of that scope begins on the partition). None: not decided; a
            reader stops at the first such record, before any epoch began.
        authority: `ledger` (an epoch exists if it was granted) or `max-seen` (a
            higher epoch is admitted as it comes). None: `ledger` for our own
            stamps, `max-seen` for foreign ones.
        stamps: Finds the stamps; None: our own headers.
        max_jump: With `max-seen`, how far above the current epoch the next may
            be. None: any distance.

    Raises:
        MisconfiguredError: A setting is misspelt or contradicts another.
    """

    model_config = ConfigDict(frozen=True, strict=True, arbitrary_types_allowed=True)

    require: tuple[str, ...]
    unstamped: Unstamped | None
    authority: Authority
    stamps: StampReader
    max_jump: Annotated[int, Field(ge=1, le=MAX_EPOCH)] | None

    def __init__(
        self,
        require: Iterable[str] = (),
        *,
        unstamped: str | None = None,
        authority: str | None = None,
        stamps: StampReader | None = None,
        max_jump: int | None = None,
    ) -> None:
        if isinstance(require, str | bytes) or not isinstance(require, Iterable):
            example = require if isinstance(require, str) else "orders-writer"
            raise MisconfiguredError(
                "require", require, "a list of scopes is expected",
                f"Use [{example!r}], or [] where any stamp satisfies.",
            )  # fmt: skip
        reader: StampReader = OwnStamps() if stamps is None else stamps
        if not isinstance(reader, StampReader):
            raise MisconfiguredError(
                "stamps", stamps, "it reads no stamps",
                "Give ForeignHeader('generation', 'decimal') or ForeignField(...), or "
                "leave it out: the framework's own stamps.",
            )  # fmt: skip
        if authority is None:
            authority = "max-seen" if reader.is_foreign else "ledger"
        try:
            super().__init__(
                require=tuple(dict.fromkeys(require)),
                unstamped=unstamped,
                authority=authority,
                stamps=reader,
                max_jump=max_jump,
            )
        except ValidationError as error:
            raise _misconfigured(error) from None
        self._check_require()
        self._check_authority()

    def _check_require(self) -> None:
        for scope in self.require:
            if self.stamps.scope is None:
                _check_not_mistaken(scope)
                check_scope(scope.replace(PARTITION_FIELD, _LONGEST_NUMBER))
            elif scope != self.stamps.scope:
                raise MisconfiguredError(
                    "require", scope,
                    f"the stamp {self.stamps.name!r} gives scope "
                    f"{self.stamps.scope!r} and no other",
                    f"Use {self.stamps.scope!r}, or leave it out: any stamp satisfies.",
                )  # fmt: skip

    def _check_authority(self) -> None:
        if self.authority == "max-seen":
            return
        if self.stamps.is_foreign:
            raise MisconfiguredError(
                "authority", self.authority,
                f"no ledger knows the epochs of the stamp {self.stamps.name!r}",
                "Use max-seen for foreign stamps.",
            )  # fmt: skip
        if self.max_jump is not None:
            raise MisconfiguredError(
                "max_jump", self.max_jump,
                "with authority ledger the grants are the limit",
                "Leave it out, or use authority max-seen.",
            )  # fmt: skip

    def __repr__(self) -> str:
        facts = [repr(list(self.require))]
        if self.unstamped is not None:
            facts.append(f"unstamped={self.unstamped!r}")
        if self.authority != ("max-seen" if self.stamps.is_foreign else "ledger"):
            facts.append(f"authority={self.authority!r}")
        if self.stamps.name != OwnStamps.name:
            facts.append(f"stamps={self.stamps!r}")
        if self.max_jump is not None:
            facts.append(f"max_jump={self.max_jump}")
        return f"FenceSettings({', '.join(facts)})"

    __str__ = __repr__

    def required_scopes(self, partition: int) -> tuple[str, ...]:
        """The scopes whose stamps a record of this partition must carry."""
        number = str(partition)
        named = [scope.replace(PARTITION_FIELD, number) for scope in self.require]
        return tuple(dict.fromkeys(named))

    def decided(self) -> FenceSettings:
        """The same; where it was not decided about unstamped records: `quarantine`."""
        if self.unstamped is not None:
            return self
        return self.model_copy(update={"unstamped": "quarantine"})

    def digest(self) -> str:
        """16 hex digits: equal for settings under which the same epochs begin."""
        facts = {
            "authority": self.authority,
            "max_jump": self.max_jump,
            "require": sorted(self.require),
            "stamps": self.stamps.name,
            # Whoever has not decided stops where others reject: neither begins there.
            "unstamped": self.unstamped or "quarantine",
        }
        text = json.dumps(facts, separators=(",", ":"), sort_keys=True)
        return hashlib.sha256(text.encode("ascii")).hexdigest()[:16]


def _check_not_mistaken(scope: str) -> None:
    """Scopes that look like something else: told as what they are."""
    if is_foreign(scope):
        raise MisconfiguredError(
            "require", scope, "what begins with ~ is the scope of another system's "
            "header, and no stamps= says how to read that",
            f"Add stamps=ForeignHeader({scope[1:]!r}, 'decimal'), or 'int64be'.",
        )  # fmt: skip
    for field in _FIELD.findall(scope):
        if field != PARTITION_FIELD:
            raise MisconfiguredError(
                "require", scope, f"nothing is known of a field {field}",
                f"{PARTITION_FIELD} stands for the partition's number.",
            )  # fmt: skip


def _misconfigured(error: ValidationError) -> MisconfiguredError:
    first = error.errors()[0]
    setting = str(first["loc"][0])
    choices = first.get("ctx", {}).get("expected")
    remedy = f"Use one of {choices}." if choices else f"{first['msg']}."
    return MisconfiguredError(setting, first["input"], "not allowed", remedy)
