"""Claims on the wire, and which epoch a claim may ask for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from epochfence.epochs import schemas
from epochfence.epochs.errors import (
    ClaimLost,
    EpochExhausted,
    LedgerRegressed,
    MisconfiguredError,
)
from epochfence.epochs.values import MAX_EPOCH, Claim, check_epoch

#: The broker's default limit of a record is 1 MB; a claim stays far below.
_MAX_CLAIM_BYTES = 100_000

#: A jump over more epochs than this has to be asked for twice: it cannot be undone.
MAX_UNASKED_JUMP = 2**32

_SYNC_KEY = re.compile(rb"sync/[0-9a-f]{16}\Z")


def claim_key(claim: Claim) -> bytes:
    """The record key of a claim: `claim/<scope>/<epoch>/<grant id>`."""
    return f"claim/{claim.scope}/{claim.epoch}/{claim.grant_id}".encode("ascii")


def claim_value(claim: Claim) -> bytes:
    """The record value of a claim."""
    return schemas.encode(
        schemas.CLAIM,
        {
            "scope": claim.scope,
            "epoch": claim.epoch,
            "previous": claim.previous,
            "grant_id": claim.grant_id,
            "holder": claim.holder,
            "claimed_at": claim.claimed_at,
            "attributes": dict(claim.attributes),
        },
    )


def sync_key(reader_id: str) -> bytes:
    """The record key of a sync: `sync/<reader id>`; its value is null."""
    return f"sync/{reader_id}".encode("ascii")


def is_sync(key: bytes | None, value: bytes | None) -> bool:
    """Whether a record is a sync."""
    return value is None and key is not None and _SYNC_KEY.match(key) is not None


def decode_claim(key: bytes | None, value: bytes | None) -> Claim:
    """The claim that a record spells.

    Raises:
        Undecodable: It is no claim, damaged, or its key and value disagree.
        UnknownFingerprint: A newer version wrote it.
    """
    if value is None:
        raise schemas.Undecodable("it has no value and is no sync")
    claim = claim_of(value)
    if key != claim_key(claim):
        raise schemas.Undecodable("its key and its value disagree")
    return claim


def claim_of(value: bytes) -> Claim:
    """The claim that a record's value spells, whatever its key.

    Raises:
        Undecodable: It is no claim, or damaged.
        UnknownFingerprint: A newer version wrote it.
    """
    schema, record = schemas.decode(value)
    if schema is not schemas.CLAIM:
        raise schemas.Undecodable(f"it is a {schema.name}, not a claim")
    try:
        return Claim(**record)
    except MisconfiguredError as error:
        raise schemas.Undecodable(f"its {error.setting} is malformed") from error


def plan_epoch(
    scope: str,
    latest: Claim | None,
    *,
    seen: int | None = None,
    at_least: int | None = None,
    exactly: int | None = None,
    allow_jump: bool = False,
) -> int:
    """The epoch that a candidate claims, given the latest grant of its scope.

    Args:
        scope: The scope.
        latest: Its latest grant, None where there is none.
        seen: The latest epoch that the candidate saw before its election, 0 for
            none: it claims the one after it, and loses to whoever claimed since.
        at_least: Asks for a jump to this epoch, where the next one is below it.
        exactly: Claims this epoch: one that comes from elsewhere. With `seen` too, it
            loses to whoever claimed since, whatever the numbers.
        allow_jump: Allows a jump over more than 2^32 epochs.

    Raises:
        ClaimLost: The epoch to claim is not above the latest: no need to ask.
        LedgerRegressed: With `exactly`: the ledger is below what was seen of it.
        EpochExhausted: No higher epoch exists.
        MisconfiguredError: Contradicting or impossible arguments, or a huge jump
            that was not allowed.
    """
    given = {"seen": seen, "at_least": at_least, "exactly": exactly}
    named = [name for name, number in given.items() if number is not None]
    if len(named) > 1 and named != ["seen", "exactly"]:
        raise MisconfiguredError(
            " and ".join(named), tuple(given[name] for name in named),
            "each of them says which epoch to claim", "Give one of them.",
        )  # fmt: skip
    latest_epoch = 0 if latest is None else latest.epoch
    before = None if seen is None else check_epoch(seen, "seen", lowest=0)
    is_late = False
    if exactly is not None:
        epoch = check_epoch(exactly, "exactly")
        if before is not None and latest_epoch < before:
            raise LedgerRegressed(scope, latest_epoch, before)
        is_late = before is not None and latest_epoch > before
    elif before is not None:
        epoch = before + 1
    else:
        epoch = latest_epoch + 1
        if at_least is not None:
            epoch = max(epoch, check_epoch(at_least, "at_least"))
    if latest is not None and (is_late or epoch <= latest_epoch):
        granted_before = latest_epoch if before is None else before
        is_exact = exactly is not None and epoch <= granted_before
        raise ClaimLost(scope, epoch, latest_epoch, latest.holder, is_exact)
    if epoch > MAX_EPOCH:
        raise EpochExhausted(scope, epoch - 1)
    if epoch - latest_epoch > MAX_UNASKED_JUMP and not allow_jump:
        setting = named[-1] if named else "epoch"
        raise MisconfiguredError(
            setting, given.get(setting, epoch),
            f"a jump from epoch {latest_epoch} to {epoch}, over more than 2^32 "
            "epochs, cannot be taken back",
            "Check the number; if it is meant, claim this scope alone, by claim(), "
            "with allow_jump=True (--allow-jump).",
        )  # fmt: skip
    return epoch


def claim_to_json(claim: Claim) -> dict[str, Any]:
    """A claim as a line of a ledger file."""
    line: dict[str, Any] = {
        "type": "claim",
        "scope": claim.scope,
        "epoch": claim.epoch,
        "previous": claim.previous,
        "grant_id": claim.grant_id,
        "holder": claim.holder,
        "claimed_at": claim.claimed_at,
    }
    if claim.attributes:
        line["attributes"] = dict(claim.attributes)
    return line


def checked_texts(holder: str, attributes: Mapping[str, str] | None) -> dict[str, str]:
    """The attributes; every text of a claim has to be one that can be written.

    Raises:
        MisconfiguredError: One is not, or the attributes are no mapping.
    """
    if attributes is not None and not isinstance(attributes, Mapping):
        raise MisconfiguredError(
            "attributes", attributes, "a mapping of texts is expected",
            "Give, for instance, {'url': 'http://pod-7:8080'}.",
        )  # fmt: skip
    texts = dict(attributes or {})
    for setting, text in [
        ("holder", holder),
        *(("attributes, a name", name) for name in texts),
        *((f"attributes[{name!r}]", text) for name, text in texts.items()),
    ]:
        if not _is_text(text):
            raise MisconfiguredError(
                setting, text, "not a text that UTF-8 can spell", "Give a str."
            )
    return texts


def _is_text(value: object) -> bool:
    if not isinstance(value, str):
        return False
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def checked_value(claim: Claim) -> bytes:
    """The record value of a claim, which must not be too large.

    Raises:
        MisconfiguredError: It is: holder and attributes are too long.
    """
    value = claim_value(claim)
    if len(value) > _MAX_CLAIM_BYTES:
        raise MisconfiguredError(
            "attributes", f"{len(value):,} bytes", "holder and attributes are too long",
            f"A claim may have {_MAX_CLAIM_BYTES:,} bytes: use names and addresses.",
        )  # fmt: skip
    return value
