"""The fence on a Spark cluster: the same engine, a task for some partitions each.

    python -m epochfence.replay.spark_job --parquet FOLDER --ledger FILE --out FOLDER
    spark-submit .../replay/spark_job.py --topic orders -b HOST:PORT --out FOLDER

`verdicts` is the same over DataFrames. Records are shuffled by topic and partition, put
in order of position, and judged by `PartitionAudit`, as `epochfence audit` does; ledger
and known epoch starts go along to every task. What comes out is a row for each record.

Spark's Kafka source tells no leader epochs and no topic ids. The topic id is asked for
before the reading and after it. Without leader epochs, starts of a table (`--table`)
are compared by their offsets alone: one that an unclean election took back counts for
whatever lies behind its offset, also where its leader epoch would say otherwise.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f

from epochfence.epochs.connection import Config
from epochfence.epochs.errors import EpochfenceError, MisconfiguredError
from epochfence.epochs.ledger_state import LedgerState
from epochfence.epochs.settings import FenceSettings
from epochfence.epochs.stamps import stamp_reader
from epochfence.epochs.topics import COORDINATION_TOPIC
from epochfence.replay.arrow_records import LifeCheck, Row, needs_value, rows_of
from epochfence.replay.audit import Audit, LedgerSource
from epochfence.replay.files import read_ledger, read_table
from epochfence.replay.parquet_verdicts import VERDICT_FIELDS, cells
from epochfence.replay.partition_audit import PartitionAudit
from epochfence.replay.told_topics import read_told_ledger
from epochfence.replay.topic_source import TopicSource

_ROWS_PER_BATCH = 10_000

_PLACE = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("life", pa.int64()),
        ("leader_epoch", pa.int64()),
        ("offset", pa.int64()),
    ]
)
_SCHEMA = pa.schema([*_PLACE, *VERDICT_FIELDS])

#: The columns that are read, and their types in Spark.
_NEEDED = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "headers": "array<struct<key: string, value: binary>>",
}
_OPTIONAL = {
    "timestamp": None,  # a time or ms since 1970, as it is
    "topic_id": "string",
    "leader_epoch": "bigint",
    "life": "bigint",
}

#: What Spark names the types of `_SCHEMA`.
_SPARK_SCHEMA = (
    "topic string, partition int, life bigint, leader_epoch bigint, offset bigint, "
    "verdict string, reason string, scope string, epoch bigint, current_epoch bigint"
)


def verdicts(records: DataFrame, audit: Audit | Mapping[str, Audit]) -> DataFrame:
    """Judge records.

    Args:
        records: With the columns of Spark's Kafka source (`includeHeaders`), in any
            order, and perhaps `topic_id`, `leader_epoch` and `life`, which has to tell
            a topic's lives apart where it has several.
        audit: What to judge by; a mapping: what each topic is judged by. It is sent to
            every task.

    Returns:
        A row for each record: `topic`, `partition`, `life`, `leader_epoch`, `offset`,
        `verdict`, `reason`, `scope`, `epoch`, `current_epoch`. It is evaluated by
        whoever asks for its rows; that fails where records contradict each other, or
        are of a topic that the mapping lacks.

    Raises:
        MisconfiguredError: A column is missing.
    """
    audits = [audit] if isinstance(audit, Audit) else list(audit.values())
    with_value = any(needs_value(one.settings) for one in audits)
    ordered = _in_order(_columns(records, with_value))

    def judge(batches: Iterator[Any]) -> Iterator[Any]:
        return _judge(batches, audit)

    return ordered.mapInArrow(judge, _SPARK_SCHEMA)


def kafka_records(spark: SparkSession, source: TopicSource) -> DataFrame:
    """The committed records of a topic, up to the ends that were captured.

    Args:
        spark: The session, which has the package `spark-sql-kafka-0-10`.
        source: The topic. Its connection settings are given to Spark's client, which
            is Java's: what only librdkafka knows has no place there.
    """
    starts = {str(one.partition): one.start for one in source.slices}
    ends = {str(one.partition): one.end for one in source.slices}
    options = {f"kafka.{name}": str(value) for name, value in source.config.items()}
    options |= {
        "assign": json.dumps({source.topic: [one.partition for one in source.slices]}),
        "startingOffsets": json.dumps({source.topic: starts}),
        "endingOffsets": json.dumps({source.topic: ends}),
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }
    reader = spark.read.format("kafka").options(**options)
    return reader.load().withColumn("topic_id", f.lit(source.topic_id).cast("string"))


def _columns(records: DataFrame, with_value: bool) -> DataFrame:
    wanted: dict[str, str | None] = {**_NEEDED}
    if with_value:
        wanted["value"] = "binary"
    for name in wanted:
        if name not in records.columns:
            raise MisconfiguredError(
                "records", records.columns, f"column {name!r} is missing",
                "Columns are those of Spark's Kafka source with includeHeaders.",
            )  # fmt: skip
    wanted |= {
        name: kind for name, kind in _OPTIONAL.items() if name in records.columns
    }
    return records.select(
        *(
            records[name] if kind is None else records[name].cast(kind).alias(name)
            for name, kind in wanted.items()
        )
    )


def _in_order(records: DataFrame) -> DataFrame:
    """Each partition's records together, in order of position."""
    place = ["topic", "partition"]
    order = [f.col("life")] if "life" in records.columns else []
    together = records.repartition(*place)
    if "leader_epoch" in records.columns:
        # As in verdicts.sql: a record without one stands by its offset alone.
        below = Window.partitionBy(*place, *order).orderBy("offset")
        bare = f.when(f.col("leader_epoch").isNull(), f.col("offset"))
        together = together.withColumn("behind", f.max(bare).over(below))
        order += [
            f.col("behind").asc_nulls_first(),
            f.col("leader_epoch").asc_nulls_first(),
        ]
    return together.sortWithinPartitions(*place, *order, "offset").drop("behind")


def _judge(batches: Iterator[Any], audit: Audit | Mapping[str, Audit]) -> Iterator[Any]:
    """Judge the records of a task: partition by partition, each in order."""
    lives = LifeCheck()
    partition: PartitionAudit | None = None
    rows: list[tuple[object, ...]] = []
    for batch in batches:
        for row in rows_of(batch):
            lives.check(row)
            if partition is None or (row.topic, row.partition) != (
                partition.topic,
                partition.partition,
            ):
                partition = _open(row, audit)
            verdict = partition.judge(
                row.topic_id,
                row.leader_epoch,
                row.offset,
                row.timestamp,
                row.headers,
                row.value,
            )
            rows.append((*_place(row), *cells(verdict)))
            if len(rows) >= _ROWS_PER_BATCH:
                yield _batch(rows)
                rows.clear()
    if rows:
        yield _batch(rows)


def _open(row: Row, audit: Audit | Mapping[str, Audit]) -> PartitionAudit:
    by = audit if isinstance(audit, Audit) else audit.get(row.topic)
    if by is None:
        raise MisconfiguredError(
            "audit", row.topic, "it is not said what this topic is judged by",
            "Give each topic its own, or one for all.",
        )  # fmt: skip
    return PartitionAudit(row.topic, row.partition, by.settings, by.ledger, by.table)


def _place(row: Row) -> tuple[object, ...]:
    return row.topic, row.partition, row.life or 0, row.leader_epoch, row.offset


def _batch(rows: Sequence[tuple[object, ...]]) -> Any:
    columns = zip(*rows, strict=True)
    return pa.RecordBatch.from_arrays(
        [
            pa.array(column, field.type)
            for column, field in zip(columns, _SCHEMA, strict=True)
        ],
        schema=_SCHEMA,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge a topic or Parquet, write the verdicts as Parquet, and print their sums."""
    given = _parser().parse_args(arguments)
    try:
        return _run(given)
    except EpochfenceError as error:
        print(f"epochfence: {error}", file=sys.stderr)
    except PySparkException as error:
        print(f"epochfence: {cause_of(error)}", file=sys.stderr)
    return 2


def _run(given: argparse.Namespace) -> int:
    settings = FenceSettings(
        given.scope or (),
        unstamped=given.unstamped,
        authority=given.authority,
        stamps=stamp_reader(given.stamp),
        max_jump=given.max_jump,
    )
    starts = () if given.table is None else tuple(read_table(given.table))
    source = None
    if given.ledger is not None:
        source = LedgerSource(LedgerState(read_ledger(given.ledger)), given.ledger)
    config: Config = dict(given.property or ())
    if given.bootstrap_server is not None:
        config = {**config, "bootstrap.servers": given.bootstrap_server}
    topic = None
    if given.topic is not None:
        topic = TopicSource(config, given.topic, given.timeout)
        if source is None and settings.authority == "ledger":
            # After the ends were captured: so it holds the grant of all below them.
            source = read_told_ledger(config, given.coordination_topic, given.timeout)
    audit = Audit(settings, source, starts)
    if source is None and settings.authority == "ledger":
        raise MisconfiguredError(
            "--authority", "ledger", "Parquet comes without a ledger",
            "Give --ledger FILE (epochfence ledger export writes one), or "
            "--authority max-seen.",
        )  # fmt: skip
    spark = SparkSession.builder.appName("epochfence").getOrCreate()
    try:
        records = (
            spark.read.parquet(given.parquet)
            if topic is None
            else kafka_records(spark, topic)
        )
        verdicts(records, audit).write.parquet(given.out, mode="errorifexists")
        _print_sums(spark.read.parquet(given.out))
    finally:
        spark.stop()
    problem = None if topic is None else topic.problem()
    if problem is not None:
        print(f"epochfence: {given.topic}: {problem}", file=sys.stderr)
        return 2
    return 0


def _print_sums(found: DataFrame) -> None:
    counted: Counter[tuple[str, str]] = Counter()
    for one in found.groupBy("verdict", "reason").count().collect():
        counted[one["verdict"], one["reason"]] += cast("int", one["count"])
    print(f"{sum(counted.values()):,} records")
    for (kind, reason), count in sorted(counted.items()):
        print(f"{count:>14,}  {kind if reason == 'ok' else f'{kind}: {reason}'}")


def cause_of(error: PySparkException) -> str:
    """What went wrong in a task, without the stack of two languages."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("epochfence.")]
    if ours:
        return ours[-1].partition(": ")[2]
    return lines[0] if lines else repr(error)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m epochfence.replay.spark_job",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    records = parser.add_mutually_exclusive_group(required=True)
    records.add_argument(
        "--parquet", metavar="PATH", help="records: a file or a folder"
    )
    records.add_argument("-t", "--topic", help="records: a topic")
    add = parser.add_argument
    add(
        "--out", metavar="FOLDER", required=True, help="where the verdicts go (Parquet)"
    )
    add("-b", "--bootstrap-server", metavar="HOST:PORT")
    add(
        "-X", "--property", metavar="NAME=VALUE", action="append", type=_pair,
        help="a setting of the Kafka clients, Spark's and ours",
    )  # fmt: skip
    add("--coordination-topic", metavar="T", default=COORDINATION_TOPIC)
    add("--ledger", metavar="FILE", help="a ledger file; default: the topic's cluster")
    add("--table", metavar="FILE", help="epoch starts known beforehand")
    add("--scope", metavar="S", action="append", help="required; may be repeated")
    add("--stamp", default="epochfence", help="or HEADER:int64be, HEADER:decimal")
    add("--authority", choices=["ledger", "max-seen"])
    add(
        "--unstamped", default="quarantine",
        choices=["quarantine", "admit", "admit-until-first-stamp"],
    )  # fmt: skip
    add("--max-jump", metavar="N", type=int)
    add("--timeout", metavar="SECONDS", type=float, default=30.0)
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError("NAME=VALUE is expected")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
