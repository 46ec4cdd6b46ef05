"""Leading in memory: what tests of it share."""

from __future__ import annotations

from collections.abc import Callable

from epochfence import lead

SCOPE = "w"

#: Makes a `lead` of scope `w` on the topic `orders`, with options of its own.
NewLead = Callable[..., lead]
