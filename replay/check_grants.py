"""Grants within the ledger, and what came of each of them in a topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from epochfence.epochs.claim_identity import ClaimIdentity
from epochfence.epochs.claims import MAX_UNASKED_JUMP
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.audit import LedgerSource
from epochfence.replay.checked_parts import (
    MOST_FINDINGS,
    SHOWN,
    PartRead,
    scopes_of,
    some,
)
from epochfence.replay.histories import EpochHistory
from epochfence.replay.places import RecordPlace, milliseconds_between
from epochfence.replay.report import Finding
from epochfence.replay.texts import counted, duration
from epochfence.replay.witness import Witness


def grants_by_scope(ledger: LedgerState) -> dict[str, list[ClaimIdentity]]:
    """The grants of each scope, in log order."""
    found: dict[str, list[ClaimIdentity]] = {}
    for identity, is_grant in ledger.identities():
        if is_grant:
            found.setdefault(identity[0], []).append(identity)
    return found


def check_grants(
    source: LedgerSource, parts: Sequence[PartRead], settings: FenceSettings
) -> Iterator[Finding]:
    """What is worth knowing of the grants of a ledger.

    Args:
        source: The ledger.
        parts: What was read of the partitions that it grants.
        settings: What their records must carry.
    """
    checked = _Checked(source, parts, settings)
    yield from checked.jumps()
    yield from checked.without_records()
    yield from checked.before_grant()


class _Checked:
    def __init__(
        self,
        source: LedgerSource,
        parts: Sequence[PartRead],
        settings: FenceSettings,
    ) -> None:
        self._source = source
        self._parts = parts
        self._settings = settings
        self._scopes = scopes_of(parts, settings)
        self._witness = Witness(source)
        self._grants = grants_by_scope(source.state)

    def jumps(self) -> Iterator[Finding]:
        """Epochs that nobody was ever granted; those of this topic, or huge ones."""
        told = 0
        for scope, of_scope in sorted(self._grants.items()):
            before, jumped, over = 0, 0, 0
            largest: tuple[int, ClaimIdentity, ClaimIdentity | None] | None = None
            previous: ClaimIdentity | None = None
            for identity in of_scope:
                gap = identity[1] - before - 1
                if gap > 0:
                    jumped, over = jumped + 1, over + gap
                    if largest is None or gap > largest[0]:
                        largest = gap, identity, previous
                before, previous = identity[1], identity
            if largest is None:
                continue
            is_huge = largest[0] >= MAX_UNASKED_JUMP
            if told >= MOST_FINDINGS or not (is_huge or scope in self._scopes):
                continue
            told += 1
            yield self._jump(scope, jumped, over, *largest[1:], is_huge=is_huge)

    def _jump(
        self,
        scope: str,
        jumped: int,
        over: int,
        to: ClaimIdentity,
        previous: ClaimIdentity | None,
        *,
        is_huge: bool,
    ) -> Finding:
        came_from = 0 if previous is None else previous[1]
        evidence = [] if previous is None else [
            self._witness.claim("granted before", *previous)
        ]  # fmt: skip
        evidence.append(self._witness.claim("jumped to", *to))
        times = "once" if jumped == 1 else f"{jumped:,} times"
        text = (
            f"The epochs of scope {scope!r} jump {times}, over {over:,} in all: "
            f"{self._witness.holder(*to)!r} went from {came_from} to {to[1]}"
        )
        if is_huge:
            return Finding(
                severity="warning",
                code="huge-jump",
                text=f"{text}. It cannot be taken back: "
                f"{2**63 - 1 - to[1]:,} epochs are left above it.",
                scope=scope,
                epoch=to[1],
                evidence=tuple(evidence),
                remedy="If it was a mistake (milliseconds for a count), use a new "
                "scope as long as few consumers require this one.",
            )
        return Finding(
            severity="notice",
            code="ledger-holes",
            text=f"{text}. Nobody was granted what lies between.",
            scope=scope,
            epoch=to[1],
            evidence=tuple(evidence),
            remedy="That is as it should be where somebody asked for it (at_least, "
            "exactly, seen). Else records of the coordination topic are gone.",
        )

    # Grants, and what came of them.

    def _partitions_of(self, scope: str) -> list[PartRead]:
        """Where a leader of a scope has to be seen: all, if it is in more than one."""
        carried = sum(scope in part.state.scopes for part in self._parts)
        there = [
            part
            for part in self._parts
            if carried > 1
            or scope in part.state.scopes
            or scope in self._settings.required_scopes(part.piece.partition)
        ]
        # Where the log's head was not read, a grant's records may lie there.
        return [
            part
            for part in there
            if part.is_whole
            and part.reached >= part.piece.end
            and not part.state.epochs_left_out
        ]

    def without_records(self) -> Iterator[Finding]:
        """Grants under which nothing was written, to all or some partitions."""
        for scope in sorted(self._scopes & self._grants.keys())[:MOST_FINDINGS]:
            there = self._partitions_of(scope)
            if not there:
                continue
            seen = [
                {
                    (one.epoch, one.grant_id)
                    for one in part.state.epochs
                    if one.scope == scope
                }
                for part in there
            ]
            nowhere: list[ClaimIdentity] = []
            partly: list[tuple[ClaimIdentity, list[int]]] = []
            firsts = [self._first_seen(scope, found) for found in seen]
            for number, identity in enumerate(self._grants[scope]):
                # Topics and partitions come later than scopes: what a leader did not
                # find there, it could not take over.
                missing = [
                    part.piece.partition
                    for part, found, first in zip(there, seen, firsts, strict=True)
                    if identity[1:] not in found and first <= number
                ]
                is_seen = any(identity[1:] in found for found in seen)
                if missing and is_seen:
                    partly.append((identity, missing))
                elif missing:
                    nowhere.append(identity)
            if nowhere:
                yield self._nowhere(scope, nowhere, there)
            if partly:
                yield self._partly(scope, partly, there)

    def _first_seen(self, scope: str, found: set[tuple[int, str | None]]) -> int:
        """The first grant of a scope in a partition; where there is none, the last."""
        grants = self._grants[scope]
        for number, identity in enumerate(grants):
            if identity[1:] in found:
                return number
        return len(grants) - 1

    def _nowhere(
        self, scope: str, grants: list[ClaimIdentity], there: list[PartRead]
    ) -> Finding:
        topic = there[0].piece.topic
        return Finding(
            severity="notice",
            code="never-took-over",
            text=f"{counted(len(grants), 'grant')} of scope {scope!r} "
            f"{'has' if len(grants) == 1 else 'have'} neither barrier nor record in "
            f"{topic}: epoch {some([epoch for _, epoch, _ in grants])}."
            f"{self._may_be_coming(scope, grants)}",
            topic=topic,
            scope=scope,
            epoch=grants[-1][1],
            evidence=tuple(
                self._witness.claim("granted", *one) for one in grants[:SHOWN]
            ),
            remedy="A leader that ends before take_over() leaves such a grant; it "
            "fences nobody in this topic.",
        )

    def _partly(
        self,
        scope: str,
        grants: list[tuple[ClaimIdentity, list[int]]],
        there: list[PartRead],
    ) -> Finding:
        topic = there[0].piece.topic
        lacking = some(
            [
                f"epoch {epoch} on {counted(len(numbers), 'partition')} "
                f"({some(numbers)})"
                for (_, epoch, _), numbers in grants
            ]
        )
        return Finding(
            severity="notice",
            code="took-over-partly",
            text=f"Leaders of scope {scope!r} have neither barrier nor record on some "
            f"partitions of {topic}: {lacking}. What their predecessors wrote there "
            f"was admitted."
            f"{self._may_be_coming(scope, [one for one, _ in grants])}",
            topic=topic,
            scope=scope,
            epoch=grants[-1][0][1],
            evidence=tuple(
                self._witness.claim("granted", *one) for one, _ in grants[:SHOWN]
            ),
            remedy="take_over() writes a barrier to every partition; one that was cut "
            "short is made up for by the next leader.",
        )

    def _may_be_coming(self, scope: str, grants: Sequence[ClaimIdentity]) -> str:
        is_latest = grants[-1] == self._grants[scope][-1]
        return " (The latest may still be taking over.)" if is_latest else ""

    def before_grant(self) -> Iterator[Finding]:
        """Epochs that began, by the clocks, before they were granted."""
        told = self._source.told
        if told is None:
            return
        found: dict[
            ClaimIdentity, list[tuple[PartRead, EpochHistory, RecordPlace, int]]
        ] = {}
        for part in self._parts:
            for one in part.state.epochs:
                identity = (one.scope, one.epoch, one.grant_id or "")
                claim = told.places.get(identity)
                late_ms = milliseconds_between(one.start, claim)
                if late_ms is not None and late_ms > 0 and one.start is not None:
                    at = (part, one, one.start, late_ms)
                    found.setdefault(identity, []).append(at)
        for identity, began in sorted(found.items())[:MOST_FINDINGS]:
            scope, epoch, grant_id = identity
            part, _, place, late_ms = max(began, key=lambda at: at[3])
            yield Finding(
                severity="notice",
                code="wrote-before-grant",
                text=f"{self._witness.who(*identity)} began in {part.where} at offset "
                f"{place.offset}, by the records' timestamps "
                f"{duration(late_ms)} before its claim was written"
                f"{_elsewhere(len(began))}: either the clocks differ, or stamps were "
                f"made before there was a grant.",
                topic=part.piece.topic,
                partition=part.piece.partition,
                scope=scope,
                epoch=epoch,
                evidence=(
                    self._witness.record("began here", part.state, place, identity),
                    self._witness.claim("claimed", scope, epoch, grant_id),
                ),
                remedy="Compare the clocks of producers and brokers; no rule of "
                "fencing uses them.",
            )


def _elsewhere(partitions: int) -> str:
    if partitions == 1:
        return ""
    return f" (so on {counted(partitions - 1, 'more partition')})"
