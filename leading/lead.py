"""Leading, from the first candidacy to the last: one object, or one call."""

from __future__ import annotations

import logging
import random
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from types import TracebackType
from typing import Generic, TypeVar, cast

from confluent_kafka import Producer, TopicPartition

from epochfence.consumers.signals import handled
from epochfence.elections.election import Election
from epochfence.epochs.claims import checked_texts
from epochfence.epochs.connection import Config, connection_settings
from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    ElectionUnavailable,
    EpochUnavailable,
    LedgerClosed,
    LedgerUnavailable,
    MisconfiguredError,
    TableUnavailable,
    TopicUnavailable,
)
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger, check_ledger
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import (
    check_epoch,
    check_function,
    check_scope,
    check_timeout,
)
from epochfence.leading.recovery import Apply, OnProgress, Recovery
from epochfence.leading.tenure import P, State, Tenure
from epochfence.producers.fenced_producer import FencedProducer
from epochfence.producers.fenced_transactional_producer import (
    FencedTransactionalProducer,
    checked_settings,
)
from epochfence.producers.judging import Settings, settings_of

_log = logging.getLogger(__name__)

T = TypeVar("T")

#: Why a candidate waits where nothing is wrong.
WAITING = "to be elected"

#: Told what it is doing, and why, for people and health checks.
OnState = Callable[[State, str], object]

#: Gives the number to claim; None, where it has none now.
NextEpoch = Callable[[], int | None]

#: What passes: it is tried again.
_PASSING = (
    ElectionUnavailable,
    EpochUnavailable,
    LedgerUnavailable,
    TableUnavailable,
    TopicUnavailable,
    ClaimUnknown,
)

#: The latest epoch is read again after each wait for the election, which is so long.
_CAMPAIGN_S = 0.5
#: The same while a standby reads on in between.
_FOLLOW_S = 0.2
_FIRST_WAIT_S = 0.1
#: A tenure that lasted so long was none of an election that is at odds with itself.
_SETTLED_S = 5.0
_SLICE_S = 0.1


class lead(Generic[P]):
    """Leads a scope: waits to be elected, claims, takes over; and hands over.

        with lead(kafka, ledger, election, "orders-writer", ["orders"],
                  holder="pod-7") as tenure:
            while not tenure.over.is_set():
                tenure.producer.produce("orders", next_order())

    Or, as a service that stands for election again when it was deposed, until SIGTERM:

        lead(kafka, ledger, election, "orders-writer", ["orders"],
             holder="pod-7").serve(work)    # work(tenure) returns when it is over

    In transactions: `producer=FencedTransactionalProducer`, and `with
    tenure.producer.transaction():` around what belongs together.

    The latest epoch is read before the election is won, so that a process which sleeps
    between that and its claim loses to whoever claimed meanwhile. What passes, such as
    a cluster or an election that does not answer, is tried again with growing waits.

    Used by one thread; `stop` by any.

    Args:
        config: Settings for a confluent-kafka producer, or such a producer, as for
            `FencedProducer`.
        ledger: The ledger. Not closed here.
        election: Says who may try. Resigned from here, and not closed.
        scope: What to lead.
        topics: What to take over, as for `FencedProducer.take_over`; none, where all
            that is wanted is to lead.
        holder: Names this process, for people.
        attributes: Text pairs for whoever asks who leads, such as an address.
        epoch: Gives the epoch to claim, where that is a number of another system which
            only rises (`Ledger.claim(exactly=)`). Called each time the election is won,
            so it is to be as quick as a lease is short. `EpochUnavailable`, and None,
            mean that there is none now: both are tried again.
        allow_jump: Whether such an epoch may be more than 2^32 above the latest, as
            ZooKeeper's are; it cannot be taken back.
        settings: How the topics' consumers judge, as for `FencedProducer`.
        recover: Gets everything that was admitted up to the own barriers, as lists of
            messages, each partition's in order, before this process leads.
        reset: Called before that begins at the topics' start: what `recover` has built
            is to be forgotten. So it is with each takeover, unless `standby`; and
            whenever a topic was made anew, or its log was cut.
        standby: Whether to read on while waiting to be elected, so that a takeover
            reads the tail only. `recover` should not act on messages before it leads.
        cursors: Whether to look for the last cursors (`produce(cursor=)`) of the
            predecessors: `tenure.recovered.cursors`.
        on_progress: Told how far the reading is, for each partition: the next offset,
            and that to be reached.
        on_state: Told what it is doing (`waiting`, `taking-over`, `leading`, `over`,
            `ended`), and why.
        producer: `FencedTransactionalProducer`, to write in transactions: each
            leadership's takes its `transactional.id` before its barriers are written,
            which ends what the predecessor left open. Else it is a `FencedProducer`.
        new_producer: Makes the producer for a leadership, where that kind of it, of
            `(config, ledger, leadership)`, is not what is wanted.
        longest_wait_s: The longest wait before something is tried again.
        timeout_s: How long a call may wait for the cluster.

    Raises:
        MisconfiguredError: An argument is wrong.
    """

    def __init__(
        self,
        config: Config | Producer,
        ledger: Ledger,
        election: Election,
        scope: str,
        topics: Iterable[str | TopicPartition],
        *,
        holder: str,
        attributes: Mapping[str, str] | None = None,
        epoch: NextEpoch | None = None,
        allow_jump: bool = False,
        settings: Settings | None = None,
        recover: Apply | None = None,
        reset: Callable[[], object] | None = None,
        standby: bool = False,
        cursors: bool = False,
        on_progress: OnProgress | None = None,
        on_state: OnState | None = None,
        producer: type[P] | None = None,
        new_producer: Callable[[Leadership], P] | None = None,
        longest_wait_s: float = 30.0,
        timeout_s: float = 10.0,
    ) -> None:
        check_ledger(ledger)
        if not isinstance(election, Election):
            raise MisconfiguredError(
                "election", election, "it does not campaign, resign and tell `lost`",
                "Give an election of epochfence.elections, or your own "
                "(help(epochfence.elections.Election)).",
            )  # fmt: skip
        for name, function in (
            ("recover", recover), ("reset", reset), ("on_progress", on_progress),
            ("on_state", on_state), ("new_producer", new_producer), ("epoch", epoch),
        ):  # fmt: skip
            check_function(name, function)
        checked_texts(holder, attributes)
        if allow_jump and epoch is None:
            raise MisconfiguredError(
                "allow_jump", allow_jump, "without a function `epoch`, none jumps",
                "Give one, or leave this out.",
            )  # fmt: skip
        self._config = config
        self._ledger = ledger
        self._election = election
        self._scope = check_scope(scope)
        self._topics = _checked_topics(topics)
        self._holder = holder
        self._attributes = attributes
        self._epoch = _told(epoch, EpochUnavailable)
        self._allow_jump = allow_jump
        self._settings = settings
        if settings is None:
            settings = FenceSettings([scope], unstamped="quarantine")
        self._require = {
            name: settings_of(settings, name) for name in map(_name_of, self._topics)
        }
        self._recover = _told(recover)
        self._reset = _told(reset)
        self._is_standby = standby
        self._wants_cursors = cursors
        if standby and recover is None and not cursors:
            raise MisconfiguredError(
                "standby", standby, "there is nothing to read for",
                "Give recover, a function of messages, or cursors=True.",
            )  # fmt: skip
        if standby and recover is not None and reset is None:
            raise MisconfiguredError(
                "reset", None, "a log may be cut, or its topic be made anew, while a "
                "standby has read it",
                "Give a function that forgets what `recover` has built.",
            )  # fmt: skip
        self._on_progress = _told(on_progress)
        self._on_state = _told(on_state)
        self._producer = _checked_kind(producer, config, ledger)
        if producer is not None and new_producer is not None:
            raise MisconfiguredError(
                "producer", producer.__name__, "`new_producer` makes the producers",
                "Give only one of them.",
            )  # fmt: skip
        self._new_producer = new_producer
        self._longest_wait_s = check_timeout(longest_wait_s, "longest_wait_s")
        self._timeout_s = check_timeout(timeout_s)
        self._recovery: Recovery | None = None
        self._tenure: Tenure[P] | None = None
        # No Event: a signal's handler that sets one can meet its lock.
        self._is_stopping = False
        self._state: State = "ended"
        # The latest epoch before the election that goes on; None: to be read.
        self._seen: int | None = None
        self._wait_s = _FIRST_WAIT_S
        # The latest epoch when the number to claim was not above it.
        self._behind: int | None = None
        # Whether it has claimed, and no tenure has settled since.
        self._has_claimed = False
        self._led_since: float | None = None

    @property
    def state(self) -> State:
        """What it is doing."""
        return self._state

    @property
    def is_transactional(self) -> bool:
        """Whether it was told to write in transactions (`producer`)."""
        return issubclass(self._producer, FencedTransactionalProducer)

    def stop(self) -> None:
        """Have the tenure end, and none begin. Safe in any thread, and in handlers."""
        self._is_stopping = True

    # As a context.

    def __enter__(self) -> Tenure[P]:
        """Wait until this process leads.

        Raises:
            RuntimeError: It was told to stop before.
            LedgerRegressed, EpochExhausted: An operator decides.
            LedgerClosed: The ledger was closed.
            MisconfiguredError: A setting is wrong, there is no such topic, or what
                `epoch` gives is no epoch.
            Exception: Whatever `recover` raises, or `epoch`.
        """
        try:
            tenure = self._take()
        except _UserError as failed:
            self._leave(failed.error)
            raise failed.error from failed.error.__cause__
        except BaseException as error:
            self._leave(error)
            raise
        if tenure is None:
            self._leave()
            raise RuntimeError("it was told to stop before it led")
        return tenure

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Wait for what was handed over, and resign: another is elected at once."""
        self._leave(error)

    def serve(
        self, work: Callable[[Tenure[P]], object], *, handles_signals: bool = True
    ) -> None:
        """Lead whenever it can: until `stop`, a signal, or the work is done.

        Args:
            work: Called with each tenure. It returns soon after `tenure.over` is set;
                what it raises of `Deposed` means just that. If it returns before, its
                work is done, and so is this.
            handles_signals: Whether SIGINT and SIGTERM end it, in the main thread.

        Raises:
            Exception: What `work` raises; and as entering it as a context does.
        """
        with stopped_by_signals(self) if handles_signals else nullcontext():
            try:
                while not self._is_stopping:
                    tenure = self._take()
                    if tenure is None or self._is_done(work, tenure):
                        break
            except _UserError as failed:
                self._leave(failed.error)
                raise failed.error from failed.error.__cause__
            except BaseException as error:
                self._leave(error)
                raise
            self._leave()

    def _is_done(self, work: Callable[[Tenure[P]], object], tenure: Tenure[P]) -> bool:
        is_deposed = False
        try:
            work(tenure)
        except Deposed as deposed:
            if deposed.scope != self._scope:
                raise
            is_deposed = True
        with suppress(LedgerUnavailable):
            tenure.look()  # whoever worked on it may have heard of it first
        if not is_deposed and not tenure.over.is_set():
            return True
        self._tell("over", tenure.reason)
        _log.warning("%s: no longer the leader: %s", self._scope, tenure.reason)
        self._give_up()
        if self._has_claimed:
            self._wait()  # an election that is won and lost must not fill the ledger
        return False

    # Becoming the leader.

    def _take(self) -> Tenure[P] | None:
        """Wait until this process leads; None where it was told to stop before."""
        if self._tenure is not None:
            raise RuntimeError("it leads already: one tenure at a time")
        self._tell("waiting", WAITING)
        if not self._election.lost.is_set():
            # Won before anybody knew which epoch was the latest.
            self._resign()
        while not self._is_stopping:
            try:
                tenure = self._campaign()
            except LedgerClosed:
                raise
            except (ClaimLost, Deposed, *_PASSING) as error:
                # Whoever slept, or cannot lead, must not keep others from it.
                if isinstance(error, ClaimLost) and error.is_exact:
                    self._behind = error.latest_epoch
                elif isinstance(error, ClaimLost | ClaimUnknown):
                    self._has_claimed = True
                self._give_up()
                self._tell("waiting", str(error))
                _log.warning(
                    "%s: tried again in %.1f s: %s", self._scope, self._wait_s, error
                )
                if self._wait_s >= self._longest_wait_s:
                    self._close_recovery()  # it may be what does not get on
                self._wait()
                continue
            if tenure is not None:
                return tenure
        return None

    def _give_up(self) -> None:
        self._end_tenure()
        self._seen = None
        self._resign()

    def _campaign(self) -> Tenure[P] | None:
        """Stand for election for a moment, and take over if that is won."""
        # Before it is won: who sleeps behind this line claims what is taken by then.
        if self._seen is None or self._election.lost.is_set():
            self._seen = self._latest()
        seen = self._seen
        if self._is_standby:
            self._opened().follow(_FOLLOW_S)
        if not self._election.campaign(0 if self._is_standby else _CAMPAIGN_S):
            # All is well, but for not being the first; unless that one, too, claims in
            # vain: in an election that ends too soon, or with a number led with before.
            if not self._has_claimed and seen != self._behind:
                self._wait_s = _FIRST_WAIT_S
            return None
        self._tell("taking-over", f"elected, epoch {seen} is the latest")
        leadership = self._ledger.claim(
            self._scope,
            holder=self._holder,
            seen=seen,
            exactly=self._number(),
            allow_jump=self._allow_jump,
            attributes=self._attributes,
            timeout_s=self._timeout_s,
        )
        self._has_claimed = True
        make = self._new_producer or self._made
        # Either argument says what P is; without them, it is the default.
        producer = cast(P, make(leadership))
        try:
            tenure = Tenure(
                leadership,
                producer,
                self._ledger,
                self._election,
                lambda: self._is_stopping,
            )
        except BaseException:
            producer.close()
            raise
        self._tenure = tenure
        return tenure if self._has_begun(tenure) else None

    def _latest(self) -> int:
        try:
            state = self._ledger.state
        except LedgerUnavailable:
            state = self._ledger.refresh(self._timeout_s)  # its reader has stopped
        return state.epoch_of(self._scope)

    def _number(self) -> int | None:
        """The epoch that the application gives, if it does.

        Asked for by whoever is elected, so that it is above that of whoever was before.
        """
        if self._epoch is None:
            return None
        number = self._epoch()
        if number is None:
            raise EpochUnavailable(
                "the function `epoch`", "it gave None: the office may be lost again"
            )
        return check_epoch(number)

    def _made(self, leadership: Leadership) -> FencedProducer:
        return self._producer(
            self._config,
            self._ledger,
            leadership,
            settings=self._settings,
            timeout_s=self._timeout_s,
        )

    def _has_begun(self, tenure: Tenure[P]) -> bool:
        """Take over and recover; whether it leads then."""
        wait_s = _FIRST_WAIT_S
        while not tenure.over.is_set():
            try:
                if self._topics and not tenure.barriers:
                    tenure.barriers = tenure.producer.take_over(self._topics)
                if self._recover is not None or self._wants_cursors:
                    tenure.recovered = self._opened().read_to(
                        tenure.barriers, tenure.over.is_set
                    )
                if not tenure.over.is_set():
                    self._led_since = time.monotonic()
                    self._tell("leading", f"epoch {tenure.leadership.epoch}")
                    return True
            except LedgerClosed:
                raise
            except _PASSING as error:
                # Under the same leadership: each claim stays in the ledger for ever.
                if wait_s >= self._longest_wait_s:
                    raise
                tenure.barriers = {}  # one may be gone
                _log.warning(
                    "%s: tried again in %.1f s: %s", self._scope, wait_s, error
                )
                self._tell("taking-over", str(error))
                tenure.wait(wait_s)
                wait_s = min(wait_s * 2, self._longest_wait_s)
        self._tell("waiting", tenure.reason)
        self._give_up()
        self._wait()
        return False

    # Reading.

    def _opened(self) -> Recovery:
        if self._recovery is None:
            self._recovery = Recovery(
                self._ledger.connection
                if isinstance(self._config, Producer)
                else connection_settings(self._config),
                self._ledger,
                self._require,
                self._topics,
                reset=self._reset,
                apply=self._recover,
                on_progress=self._on_progress,
                timeout_s=self._timeout_s,
            )
        return self._recovery

    # The end.

    def _end_tenure(self) -> None:
        tenure, self._tenure = self._tenure, None
        led_since, self._led_since = self._led_since, None
        if tenure is None:
            return
        if led_since is not None and time.monotonic() > led_since + _SETTLED_S:
            self._has_claimed = False
            self._wait_s = _FIRST_WAIT_S
        try:
            tenure.end()
        finally:
            if not self._is_standby:
                self._close_recovery()

    def _close_recovery(self) -> None:
        recovery, self._recovery = self._recovery, None
        if recovery is not None:
            recovery.close()

    def _leave(self, cause: BaseException | None = None) -> None:
        """End, and resign. Where it ends for an error, that is what is raised."""
        try:
            try:
                self._end_tenure()
            finally:
                self._close_recovery()
        finally:
            self._seen = None
            reason = "resigned"
            try:
                self._resign()
            except Exception as error:
                reason = f"the election took no resignation: {error!r}"
                if cause is None:
                    raise
                _log.exception("%s: %s", self._scope, reason)
            finally:
                with suppress(_UserError):  # what ended it is what is told
                    self._tell("ended", reason)

    def _resign(self) -> None:
        try:
            self._election.resign()
        except ElectionUnavailable as error:
            _log.warning(
                "%s: others wait for the office as long as the election does: %s",
                self._scope, error,
            )  # fmt: skip

    def _wait(self) -> None:
        """Wait before something is tried again; longer the next time."""
        wait_s = self._wait_s
        self._wait_s = min(wait_s * 2, self._longest_wait_s)
        until = time.monotonic() + wait_s * random.uniform(0.75, 1.25)
        while not self._is_stopping and time.monotonic() < until:
            time.sleep(min(_SLICE_S, wait_s))

    def _tell(self, state: State, reason: str) -> None:
        self._state = state
        if self._on_state is not None:
            self._on_state(state, reason)


def _checked_topics(
    topics: Iterable[str | TopicPartition],
) -> Sequence[str | TopicPartition]:
    if isinstance(topics, str | TopicPartition) or not isinstance(topics, Iterable):
        raise MisconfiguredError(
            "topics", topics, "a list of topics is expected", "Use ['orders']."
        )
    found = list(topics)
    for one in found:
        if not isinstance(one, str | TopicPartition):
            raise MisconfiguredError(
                "topics", one, "neither a topic nor a partition",
                "Give names, or confluent_kafka.TopicPartition for single ones.",
            )  # fmt: skip
    return found


def _checked_kind(
    kind: type[FencedProducer] | None, config: Config | Producer, ledger: Ledger
) -> type[FencedProducer]:
    if kind is None:
        return FencedProducer
    if not isinstance(kind, type) or not issubclass(kind, FencedProducer):
        raise MisconfiguredError(
            "producer", kind, "it is no kind of FencedProducer",
            "Give FencedTransactionalProducer, to write in transactions, or nothing.",
        )  # fmt: skip
    if issubclass(kind, FencedTransactionalProducer):
        checked_settings(config, ledger)  # now, and not when a claim was made
    return kind


def _name_of(topic: str | TopicPartition) -> str:
    return topic.topic if isinstance(topic, TopicPartition) else topic


class _UserError(Exception):
    """What a function of the application's raised; no error of ours is meant by it."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def _told(
    function: Callable[..., T] | None, *ours: type[Exception]
) -> Callable[..., T] | None:
    """The function of an application, whose errors are not taken for ours.

    Those that it raises in our name (`ours`) are.
    """
    if function is None:
        return None

    def told(*arguments: object) -> T:
        try:
            return function(*arguments)
        except ours:
            raise
        except Exception as error:
            raise _UserError(error) from error

    return told


@contextmanager
def stopped_by_signals(leading: lead) -> Generator[None, None, None]:
    """Have SIGINT and SIGTERM stop it, once, where this is the main thread.

    All that are served at a time are stopped by one signal.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    if not _served:
        _handling.enter_context(
            handled((signal.SIGINT, signal.SIGTERM), _stop_all, once=True)
        )
    _served.append(leading)
    try:
        yield
    finally:
        _served.remove(leading)
        if not _served:
            _handling.close()


#: Those that signals stop, of the main thread; and what is undone after the last.
_served: list[lead] = []
_handling = ExitStack()


def _stop_all(*_: object) -> None:
    for leading in _served:
        leading.stop()
