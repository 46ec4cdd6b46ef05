"""A producer that writes in transactions under a leadership."""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from epochfence.epochs.acknowledged import Acknowledged
from epochfence.epochs.connection import Config, forget_frames
from epochfence.epochs.deadlines import deadline_after, time_left
from epochfence.epochs.errors import (
    Deposed,
    EpochfenceError,
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    TopicUnavailable,
    TransactionUnknown,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.receipts import Failures
from epochfence.epochs.transactions import (
    LASTING,
    to_its_end,
    transaction_settings,
)
from epochfence.epochs.values import Place
from epochfence.producers.barriers import BarrierKey, BarrierValue
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.judging import Settings
from epochfence.producers.reported import Reported, Source
from epochfence.producers.shared_client import SharedClient
from epochfence.producers.transaction_ends import TransactionEnds
from epochfence.producers.transaction_session import (
    TransactionSession,
    checked_id,
    scopes_id,
)
from epochfence.producers.transactions import End, Transactions

#: Even where no time is left, a call needs some to be sent.
_SHORTEST_S = 1.0

#: A client whose transaction, or which itself, has failed says no more than that.
_HAS_FAILED = frozenset({KafkaError._STATE, KafkaError._FATAL, KafkaError._FENCED})


class FencedTransactionalProducer(FencedProducer):
    """A `FencedProducer` that writes in transactions: all of each is there, or nothing.

    Its `transactional.id` is that of the scope. So a successor ends at Kafka, too, what
    it left open, and fences it there; until it initialises again, that is, without
    having heard of its end. The stamps are what guards a topic; this aborts early what
    would be too late, for readers too that know nothing of stamps (with
    `isolation.level=read_committed`).

    What is the same for a `FencedProducer` is not said again here. `confirm` answers
    for transactions that have ended.

    Args:
        config: Settings for a confluent-kafka producer; none can be shared.
        ledger: As for `FencedProducer`.
        leaderships: The same. Kafka fences those that have the same scopes.
        settings: The same.
        barrier_key: The same.
        barrier_value: The same.
        timeout_s: How long a method waits for the cluster where it is not told
            otherwise, in seconds.
        transactional_id: Another one than the scopes': each leader of these has to give
            the same.

    Raises:
        MisconfiguredError: A setting contradicts what is needed, or is unknown.
        LedgerUnavailable: The ledger was closed, or cannot be read.
    """

    def __init__(
        self,
        config: Config,
        ledger: Ledger,
        leaderships: Leadership | Iterable[Leadership],
        *,
        settings: Settings | None = None,
        barrier_key: BarrierKey | None = None,
        barrier_value: BarrierValue | None = None,
        timeout_s: float = 10.0,
        transactional_id: str | None = None,
    ) -> None:
        self._given_id = transactional_id
        self._turn = threading.RLock()
        #: What this client refused last, in the present transaction.
        self._failure: KafkaException | None = None
        #: How many messages had been handed over when the last one began.
        self._handed_before = 0
        super().__init__(
            config,
            ledger,
            leaderships,
            settings=settings,
            barrier_key=barrier_key,
            barrier_value=barrier_value,
            timeout_s=timeout_s,
        )
        self._send = self._refuse
        self._ends = TransactionEnds(
            self._client.connection,
            ledger.clients,
            self.leaderships,
            self._territory,
            self._client.lives,
        )

    def _open_client(
        self,
        config: Config | Producer | SharedClient,
        barrier_key: BarrierKey | None,
        barrier_value: BarrierValue | None,
    ) -> SharedClient:
        config = checked_settings(config, self._ledger)
        settings, longest_s = transaction_settings(
            config, {"transaction.timeout.ms": 60_000}
        )
        settings.pop("on_delivery", None)  # each message gets it
        scopes = scopes_id(self._ledger.coordination_topic, self.leaderships)
        name = checked_id(scopes, self._given_id, settings)
        self._session = TransactionSession(
            self._ledger.clients, settings, longest_s, name, self._check_latest
        )
        self._transactional = self._session.client
        return SharedClient(
            config,
            self._ledger,
            barrier_key=barrier_key,
            barrier_value=barrier_value,
            timeout_s=self._timeout_s,
            open_producer=self._transactional.open,
        )

    @property
    def transactional_id(self) -> str:
        """The `transactional.id` that it writes under."""
        return self._session.transactional_id

    @property
    def confirmable(self) -> int:
        """As there: not those of an open transaction."""
        if not self._transactional.is_open:
            return self.unconfirmed
        return max(0, self._handed_before - self._confirmation.told)

    def _answerable(self, reported: Reported) -> Source:
        self._transactions = Transactions(
            reported, lambda: self._transactional.is_open, self._turn, self._decide
        )
        return self._transactions

    # Taking over.

    def take_over(
        self,
        topics: Iterable[str | TopicPartition],
        *,
        timeout_s: float | None = None,
    ) -> dict[tuple[str, int], int]:
        """As `FencedProducer.take_over`, having ended what a predecessor left open.

        First the transactional id is taken, which aborts that; then the ledger is
        asked; then barriers are written, which are in no transaction. May be called
        while one is open.

        Raises:
            TopicUnavailable: Also where the id cannot be had now, with the topic
                `__transaction_state`.
            MisconfiguredError: Also where the id, or a setting, is refused.
            Deposed, LedgerRegressed, LedgerUnavailable, TableUnavailable: As there.
        """
        deadline = self._deadline(timeout_s)
        with self._turn:
            self._check_leading()
            if not self._transactional.is_open:
                # Of a client that was given up, reports come only while it is there.
                self._collect(deadline)
            self._initialise(deadline)
        return super().take_over(topics, timeout_s=self._rest_of(deadline))

    def _rest_of(self, deadline: float) -> float:
        return max(_SHORTEST_S, time_left(deadline))

    def _initialise(self, deadline: float) -> None:
        """Have a client that can begin a transaction; whatever was open has ended."""
        if self._transactions.has_gaps and not self._transactional.is_open:
            self._transactional.drop()
            self._transactions.has_gaps = False
        producer = self._session.ready(deadline)
        if producer is not None:
            self._producer = producer

    def _check_latest(self, deadline: float) -> None:
        try:
            self._client.taking_over.check_latest(self._realm, deadline)
        except Deposed as deposed:
            self._end_leadership(deposed)
            raise

    # Transactions.

    @contextmanager
    def transaction(
        self, *, timeout_s: float | None = None
    ) -> Generator[None, None, None]:
        """A transaction, as a context: committed at its end, aborted by an exception.

        Raises: what `begin_transaction` and `commit_transaction` do. Where what goes
        wrong inside is that the transaction has failed, it is told as there.
        """
        self.begin_transaction(timeout_s=timeout_s)
        try:
            yield
        except BaseException as error:
            told = self._failed(error, timeout_s)
            if told is error:
                raise
            forget_frames(error)
            raise told from error
        self.commit_transaction(timeout_s=timeout_s)

    def begin_transaction(self, *, timeout_s: float | None = None) -> None:
        """Begin a transaction: only in one, messages can be handed over.

        Args:
            timeout_s: How long to wait where the client has to be made anew.

        Raises:
            RuntimeError: One is open.
            Deposed: The ledger shows a later leadership.
            TopicUnavailable: The transactional id cannot be had now.
            LedgerUnavailable, LedgerRegressed, MisconfiguredError: As `take_over`.
        """
        deadline = self._deadline(timeout_s)
        with self._turn:
            self._check_leading()
            if self._transactional.is_open:
                raise RuntimeError("a transaction is open: commit or abort it first")
            self._collect(deadline)
            self._initialise(deadline)
            try:
                self._transactional.begin()
            except KafkaException:
                # It was fenced long ago, and says so now.
                self._initialise(deadline)
                try:
                    self._transactional.begin()
                except KafkaException as error:
                    raise self._session.refused(error.args[0]) from error
            self._failure = None
            self._handed_before = self._handover.handed
            self._send = self._send_in_transaction

    def send_offsets_to_transaction(
        self,
        positions: Sequence[TopicPartition],
        group_metadata: object,
        *,
        timeout_s: float | None = None,
    ) -> None:
        """Commit a group's offsets with the transaction: as confluent-kafka's.

        Args:
            positions: The next offset of each partition.
            group_metadata: What `consumer_group_metadata()` of the consumer gave. Ask
                for it before the transaction begins: should the partitions go to
                others meanwhile, the offsets are refused.
            timeout_s: How long to wait for the cluster.

        Raises:
            RuntimeError: No transaction is open.
            KafkaException: They were refused; abort the transaction.
        """
        deadline = self._deadline(timeout_s)
        self._check_leading()
        self._check_in_transaction()
        try:
            to_its_end(
                partial(
                    self._producer.send_offsets_to_transaction,
                    list(positions),
                    group_metadata,
                ),
                deadline,
            )
        except KafkaException as error:
            self._failure = error
            raise

    def commit_transaction(self, *, timeout_s: float | None = None) -> None:
        """Commit the transaction. When this returns, it is.

        Committed is not admitted, if a successor began before its messages: see
        `confirm`. Whatever is raised, the transaction is over.

        Args:
            timeout_s: How long to wait for the cluster.

        Raises:
            RuntimeError: None is open.
            Deposed: The ledger shows a later leadership. `confirm` tells whether the
                transaction was committed all the same.
            TransactionAborted: It was aborted, and this leadership goes on: another
                producer has taken the transactional id for a moment (a deposed leader
                that woke up), or the transaction lasted too long. Do it again.
            TransactionUnknown: It may have been committed: ask `confirm`.
            KafkaException: A message is refused for good, such as one that is too
                large. The transaction was aborted.
            LedgerClosed: The ledger was closed. The transaction was aborted.
            LedgerRegressed: Grants have been lost: an operator decides.
            MisconfiguredError: The id was taken, or the time was over, time and again.
        """
        deadline = self._deadline(timeout_s)
        with self._turn:
            self._check_usable()
            self._check_in_transaction()
            self._send = self._refuse
            try:
                self._check_leading()
            except EpochfenceError:
                self._abort(deadline)
                raise
            try:
                self._transactions.end("undecided")
                self._transactional.commit(deadline)
                self._transactions.end("committed")
            except KafkaException as error:
                forget_frames(error)
                told = self._commit_failed(error, deadline)
                if told is not None:
                    raise told from error
            except BaseException:
                self._transactional.drop()
                raise
            self._session.has_committed()

    def abort_transaction(self, *, timeout_s: float | None = None) -> None:
        """Abort the transaction: nobody who reads committed sees anything of it.

        Where the cluster does not answer in time, it is not committed either; readers
        wait until it ends there: with the next `begin_transaction`, or
        `transaction.timeout.ms`.

        Args:
            timeout_s: How long to wait for the cluster.

        Raises:
            RuntimeError: None is open.
        """
        deadline = self._deadline(timeout_s)
        with self._turn:
            self._check_usable()
            self._check_in_transaction()
            self._abort(deadline)

    def _check_in_transaction(self) -> None:
        if not self._transactional.is_open:
            raise RuntimeError(
                "no transaction is open: begin one, with begin_transaction() or "
                "`with producer.transaction():`"
            )

    # A traceback keeps what its frames hold: a report, too, would never be gone (see
    # `Handover`).

    def _refuse(self, *message: object) -> NoReturn:
        """What `produce` hands messages to outside of a transaction."""
        del message
        self._check_in_transaction()
        raise RuntimeError("the transaction is being committed by another thread")

    def _send_in_transaction(self, *message: Any) -> None:
        try:
            self._producer.produce(*message)
        except BaseException as error:
            del message
            if isinstance(error, KafkaException):
                self._failure = error
            raise

    def _abort(self, deadline: float) -> KafkaException | None:
        self._send = self._refuse
        soon = deadline_after(self._rest_of(deadline))
        return self._transactional.abort(soon)

    def _collect(self, deadline: float) -> tuple[End, Failures]:
        """Put away what was reported of the last transaction."""
        if self._transactional.producer is None:
            # What a client of no more use has not sent will never be.
            self._producer.purge()
        return self._transactions.collect(deadline)

    def _decide(self, messages: Mapping[Place, Acknowledged], deadline: float) -> End:
        """How an undecided transaction ended."""
        with suppress(Deposed):  # a successor does, or has done, what ends it
            self._initialise(deadline)
        return self._ends.of(messages, deadline)

    # What became of a transaction that failed.

    def _commit_failed(
        self, error: KafkaException, deadline: float
    ) -> BaseException | None:
        """What to raise; None where the transaction was committed all the same."""
        cause: KafkaError = error.args[0]
        has_lost_id = self._transactional.has_lost_id()
        if cause.txn_requires_abort() and self._abort(deadline) is None:
            self._transactions.end("aborted")
        else:
            # It may have been committed. The next client ends it, one way or the other.
            self._transactional.drop()
        return self._error_of(cause, has_lost_id, deadline)

    def _failed(self, error: BaseException, timeout_s: float | None) -> BaseException:
        """Abort the transaction, if it is open; give what to raise for an error."""
        deadline = self._deadline(timeout_s)
        with self._turn:
            if self._is_forked or not self._transactional.is_open:
                return error
            has_lost_id = self._transactional.has_lost_id()
            end = self._abort(deadline)
            if not isinstance(error, KafkaException):
                return error
            cause: KafkaError = error.args[0]
            if end is not None and cause.fatal():
                pass  # by whichever call the client said that it has failed for good
            elif error is not self._failure or cause.code() not in _HAS_FAILED:
                return error
            if end is not None:
                cause = end.args[0]
            return self._error_of(cause, has_lost_id, deadline) or error

    def _error_of(
        self, cause: KafkaError, has_lost_id: bool, deadline: float
    ) -> BaseException | None:
        """What to raise for a transaction that failed; None where it was committed."""
        reason = cause.str()
        try:
            end, failures = self._collect(deadline_after(self._rest_of(deadline)))
        except TopicUnavailable as later:  # a callback does not return
            return TransactionUnknown(self.transactional_id, f"{reason}; {later}")
        refusal = _refusal(failures)
        if refusal is not None and end == "aborted":
            return KafkaException(refusal)
        if not self._transactional.is_ready and time_left(deadline):
            try:
                self._initialise(deadline)
                if end == "undecided":
                    end = self._transactions.settle(deadline)
            except Deposed as deposed:
                return deposed
            except (LedgerUnavailable, TableUnavailable, TopicUnavailable) as later:
                reason = f"{reason}; {later}"
        if end == "committed":
            return None
        if end == "aborted":
            return self._session.aborted(cause, has_lost_id)
        return TransactionUnknown(self.transactional_id, reason.rstrip("."))

    # The end.

    def close(self) -> None:
        """As `FencedProducer.close`; a transaction that is open is aborted."""
        if not self._is_forked:
            with self._turn:
                self._abort(deadline_after(self._timeout_s))
                with suppress(TopicUnavailable):
                    self._collect(deadline_after(self._timeout_s))
        super().close()

    def __enter__(self) -> FencedTransactionalProducer:
        return self


def checked_settings(
    config: Config | Producer | SharedClient, ledger: Ledger
) -> Config:
    """The settings of a client that is to write in transactions.

    Raises:
        MisconfiguredError: They are none, or the ledger's broker knows none.
    """
    if isinstance(config, SharedClient):
        raise MisconfiguredError(
            "config", config, "a transactional client cannot be shared: it has one "
            "id, and one transaction at a time",
            "Give the settings of a client.",
        )  # fmt: skip
    if isinstance(config, Producer):
        raise MisconfiguredError(
            "config", config, "a client that was fenced is replaced by another",
            "Give the settings of a client.",
        )  # fmt: skip
    if ledger.is_embedded:
        raise MisconfiguredError(
            "ledger", "embedded", "the embedded broker neither fences producers "
            "nor hides what was aborted",
            "Use a real broker, or a FencedProducer.",
        )  # fmt: skip
    return config


def _refusal(failures: Failures) -> KafkaError | None:
    """Why a message was refused for good: the transaction only says that one was."""
    for failed in failures.values():
        code = getattr(KafkaError, failed.error, None)
        if code in LASTING:
            return KafkaError(code, failed.reason)
    return None
