"""Whether the records of a partition come in order of position, each once."""

from __future__ import annotations

import msgspec

from epochfence.epochs.values import Position


class OutOfOrderError(ValueError):
    """A record does not stand behind the ones before it in its partition."""


class LogOrder(msgspec.Struct):
    """Sees that a record stands behind every record of this life before it.

    The one before it is not enough: where a leader epoch is unknown, offsets alone are
    compared, and that order is not transitive.

    Attributes:
        last_offset: The offset of the last record, -1 before the first.
        leader_epoch: Its leader epoch.
    """

    last_offset: int = -1
    leader_epoch: int | None = None
    last_unnamed: int = -1
    last_named: tuple[int | None, int] = (None, -1)
    highest_named: int = -1

    def check(self, leader_epoch: int | None, offset: int) -> None:
        """See that a record of another leader epoch, or a lower offset, may come.

        Raises:
            OutOfOrderError: It does not stand behind all before it.
        """
        here = Position(leader_epoch, offset)
        if self.leader_epoch is None:
            self.last_unnamed = self.last_offset
        else:
            self.last_named = (self.leader_epoch, self.last_offset)
            self.highest_named = max(self.highest_named, self.last_offset)
        before = [Position(None, self.last_unnamed), Position(*self.last_named)]
        if leader_epoch is None:
            before.append(Position(None, self.highest_named))
        for position in before:
            if here.is_at_or_before(position):
                raise OutOfOrderError(
                    f"offset {offset} (leader epoch {leader_epoch}) comes after offset "
                    f"{position.offset} (leader epoch {position.leader_epoch}), but "
                    f"does not stand behind it: records must be in order of position, "
                    f"each once"
                )
        self.leader_epoch = leader_epoch
