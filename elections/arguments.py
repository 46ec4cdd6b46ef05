"""What the elections are given: checked, before anything is done with it."""

from __future__ import annotations

from epochfence.epochs.errors import MisconfiguredError

#: As long as anything of ours waits in one call.
_MAX_WAIT_S = 3600.0


def checked_wait(timeout_s: float) -> float:
    """How long to wait, 0: not at all.

    Raises:
        MisconfiguredError: One cannot wait so long.
    """
    is_number = isinstance(timeout_s, int | float) and not isinstance(timeout_s, bool)
    if not is_number or not 0 <= timeout_s <= _MAX_WAIT_S:
        raise MisconfiguredError(
            "timeout_s", timeout_s, "not a time to wait",
            f"Use a number of seconds from 0 (only look) to {_MAX_WAIT_S:g}.",
        )  # fmt: skip
    return timeout_s
