"""A Spark session of this process, on this machine alone."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from pyspark.sql import SparkSession


def local_session(folder: Path, packages: str | None = None) -> SparkSession:
    """Open a session.

    Args:
        folder: What it writes beside the results goes there.
        packages: Jars to fetch, by their Maven names.
    """
    # What runs the tests runs the tasks.
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("epochfence-tests")
    settings = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "spark"),
        # All tasks stay in processes that are there already.
        "spark.python.worker.reuse": "true",
    }
    if packages is not None:
        settings["spark.jars.packages"] = packages
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
