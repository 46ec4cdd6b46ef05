"""Whether this instance still has a partition that another has written to."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from confluent_kafka import KafkaException, TopicPartition

from epochfence.consumers.fenced_consumer import FencedConsumer
from epochfence.consumers.group_positions import NO_MEMBER, GroupSink
from epochfence.epochs.connection import Config, connection_settings
from epochfence.epochs.errors import SinkFenced, SinkUnavailable, TopicUnavailable
from epochfence.epochs.ledger import Ledger

_log = logging.getLogger(__name__)


class Membership:
    """A runner's membership of its group.

    Args:
        consumer: The member.
        group_sink: The sink, if its positions are the group's commits.
        ledger: Its clients tell of the group.
        config: The member's settings.
        timeout_s: How long to wait for the group.
    """

    def __init__(
        self,
        consumer: FencedConsumer,
        group_sink: GroupSink | None,
        ledger: Ledger,
        config: Config,
        timeout_s: float,
    ) -> None:
        self._consumer = consumer
        self._group_sink = group_sink
        self._clients = ledger.clients
        self._connection = connection_settings(config)
        self._group: Any = config["group.id"]
        self._timeout_s = timeout_s

    def holds(self, error: SinkFenced) -> bool | None:
        """Ask the group once; None: it has not decided, or does not answer.

        Raises:
            SinkFenced: This instance is no member, and another has the partition. It
                is the error that was given.
        """
        try:
            self._ask(error)
        except KafkaException as refused:
            if refused.args[0].code() in NO_MEMBER and self._is_taken(error):
                raise error from refused
            return None  # the client will hear of it, and join again
        except TopicUnavailable:
            return True  # that does not tell; the next pass meets it again
        except SinkUnavailable as unknown:
            _log.warning("asked again: %s", unknown)
            return None
        return True

    def _ask(self, error: SinkFenced) -> None:
        """Have the group refuse a commit, if it does not count this one a member."""
        offset = error.found[2]
        if self._group_sink is not None:
            self._group_sink.ask(error.topic, error.partition)
        elif offset is not None:  # else emptied by somebody: no sign of another member
            tp = TopicPartition(error.topic, error.partition, offset)
            self._consumer.commit(offsets=[tp], asynchronous=False)

    def _is_taken(self, error: SinkFenced) -> bool:
        """Whether another member has the partition by now, as far as one can tell."""
        if error.found != error.expected:
            return True
        place = error.topic, error.partition
        with suppress(KafkaException):
            return self._clients.has_member_with(
                self._connection, self._group, *place, self._timeout_s
            )
        return False
