"""The ledger's Kafka shell: claims go out, grants come back."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from secrets import token_hex
from types import TracebackType
from typing import IO, NoReturn

from epochfence.epochs.claims import (
    checked_texts,
    checked_value,
    claim_key,
    claim_to_json,
    plan_epoch,
)
from epochfence.epochs.coalesce import Coalesced
from epochfence.epochs.connection import Config
from epochfence.epochs.errors import (
    ClaimLost,
    ClaimUnknown,
    Deposed,
    EpochfenceError,
    LedgerRegressed,
    LedgerUnavailable,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.grant_follower import GrantFollower
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.table import read_starts
from epochfence.epochs.topic_log import (
    AppendRefusedError,
    AppendUnknownError,
    ReadingStoppedError,
    TopicLog,
)
from epochfence.epochs.topics import (
    COORDINATION_TOPIC,
    TABLE_TOPIC,
    TopicKeeper,
    make_embedded_topics,
)
from epochfence.epochs.values import Claim, check_scope, check_timeout

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
        self._keeper: TopicKeeper | None = None
        self._topic_id: str | None = None
        self._is_reload_due = False
        self._follower = GrantFollower(coordination_topic)
        try:
            if embedded:
                self._prepare_embedded()
            else:
                self._prepare(create)
        except TopicUnavailable as error:
            raise LedgerUnavailable(error.topic, error.reason) from error
        self._log = TopicLog(config, coordination_topic, self._follower)
        self._read_to_end = Coalesced(self._sync, self._overdue)
        try:
            self._log.read_to_told_end(time.monotonic() + timeout_s)
        except ReadingStoppedError as error:
            self.close()
            raise self._unavailable(error) from error

    def _prepare_embedded(self) -> None:
        _log.warning("embedded broker: topics are not checked, ids not compared")
        topics = (self.coordination_topic, self.table_topic)
        make_embedded_topics(self._config, topics, self._timeout_s)

    def _prepare(self, create: bool) -> None:
        keeper = self._keeper = TopicKeeper(self._config, self._timeout_s)
        is_new = keeper.ensure(self.coordination_topic, create=create)
        is_new_table = keeper.ensure(self.table_topic, create=create)
        facts = keeper.facts(self.coordination_topic)
        self._topic_id = None if facts is None else facts.topic_id
        if is_new and not is_new_table:
            # Was it there before, and lost? The table knows.
            self._raise_floor_by_table(self._timeout_s)

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
        failure = self._log.failure
        if failure is not None:
            raise self._unavailable(failure)
        return self._follower.state

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
        self._read_to_end(self._deadline(timeout_s))
        self._follower.check_floor()
        return self.state

    def verify(self, leadership: Leadership, timeout_s: float | None = None) -> None:
        """Return if a leadership is still the latest of its scope, as of now.

        Raises:
            Deposed: There is a later one.
            LedgerUnavailable: The ledger could not be read to its end in time.
            TableUnavailable, MisconfiguredError: As `refresh`.
            LedgerRegressed: The ledger has lost this grant.
        """
        self._read_to_end(self._deadline(timeout_s))
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

    def watch(self, on_grant: OnGrant) -> Callable[[], None]:
        """Have every grant from now on told, on the thread that follows the log.

        Args:
            on_grant: Called with each grant. It must return soon, and must not call
                a method of this ledger that waits. What it raises is logged (logger
                `epochfence.epochs.grant_follower`).

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
        _ = self.state  # raises if nobody reads
        return self._follower.watch(on_grant)

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
            exactly: Claim this very epoch: one that comes from elsewhere.
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
        check_scope(scope)
        texts = checked_texts(holder, attributes)
        self._read_to_end(deadline)
        self._check_floor_to_claim(scope, at_least)
        latest = self.state.latest(scope)
        claim = Claim(
            scope=scope,
            epoch=plan_epoch(
                scope,
                latest,
                seen=seen,
                at_least=at_least,
                exactly=exactly,
                allow_jump=allow_jump,
            ),
            previous=0 if latest is None else latest.epoch,
            grant_id=token_hex(8),
            holder=holder,
            claimed_at=time.time_ns() // 1_000_000,
            attributes=texts,
        )
        self._append_claim(claim, deadline)
        return self._outcome(claim)

    def _check_floor_to_claim(self, scope: str, at_least: int | None) -> None:
        """A regress stops every claim, but the one that raises its scope above it."""
        floor = self._follower.floor_of(scope)
        if at_least is None or at_least <= floor:
            self._follower.check_floor()

    def _append_claim(self, claim: Claim, deadline: float) -> None:
        value = checked_value(claim)
        unknown = ""
        try:
            self._log.append(claim_key(claim), value, deadline, discard=True)
        except AppendRefusedError as error:
            raise LedgerUnavailable(
                self.coordination_topic, f"the claim was refused: {error}"
            ) from error
        except AppendUnknownError as error:
            unknown = str(error)
        if not unknown:
            try:
                # Not only up to the claim: a claimant that was stopped in between
                # should hear of its successors, or that the topic was made anew.
                self._read_to_end(deadline)
            except EpochfenceError as error:
                unknown = f"it was written, but then: {error}".rstrip(".")
        if unknown:
            raise ClaimUnknown(claim.scope, claim.epoch, claim.grant_id, unknown)

    def _outcome(self, claim: Claim) -> Leadership:
        latest = self._follower.state.latest(claim.scope)
        if latest is not None and latest.grant_id == claim.grant_id:
            return Leadership(claim, self.verify)
        if latest is None or latest.epoch < claim.epoch:
            raise ClaimUnknown(
                claim.scope,
                claim.epoch,
                claim.grant_id,
                "it was acknowledged, but is not in the log",
            )
        raise ClaimLost(claim.scope, claim.epoch, latest.epoch, latest.holder)

    # Reading to the end.

    def _sync(self, deadline: float) -> None:
        """One synchronised read, and a look whether the topic is still the same.

        The look comes after the sync's acknowledgement and before the reading: the
        clients of a topic that was made anew may never get on.
        """
        self._log.resume()
        try:
            if self._is_reload_due:
                self._reload(deadline)
                return
            offset = self._append_sync(deadline)
            if offset is None or self._is_made_anew(deadline):
                self._reload(deadline)
            else:
                self._log.read_past(offset, deadline)
        except ReadingStoppedError as error:
            raise self._unavailable(error) from error
        except TopicUnavailable as error:
            raise LedgerUnavailable(error.topic, error.reason) from error

    def _append_sync(self, deadline: float) -> int | None:
        """Append a sync; give its offset, None if the topic turns out to be new."""
        try:
            return self._log.append_sync(self._midway(deadline))
        except ReadingStoppedError:
            if self._is_made_anew(deadline):
                return None
        return self._log.append_sync(deadline)

    def _is_made_anew(self, deadline: float) -> bool:
        """Whether the topic is another than the one that is followed."""
        if self._keeper is None:
            return False
        facts = self._keeper.facts(self.coordination_topic, self._left(deadline))
        if facts is None:
            raise LedgerUnavailable(self.coordination_topic, "there is no such topic")
        if facts.topic_id == self._topic_id:
            return False
        _log.warning(
            "topic %s was made anew (id %s, before %s)",
            self.coordination_topic,
            facts.topic_id,
            self._topic_id,
        )
        self._topic_id = facts.topic_id
        self._is_reload_due = True
        return True

    def _reload(self, deadline: float) -> None:
        """Begin with the topic that was made anew, as what was known allows."""
        assert self._keeper is not None
        self._keeper.ensure(self.coordination_topic, create=False)
        # The table first and the ledger after it: the other way round, a new leader
        # would look like a loss.
        self._raise_floor_by_table(self._left(deadline))
        self._log.restart()
        offset = self._log.append_sync(deadline)
        if self._is_made_anew(deadline):
            # Nothing of it was read yet: the next call begins with it.
            raise LedgerUnavailable(
                self.coordination_topic, "the topic was made anew once more"
            )
        self._log.read_past(offset, deadline)
        self._is_reload_due = False

    def _raise_floor_by_table(self, timeout_s: float) -> None:
        rows = read_starts(self._config, self.table_topic, timeout_s)
        self._follower.raise_floor((row.scope, row.epoch) for row in rows)

    def _deadline(self, timeout_s: float | None) -> float:
        if self._log.is_on_its_thread:
            raise LedgerUnavailable(
                self.coordination_topic, "a watcher must not wait for what it holds up"
            )
        wait_s = self._timeout_s if timeout_s is None else check_timeout(timeout_s)
        return time.monotonic() + wait_s

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - time.monotonic())

    def _midway(self, deadline: float) -> float:
        """Half of the time: what is left serves where the clients turn out stale."""
        return time.monotonic() + self._left(deadline) / 2

    def _overdue(self) -> LedgerUnavailable:
        return LedgerUnavailable(self.coordination_topic, "not read to its end in time")

    def _unavailable(self, error: ReadingStoppedError) -> LedgerUnavailable:
        return LedgerUnavailable(self.coordination_topic, error.reason, error.offset)

    def close(self) -> None:
        """Stop following the log. May be called again."""
        self._log.close()
        self._keeper = None

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
