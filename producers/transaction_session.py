"""Who has the transactional id: taken, lost, taken again; and what to say of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from hashlib import sha256
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer

from epochfence.epochs.clients import Clients
from epochfence.epochs.connection import LastError
from epochfence.epochs.errors import (
    MisconfiguredError,
    TopicUnavailable,
    TransactionAborted,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.transactions import LASTING, TransactionalClient

#: Where Kafka keeps who has which transactional id; its leader answers for it.
_COORDINATORS = "__transaction_state"

#: Whoever loses the id so many times in a row, and has no successor, shares it.
_LOST_TIMES = 5

#: Longer names of several scopes would come near what Kafka takes.
_LONGEST_NAME = 1000


def scopes_id(coordination_topic: str, leaderships: Iterable[Leadership]) -> str:
    """The `transactional.id` of whoever has these leaderships, now or later.

    The ledger's topic and the scopes, in order. (Scopes hold no plus; where they are
    very long, a digest stands for them.)
    """
    scopes = "+".join(sorted(held.scope for held in leaderships))
    if len(scopes) > _LONGEST_NAME:
        scopes = sha256(scopes.encode("ascii")).hexdigest()
    return f"{coordination_topic}/{scopes}"


def checked_id(scopes_id: str, given: str | None, settings: Mapping[str, Any]) -> str:
    """The id to use: that of the scopes, or another if it was asked for by name.

    Raises:
        MisconfiguredError: It is none, or the settings say something else.
    """
    name = scopes_id if given is None else given
    if not isinstance(name, str) or not name:
        raise MisconfiguredError(
            "transactional_id", name, "it is no name", "Give a text, or leave it out."
        )
    if settings.get("transactional.id", name) != name:
        raise MisconfiguredError(
            "transactional.id", settings["transactional.id"],
            f"it is {name!r}, so that Kafka fences leaders of the same scopes",
            "Leave it out; if it is to be another, say so with transactional_id=.",
        )  # fmt: skip
    return name


class TransactionSession:
    """A transactional id, and the client that has it.

    Kafka gives an id to whoever initialises last, a deposed leader too. So the ledger
    is asked before, lest a deposed one takes it; and after, since it may have been
    deposed meanwhile.

    Args:
        clients: Opens the clients.
        settings: A client's settings, as `transaction_settings` gives them.
        longest_s: How long a transaction lasts at most, in seconds.
        transactional_id: The id.
        check_latest: Called with a deadline: raises if there is a successor.

    Attributes:
        client: The client, or what makes the next one.
    """

    def __init__(
        self,
        clients: Clients,
        settings: Mapping[str, Any],
        longest_s: float,
        transactional_id: str,
        check_latest: Callable[[float], None],
    ) -> None:
        self.transactional_id = transactional_id
        self._check_latest = check_latest
        self._last_error = LastError(settings)
        self._lost_times = 0
        self.client = TransactionalClient(
            partial(clients.transactional_producer, with_reports=True),
            {**settings, "transactional.id": transactional_id},
            longest_s,
            self._last_error,
        )

    def ready(self, deadline: float) -> Producer | None:
        """Have the id. What anybody left open under it has ended.

        Returns:
            The client, None where it is the same as before.

        Raises:
            Deposed, LedgerUnavailable, LedgerRegressed, ...: As `check_latest`.
            TopicUnavailable: The id cannot be had now.
            MisconfiguredError: The id, or a setting, is refused.
        """
        if self.client.is_ready:
            return None
        self._check_latest(deadline)
        try:
            producer = self.client.ready(deadline)
        except KafkaException as error:
            raise self.refused(error.args[0]) from error
        try:
            self._check_latest(deadline)
        except BaseException:
            self.client.drop()
            raise
        return producer

    def refused(self, cause: KafkaError) -> TopicUnavailable | MisconfiguredError:
        """What to raise where the id was not to be had."""
        if cause.code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
            return MisconfiguredError(
                "transactional.id", self.transactional_id, "this client may not use it",
                "Allow its user to (an ACL for WRITE on the transactional id).",
            )  # fmt: skip
        if cause.code() in LASTING:
            return MisconfiguredError(
                "config", ..., f"the cluster refuses it: {cause.str()}",
                "See the settings of transactions, the client's and the cluster's.",
            )  # fmt: skip
        reason = f"{self.transactional_id!r} cannot be taken: {cause.str()}"
        return TopicUnavailable(_COORDINATORS, self._last_error.or_else(reason))

    def has_committed(self) -> None:
        """Take in that all is well."""
        self._lost_times = 0

    def aborted(
        self, cause: KafkaError, has_lost_id: bool
    ) -> TransactionAborted | MisconfiguredError:
        """What to raise where a transaction was aborted, and there is no successor.

        Args:
            cause: What the client said of it.
            has_lost_id: What `TransactionalClient.has_lost_id` told then.
        """
        if cause.code() != KafkaError._FENCED:
            return self._again(self._last_error.or_else(cause.str()))
        if not has_lost_id:
            try:
                remedy = "Raise it, or write less in one transaction."
                return self._again(self.client.too_long(remedy))
            except MisconfiguredError as lasting:
                return lasting
        self._lost_times += 1
        if self._lost_times < _LOST_TIMES:
            return self._again(
                "another producer has taken its id, and the ledger knows of no "
                "successor: a deposed leader that woke up, perhaps"
            )
        return MisconfiguredError(
            "transactional.id", self.transactional_id,
            f"another producer has taken it {self._lost_times} times in a row, and the "
            f"ledger knows of no successor",
            "Find out who uses it, too; or name another, for every leader of these "
            "scopes, with transactional_id=.",
        )  # fmt: skip

    def _again(self, reason: str) -> TransactionAborted:
        return TransactionAborted(self.transactional_id, reason)
