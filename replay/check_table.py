"""The table topic against the epoch starts that a replay of the data finds.

Compared is what was read alone: rows of earlier lives of the topic, and of offsets
that were not read, are taken as known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence

from confluent_kafka import Message

from epochfence.epochs.messages import headers_of
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import LedgerSource
from epochfence.replay.checked_parts import (
    MOST_FINDINGS,
    SHOWN,
    PartRead,
    Records,
    StartIndex,
    some,
)
from epochfence.replay.report import Evidence, Finding
from epochfence.replay.texts import counted
from epochfence.replay.told_records import ToldRow, ToldTable
from epochfence.replay.witness import Witness, passed_over


def check_table(
    table: ToldTable,
    parts: Sequence[PartRead],
    settings: FenceSettings,
    source: LedgerSource | None,
    records: Records,
    *,
    is_compacted: bool = False,
) -> Iterator[Finding]:
    """What of a table the data contradicts, and what it lacks.

    Args:
        table: The table, read after the ends of the partitions were captured.
        parts: What was read of the partitions.
        settings: What their records must carry.
        source: The ledger, which tells who holds what.
        records: The topic's records.
        is_compacted: Whether the cleaner may have taken some.
    """
    checked = _Checked(table, settings, Witness(source))
    yield from checked.topic()
    false: list[tuple[PartRead, EpochStart]] = []
    others: dict[str, list[EpochStart]] = defaultdict(list)
    mine = settings.digest()
    by_partition: dict[int, list[EpochStart]] = defaultdict(list)
    for row in table.rows:
        by_partition[row.partition].append(row)
    for part in parts:
        found = part.starts()
        rows = [row for row in by_partition[part.piece.partition] if part.holds(row)]
        there = StartIndex(found)
        for row in rows:
            digest = table.rows[row].info.settings_digest
            if digest != mine:
                others[digest].append(row)
            if row not in there:
                false.append((part, row))
        yield from checked.lacking(part, found, rows)
    not_found = {row for _, row in false}
    for digest, rows in sorted(others.items()):
        yield checked.other_settings(digest, rows, not_found)
    false = [
        (part, row)
        for part, row in false
        if table.rows[row].info.settings_digest == mine
    ]
    ungranted: dict[str, list[EpochStart]] = defaultdict(list)
    for part, row in false[:MOST_FINDINGS]:
        record = records.at(part.piece.partition, row.position.offset)
        if checked.lacks_its_grant(row, record):
            ungranted[row.scope].append(row)
        else:
            yield checked.false_row(part, row, record, is_compacted, len(false))
    for scope, rows in sorted(ungranted.items()):
        yield checked.without_grant(scope, rows)


class _Checked:
    def __init__(
        self, table: ToldTable, settings: FenceSettings, witness: Witness
    ) -> None:
        self._table = table
        self._settings = settings
        self._witness = witness

    def topic(self) -> Iterator[Finding]:
        """Settings of the topic that break the promise, and what is no row."""
        table = self._table
        for problem in table.problems:
            yield Finding(
                severity="critical",
                code="table-settings",
                text=f"{problem.setting} is {problem.value!r}: {problem.problem}. "
                f"Without its rows, a reader that starts in the middle of a log lets "
                f"deposed leaders in.",
                topic=table.name,
                remedy=f"{problem.remedy.rstrip('.')}.",
            )
        if table.passed_over:
            total = table.passed_over_total
            places = some([place.offset for place, _ in table.passed_over])
            yield Finding(
                severity="warning",
                code="not-a-row",
                text=f"{counted(total, 'record')} of {table.name} "
                f"{'is' if total == 1 else 'are'} neither row nor sync, and passed "
                f"over by every reader: offset {places}. The first: "
                f"{table.passed_over[0].problem}.",
                topic=table.name,
                records=total,
                evidence=passed_over(
                    table.name, table.topic_id, table.passed_over[:SHOWN]
                ),
                remedy="Find out who writes there: only the framework needs the right "
                "to.",
            )

    def _row(self, row: EpochStart) -> Evidence:
        """Where a row stands in the table topic."""
        place, info = self._table.rows[row]
        return Evidence(
            what=f"row, written by {info.written_by}",
            topic=self._table.name,
            topic_id=self._table.topic_id,
            partition=0,
            offset=place.offset,
            leader_epoch=place.leader_epoch,
            timestamp=place.timestamp,
            scope=row.scope,
            epoch=row.epoch,
            grant_id=row.grant_id,
            holder=self._witness.holder(row.scope, row.epoch, row.grant_id),
        )

    def lacking(
        self, part: PartRead, found: Sequence[EpochStart], rows: Sequence[EpochStart]
    ) -> Iterator[Finding]:
        """Epoch starts that the replay found and the table does not have."""
        floor = {
            one.scope for one in part.state.starts if one.topic_id and one not in found
        }
        there = StartIndex(rows)
        # The cleaner may have taken the record that an epoch began with.
        earlier = {row[3:6]: row.position.offset for row in reversed(rows)}
        missing = [
            one
            for one in found
            if one not in there
            and earlier.get(one[3:6], one.position.offset) >= one.position.offset
            # Where the head was not read, the epoch may have begun there.
            and (part.is_whole or one.scope in floor or _is_behind(one, found))
        ]
        lost = [
            (one, later)
            for one in missing
            for later in (_later(one, rows),)
            if later is not None
        ]
        for one, later in lost[:SHOWN]:
            yield Finding(
                severity="warning",
                code="row-lost",
                text=f"{self._witness.who(one.scope, one.epoch, one.grant_id)} began "
                f"in {part.where} at offset {one.position.offset}, and the table has "
                f"no row of it, though it has that of the later epoch {later.epoch}: "
                f"the row was lost, or only the confirm() of a deposed producer has "
                f"been there.",
                topic=one.topic,
                partition=one.partition,
                scope=one.scope,
                epoch=one.epoch,
                evidence=(
                    self._witness.start("began here", one),
                    self._row(later),
                ),
                remedy="The next consumer that reads this partition from its start "
                "writes the row again; see that the table topic is compacted only.",
            )
        unread = [one for one in missing if _later(one, rows) is None]
        if unread:
            epochs = some([f"{one.epoch} of {one.scope!r}" for one in unread])
            yield Finding(
                severity="notice",
                code="row-missing",
                text=f"The table has no row for {counted(len(unread), 'epoch')} that "
                f"began in {part.where}: {epochs}. No consumer group has passed there "
                f"yet.",
                topic=part.piece.topic,
                partition=part.piece.partition,
                scope=unread[0].scope,
                epoch=unread[0].epoch,
                evidence=tuple(
                    self._witness.start("began here", one) for one in unread[:SHOWN]
                ),
                remedy="The first group that reads them writes the rows. Groups with "
                "sinks or fences of their own write none.",
            )

    def lacks_its_grant(self, row: EpochStart, there: Message | None) -> bool:
        """Whether a record cites the very grant, which the ledger does not hold."""
        if there is None or self._witness.is_grant(*row[3:6]):
            return False
        value = f"{row.epoch}:{row.grant_id}:{row.scope}".encode()
        return any(value == stamp for _, stamp in headers_of(there))

    def without_grant(self, scope: str, rows: Sequence[EpochStart]) -> Finding:
        """Rows whose records are where they should be, and have no grant any more."""
        epochs = some([row.epoch for row in rows])
        return Finding(
            severity="critical",
            code="row-without-grant",
            text=f"The table tells where {counted(len(rows), 'epoch')} of scope "
            f"{scope!r} began ({epochs}), the data agrees, and the ledger does not "
            f"hold the grant: it was lost, or this is not the ledger of these "
            f"consumers.",
            topic=rows[0].topic,
            partition=rows[0].partition,
            scope=scope,
            epoch=rows[-1].epoch,
            evidence=tuple(
                one
                for row in rows[:SHOWN]
                for one in (self._row(row), self._witness.start("cites it", row))
            ),
            remedy="See that the coordination topic and the table topic are those of "
            "the same producers and consumers; see the other findings about the "
            "ledger.",
        )

    def false_row(
        self,
        part: PartRead,
        row: EpochStart,
        there: Message | None,
        is_compacted: bool,
        total: int,
    ) -> Finding:
        """A row that the replay does not find, with what stands at its place."""
        who = self._witness.who(row.scope, row.epoch, row.grant_id)
        at = f"{part.where} at offset {row.position.offset}"
        here, wanted = (
            None if there is None else there.leader_epoch(),
            row.position.leader_epoch,
        )
        is_replaced = here is not None and wanted is not None and here > wanted
        if is_replaced or (there is None and is_compacted):
            why = (
                f"its leader epoch was {wanted}, and the record that stands there has "
                f"{here}: an unclean election cut the log"
                if is_replaced
                else "nothing stands there any more: the cleaner may have taken it"
            )
            return Finding(
                severity="notice",
                code="row-of-lost-record",
                text=f"The table says that {who} began in {at}, and that record is "
                f"gone: {why}. The row goes on counting, as it has to.",
                topic=row.topic,
                partition=row.partition,
                scope=row.scope,
                epoch=row.epoch,
                evidence=(self._row(row), self._witness.start("was to be here", row)),
            )
        stands = (
            "no committed record stands there"
            if there is None
            else "the record there opens no such epoch"
        )
        more = f" ({total:,} rows are false in all.)" if total > MOST_FINDINGS else ""
        return Finding(
            severity="critical",
            code="false-row",
            text=f"The table says that {who} began in {at}, and {stands}. Consumers "
            f"reject earlier epochs from there on.{more}",
            topic=row.topic,
            partition=row.partition,
            scope=row.scope,
            epoch=row.epoch,
            evidence=(self._row(row), self._witness.start("is to be here", row)),
            remedy="Find out who wrote the row. If it shuts a leader out, have that "
            "scope claimed anew above its epoch.",
        )

    def other_settings(
        self, digest: str, rows: Sequence[EpochStart], false: Collection[EpochStart]
    ) -> Finding:
        """Rows that were written under other settings than the audit's."""
        info: ToldRow = self._table.rows[rows[0]]
        not_found = len([row for row in rows if row in false])
        differ = (
            f" {counted(not_found, 'row')} of them the replay does not find."
            if not_found
            else " The replay finds all of them."
        )
        return Finding(
            severity="notice",
            code="row-of-other-settings",
            text=f"{counted(len(rows), 'row')} of {rows[0].topic} "
            f"{'was' if len(rows) == 1 else 'were'} written under other settings "
            f"(digest {digest}, by {info.info.written_by}) than this audit's "
            f"({self._settings!r}, digest {self._settings.digest()}).{differ}",
            topic=rows[0].topic,
            records=len(rows),
            evidence=tuple(self._row(row) for row in rows[:SHOWN]),
            remedy="Give the audit the settings of the consumers (--scope, --unstamped "
            "and so on). Consumers whose settings differ should not share a table.",
        )


def _is_behind(one: EpochStart, found: Iterable[EpochStart]) -> bool:
    """Whether the replay met an earlier epoch of the scope before it."""
    return any(other.scope == one.scope and other.epoch < one.epoch for other in found)


def _later(one: EpochStart, rows: Iterable[EpochStart]) -> EpochStart | None:
    """A row of a higher epoch of the same scope, which began behind it."""
    for row in rows:
        is_behind = row.position.offset > one.position.offset
        if row.scope == one.scope and row.epoch > one.epoch and is_behind:
            return row
    return None
