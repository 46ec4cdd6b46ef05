"""The ledger's Kafka shell: claims go out, grants come back."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType, TracebackType
from typing import IO, Any, NoReturn

from epochfence.epochs.claiming import Claiming, checked_scopes, checked_seen
from epochfence.epochs.claims import checked_texts, claim_to_json, plan_epoch
from epochfence.epochs.clients import KAFKA, Clients
from epochfence.epochs.connection import Config
from epochfence.epochs.deadlines import deadline_after, some_time
from epochfence.epochs.errors import (
    ClaimLost,
    Deposed,
    EpochExhausted,
    EpochfenceError,
    LedgerClosed,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.grant_follower import GrantFollower
from epochfence.epochs.leadership import Claimed, Leadership
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.table import Table
from epochfence.epochs.topics import (
    COORDINATION_TOPIC,
    TABLE_TOPIC,
    TopicKeeper,
    make_embedded_topics,
)
from epochfence.epochs.values import (
    Claim,
    check_function,
    check_scope,
    check_timeout,
)

_log = logging.getLogger(__name__)

OnGrant = Callable[[Claim], None]


class Ledger:
    """Which leaderships were granted, read from the coordination topic.

    Safe to use from several threads. A thread of its own follows the topic.

    Args:
        config: Connection settings, as for confluent-kafka.
        coordination_topic: The topic that claims are written to.
        table_topic: The topic of the max-epoch table that belongs to it.
        create: Whether topics that are missing may be created.
        embedded: True only for librdkafka's embedded broker, which knows neither
            admin calls nor topic ids: topics are neither checked nor created, and
            one made anew goes unnoticed.
        timeout_s: How long a method waits for the cluster where it is not told
            otherwise.

    Raises:
        LedgerUnavailable: The cluster does not answer, or the topic cannot be read.
        TableUnavailable: The same of the table, which is read where the coordination
            topic had to be created.
        MisconfiguredError: A setting, or a setting of a topic, breaks the promise.
    """

    #: Opens the clients of this ledger, and of what goes by it.
    clients: Clients = KAFKA

    def __init__(
        self,
        config: Config,
        *,
        coordination_topic: str = COORDINATION_TOPIC,
        table_topic: str = TABLE_TOPIC,
        create: bool = True,
        embedded: bool = False,
        timeout_s: float = 10.0,
    ) -> None:
        if not isinstance(config, Mapping):
            raise MisconfiguredError(
                "config", config, "a mapping of settings is expected",
                "Give {'bootstrap.servers': 'host:port'}.",
            )  # fmt: skip
        if coordination_topic == table_topic:
            raise MisconfiguredError(
                "table_topic", table_topic, "it is the coordination topic too",
                "Give each a topic of its own.",
            )  # fmt: skip
        self.coordination_topic = coordination_topic
        self.table_topic = table_topic
        self._config = dict(config)
        self._timeout_s = check_timeout(timeout_s)
        self.is_embedded = embedded
        self._keeper: TopicKeeper | None = None
        # The embedded broker has no id that tells it from another.
        self._cluster = str(config.get("bootstrap.servers"))
        self._table: Table | None = None
        self._table_lock = threading.Lock()
        self._is_closed = False
        self._follower = GrantFollower(coordination_topic)
        try:
            if embedded:
                self._prepare_embedded()
            else:
                self._prepare(create)
            self._log = self.clients.synced_log(
                config,
                coordination_topic,
                self._follower,
                self._keeper,
                before_reload=self._before_reload,
                unavailable=self._unavailable,
            )
            self._claiming = Claiming(
                self._log,
                self._follower,
                coordination_topic,
                lambda claim: Leadership(claim, self.verify, self.origin),
            )
        except BaseException as error:
            if self._table is not None:
                self._table.close()
            if isinstance(error, TopicUnavailable):
                raise LedgerUnavailable(error.topic, error.reason) from error
            raise
        try:
            self._log.read_to_told_end(self._deadline(None))
        except BaseException:
            self.close()
            raise

    def _prepare_embedded(self) -> None:
        _log.warning("embedded broker: topics are not checked, ids not compared")
        topics = (self.coordination_topic, self.table_topic)
        make_embedded_topics(self._config, topics, self._timeout_s)

    def _prepare(self, create: bool) -> None:
        keeper = self.clients.topic_keeper(self._config, self._timeout_s)
        self._keeper = keeper
        is_new = keeper.ensure(self.coordination_topic, create=create)
        self._cluster = keeper.cluster_id(self.coordination_topic)
        is_new_table = keeper.ensure(self.table_topic, create=create)
        if is_new and not is_new_table:
            # Was it there before, and lost? The table knows.
            self._raise_floor_by_table(self._deadline(None))

    # Asking.

    def leader(self, scope: str) -> Claim | None:
        """The latest grant of a scope, as far as the log was read; None: no leader.

        Its holder and attributes say where to forward to. Followed live; for an
        answer that is no older than the question, call `refresh` before.

        Raises:
            LedgerUnavailable: The reading of the log has stopped.
            MisconfiguredError: `scope` is no scope name.
        """
        return self.state.latest(check_scope(scope))

    @property
    def state(self) -> LedgerState:
        """What was read so far. Do not change it.

        Raises:
            LedgerUnavailable: The reading of the log has stopped.
        """
        self.check_open()
        self._log.check_reading()
        return self._follower.state

    def check_open(self) -> None:
        """Return if the ledger was not closed.

        Raises:
            LedgerClosed: It was.
        """
        if self._is_closed:
            raise LedgerClosed(self.coordination_topic)

    def refresh(self, timeout_s: float | None = None) -> LedgerState:
        """Read the log to its end, by a sync: nothing granted before is missing.

        Concurrent callers share one sync.

        Raises:
            LedgerUnavailable: It could not be read to its end in time.
            TableUnavailable: The coordination topic was made anew, and the table,
                which tells what was lost, cannot be read.
            LedgerRegressed: Grants have been lost.
            MisconfiguredError: It was made anew with settings that break the promise.
        """
        self.check_open()
        self._log.read_to_end(self._deadline(timeout_s))
        self._follower.check_floor()
        return self.state

    def verify(self, leadership: Leadership, timeout_s: float | None = None) -> None:
        """Return if a leadership is still the latest of its scope, as of now.

        Raises:
            Deposed: There is a later one.
            LedgerUnavailable: The ledger could not be read to its end in time.
            TableUnavailable, MisconfiguredError: As `refresh`.
            LedgerRegressed: The ledger has lost this grant.
            MisconfiguredError: Another ledger granted it.
        """
        self.check_origin(leadership)
        self.check_open()
        self._log.read_to_end(self._deadline(timeout_s))
        self._follower.check_floor(leadership.scope)
        state = self.state
        latest = state.latest(leadership.scope)
        if latest is not None and latest.epoch > leadership.epoch:
            raise Deposed(
                leadership.scope, leadership.epoch, latest.epoch, latest.holder
            )
        if latest is None or latest.grant_id != leadership.grant_id:
            raise LedgerRegressed(
                leadership.scope, state.epoch_of(leadership.scope), leadership.epoch
            )

    def check_origin(self, leadership: Leadership) -> None:
        """Return if a leadership was granted by this ledger, whoever had it opened.

        Raises:
            MisconfiguredError: It is none, or of another cluster or topic.
        """
        if not isinstance(leadership, Leadership):
            raise MisconfiguredError(
                "leadership", leadership, "it is none",
                "Give what Ledger.claim returned.",
            )  # fmt: skip
        if leadership.origin != self.origin:
            granted_by, mine = leadership.origin, self.origin
            raise MisconfiguredError(
                "leadership", f"epoch {leadership.epoch} of {leadership.scope!r}",
                f"it was granted by {granted_by}, and this ledger is {mine}",
                "Give the ledger that granted it, or claim here.",
            )  # fmt: skip

    @property
    def origin(self) -> str:
        """Names the ledger: its topic, and its cluster's id."""
        return f"topic {self.coordination_topic!r} of cluster {self._cluster!r}"

    def watch(
        self, on_grant: OnGrant, on_close: Callable[[], None] | None = None
    ) -> Callable[[], None]:
        """Have every grant from now on told, on the thread that follows the log.

        Args:
            on_grant: Called with each grant. It must return soon, and must not call
                a method of this ledger that waits. What it raises is logged (logger
                `epochfence.epochs.grant_follower`).
            on_close: Called when the ledger is closed, and tells no more.

        Returns:
            Call it to end the watch.

        Raises:
            LedgerUnavailable: The reading of the log has stopped.
            MisconfiguredError: `on_grant` cannot be called.
        """
        if not callable(on_grant):
            raise MisconfiguredError(
                "on_grant", on_grant, "it cannot be called", "Give a function."
            )
        check_function("on_close", on_close)
        _ = self.state  # raises if nobody reads
        return self._follower.watch(on_grant, on_close)

    def claims(self) -> Iterator[tuple[Claim, bool]]:
        """Every claim in log order, and whether it won, as far as the log was read.

        Raises:
            LedgerUnavailable: The reading of the log has stopped.
        """
        return self.state.claims()

    def export(self, file: IO[str]) -> int:
        """Write a ledger file: every claim, in log order. Give their number.

        Raises:
            LedgerUnavailable: The reading of the log has stopped.
        """
        count = 0
        for claim, _ in self.claims():
            file.write(json.dumps(claim_to_json(claim), ensure_ascii=False) + "\n")
            count += 1
        return count

    # Claiming.

    def claim(
        self,
        scope: str,
        *,
        holder: str,
        seen: int | None = None,
        at_least: int | None = None,
        exactly: int | None = None,
        allow_jump: bool = False,
        attributes: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Leadership:
        """Ask for the next epoch of a scope, and wait for the log's answer.

        Args:
            scope: What to lead.
            holder: Names this process, for people.
            seen: The latest epoch that was seen before the election was won, 0 for
                none: the claim is to the one after it, and loses to whoever claimed
                since. None: the latest is read now.
            at_least: Jump to this epoch, where the next one is below it.
            exactly: Claim this very epoch: one that comes from elsewhere. Give `seen`
                as well, and the claim loses to whoever claimed since, even if it took
                a lower number.
            allow_jump: Allow a jump over more than 2^32 epochs.
            attributes: Text pairs for whoever asks who leads.
            timeout_s: How long to wait for the answer.

        Raises:
            ClaimLost: Somebody else leads.
            ClaimUnknown: The outcome is not known: do not lead, claim again.
            LedgerUnavailable: Nothing was claimed, the ledger cannot be read.
            TableUnavailable: Nothing was claimed; the coordination topic was made
                anew and the table, which tells what was lost, cannot be read.
            LedgerRegressed: Grants have been lost; nothing was claimed.
            EpochExhausted: No higher epoch exists.
            MisconfiguredError: An argument, or a setting of the topic, is wrong.
        """
        deadline = self._deadline(timeout_s)
        self.check_open()
        check_scope(scope)
        texts = checked_texts(holder, attributes)
        self._log.read_to_end(deadline)
        self._check_floor_to_claim(scope, at_least)
        plan = partial(
            plan_epoch,
            seen=seen,
            at_least=at_least,
            exactly=exactly,
            allow_jump=allow_jump,
        )
        asked = self._claiming.asked(scope, plan, holder, texts)
        outcome = self._claiming.append([asked], deadline)[0]
        if isinstance(outcome, EpochfenceError):
            raise outcome
        return outcome

    def claim_all(
        self,
        scopes: Iterable[str],
        *,
        holder: str,
        seen: Mapping[str, int] | None = None,
        attributes: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Claimed:
        """Ask for the next epochs of many scopes at once, of each as `claim` does.

        That takes two reads of the ledger, however many scopes there are. A claim that
        is lost, or whose outcome is not known, says nothing of the others.

        Args:
            scopes: What to lead; one that is named twice counts once.
            holder: Names this process, for people.
            seen: The latest epoch of each scope that was seen before it became this
                process's, 0 for none, as for `claim`. Of a scope that is not named,
                the latest is read now.
            attributes: Text pairs for whoever asks who leads.
            timeout_s: How long to wait for all of the answers.

        Raises:
            LedgerUnavailable: Nothing was claimed, the ledger cannot be read.
            TableUnavailable, LedgerRegressed: As `claim`; nothing was claimed.
            MisconfiguredError: An argument, or a setting of the topic, is wrong:
                nothing was claimed.
        """
        deadline = self._deadline(timeout_s)
        self.check_open()
        names = checked_scopes(scopes)
        seen = checked_seen(seen, names)
        texts = checked_texts(holder, attributes)
        self._log.read_to_end(deadline)
        self._follower.check_floor()
        asked: list[Claim] = []
        failed: dict[str, EpochfenceError] = {}
        for scope in names:
            plan = partial(plan_epoch, seen=seen.get(scope))
            try:
                asked.append(self._claiming.asked(scope, plan, holder, texts))
            except (ClaimLost, EpochExhausted) as error:
                failed[scope] = error
        won: dict[str, Leadership] = {}
        for claim, outcome in zip(
            asked, self._claiming.append(asked, deadline), strict=True
        ):
            if isinstance(outcome, Leadership):
                won[claim.scope] = outcome
            else:
                failed[claim.scope] = outcome
        return Claimed(MappingProxyType(won), MappingProxyType(failed))

    def _check_floor_to_claim(self, scope: str, at_least: int | None) -> None:
        """A regress stops every claim, but the one that raises its scope above it."""
        floor = self._follower.floor_of(scope)
        if at_least is None or at_least <= floor:
            self._follower.check_floor()

    # For the producers and consumers that go by this ledger.

    @property
    def connection(self) -> dict[str, Any]:
        """The connection settings that this ledger was given."""
        return dict(self._config)

    @property
    def table(self) -> Table:
        """The max-epoch table that belongs to this ledger, opened when first used.

        Raises:
            TableUnavailable: The cluster does not answer.
            LedgerClosed: The ledger was closed.
        """
        with self._table_lock:
            if self._table is None:
                self.check_open()
                self._table = Table(
                    self._config,
                    self.table_topic,
                    self._keeper,
                    self._timeout_s,
                    self.clients,
                )
            return self._table

    def _before_reload(self, deadline: float) -> None:
        assert self._keeper is not None
        self._keeper.ensure(self.coordination_topic, create=False)
        # The table first and the ledger after it: the other way round, a new leader
        # would look like a loss.
        self._raise_floor_by_table(deadline)

    def _raise_floor_by_table(self, deadline: float) -> None:
        table = self.table
        table.refresh(some_time(deadline))
        self._follower.raise_floor((row.scope, row.epoch) for row in table.all_starts())

    # Waiting.

    def _deadline(self, timeout_s: float | None) -> float:
        return deadline_after(self._timeout_s if timeout_s is None else timeout_s)

    def _unavailable(self, reason: str, offset: int | None) -> LedgerUnavailable:
        return LedgerUnavailable(self.coordination_topic, reason, offset)

    def close(self) -> None:
        """Stop following the log. May be called again."""
        with self._table_lock:
            self._is_closed = True
            table = self._table
        self._follower.close()
        if table is not None:
            table.close()
        self._log.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Ledger cannot be pickled: open one in each process")

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def check_ledger(ledger: object) -> None:
    """Return if a value is a ledger; else `MisconfiguredError`."""
    if not isinstance(ledger, Ledger):
        raise MisconfiguredError(
            "ledger", ledger, "it is no Ledger", "Give Ledger(config)."
        )
