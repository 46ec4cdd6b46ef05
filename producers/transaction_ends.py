"""How a transaction ended, by what readers see of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from confluent_kafka import Message

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.clients import Clients
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import some_time, time_left
from epochfence.epochs.errors import TopicUnavailable
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.messages import headers_of
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.stamps import STAMP_HEADER
from epochfence.epochs.values import Place
from epochfence.producers.lives import Lives
from epochfence.producers.territory import Territory
from epochfence.producers.transactions import End

_BETWEEN_S = 0.05


class TransactionEnds:
    """Tells how transactions ended: one message of each tells of all the others.

    Args:
        connection: Connection settings, as for confluent-kafka.
        clients: Opens the clients.
        leaderships: What the messages are stamped with.
        territory: Tells in which life of a topic they were written.
        lives: Looks at topics.
    """

    def __init__(
        self,
        connection: Config,
        clients: Clients,
        leaderships: Sequence[Leadership],
        territory: Territory,
        lives: Lives,
    ) -> None:
        # Behind the last record, a marker is waited for as long as for anything else.
        self._connection = {**connection, "fetch.wait.max.ms": 10}
        self._clients = clients
        self._stamps = {held.stamp_value for held in leaderships}
        self._territory = territory
        self._lives = lives

    def of(self, messages: Mapping[Place, Acknowledged], deadline: float) -> End:
        """How the transaction of these messages ended.

        Raises:
            TopicUnavailable: It has not ended yet, or the topic cannot be read.
        """
        for place, acknowledged in sorted(messages.items()):
            offsets = acknowledged.standing
            if not offsets:
                continue
            is_seen = self._is_seen(place, offsets.end - 1, deadline)
            if is_seen is not None and self._is_same_life(place, deadline):
                return "committed" if is_seen else "aborted"
        return "unknowable"

    def _is_same_life(self, place: Place, deadline: float) -> bool:
        """A look that begins after the records were received."""
        life = self._lives.look(place[0], deadline)
        ground = self._territory.ground(place)
        if life is None or ground is None:
            return False
        return life.topic_id == ground.topic_id

    def _is_seen(self, place: Place, offset: int, deadline: float) -> bool | None:
        """Whether committed readers see a message; None where it is not there."""
        readers = [
            self._clients.partition_reader(
                self._connection, *place, isolation=isolation
            )
            for isolation in ("read_uncommitted", "read_committed")
        ]
        try:
            everything, committed = readers
            start, end = everything.bounds(some_time(deadline))
            if not start <= offset < end or not self._meets(
                everything, offset, deadline
            ):
                return None
            while True:
                if self._meets(committed, offset, deadline):
                    return True
                if (committed.position or 0) > offset:
                    return False
                if not time_left(deadline):
                    raise TopicUnavailable(
                        place[0], "a transaction has not ended yet", place[1], offset
                    )
                time.sleep(_BETWEEN_S)
        finally:
            for reader in readers:
                reader.close()

    def _meets(self, reader: PartitionReader, offset: int, deadline: float) -> bool:
        batches = reader.read(offset, offset + 1, stall_timeout_s=some_time(deadline))
        return any(
            message.offset() == offset and self._is_own(message)
            for batch in batches
            for message in batch
        )

    def _is_own(self, message: Message) -> bool:
        found = {value for name, value in headers_of(message) if name == STAMP_HEADER}
        return found == self._stamps
