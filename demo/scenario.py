"""What the demo plays: two leaders who keep the stock levels of a shop.

Pure: the same seed, the same story.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass

_ITEMS = (
    "baskets", "candles", "chairs", "clocks", "forks", "kettles",
    "lamps", "mugs", "plants", "rugs", "shelves", "vases",
)  # fmt: skip

#: How many items the shop has.
ITEMS = 5
#: How many levels the first leader sets late; as many items end up wrong.
LATE = 3

SCOPE = "stock-writer"


@dataclass(frozen=True)
class Order:
    """Set the level of an item."""

    item: str
    level: int


@dataclass(frozen=True)
class Scenario:
    """Who sets which levels, and when.

    Attributes:
        seed: What it was made from.
        items: The items of the shop, in the order in which they are shown.
        before: What the first leader sets while it leads.
        late: What it hands over just before it is stopped: still on its way then.
        successor: What the second leader sets while the first is stopped: other
            levels for the same items.
        after: What the second sets when the first has woken up, for other items.
    """

    seed: int
    items: tuple[str, ...]
    before: tuple[Order, ...]
    late: tuple[Order, ...]
    successor: tuple[Order, ...]
    after: tuple[Order, ...]

    @property
    def right(self) -> dict[str, int]:
        """The levels by what leaders set while they led."""
        return levels([*self.before, *self.successor, *self.after])

    @property
    def corrupted(self) -> dict[str, int]:
        """The levels if what the first leader sent late counts as well."""
        return levels([*self.before, *self.successor, *self.late, *self.after])


def levels(orders: Iterable[Order]) -> dict[str, int]:
    """What comes out: the last order of an item counts."""
    return {order.item: order.level for order in orders}


def make_scenario(seed: int) -> Scenario:
    """The story of a seed."""
    dice = random.Random(seed)
    items = tuple(sorted(dice.sample(_ITEMS, ITEMS)))
    # No level comes twice, so that each tells who set it.
    unused = dice.sample(range(10, 100), 40)

    def orders(names: Iterable[str]) -> tuple[Order, ...]:
        return tuple(Order(name, unused.pop()) for name in names)

    shuffled = dice.sample(items, ITEMS)
    contested, others = shuffled[:LATE], shuffled[LATE:]
    return Scenario(
        seed,
        items,
        before=orders(dice.sample(items, ITEMS)),
        late=orders(contested),
        successor=orders(dice.sample(contested, LATE)),
        after=orders(others),
    )
