"""Taking over: barriers first, then the table, then the ledger."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from confluent_kafka import TopicPartition

from epochfence.epochs.deadlines import some_time
from epochfence.epochs.errors import (
    Deposed,
    EpochfenceError,
    LedgerRegressed,
    MisconfiguredError,
    TopicUnavailable,
)
from epochfence.epochs.holding import check_granted, check_rows, deposed_by
from epochfence.epochs.leadership import Leadership
from epochfence.epochs.ledger import Ledger
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.values import EpochStart, Place
from epochfence.producers.barriers import BarrierOffsets, BarrierWriter
from epochfence.producers.judging import Judging
from epochfence.producers.lives import Life, Lives
from epochfence.producers.territory import Territory

#: The ids of topics' present lives.
_LifeIds = dict[str, str | None]


@dataclass(eq=False, slots=True)
class Realm:
    """What one producer leads.

    Attributes:
        leaderships: Under which its messages are written.
        territory: What was taken over under them.
        judging: How the consumers of the topics judge.
        on_deposed: Called when it turns out that there is a successor.
        unproved: Barriers that were added later, and are not known yet to have come
            before any successor.
    """

    leaderships: Sequence[Leadership]
    territory: Territory
    judging: Judging
    on_deposed: Callable[[Deposed], None]
    unproved: list[tuple[BarrierOffsets, _LifeIds]] = field(default_factory=list)


@dataclass(slots=True)
class _Goal:
    """What a realm is to get: whole topics, and single partitions.

    Attributes:
        whole: The topics.
        places: The partitions.
        barred: All the partitions that need barriers.
        standing: The barriers that are there.
    """

    whole: set[str]
    places: set[Place]
    barred: list[Place] = field(default_factory=list)
    standing: BarrierOffsets = field(default_factory=dict)


class TakingOver:
    """Takes topics over, and partitions that are added to them later.

    What is done for several realms at once takes one client for the barriers, one look
    at each topic, and one read of table and ledger; and what is wrong with one of them
    does not touch the others.

    Args:
        ledger: Says which grants are the latest; its table, which epochs began.
        writer: Writes the barriers.
        lives: Looks at topics.
    """

    def __init__(self, ledger: Ledger, writer: BarrierWriter, lives: Lives) -> None:
        self._ledger = ledger
        self._writer = writer
        self._lives = lives

    def take_all(
        self,
        topics_of: Mapping[Realm, Iterable[str | TopicPartition]],
        deadline: float,
        *,
        keeps_barriers: bool = False,
    ) -> dict[Realm, BarrierOffsets | EpochfenceError]:
        """Take topics and single partitions over; `FencedProducer.take_over` tells.

        For several realms at once: gives the barriers of each, or its error.

        Args:
            topics_of: What each is to take over.
            deadline: By `time.monotonic()`.
            keeps_barriers: Whether own barriers that stand in the present life of a
                topic do. As long as the own grant is the latest, nothing of a later
                epoch can lie behind them.

        Raises:
            LedgerUnavailable, TableUnavailable, LedgerRegressed: Of ledger and table:
                nothing was taken over.
            TopicUnavailable: The cluster does not answer.
        """
        goals = {realm: self._named(topics) for realm, topics in topics_of.items()}
        lives = self._look_at(goals.values(), deadline)
        outcomes: dict[Realm, BarrierOffsets | EpochfenceError] = {}
        for realm, goal in goals.items():
            try:
                goal.barred = _barred(realm, goal, lives)
            except EpochfenceError as error:
                outcomes[realm] = error
        ids = {name: life.topic_id for name, life in lives.items() if life is not None}
        if keeps_barriers:
            for realm, goal in goals.items():
                if realm not in outcomes:
                    goal.standing = realm.territory.barriers(goal.barred, ids)
        missing = {
            realm: [place for place in goal.barred if place not in goal.standing]
            for realm, goal in goals.items()
            if realm not in outcomes
        }
        for realm, (written, failure) in self._bar(missing, ids, deadline).items():
            goals[realm].standing |= written
            if failure is not None:
                outcomes[realm] = failure
        barred = [realm for realm in goals if realm not in outcomes]
        failures = self._check(
            {realm: goals[realm].barred for realm in barred}, deadline
        )
        for realm in barred:
            goal = goals[realm]
            if realm in failures:
                outcomes[realm] = failures[realm]
                continue
            realm.territory.add_proof(goal.standing, ids)
            realm.territory.open_up(goal.whole, goal.places)
            outcomes[realm] = goal.standing
        return outcomes

    def _named(self, topics: Iterable[str | TopicPartition]) -> _Goal:
        if isinstance(topics, str | TopicPartition) or not isinstance(topics, Iterable):
            example = topics if isinstance(topics, str | TopicPartition) else "orders"
            raise MisconfiguredError(
                "topics", topics, "a list of topics is expected", f"Use [{example!r}]."
            )
        whole: set[str] = set()
        places: set[Place] = set()
        for one in topics:
            if isinstance(one, TopicPartition):
                places.add((one.topic, one.partition))
                topic = one.topic
            elif isinstance(one, str):
                whole.add(one)
                topic = one
            else:
                raise MisconfiguredError(
                    "topics", one, "neither a topic nor a partition",
                    "Give names, or confluent_kafka.TopicPartition for single ones.",
                )  # fmt: skip
            if topic in (self._ledger.coordination_topic, self._ledger.table_topic):
                raise MisconfiguredError(
                    "topics", topic, "it belongs to the ledger",
                    "Take over the topics that the messages go to.",
                )  # fmt: skip
        if not whole and not places:
            raise MisconfiguredError(
                "topics", [], "no topic is named",
                "Name the topics that this leadership writes to: ['orders'].",
            )  # fmt: skip
        return _Goal(whole, places)

    def _look_at(
        self, goals: Iterable[_Goal], deadline: float
    ) -> dict[str, Life | None]:
        """The topics that are named, as they are now."""
        names = {
            topic
            for goal in goals
            for topic in (*goal.whole, *(name for name, _ in goal.places))
        }
        return {topic: self._lives.look(topic, deadline) for topic in sorted(names)}

    def _bar(
        self,
        places_of: Mapping[Realm, Sequence[Place]],
        lives: _LifeIds,
        deadline: float,
    ) -> dict[Realm, tuple[BarrierOffsets, EpochfenceError | None]]:
        """Write barriers of each realm; give those that stand, and the first error."""
        wanted = [
            (realm, place, held)
            for realm, places in places_of.items()
            for place in places
            for held in realm.leaderships
        ]
        outcomes = self._writer.write_all([one[1:] for one in wanted], deadline)
        offsets: dict[Realm, dict[Place, list[int]]] = {
            realm: defaultdict(list) for realm in places_of
        }
        failures: dict[Realm, EpochfenceError] = {}
        for (realm, place, _), outcome in zip(wanted, outcomes, strict=True):
            if isinstance(outcome, int):
                offsets[realm][place].append(outcome)
            else:
                failures.setdefault(realm, outcome)
        found: dict[Realm, tuple[BarrierOffsets, EpochfenceError | None]] = {}
        for realm, of_places in offsets.items():
            complete = {
                place: of_place
                for place, of_place in of_places.items()
                if len(of_place) == len(realm.leaderships)
            }
            realm.territory.add_barriers(complete, lives)
            found[realm] = complete, failures.get(realm)
        return found

    def _check(
        self, places_of: Mapping[Realm, Iterable[Place]], deadline: float
    ) -> dict[Realm, EpochfenceError]:
        """See that every own grant is the latest, and the table below them all.

        Returns:
            What is wrong with those of which that is not so.
        """
        if not places_of:
            return {}
        table = self._ledger.table
        # The table before the ledger: the other way round, a new leader looks like
        # a loss.
        table.refresh(some_time(deadline))
        rows: dict[str, list[EpochStart]] = defaultdict(list)
        for row in table.all_starts():
            rows[row.scope].append(row)
        for realm, places in places_of.items():
            for topic, number in sorted(places):
                table.compare_settings(topic, number, realm.judging.of(topic))
        state = self._refreshed(deadline)
        failures: dict[Realm, EpochfenceError] = {}
        for realm in places_of:
            try:
                _check_latest(realm, state)
                for held in realm.leaderships:
                    check_rows(realm.leaderships, rows.get(held.scope, ()))
            except (Deposed, LedgerRegressed) as error:
                failures[realm] = error
        return failures

    def check_latest(self, realm: Realm, deadline: float) -> None:
        """See that every own grant is the latest, by a ledger read to its end.

        Raises:
            Deposed: There is a later one.
            LedgerUnavailable: The ledger could not be read to its end in time.
            LedgerRegressed: It has lost an own grant.
        """
        _check_latest(realm, self._refreshed(deadline))

    def _refreshed(self, deadline: float) -> LedgerState:
        return self._ledger.refresh(some_time(deadline))

    # What the watch does, on its thread.

    def add_partitions(
        self, topic: str, realms: Iterable[Realm], deadline: float
    ) -> bool:
        """Write barriers to the partitions of a topic that have none; give if any.

        Raises:
            TopicUnavailable: The topic cannot be reached, or is not there.
            MisconfiguredError: No barrier can be written, or none helps. (Of several
                realms, others may have theirs.)
        """
        life = self._lives.look(topic, deadline)
        if life is None:
            raise TopicUnavailable(topic, "there is no such topic any more")
        lives = {topic: life.topic_id}
        failures: list[EpochfenceError] = []
        missing: dict[Realm, list[Place]] = {}
        for realm in realms:
            places = realm.territory.without_barrier(topic, life)
            if not places:
                continue
            try:
                realm.judging.check(topic, [number for _, number in places])
            except MisconfiguredError as error:
                failures.append(error)
            else:
                missing[realm] = places
        for realm, (written, failure) in self._bar(missing, lives, deadline).items():
            if written:
                realm.unproved.append((written, lives))
            if failure is not None:
                failures.append(failure)
        if failures:
            raise failures[0]
        return bool(missing)

    def prove_added(self, realms: Iterable[Realm], deadline: float) -> None:
        """See that the barriers added since came before any successor.

        A realm that has one is told. (Its barriers may have come too late.)

        Raises:
            LedgerUnavailable: Nothing is known yet.
            LedgerRegressed: The ledger has lost an own grant.
        """
        waiting = [realm for realm in realms if realm.unproved]
        if not waiting:
            return
        state = self._refreshed(deadline)
        lost: list[LedgerRegressed] = []
        for realm in waiting:
            try:
                _check_latest(realm, state)
            except Deposed as deposed:
                realm.on_deposed(deposed)
            except LedgerRegressed as error:
                lost.append(error)
                continue
            else:
                for written, lives in realm.unproved:
                    realm.territory.add_proof(written, lives)
            realm.unproved.clear()  # of a deposed one, nothing can be proved any more
        if lost:
            raise lost[0]


def _check_latest(realm: Realm, state: LedgerState) -> None:
    check_granted(realm.leaderships, state)
    deposed = deposed_by(realm.leaderships, state)
    if deposed is not None:
        raise deposed


def _barred(realm: Realm, goal: _Goal, lives: Mapping[str, Life | None]) -> list[Place]:
    """The partitions that a goal comes to.

    Raises:
        MisconfiguredError: One does not exist, or nothing of this realm would be
            admitted there.
    """
    barred = set(goal.places)
    for topic in sorted({*goal.whole, *(topic for topic, _ in goal.places)}):
        life = lives[topic]
        if life is None:
            raise MisconfiguredError(
                "topics", topic, "there is no such topic on this cluster",
                "Check the name and the cluster, or create the topic first.",
            )  # fmt: skip
        if topic in goal.whole:
            barred |= {(topic, number) for number in life.partitions}
        of_topic = sorted(number for name, number in barred if name == topic)
        _check_there(topic, of_topic, life)
        realm.judging.check(topic, of_topic)
    return sorted(barred)


def _check_there(topic: str, partitions: Sequence[int], life: Life) -> None:
    absent = [number for number in partitions if number not in life.partitions]
    if absent:
        raise MisconfiguredError(
            "topics", f"{topic}[{absent[0]}]",
            f"topic {topic} has partitions 0 to {life.partitions[-1]}",
            "Name partitions that exist, or the topic as a whole.",
        )  # fmt: skip
