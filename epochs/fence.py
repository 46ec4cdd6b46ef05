"""The fence: a fold over the records of one partition, in log order.

`PartitionFence.judge` gives each record its verdict and keeps the epoch starts.
A verdict depends on the records up to this one, on the ledger, and on the epoch
starts known beforehand, never on batches, restarts or the time of day.

How it is made fast. Seen from records with one leader epoch, in one life of the
topic, whether an epoch start counts is a question of offsets alone: each has a
*threshold*, the offset from which on it counts. A *run* is a stretch of records
with one leader epoch and rising offsets. Within it, the fence compares an offset
with the next threshold and looks the record's stamps up among the verdicts that
it has already given in the present state; everything else happens only when that
state changes. A new run, a step backwards included, starts from all starts anew.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import MAX_STAMP_BYTES, UNREADABLE, Headers, Reading
from epochfence.epochs.values import EpochStart, Position, Stamp
from epochfence.epochs.verdicts import Kind, Reason, Verdict

#: How many verdicts a partition remembers before it forgets them all.
_MAX_REMEMBERED = 1024

#: A message with more headers of ours than this is judged anew each time.
_MAX_REMEMBERED_HEADERS = 8

_NEVER = float("inf")

_UNREADABLE_VERDICT = Verdict("quarantined", "malformed")


@dataclass(slots=True)
class _Current:
    """The current epoch of a scope, and the grants that its starts name."""

    epoch: int
    grant_ids: set[str | None]

    def is_of(self, stamp: Stamp) -> bool:
        """Whether a start names the very grant that a stamp of this epoch cites.

        A foreign stamp cites none, so any start of its epoch will do.
        """
        return stamp.epoch == self.epoch and (
            stamp.grant_id is None or stamp.grant_id in self.grant_ids
        )

    @property
    def stands_for_any_grant(self) -> bool:
        """Whether a start names no grant: then it stands for any of its epoch."""
        return None in self.grant_ids


class PartitionFence:
    """The fence of one partition.

    Args:
        topic: The topic's name.
        partition: The partition's number.
        settings: What the records must carry.
        ledger: The grants, for authority `ledger`; None for `max-seen`.
        starts: Epoch starts of this partition that are known beforehand.

    Raises:
        MisconfiguredError: Authority `ledger` without a ledger.
    """

    def __init__(
        self,
        topic: str,
        partition: int,
        settings: FenceSettings,
        ledger: LedgerState | None,
        starts: Iterable[EpochStart] = (),
    ) -> None:
        if settings.authority == "ledger" and ledger is None:
            raise MisconfiguredError(
                "authority", "ledger", "no ledger is given",
                "Give one, or use authority max-seen.",
            )  # fmt: skip
        self.topic = topic
        self.partition = partition
        self.settings = settings
        self.topic_id: str | None = None
        self._ledger = ledger if settings.authority == "ledger" else None
        self._required = settings.required_scopes(partition)
        self._key = settings.stamps.key
        # Facts, each once, in the order in which they came to be known.
        self._starts: dict[EpochStart, None] = dict.fromkeys(starts)
        self._unnamed: list[EpochStart] = []  # found while the life had no topic id
        self._verdicts: dict[Hashable, Verdict] = {}
        self._current: dict[str, _Current] = {}
        self._pending: list[tuple[int, EpochStart]] = []  # by threshold, last first
        self._next_threshold: float = _NEVER
        self._leader_epoch: int | None = None
        self._offset = -1
        self._begin_run(None)

    @property
    def starts(self) -> tuple[EpochStart, ...]:
        """Every epoch start known: those given, those found, those added."""
        return tuple(self._starts)

    def with_starts(self, starts: Iterable[EpochStart]) -> PartitionFence:
        """A fence that differs in the starts known beforehand only."""
        other = PartitionFence(
            self.topic, self.partition, self.settings, self._ledger, starts
        )
        other.enter_life(self.topic_id)
        return other

    def add_starts(self, starts: Iterable[EpochStart]) -> None:
        """Take in epoch starts that others found."""
        self._starts.update(dict.fromkeys(starts))
        self._end_run()

    def enter_life(self, topic_id: str | None) -> None:
        """Say which life of the topic the records to come are of.

        None means the present one. The starts of earlier lives go on counting.
        """
        if topic_id is None or topic_id == self.topic_id:
            return
        for start in self._unnamed:
            del self._starts[start]
            self._starts[start._replace(topic_id=topic_id)] = None
        self._unnamed.clear()
        self.topic_id = topic_id
        self._end_run()

    def ledger_replaced(self, ledger: LedgerState) -> None:
        """Judge by another ledger from here on; the same one changes nothing."""
        if self._ledger is not None and self._ledger is not ledger:
            self._ledger = ledger
            self._verdicts.clear()

    def counting(self, position: Position) -> list[EpochStart]:
        """The epoch starts that count for a record at `position`, in no order."""
        leader_epoch, offset = position
        return [
            start
            for start in self._starts
            if self._threshold(start, leader_epoch) <= offset
        ]

    def judge(
        self,
        leader_epoch: int | None,
        offset: int,
        headers: Headers | None,
        value: bytes | None = None,
        *,
        ledger_complete: bool,
    ) -> Verdict | None:
        """Give the next record its verdict.

        Args:
            leader_epoch: The broker's leader epoch of the record, None: unknown.
            offset: The record's offset.
            headers: The record's headers.
            value: The record's value: read only where the stamp lies in it.
            ledger_complete: Whether the ledger was read to its end after this
                record was received.

        Returns:
            The verdict; None if it takes a ledger that is complete: read it to its
            end, see that it has not regressed, and ask again. Nothing has changed.
            A start is told once, with the record that opened it: whoever has to
            store it keeps it until that is done.

        Raises:
            MisconfiguredError: The record lacks a required stamp, and it was not
                decided what to do then.
        """
        if leader_epoch != self._leader_epoch or offset < self._offset:
            self._begin_run(leader_epoch)
        if offset >= self._next_threshold:
            self._pass_thresholds(offset)
        self._offset = offset
        if headers is UNREADABLE:
            return _UNREADABLE_VERDICT
        key = self._key(headers, value)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._decide(key, offset, ledger_complete)
        return verdict

    # The run: which starts count.

    def _end_run(self) -> None:
        """Make the next record begin a run."""
        self._offset = -1
        self._begin_run(self._leader_epoch)

    def _begin_run(self, leader_epoch: int | None) -> None:
        self._leader_epoch = leader_epoch
        self._verdicts.clear()
        self._current.clear()
        thresholds = (
            (self._threshold(start, leader_epoch), start) for start in self._starts
        )
        self._pending = sorted(
            ((int(at), start) for at, start in thresholds if at != _NEVER),
            key=lambda pair: pair[0],
            reverse=True,
        )
        self._next_threshold = self._pending[-1][0] if self._pending else _NEVER

    def _threshold(self, start: EpochStart, leader_epoch: int | None) -> float:
        """The offset from which on `start` counts for records of `leader_epoch`."""
        life = self.topic_id
        if life is not None and start.topic_id is not None and start.topic_id != life:
            return -1
        began = start.position.leader_epoch
        if began is None or leader_epoch is None or began == leader_epoch:
            return start.position.offset
        return -1 if began < leader_epoch else _NEVER

    def _pass_thresholds(self, offset: int) -> None:
        pending = self._pending
        while pending and pending[-1][0] <= offset:
            self._count(pending.pop()[1])
        self._next_threshold = pending[-1][0] if pending else _NEVER
        self._verdicts.clear()

    def _count(self, start: EpochStart) -> None:
        current = self._current.get(start.scope)
        if current is None or start.epoch > current.epoch:
            self._current[start.scope] = _Current(start.epoch, {start.grant_id})
        elif start.epoch == current.epoch:
            current.grant_ids.add(start.grant_id)

    # The verdict: the rows of the rules, in order, each over all stamps.

    def _decide(
        self, key: Hashable, offset: int, ledger_complete: bool
    ) -> Verdict | None:
        reading = self.settings.stamps.read(key)
        if reading.problem is not None:
            return self._remember(key, Verdict("quarantined", reading.problem))
        stamps = reading.stamps
        is_let_in = False
        if not reading.is_barrier and self._lacks_stamp(stamps):
            if not self._lets_unstamped_in(stamps, offset):
                verdict = Verdict("quarantined", "unstamped", stamps)
                return self._remember(key, verdict)
            is_let_in = True
        is_all_known = all(self._is_known(stamp) for stamp in stamps)
        if not (is_all_known or ledger_complete):
            return None
        rejected = self._reject(stamps)
        if rejected is None:
            return self._admit(key, reading, offset, is_let_in)
        # What the ledger does not know now, it may know when the next one comes.
        return self._remember(key, rejected) if is_all_known else rejected

    def _remember(self, key: Hashable, verdict: Verdict) -> Verdict:
        if not _is_small(key):
            return verdict
        if len(self._verdicts) >= _MAX_REMEMBERED:
            self._verdicts.clear()
        self._verdicts[key] = verdict
        return verdict

    def _lacks_stamp(self, stamps: tuple[Stamp, ...]) -> bool:
        if not self._required:
            return not stamps
        carried = {stamp.scope for stamp in stamps}
        return not carried.issuperset(self._required)

    def _lets_unstamped_in(self, stamps: tuple[Stamp, ...], offset: int) -> bool:
        policy = self.settings.unstamped
        if policy == "admit":
            return True
        if policy == "quarantine":
            return False
        carried = {stamp.scope for stamp in stamps}
        missing = [scope for scope in self._required if scope not in carried]
        began = (
            [scope in self._current for scope in missing]
            if self._required
            else [bool(self._current)]
        )
        if policy == "admit-until-first-stamp":
            return not any(began)
        if any(began):
            return False
        wanted = " and ".join(missing) or "any scope"
        where = f"{self.topic}[{self.partition}] offset {offset}"
        undecided = "no epoch has begun there, and it was not decided what to do then"
        if carried:
            found = ", ".join(sorted(carried))
            raise MisconfiguredError(
                "require", list(self._required),
                f"{where} is stamped by {found}, not by {wanted}; {undecided}",
                "Is a scope misspelt? Name the scopes that the topic's leaders claim. "
                "Only if such records are meant to be there, set unstamped: quarantine "
                "(reject them), admit-until-first-stamp or admit.",
            )  # fmt: skip
        raise MisconfiguredError(
            "unstamped", None,
            f"{where} has no stamp of {wanted}, {undecided}",
            "Use quarantine (reject it), admit-until-first-stamp (let in what was "
            "written before fencing began) or admit (let it in always).",
        )  # fmt: skip

    def _is_known(self, stamp: Stamp) -> bool:
        """Whether a stamp can be judged by what is known of the ledger so far."""
        current = self._current.get(stamp.scope)
        is_current = current is not None and current.is_of(stamp)
        return is_current or self._is_granted(stamp)

    def _reject(self, stamps: tuple[Stamp, ...]) -> Verdict | None:
        """The verdict of the first row that holds for any stamp, None if none does."""
        current = self._current
        seen = [(stamp, current.get(stamp.scope)) for stamp in stamps]
        for stamp, now in seen:
            if now is not None and stamp.epoch < now.epoch:
                return Verdict("stale", "stale-epoch", stamps, stamp, now.epoch)
        ungranted: Verdict | None = None
        for stamp, now in seen:
            if now is None or stamp.epoch != now.epoch or now.is_of(stamp):
                continue
            if self._is_granted(stamp):
                if now.stands_for_any_grant:
                    continue
                return Verdict("quarantined", "conflict", stamps, stamp, now.epoch)
            ungranted = ungranted or Verdict(
                "quarantined", "ungranted", stamps, stamp, now.epoch
            )
        if ungranted is not None:
            return ungranted
        for stamp, now in seen:
            if now is not None and stamp.epoch <= now.epoch:
                continue
            epoch = None if now is None else now.epoch
            if not self._is_granted(stamp):
                return Verdict("quarantined", "ungranted", stamps, stamp, epoch)
            if self._is_implausible(stamp.epoch, epoch):
                return Verdict("quarantined", "implausible", stamps, stamp, epoch)
        return None

    def _is_granted(self, stamp: Stamp) -> bool:
        ledger = self._ledger
        return ledger is None or ledger.is_grant(
            stamp.scope, stamp.epoch, stamp.grant_id
        )

    def _is_implausible(self, epoch: int, current: int | None) -> bool:
        limit = self.settings.max_jump
        return limit is not None and current is not None and epoch - current > limit

    def _admit(
        self, key: Hashable, reading: Reading, offset: int, is_let_in: bool
    ) -> Verdict:
        stamps = reading.stamps
        opened = tuple(
            EpochStart(
                self.topic,
                self.topic_id,
                self.partition,
                stamp.scope,
                stamp.epoch,
                stamp.grant_id,
                Position(self._leader_epoch, offset),
            )
            for stamp in stamps
            if self._opens(stamp)
        )
        for start in opened:
            if self.topic_id is None:
                self._unnamed.append(start)
            self._starts[start] = None
            self._count(start)
        if opened:
            self._verdicts.clear()
        cause = stamps[0] if stamps else None
        now = None if cause is None else self._current[cause.scope].epoch
        kind: Kind = "barrier" if reading.is_barrier else "admitted"
        reason: Reason = "unstamped" if is_let_in else "ok"
        verdict = Verdict(kind, reason, stamps, cause, now, opened)
        return verdict if opened else self._remember(key, verdict)

    def _opens(self, stamp: Stamp) -> bool:
        current = self._current.get(stamp.scope)
        return current is None or stamp.epoch > current.epoch


def _is_small(key: Hashable) -> bool:
    """Whether a key may be remembered: anybody can send large headers, or many."""
    if isinstance(key, bytes):
        return len(key) <= MAX_STAMP_BYTES
    if not isinstance(key, tuple):
        return True
    parts: tuple[object, ...] = key
    return len(parts) <= _MAX_REMEMBERED_HEADERS and all(
        _is_small(part) for part in parts if isinstance(part, bytes | tuple)
    )
