"""Histories written as short scripts, played in memory, and the audit of their end.

A script has one command a line, and ends with `audit TOPIC`. Each line takes a second.
`pod-7` stands for the latest claim of that holder, `pod-7@3` for its claim to epoch 3,
`pod-7+pod-9` for a message that is stamped by both; `orders[1]` for a partition.

    topic NAME [PARTITIONS] [SETTING=VALUE ...]
    claim SCOPE HOLDER [epoch=N] [grant=ID]    # loses where the epoch is not above all
    barrier WHERE HOLDER                       # WHERE without [N]: every partition
    write WHERE HOLDER [count=N] [key=K] [value=V]   # HOLDER -: no stamp
    write WHERE header=NAME:VALUE              # any header at all
    write WHERE stamp=SCOPE:EPOCH              # a stamp that nobody was granted
    consume TOPIC group=G [unfenced] [scope=S] [to=N]   # reads, writes rows, commits
    sink TOPIC [unfenced] [to=N]               # SqliteSink, with a row for each key
    sink-row KEY VALUE | sink-delete KEY       # somebody else's hand in its table
    row WHERE HOLDER OFFSET [leader=N]         # a row that nobody has found
    elect WHERE | cut WHERE OFFSET | retain WHERE OFFSET | clean WHERE OFFSET
    recreate TOPIC                             # another life, with another topic id
    junk coordination|table | lose coordination|table
    set NAME SETTING=VALUE ... | brokers N | wait SECONDS
    audit TOPIC [scope=S] [unstamped=U] [stamp=H] [authority=A] [from=N]
                [group=G] [sink] [no-table]
"""

from __future__ import annotations

import io
import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message

from epochfence import SinkBatch, SinkPosition, SqliteSink, Upsert
from epochfence.audit_report import print_report
from epochfence.epochs.claims import claim_key, claim_value
from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.fence import PartitionFence
from epochfence.epochs.messages import headers_of, timestamp_of
from epochfence.epochs.resuming import metadata_at
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader
from epochfence.epochs.starts import RowInfo, row_key, row_value
from epochfence.epochs.topics import setting_problems
from epochfence.epochs.values import Claim, EpochStart, Position
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.check_group import GroupCommit, GroupCommits
from epochfence.replay.checked_parts import PartRead
from epochfence.replay.checking import Checks
from epochfence.replay.places import RecordPlace
from epochfence.replay.report import Evidence, Report
from epochfence.replay.sink_rows import SinkRows
from epochfence.replay.stored_sinks import SinkAddress, SinkTable
from epochfence.replay.summing_up import sum_up
from epochfence.replay.told_topics import LedgerReading, TableReading
from epochfence.replay.topic_source import Slice

_WHERE = re.compile(r"([a-z.]+)(?:\[(\d+)\])?\Z")
_COMPACT = {"cleanup.policy": "compact", "min.insync.replicas": "1"}
_TABLE = SinkTable("stock", "item", "level")


@dataclass
class _Partition:
    records: list[Message] = field(default_factory=list[Message])
    leader_epoch: int = 0
    log_start: int = 0
    end: int = 0


@dataclass
class _Topic:
    name: str
    settings: dict[str, str]
    partitions: list[_Partition]
    life: int = 1

    @property
    def topic_id(self) -> str:
        return f"{self.name.title().replace('.', '')}Life{self.life}{'_' * 22}"[:22]


_Entry = tuple[RecordPlace, bytes | None, bytes | None]


class _Records:
    """The records of one topic, for the checks."""

    def __init__(self, topic: _Topic) -> None:
        self._topic = topic

    def read(self, partition: int, start: int, end: int) -> Iterator[Message]:
        for record in self._topic.partitions[partition].records:
            if start <= (record.offset() or 0) < end:
                yield record

    def at(self, partition: int, offset: int) -> Message | None:
        return next(self.read(partition, offset, offset + 1), None)

    def end(self, partition: int) -> int:
        return self._topic.partitions[partition].end


class World:
    """A cluster in memory, and what happened there.

    Args:
        folder: For the sink's file.
    """

    def __init__(self, folder: Path) -> None:
        self._sink_path = folder / "sink.db"
        self._now = 1_700_000_000_000
        self._brokers = 1
        self._topics: dict[str, _Topic] = {}
        self._own: dict[str, list[_Entry]] = {"coordination": [], "table": []}
        self._own_ends = {"coordination": 0, "table": 0}
        self._own_settings = {"coordination": {**_COMPACT}, "table": {**_COMPACT}}
        self._claims: list[Claim] = []
        self._commits: dict[tuple[str, str], dict[int, GroupCommit]] = {}

    def play(self, script: str) -> str:
        """Play a script to its audit; give what that prints."""
        for number, line in enumerate(script.splitlines(), 1):
            words = shlex.split(line, comments=True)
            if not words:
                continue
            self._now += 1000
            options = dict(
                word.split("=", 1) for word in words[1:] if "=" in word
            )  # fmt: skip
            names = [word for word in words[1:] if "=" not in word]
            try:
                if words[0] == "audit":
                    return self._audit(names, options)
                command = getattr(self, f"_do_{words[0].replace('-', '_')}")
                command(names, options)
            except (EpochfenceError, LookupError, AttributeError, ValueError) as error:
                raise ValueError(f"line {number}: {line}: {error!r}") from error
        raise ValueError("a script ends with audit TOPIC")

    # Topics.

    def _do_topic(self, names: list[str], options: dict[str, str]) -> None:
        count = int(names[1]) if len(names) > 1 else 1
        partitions = [_Partition() for _ in range(count)]
        settings = {"cleanup.policy": "delete", **options}
        self._topics[names[0]] = _Topic(names[0], settings, partitions)

    def _where(self, where: str) -> Iterator[tuple[_Topic, int, _Partition]]:
        found = _WHERE.match(where)
        assert found is not None, where
        topic = self._topics[found[1]]
        for number, partition in enumerate(topic.partitions):
            if found[2] is None or int(found[2]) == number:
                yield topic, number, partition

    def _do_recreate(self, names: list[str], _: dict[str, str]) -> None:
        topic = self._topics[names[0]]
        topic.life += 1
        topic.partitions = [_Partition() for _ in topic.partitions]

    def _do_elect(self, names: list[str], _: dict[str, str]) -> None:
        for _topic, _number, partition in self._where(names[0]):
            partition.leader_epoch += 1

    def _do_cut(self, names: list[str], _: dict[str, str]) -> None:
        for _topic, _number, partition in self._where(names[0]):
            partition.end = int(names[1])
            partition.records = [
                one for one in partition.records if (one.offset() or 0) < partition.end
            ]
            partition.leader_epoch += 1

    def _do_retain(self, names: list[str], _: dict[str, str]) -> None:
        for _topic, _number, partition in self._where(names[0]):
            partition.log_start = int(names[1])
            partition.records = [
                one
                for one in partition.records
                if (one.offset() or 0) >= partition.log_start
            ]

    def _do_clean(self, names: list[str], _: dict[str, str]) -> None:
        for _topic, _number, partition in self._where(names[0]):
            partition.records = [
                one for one in partition.records if one.offset() != int(names[1])
            ]

    def _do_set(self, names: list[str], options: dict[str, str]) -> None:
        own = self._own_settings.get(names[0])
        (self._topics[names[0]].settings if own is None else own).update(options)

    def _do_brokers(self, names: list[str], _: dict[str, str]) -> None:
        self._brokers = int(names[0])

    def _do_wait(self, names: list[str], _: dict[str, str]) -> None:
        self._now += 1000 * int(names[0])

    # Our own topics.

    def _append_own(self, name: str, key: bytes | None, value: bytes | None) -> None:
        place = RecordPlace(self._own_ends[name], 0, self._now)
        self._own[name].append((place, key, value))
        self._own_ends[name] += 1

    def _do_claim(self, names: list[str], options: dict[str, str]) -> None:
        scope, holder = names
        latest = self._ledger().state.epoch_of(scope)
        grant_id = options.get("grant", f"{len(self._claims) + 0xA001:016x}")
        epoch = int(options.get("epoch", latest + 1))
        claim = Claim(scope, epoch, latest, grant_id, holder, self._now)
        self._claims.append(claim)
        self._append_own("coordination", claim_key(claim), claim_value(claim))

    def _do_junk(self, names: list[str], _: dict[str, str]) -> None:
        self._append_own(names[0], b"junk", b"junk")

    def _do_lose(self, names: list[str], _: dict[str, str]) -> None:
        self._own[names[0]].clear()

    def _do_row(self, names: list[str], options: dict[str, str]) -> None:
        claim = self._claim(names[1])
        for topic, number, partition in self._where(names[0]):
            leader = int(options.get("leader", partition.leader_epoch))
            start = EpochStart(
                topic.name, topic.topic_id, number, *_stamp(claim),
                Position(leader, int(names[2])),
            )  # fmt: skip
            self._write_row(start, "somebody", FenceSettings(unstamped="quarantine"))

    def _write_row(self, start: EpochStart, by: str, settings: FenceSettings) -> None:
        info = RowInfo(by, self._now, settings.digest())
        self._append_own("table", row_key(start), row_value(info))

    def _problems(self, name: str) -> list[MisconfiguredError]:
        settings = self._own_settings[name]
        replicas = int(settings.get("replicas", self._brokers))
        return [*setting_problems(_named(name), settings, self._brokers, replicas)]

    def _ledger(self) -> LedgerSource:
        reading = LedgerReading(_named("coordination"), "C" * 22, tells=False)
        for entry in self._own["coordination"]:
            reading.take(*entry)
        end = self._own_ends["coordination"]
        return reading.source(end, self._problems("coordination"))

    def _rows(self) -> TableReading:
        reading = TableReading(_named("table"), "T" * 22)
        for entry in self._own["table"]:
            reading.take(*entry)
        return reading

    def _claim(self, name: str) -> Claim:
        holder, _, epoch = name.partition("@")
        found = [
            one
            for one in self._claims
            if one.holder == holder and epoch in ("", str(one.epoch))
        ]
        return found[-1]

    # Records.

    def _do_barrier(self, names: list[str], _: dict[str, str]) -> None:
        value = _header(self._claim(names[1]))
        for topic, number, partition in self._where(names[0]):
            headers: list[tuple[str, bytes | None]] = [("epochfence-barrier", value)]
            self._append(topic, number, partition, headers, None, None)

    def _do_write(self, names: list[str], options: dict[str, str]) -> None:
        headers: list[tuple[str, bytes | None]] = []
        if "header" in options:
            name, _, value = options["header"].partition(":")
            headers.append((name, value.encode()))
        if "stamp" in options:
            scope, _, epoch = options["stamp"].partition(":")
            headers.append(("epochfence", f"{epoch}:{'f' * 16}:{scope}".encode()))
        if len(names) > 1 and names[1] != "-":
            for name in names[1].split("+"):
                headers.append(("epochfence", _header(self._claim(name))))
        key = options.get("key")
        value = options.get("value", "v")
        for _ in range(int(options.get("count", "1"))):
            for topic, number, partition in self._where(names[0]):
                self._append(
                    topic, number, partition, headers,
                    None if key is None else key.encode(),
                    None if value == "null" else value.encode(),
                )  # fmt: skip

    def _append(
        self,
        topic: _Topic,
        number: int,
        partition: _Partition,
        headers: list[tuple[str, bytes | None]],
        key: bytes | None,
        value: bytes | None,
    ) -> None:
        partition.records.append(
            Message(
                topic=topic.name, partition=number, offset=partition.end, key=key,
                value=value, headers=headers or None,  # type: ignore[arg-type]
                timestamp=(TIMESTAMP_CREATE_TIME, self._now),
                leader_epoch=partition.leader_epoch,
            )
        )  # fmt: skip
        partition.end += 1

    # Readers.

    def _judged(
        self,
        topic: _Topic,
        number: int,
        settings: FenceSettings,
        starts: Iterable[EpochStart],
        end: int,
    ) -> tuple[PartitionFence, list[Message]]:
        """A fence that has judged a partition up to an offset; what it admitted."""
        fence = PartitionFence(
            topic.name, number, settings, self._ledger().state,
            [one for one in starts if one[0] == topic.name and one[2] == number],
        )  # fmt: skip
        fence.enter_life(topic.topic_id)
        admitted: list[Message] = []
        for record in topic.partitions[number].records:
            offset = record.offset() or 0
            if offset >= end:
                break
            verdict = fence.judge(
                record.leader_epoch(), offset, headers_of(record),
                ledger_complete=True,
            )  # fmt: skip
            assert verdict is not None
            if verdict.kind == "admitted":
                admitted.append(record)
        return fence, admitted

    def _do_consume(self, names: list[str], options: dict[str, str]) -> None:
        topic, group = self._topics[names[0]], options["group"]
        settings = _settings(options)
        commits = self._commits.setdefault((group, topic.name), {})
        for number, partition in enumerate(topic.partitions):
            end = min(int(options.get("to", partition.end)), partition.end)
            if "unfenced" in names:
                commits[number] = GroupCommit(end, "")
                continue
            known = list(self._rows().table(0).rows)
            fence, _ = self._judged(topic, number, settings, known, end)
            for start in fence.starts:
                if start not in known:
                    self._write_row(start, group, settings)
            said = metadata_at(fence, partition.leader_epoch, end)
            commits[number] = GroupCommit(end, said.encode())

    def _do_sink(self, names: list[str], options: dict[str, str]) -> None:
        topic = self._topics[names[0]]
        upsert = Upsert(
            "stock", lambda m: {"item": m.key()}, lambda m: {"level": m.value()}
        )
        with closing(sqlite3.connect(self._sink_path)) as database:
            database.execute(
                "CREATE TABLE IF NOT EXISTS stock (item BLOB PRIMARY KEY, level BLOB)"
            )
        with SqliteSink(self._sink_path, upsert) as sink:
            for number, partition in enumerate(topic.partitions):
                end = min(int(options.get("to", partition.end)), partition.end)
                fence, messages = self._judged(
                    topic, number, _settings({}), self._rows().table(0).rows, end
                )
                if "unfenced" in names:
                    messages = [
                        one
                        for one in partition.records
                        if (one.offset() or 0) < end and one.key() is not None
                    ]
                before = sink.load(topic.name, number)
                position = SinkPosition(topic.topic_id, partition.leader_epoch, end)
                sink.write(
                    [
                        SinkBatch(
                            topic.name, number, messages,
                            None if before is None else before.position, position,
                            ()
                            if "unfenced" in names
                            else [s for s in fence.starts if s.position.offset < end],
                        )
                    ]
                )  # fmt: skip

    def _change_sink(self, statement: str, *parameters: bytes | None) -> None:
        with closing(sqlite3.connect(self._sink_path)) as database, database:
            database.execute(statement, parameters)

    def _do_sink_row(self, names: list[str], _: dict[str, str]) -> None:
        key, value = names
        level = None if value == "null" else value.encode()
        self._change_sink(
            "INSERT OR REPLACE INTO stock VALUES (?, ?)", key.encode(), level
        )

    def _do_sink_delete(self, names: list[str], _: dict[str, str]) -> None:
        self._change_sink("DELETE FROM stock WHERE item = ?", names[0].encode())

    # The audit.

    def _audit(self, names: list[str], options: dict[str, str]) -> str:
        topic = self._topics[names[0]]
        settings = _settings(options)
        checks = Checks(_Records(topic), settings=topic.settings)
        if "no-table" not in names:
            checks.table = self._rows().table(
                self._own_ends["table"], self._problems("table")
            )
        if "group" in options:
            commits = self._commits.get((options["group"], topic.name), {})
            checks.group = GroupCommits(options["group"], commits)
        if "sink" in names:
            checks.sink_rows = SinkRows("stock")
            address = SinkAddress("sqlite", str(self._sink_path))
            take = checks.sink_rows.take_stored
            snapshot = address.read(topic.name, 5, _TABLE, take)
            checks.sink = replace(snapshot, name="sink.db")
        start = int(options.get("from", "0"))
        slices = [
            Slice(
                topic.name, topic.topic_id, number, one.log_start,
                max(start, one.log_start), one.end,
            )
            for number, one in enumerate(topic.partitions)
        ]  # fmt: skip
        source = self._ledger() if settings.authority == "ledger" else None
        with checks:
            report = _report(checks, settings, source, slices)
        printed = io.StringIO()
        with redirect_stdout(printed):
            print_report(report)
            _print_evidence(report)
        return printed.getvalue()


def _report(
    checks: Checks,
    settings: FenceSettings,
    source: LedgerSource | None,
    slices: list[Slice],
) -> Report:
    audit = Audit(settings, source, (), checks.floor(slices))
    parts: list[PartRead] = []
    for piece in slices:
        partition = audit.partition(piece.topic, piece.partition)
        for record in checks.records.read(piece.partition, piece.start, piece.end):
            partition.judge(
                piece.topic_id, record.leader_epoch(), record.offset() or 0,
                timestamp_of(record), headers_of(record), record.value(),
            )  # fmt: skip
        parts.append(PartRead(piece, piece.end, partition.state()))
    return sum_up(
        audit,
        f"topic {slices[0].topic}",
        findings=checks.findings(audit, parts),
        compared_with=checks.compared_with(),
    )


def _print_evidence(report: Report) -> None:
    if not report.findings:
        return
    print("\nCodes and evidence:")
    for one in report.findings:
        print(f"- {one.code}")
        for evidence in one.evidence:
            print(f"  {_described(evidence)}")


def _described(one: Evidence) -> str:
    facts = [f"{one.topic}[{one.partition}] offset {one.offset}"]
    if one.leader_epoch:
        facts.append(f"leader epoch {one.leader_epoch}")
    if one.timestamp is not None:
        facts.append(f"at {(one.timestamp - 1_700_000_000_000) / 1000:g} s")
    if one.scope is not None:
        grant = "" if one.grant_id is None else f" grant ...{one.grant_id[-4:]}"
        holder = "" if one.holder is None else f" of {one.holder}"
        facts.append(f"{one.scope}:{one.epoch}{grant}{holder}")
    return f"{one.what}: {', '.join(facts)}"


def _settings(options: dict[str, str]) -> FenceSettings:
    scope = options.get("scope")
    return FenceSettings(
        () if scope is None else scope.split(","),
        unstamped=options.get("unstamped", "quarantine"),
        authority=options.get("authority"),
        stamps=stamp_reader(options.get("stamp", "epochfence")),
    )


def _named(name: str) -> str:
    return "epochfence.starts" if name == "table" else f"epochfence.{name}"


def _stamp(claim: Claim) -> tuple[str, int, str]:
    return claim.scope, claim.epoch, claim.grant_id


def _header(claim: Claim) -> bytes:
    return f"{claim.epoch}:{claim.grant_id}:{claim.scope}".encode()
