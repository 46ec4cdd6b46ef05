"""The engine on Spark: every generated history in one job over Parquet.

Kafka as its source is for tests/nightly_engines.py.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import PythonException
from pyspark.sql import SparkSession

from epochfence.epochs.errors import MisconfiguredError
from epochfence.epochs.settings import FenceSettings
from epochfence.replay.audit import Audit
from epochfence.replay.spark_job import cause_of, verdicts
from support.arrow_worlds import Place, audit_of, engine_says, table_of
from support.spark import local_session
from support.worlds import world

HISTORIES = 200
RECORDS = 100

pytestmark = pytest.mark.xdist_group("spark")


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = local_session(tmp_path_factory.mktemp("spark"))
    yield session
    session.stop()


def test_agreement(spark: SparkSession, tmp_path: Path) -> None:
    tables: list[pa.Table] = []
    expected: dict[Place, object] = {}
    audits = {}
    for seed in range(HISTORIES):
        made = world(seed, RECORDS)
        prefix = f"w{seed}."
        audit = audit_of(made, prefix)
        tables.append(table_of(made["records"], seed, prefix))
        expected |= engine_says(made, audit, prefix)
        audits |= {prefix + one["topic"]: audit for one in made["records"]}
    pq.write_table(pa.concat_tables(tables), tmp_path / "records.parquet")
    rows = verdicts(spark.read.parquet(str(tmp_path)), audits).collect()
    assert len(rows) == HISTORIES * RECORDS
    assert {tuple(row[:5]): tuple(row[5:]) for row in rows} == expected


def test_a_missing_column_is_named(spark: SparkSession) -> None:
    records = spark.sql("SELECT 'orders' AS topic, 0 AS partition, 1L AS offset")
    with pytest.raises(MisconfiguredError, match="'headers' is missing"):
        verdicts(records, {})


def test_what_a_task_refuses_is_told_in_one_sentence(spark: SparkSession) -> None:
    records = spark.sql(
        "SELECT 'orders' AS topic, 0 AS partition, 1L AS offset, "
        "cast(null AS array<struct<key: string, value: binary>>) AS headers "
        "FROM range(2)"
    )
    settings = FenceSettings(unstamped="admit", authority="max-seen")
    with pytest.raises(PythonException) as caught:
        verdicts(records, Audit(settings, None)).collect()
    told = cause_of(caught.value)
    assert told.startswith("orders[0] offset 1 (leader epoch None) comes after offset 1")
    assert "\n" not in told


def test_help_names_what_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "epochfence.replay.spark_job", "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "--parquet" in done.stdout
    assert "--topic" in done.stdout
