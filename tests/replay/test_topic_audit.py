"""The engine over a real topic: by whatever way it is read, it says the same."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AclOperation, NewPartitions

from epochfence.epochs.errors import MisconfiguredError, TopicUnavailable
from epochfence.epochs.partition_reader import PartitionReader
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.values import EpochStart
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.checkpoint import CheckpointFile
from epochfence.replay.engine import TopicAudit
from epochfence.replay.file_source import audit_file
from epochfence.replay.files import InvalidFileError, RecordLine, write_records
from epochfence.replay.report import Report
from epochfence.replay.sources import Outcome
from epochfence.replay.told_topics import read_told_ledger
from epochfence.replay.topic_source import Range, TopicSource
from support.auditing import run
from support.brokers import KafkaBroker
from support.compaction import COMPACTABLE, force_compaction
from support.histories import ledger as known_ledger
from support.histories import stamp, start
from support.kafka_local import GUARDED, deny, local_broker
from support.ledgers import unnamed_topics, write_record
from support.waiting import wait_until

PARTITIONS = 3
#: Enough for several batches of the client.
PER_EPOCH = 1_500
TIMEOUT_S = 20.0

#: What a scene holds; a test may write more behind it.
WRITTEN = Range(to_offset=2 * PER_EPOCH + 1)


class Scene:
    """Three partitions: two leaders one after the other, and a zombie between."""

    def __init__(self, kafka: KafkaBroker) -> None:
        self.topics = unnamed_topics(kafka)
        self.kafka = kafka
        with self.topics.open() as ledger:
            old = ledger.claim("s", holder="pod-7")
            new = ledger.claim("s", holder="pod-8")
        self.stamps = [("epochfence", one.stamp_value) for one in (old, new)]
        self.topic = kafka.create_topic("audited", partitions=PARTITIONS)
        producer = Producer({**kafka.config, "acks": "all"})
        for partition in range(PARTITIONS):
            for number in range(2 * PER_EPOCH):
                is_new = number >= PER_EPOCH
                is_zombie = is_new and number % 500 < 3
                self.write(producer, partition, is_new and not is_zombie)
        self.write(producer, 0, headers=[stamp(9, "s")])
        self.write(producer, 1, headers=[])
        assert producer.flush(30) == 0

    def write(
        self,
        producer: Producer,
        partition: int,
        is_new: bool = False,
        headers: Sequence[tuple[str, bytes | None]] | None = None,
    ) -> None:
        carried: list[tuple[str, str | bytes | None]] = (
            [self.stamps[is_new]] if headers is None else [*headers]
        )
        producer.produce(self.topic, b"v", b"k", partition, headers=carried)
        producer.poll(0)

    def audit(
        self,
        limits: Range | None = None,
        settings: FenceSettings | None = None,
        partitions: list[int] | None = None,
        **options: Any,
    ) -> Outcome:
        source = TopicSource(
            self.kafka.config, self.topic, TIMEOUT_S, partitions, limits or WRITTEN
        )
        return TopicAudit(self.judged_by(settings), source, **options).run()

    def judged_by(self, settings: FenceSettings | None = None) -> Audit:
        ledger = read_told_ledger(
            self.kafka.config, self.topics.coordination_topic, TIMEOUT_S
        )
        return Audit(settings or FenceSettings(["s"], unstamped="quarantine"), ledger)


@pytest.fixture(scope="module")
def scene(kafka: KafkaBroker) -> Scene:
    return Scene(kafka)


@pytest.fixture(scope="module")
def whole(scene: Scene) -> Report:
    return scene.audit().report


def of_records(report: Report) -> dict[str, Any]:
    """What a report says of the records, without where they came from."""
    told = msgspec.to_builtins(report)
    for partition in told["partitions"]:
        del partition["read_from"], partition["read_to"]
    return {name: told[name] for name in ("verdicts", "partitions", "rejected_shown")}


def test_what_was_written_is_found(whole: Report) -> None:
    assert whole.partial is None
    assert whole.count("stale") == PARTITIONS * 2 * 3
    assert whole.count("quarantined") == 2
    assert whole.records == PARTITIONS * 2 * PER_EPOCH + 2
    first = whole.partitions[0]
    old, new = first.epochs
    assert (old.holder, new.holder) == ("pod-7", "pod-8")
    assert old.succeeded_by == 2
    assert old.overlap is not None
    assert old.overlap.records == 6
    # Its first three came before anything of its successor: nobody could tell.
    assert new.start_offset == PER_EPOCH + 3
    found = {(one.code, one.severity): one for one in whole.findings}
    stale = found["stale-writes", "warning"]
    began, rejected = stale.evidence
    assert (began.holder, rejected.holder) == ("pod-8", "pod-7")
    assert began.offset is not None
    assert rejected.offset is not None
    assert began.offset < rejected.offset
    assert ("ungranted-writes", "warning") in found
    assert ("unstamped-records", "warning") in found
    assert ("no-barrier", "notice") in found


def test_read_one_by_one_it_says_the_same(
    scene: Scene, whole: Report, tmp_path: Path
) -> None:
    file = tmp_path / "records.jsonl"
    source = TopicSource(scene.kafka.config, scene.topic, TIMEOUT_S)
    with file.open("wb") as target:
        for piece in source.slices:
            with PartitionReader(
                scene.kafka.config, scene.topic, piece.partition
            ) as reader:
                read = reader.read(piece.start, min(piece.end, 2 * PER_EPOCH + 1))
                messages = [message for batch in read for message in batch]
            write_records(
                target,
                [RecordLine.of(one, topic_id=source.topic_id) for one in messages],
            )
    from_file = audit_file(scene.judged_by(), str(file)).report
    assert of_records(from_file) == of_records(whole)


def test_several_workers_say_the_same(scene: Scene, whole: Report) -> None:
    told: list[tuple[int, int, int]] = []

    def progress(records: int, done: int, total: int) -> None:
        told.append((records, done, total))

    outcome = scene.audit(workers=2, progress=progress)
    assert of_records(outcome.report) == of_records(whole)
    assert outcome.report.findings == whole.findings
    assert told[-1] == (whole.records, whole.records, whole.records)


def stop_after(calls: int) -> Callable[[], bool]:
    """Says to stop from the n-th time on that it is asked."""
    asked = 0

    def must_stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > calls

    return must_stop


@pytest.mark.parametrize("workers", [1, 2])
def test_it_goes_on_from_a_checkpoint(
    scene: Scene, whole: Report, tmp_path: Path, workers: int
) -> None:
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    stopped = scene.audit(checkpoint=file, must_stop=stop_after(1))
    assert stopped.is_stopped
    assert stopped.report.partial == "it was interrupted"
    assert stopped.report.records < whole.records
    assert "not-judged" in {one.code for one in stopped.report.findings}
    assert file.path.exists()
    # What comes meanwhile lies behind the ends that were captured.
    write_record(scene.kafka, scene.topic, b"k", b"v", [scene.stamps[1]])
    outcome = scene.audit(checkpoint=file, workers=workers)
    assert of_records(outcome.report) == of_records(whole)
    assert not file.path.exists()


def test_whatever_moment_it_is_stopped_at(
    scene: Scene, whole: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped after each batch, and begun anew from what was kept, again and again."""
    monkeypatch.setattr("epochfence.replay.workers._TELL_EVERY_S", 0.0)
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    for _ in range(200):
        outcome = scene.audit(checkpoint=file, must_stop=stop_after(2))
        if not outcome.is_stopped:
            break
    else:
        pytest.fail("it never ended")
    assert of_records(outcome.report)["verdicts"] == of_records(whole)["verdicts"]
    assert outcome.report.rejected_total == whole.rejected_total


def test_a_checkpoint_of_another_audit_is_refused(scene: Scene, tmp_path: Path) -> None:
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    scene.audit(checkpoint=file, must_stop=lambda: True)
    with pytest.raises(MisconfiguredError, match="its settings was"):
        scene.audit(
            checkpoint=file, settings=FenceSettings(["t"], unstamped="quarantine")
        )
    with pytest.raises(MisconfiguredError, match="its asked was"):
        scene.audit(checkpoint=file, asked="partitions [1]")
    file.path.write_text("{")
    with pytest.raises(InvalidFileError, match="no checkpoint"):
        scene.audit(checkpoint=file)


def test_a_part_of_it(scene: Scene) -> None:
    part = scene.audit(
        Range(from_offset=PER_EPOCH + 10, to_offset=PER_EPOCH + 20), partitions=[1]
    ).report
    assert part.records == 10
    assert part.partitions[0].read_from == PER_EPOCH + 10
    assert "range" in {one.code for one in part.findings}
    assert scene.audit(Range(from_offset=10**9)).report.records == 0


def test_a_time_range(kafka: KafkaBroker, scene: Scene) -> None:
    topic = kafka.create_topic("times")
    producer = Producer({**kafka.config, "acks": "all"})
    for number in range(10):
        producer.produce(
            topic, b"v", b"k", 0, timestamp=1_700_000_000_000 + 1000 * number,
            headers=[scene.stamps[0]],
        )  # fmt: skip
    assert producer.flush(30) == 0

    def audited(limits: Range) -> tuple[int | None, int | None]:
        source = TopicSource(kafka.config, topic, TIMEOUT_S, None, limits)
        (one,) = TopicAudit(scene.judged_by(), source).run().report.partitions
        return one.read_from, one.read_to

    assert audited(Range(since_ms=1_700_000_003_000)) == (3, 10)
    assert audited(Range(since_ms=1_700_000_002_500)) == (3, 10)
    assert audited(Range(until_ms=1_700_000_003_000)) == (0, 3)
    # Nothing so late: nothing is read, and all of it lies before.
    assert audited(Range(since_ms=1_800_000_000_000)) == (10, 10)
    assert audited(Range(until_ms=1_800_000_000_000)) == (0, 10)


def test_what_if(scene: Scene, whole: Report) -> None:
    admitting = FenceSettings(["s"], unstamped="admit")
    report = scene.audit(
        what_if=[admitting, FenceSettings(authority="max-seen")]
    ).report
    assert of_records(report) == of_records(whole)
    one, other = report.what_if
    assert [
        (change.partition, change.other_verdict, change.records)
        for change in one.changes
    ] == [(1, "admitted", 1)]
    # Without a ledger, a made-up epoch is believed.
    assert [(change.partition, str(change)) for change in other.changes] == [
        (
            0,
            f"{scene.topic}[0]: 1 record, quarantined: ungranted here, would be "
            f"admitted (offset {2 * PER_EPOCH})",
        ),
    ]


def test_partitions_that_come_meanwhile_are_told(
    kafka: KafkaBroker, scene: Scene
) -> None:
    topic = kafka.create_topic("growing")
    source = TopicSource(kafka.config, topic, TIMEOUT_S)
    for done in kafka.admin.create_partitions([NewPartitions(topic, 3)]).values():
        done.result(TIMEOUT_S)
    (finding,) = TopicAudit(scene.judged_by(), source).run().report.findings
    assert finding.code == "partitions-added"
    assert finding.text.endswith("not judged: 1, 2.")


def test_partitions_that_were_not_asked_for_are_not_new(scene: Scene) -> None:
    report = scene.audit(partitions=[0]).report
    assert "partitions-added" not in {one.code for one in report.findings}


def test_partitions_that_come_before_it_goes_on_are_told(
    kafka: KafkaBroker, scene: Scene, tmp_path: Path
) -> None:
    topic = kafka.create_topic("growing-between")
    write_record(kafka, topic, b"k", b"v", [scene.stamps[0]])
    file = CheckpointFile(tmp_path / "audit.checkpoint")

    def audited(**options: Any) -> Report:
        source = TopicSource(kafka.config, topic, TIMEOUT_S)
        audit = TopicAudit(scene.judged_by(), source, checkpoint=file, **options)
        return audit.run().report

    assert audited(must_stop=lambda: True).partial is not None
    for done in kafka.admin.create_partitions([NewPartitions(topic, 2)]).values():
        done.result(TIMEOUT_S)
    assert "partitions-added" in {one.code for one in audited().findings}


def test_what_was_found_is_told_where_the_cluster_goes_away(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: TopicSource) -> None:
        raise TopicUnavailable(scene.topic, "all brokers are down")

    monkeypatch.setattr(TopicSource, "problem", gone)
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    outcome = scene.audit(checkpoint=file)
    assert isinstance(outcome.error, TopicUnavailable)
    assert outcome.report.partial is not None
    assert outcome.report.records == PARTITIONS * 2 * PER_EPOCH + 2
    assert "changes-unknown" in {one.code for one in outcome.report.findings}
    assert file.path.exists()


def test_an_end_that_goes_back_is_told(scene: Scene) -> None:
    """As after an unclean election; a transaction is not open then."""
    source = TopicSource(scene.kafka.config, scene.topic, TIMEOUT_S)
    end = source.slices[2].end
    source.slices[2] = replace(source.slices[2], end=end + 5)
    report = TopicAudit(scene.judged_by(), source).run().report
    (finding,) = [one for one in report.findings if one.severity == "critical"]
    assert (finding.code, finding.partition) == ("log-truncated", 2)
    assert f"ends at {end} now" in finding.text


def test_a_checkpoint_that_cannot_be_kept_does_not_take_the_report(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    scene.audit(checkpoint=file, must_stop=lambda: True)
    before = file.path.read_bytes()

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", full)
        outcome = scene.audit(checkpoint=file, must_stop=stop_after(2))
    assert outcome.report.records > 0
    assert outcome.report.partial is not None
    (finding,) = [
        one for one in outcome.report.findings if one.code == "checkpoint-not-kept"
    ]
    assert "No space left" in finding.text
    assert file.path.read_bytes() == before


def test_a_checkpoint_is_of_one_table_and_one_ledger(
    scene: Scene, tmp_path: Path
) -> None:
    file = CheckpointFile(tmp_path / "audit.checkpoint")
    settings = FenceSettings(["s"], unstamped="quarantine")

    def audited(epoch: int, rows: list[EpochStart]) -> None:
        source = TopicSource(scene.kafka.config, scene.topic, TIMEOUT_S)
        grants = LedgerSource(known_ledger(("s", epoch)), "ledger.jsonl")
        TopicAudit(
            Audit(settings, grants, rows), source,
            checkpoint=file, must_stop=lambda: True,
        ).run()  # fmt: skip

    audited(2, [])
    audited(2, [])
    with pytest.raises(MisconfiguredError, match="its table-digest was"):
        audited(2, [start(1, 0)])
    with pytest.raises(MisconfiguredError, match="its ledger-digest was"):
        audited(3, [])


@pytest.mark.parametrize(
    "limits", [{"from_offset": 5, "to_offset": 5}, {"since_ms": 9, "until_ms": 8}]
)
def test_a_range_that_ends_before_it_begins_is_refused(limits: dict[str, int]) -> None:
    with pytest.raises(MisconfiguredError, match="nothing lies between"):
        Range(**limits)


def test_a_topic_that_goes_meanwhile_is_told(kafka: KafkaBroker, scene: Scene) -> None:
    topic = kafka.create_topic("going")
    source = TopicSource(kafka.config, topic, TIMEOUT_S)
    kafka.delete_topic(topic)
    outcome = TopicAudit(scene.judged_by(), source).run()
    (finding,) = outcome.report.findings
    assert (finding.code, finding.severity) == ("topic-replaced", "critical")
    assert outcome.error is not None
    assert "made anew" in str(outcome.report.partial)


def test_what_retention_takes_meanwhile_is_told(
    kafka: KafkaBroker, scene: Scene
) -> None:
    topic = kafka.create_topic("shrinking", partitions=2)
    for _ in range(5):
        write_record(kafka, topic, b"k", b"v", [scene.stamps[0]])
        write_record(kafka, topic, b"k", b"v", [scene.stamps[0]], 1)
    source = TopicSource(kafka.config, topic, TIMEOUT_S)
    for done in kafka.admin.delete_records([TopicPartition(topic, 0, 3)]).values():
        done.result(TIMEOUT_S)
    outcome = TopicAudit(scene.judged_by(), source).run()
    # The other partition is judged all the same.
    assert outcome.report.partial is not None
    assert [one.records for one in outcome.report.partitions] == [0, 5]
    assert outcome.error is not None
    critical = [one for one in outcome.report.findings if one.severity == "critical"]
    assert [(one.code, one.partition) for one in critical] == [("not-judged", 0)]


def test_no_group_is_left_behind(kafka: KafkaBroker, scene: Scene) -> None:
    scene.audit(workers=2)
    groups = kafka.admin.list_consumer_groups().result(TIMEOUT_S).valid
    # What our own readers are called, though they never join.
    assert [
        one for one in groups if one.group_id.startswith("epochfence-reader-")
    ] == []


def test_a_report_is_json_of_its_schema(whole: Report) -> None:
    again = msgspec.json.decode(msgspec.json.encode(whole), type=Report)
    assert again == whole
    assert json.loads(msgspec.json.encode(whole))["report"] == "epochfence-audit"


def test_what_is_written_meanwhile_lies_behind_the_ends(
    kafka: KafkaBroker, scene: Scene
) -> None:
    topic = kafka.create_topic("growing", partitions=2)
    is_over = threading.Event()
    producer = Producer({**kafka.config, "acks": "all", "linger.ms": 5})

    def write() -> None:
        for number in range(50_000):
            if is_over.is_set():
                return
            producer.produce(
                topic, b"v", b"k", number % 2, headers=[scene.stamps[0]]
            )  # fmt: skip
            if number % 500 == 0:
                producer.flush(30)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        wait_until(lambda: _ends_of(kafka, topic) > 2_000, 30, "it is written to")
        source = TopicSource(kafka.config, topic, TIMEOUT_S)
        outcome = TopicAudit(scene.judged_by(), source, workers=2).run()
        assert _ends_of(kafka, topic) > sum(piece.end for piece in source.slices)
    finally:
        is_over.set()
        writing.join()
        producer.flush(30)
    assert outcome.report.partial is None
    assert outcome.report.records == sum(piece.end for piece in source.slices)
    assert outcome.report.rejected_total == 0


def _ends_of(kafka: KafkaBroker, topic: str) -> int:
    ends = 0
    for partition in range(2):
        with PartitionReader(kafka.config, topic, partition) as reader:
            ends += reader.bounds(TIMEOUT_S)[1]
    return ends


def test_what_the_cleaner_takes_meanwhile_is_not_missed_in_silence(
    kafka: KafkaBroker, scene: Scene
) -> None:
    topic = kafka.create_topic("compacted", config=dict(COMPACTABLE))
    for number in range(10):
        headers = [scene.stamps[number >= 5], ("number", b"%d" % number)]
        write_record(kafka, topic, b"k%d" % (number % 2), b"v", headers)
    source = TopicSource(kafka.config, topic, TIMEOUT_S)
    force_compaction(kafka, topic, key=b"rolls")
    outcome = TopicAudit(scene.judged_by(), source).run()
    (partition,) = outcome.report.partitions
    # Of each key the newest is left; what was judged is told, and that some may lack.
    assert (partition.read_to, partition.records) == (10, 2)
    assert outcome.report.partial is None
    assert "compacted" in {one.code for one in outcome.report.findings}


@pytest.fixture
def guarded(request: pytest.FixtureRequest) -> Iterator[KafkaBroker]:
    """A broker that asks who may do what; everybody may do what nobody is denied."""
    with ExitStack() as stack:
        yield local_broker(stack, GUARDED)


@pytest.mark.parametrize("denied", [AclOperation.READ, AclOperation.DESCRIBE])
def test_without_permission(guarded: KafkaBroker, denied: AclOperation) -> None:
    topics = unnamed_topics(guarded)
    with topics.open() as ledger:
        stamp_value = ledger.claim("s", holder="pod-7").stamp_value
    topic = guarded.create_topic("secret", partitions=2)
    write_record(guarded, topic, b"k", b"v", [("epochfence", stamp_value)])
    deny(guarded, topic, denied)
    begun = time.monotonic()
    arguments = [
        *("audit", "-t", topic, "-b", guarded.bootstrap_servers, "--timeout", "8"),
        *("--coordination-topic", topics.coordination_topic),
    ]
    done = run(*arguments)
    assert time.monotonic() - begun < 60
    assert done.exit_code == 2
    assert topic in done.stderr
    assert "uthoriz" in done.stderr or "no such topic" in done.stderr
    assert "Traceback" not in done.stderr
