"""The coordination topic itself, against its own rules, the data and the table.

What a log proves, it proves by order: within the coordination topic, and within one
partition. Between the two there is no order but that of clocks, so what rests on
timestamps is a notice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from epochfence.epochs.claim_identity import ClaimIdentity
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart, is_foreign
from epochfence.replay.audit import LedgerSource
from epochfence.replay.check_grants import check_grants, grants_by_scope
from epochfence.replay.checked_parts import MOST_FINDINGS, SHOWN, PartRead, some
from epochfence.replay.histories import Rejections
from epochfence.replay.report import Evidence, Finding
from epochfence.replay.texts import counted
from epochfence.replay.told_records import ToldTable
from epochfence.replay.witness import Witness, passed_over


def check_ledger(
    source: LedgerSource,
    parts: Sequence[PartRead],
    settings: FenceSettings,
    table: ToldTable | None = None,
) -> Iterator[Finding]:
    """What is wrong, or worth knowing, with the ledger that a topic was judged by.

    Args:
        source: The ledger, read after the ends of the partitions were captured.
        parts: What was read of the partitions.
        settings: What their records must carry.
        table: The max-epoch table, read before the ledger; None: there is none.
    """
    checked = _Checked(source, parts)
    yield from _topic(source)
    yield from checked.behind_table(() if table is None else table.rows)
    yield from checked.behind_data()
    yield from checked.replaced_grants(() if table is None else table.rows)
    yield from checked.cited_twice()
    yield from checked.losers()
    yield from check_grants(source, parts, settings)


def _topic(source: LedgerSource) -> Iterator[Finding]:
    """What the reading met: settings that break the promise, and what is no claim."""
    told = source.told
    if told is None:
        return
    for problem in told.problems:
        yield Finding(
            severity="critical",
            code="coordination-settings",
            text=f"{problem.setting} is {problem.value!r}: {problem.problem}. A grant "
            f"that is lost may be granted again to somebody else.",
            topic=source.name,
            remedy=f"{problem.remedy.rstrip('.')}.",
        )
    if told.passed_over:
        total = source.state.passed_over
        places = some([place.offset for place, _ in told.passed_over])
        yield Finding(
            severity="warning",
            code="not-a-claim",
            text=f"{counted(total, 'record')} of {source.name} "
            f"{'is' if total == 1 else 'are'} neither claim nor sync, and passed over "
            f"by every reader: offset {places}. The first: "
            f"{told.passed_over[0].problem}.",
            topic=source.name,
            records=total,
            evidence=passed_over(source.name, told.topic_id, told.passed_over[:SHOWN]),
            remedy="Find out who writes there: a damaged claim may have been a grant. "
            "Only the framework needs the right to write to this topic.",
        )


class _Checked:
    """A ledger, with what its checks look up."""

    def __init__(
        self,
        source: LedgerSource,
        parts: Sequence[PartRead],
    ) -> None:
        self._source = source
        self._state = source.state
        self._parts = parts
        self._witness = Witness(source)
        self._grants = grants_by_scope(source.state)
        self._granted = {
            (scope, epoch): grant_id
            for of_scope in self._grants.values()
            for scope, epoch, grant_id in of_scope
        }

    # Against the table.

    def behind_table(self, rows: Iterable[EpochStart]) -> Iterator[Finding]:
        """Scopes whose latest grant is below an epoch that once began somewhere."""
        highest: dict[str, EpochStart] = {}
        for row in rows:
            before = highest.get(row.scope)
            if before is None or row.epoch > before.epoch:
                highest[row.scope] = row
        behind = [
            row
            for scope, row in sorted(highest.items())
            if not is_foreign(scope) and row.epoch > self._state.epoch_of(scope)
        ]
        for row in behind[:MOST_FINDINGS]:
            latest = self._state.epoch_of(row.scope)
            has = f"grants epoch {latest} at the most" if latest else "grants none"
            yield Finding(
                severity="critical",
                code="ledger-regressed",
                text=f"The table tells where epoch {row.epoch} of scope {row.scope!r} "
                f"began, in {row.topic}[{row.partition}] at offset "
                f"{row.position.offset}, and the ledger {has} of this scope: grants "
                f"were lost. Consumers stop with LedgerRegressed."
                + self._and_more(behind),
                topic=row.topic,
                partition=row.partition,
                scope=row.scope,
                epoch=row.epoch,
                evidence=(
                    *self._latest(row.scope),
                    self._witness.start("the table has it", row),
                ),
                remedy=f"Find out what became of {self._source.name}; then raise the "
                f"floor: epochfence ledger claim {row.scope} --at-least "
                f"{row.epoch + 1}."
                if self._source.is_topic
                else "The ledger file is older than the table, or of another cluster: "
                "have epochfence ledger export write it anew.",
            )

    @staticmethod
    def _and_more(behind: Sequence[object]) -> str:
        more = len(behind) - MOST_FINDINGS
        return f" (So it is with {more:,} more scopes.)" if more > 0 else ""

    def replaced_grants(self, rows: Iterable[EpochStart]) -> Iterator[Finding]:
        """Rows of an epoch that the ledger grants, under a grant it does not hold."""
        found: dict[tuple[str, int], EpochStart] = {}
        for row in rows:
            held = self._granted.get((row.scope, row.epoch))
            if held is None or row.grant_id is None or row.grant_id == held:
                continue
            found.setdefault((row.scope, row.epoch), row)
        for (scope, epoch), row in sorted(found.items())[:MOST_FINDINGS]:
            yield Finding(
                severity="critical",
                code="grant-replaced",
                text=f"Epoch {epoch} of scope {scope!r} is granted to "
                f"{self._witness.holder(scope, epoch, self._granted[scope, epoch])!r} "
                f"by the ledger, and began under grant {row.grant_id} in "
                f"{row.topic}[{row.partition}] at offset {row.position.offset}, as the "
                f"table has it: the log of grants was lost or replaced.",
                topic=row.topic,
                partition=row.partition,
                scope=scope,
                epoch=epoch,
                evidence=(
                    self._witness.claim(
                        "granted now", scope, epoch, self._granted[scope, epoch]
                    ),
                    self._witness.start("the table has another", row),
                ),
                remedy="Stop the leaders of this scope, and claim anew above both "
                "(epochfence ledger claim, --at-least).",
            )

    # Against the data.

    def _rejected(self) -> Iterator[tuple[PartRead, Rejections, ClaimIdentity]]:
        """What was rejected of a stamp of ours, cause by cause."""
        for part in self._parts:
            for one in part.state.rejections:
                if one.scope is None or one.epoch is None or one.grant_id is None:
                    continue
                yield part, one, (one.scope, one.epoch, one.grant_id)

    def behind_data(self) -> Iterator[Finding]:
        """Scopes of which records cite epochs above the latest grant."""
        above: dict[str, list[tuple[PartRead, Rejections, int, str]]] = {}
        for part, one, (scope, epoch, grant_id) in self._rejected():
            if one.reason == "ungranted" and epoch > self._state.epoch_of(scope):
                above.setdefault(scope, []).append((part, one, epoch, grant_id))
        for scope, found in sorted(above.items())[:MOST_FINDINGS]:
            highest = max(epoch for _, _, epoch, _ in found)
            records = sum(one.records for _, one, _, _ in found)
            latest = self._state.epoch_of(scope)
            has = f"ends with epoch {latest}" if latest else "grants none"
            part, one, epoch, grant_id = found[0]
            yield Finding(
                severity="warning",
                code="ledger-behind-data",
                text=f"{_cite(records)} epochs of scope {scope!r} up to {highest}, "
                f"and the ledger {has}: either these stamps are made up, "
                f"or the coordination topic has lost grants, or it is not theirs.",
                topic=part.piece.topic,
                scope=scope,
                epoch=highest,
                records=records,
                evidence=(
                    *self._latest(scope),
                    self._witness.record(
                        "cites a later epoch",
                        part.state,
                        one.first,
                        (scope, epoch, grant_id),
                    ),
                ),
                remedy="See that --coordination-topic is the one of their producers. "
                "If grants were lost, raise the floor: epochfence ledger claim "
                f"{scope} --at-least {highest + 1}.",
            )

    def cited_twice(self) -> Iterator[Finding]:
        """Epochs that the ledger grants, which records cite under an unknown grant."""
        found: dict[tuple[str, int], list[tuple[PartRead, Rejections, str]]] = {}
        for part, one, (scope, epoch, grant_id) in self._rejected():
            held = self._granted.get((scope, epoch))
            is_known = self._state.find(scope, epoch, grant_id) is not None
            if held is not None and not is_known:
                found.setdefault((scope, epoch), []).append((part, one, grant_id))
        for (scope, epoch), those in sorted(found.items())[:MOST_FINDINGS]:
            records = sum(one.records for _, one, _ in those)
            part, one, grant_id = those[0]
            yield Finding(
                severity="warning",
                code="epoch-cited-twice",
                text=f"{_cite(records)} epoch {epoch} of scope {scope!r} under "
                f"grant {grant_id}, which is not in the ledger; there, "
                f"that epoch is another's: either these stamps are made up or damaged, "
                f"or the coordination topic was made anew, and grants its epochs for a "
                f"second time.",
                topic=part.piece.topic,
                scope=scope,
                epoch=epoch,
                records=records,
                evidence=(
                    self._witness.claim(
                        "granted", scope, epoch, self._granted[scope, epoch]
                    ),
                    self._witness.record(
                        "cites another", part.state, one.first, (scope, epoch, grant_id)
                    ),
                ),
                remedy="See when the coordination topic was created, and whether a "
                "table topic knows higher epochs (--table-topic).",
            )

    def losers(self) -> Iterator[Finding]:
        """Claims that lost, whose stamps are in the data all the same."""
        found: dict[ClaimIdentity, list[tuple[PartRead, Rejections]]] = {}
        for part, one, identity in self._rejected():
            is_known = self._state.find(*identity) is not None
            if is_known and not self._state.is_grant(*identity):
                found.setdefault(identity, []).append((part, one))
        for identity, those in sorted(found.items())[:MOST_FINDINGS]:
            scope, epoch, grant_id = identity
            part, one = those[0]
            records = sum(rejections.records for _, rejections in those)
            where = some([at.where for at, _ in those])
            yield Finding(
                severity="warning",
                code="losing-claim-wrote",
                text=f"{self._witness.holder(*identity)!r} lost its claim to epoch "
                f"{epoch} of scope {scope!r} and wrote under it all the same: "
                f"{counted(records, 'record')} in {where}.",
                topic=part.piece.topic,
                scope=scope,
                epoch=epoch,
                records=records,
                evidence=(
                    *self._won_against(identity),
                    self._witness.claim("lost", scope, epoch, grant_id),
                    self._witness.record(
                        "written under it", part.state, one.first, identity
                    ),
                ),
                remedy="A claimant leads only when claim() has returned: look for a "
                "program that makes stamps of its own.",
            )

    def _won_against(self, loser: ClaimIdentity) -> Iterator[Evidence]:
        """The grant that a claim lost to: the latest one before it in the log."""
        winner: ClaimIdentity | None = None
        for identity, is_grant in self._state.identities():
            if identity == loser:
                break
            if is_grant and identity[0] == loser[0]:
                winner = identity
        if winner is not None:
            yield self._witness.claim("granted before it", *winner)

    def _latest(self, scope: str) -> Iterator[Evidence]:
        of_scope = self._grants.get(scope)
        if of_scope:
            yield self._witness.claim("the latest grant", *of_scope[-1])


def _cite(records: int) -> str:
    """So many records cite something."""
    return f"{counted(records, 'record')} {'cites' if records == 1 else 'cite'}"
