"""The Spark session a job runs in: the user's if there is one, else one with settings that suit rounds."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from pyspark.sql import SparkSession

from tidegate.common.errors import ConfigurationError

_SETTINGS = {
    "spark.python.unix.domain.socket.enabled": "true",  # halves the cost of a Python stage
    "spark.python.worker.reuse": "true",
    "spark.speculation": "false",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.shuffle.compress": "false",
    "spark.driver.maxResultSize": "0",
    # A job runs for ever, a round is a Spark job: what Spark remembers of past ones must not grow.
    "spark.ui.retainedJobs": "20",
    "spark.ui.retainedStages": "40",
    "spark.ui.retainedTasks": "400",
    "spark.sql.ui.retainedExecutions": "5",
}
_LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


def session(configuration: Mapping[str, Any]) -> SparkSession:
    """The active session, checked, or a new one: ``spark.*`` keys of the configuration win over our settings.

    ``spark.master`` defaults to ``local[*,4]``: plain ``local[N]`` never retries a task.
    """
    active = SparkSession.getActiveSession()
    if active is None or active.sparkContext._jsc is None:
        active = _create(configuration)
    _check(active)
    return active


def _create(configuration: Mapping[str, Any]) -> SparkSession:
    own = {key: str(value) for key, value in configuration.items() if key.startswith("spark.")}
    master = own.get("spark.master") or os.environ.get("TIDEGATE_MASTER") or "local[*,4]"
    settings = {**_SETTINGS, **(_LOCAL_SETTINGS if master.startswith("local") else {}), **own, "spark.master": master}
    # Workers import what the driver can import: the user's modules beside the script above all.
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(p or os.getcwd() for p in sys.path))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(str(configuration.get("pipeline.name") or "tidegate"))
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark: SparkSession = builder.getOrCreate()
    spark.sparkContext.setLogLevel(str(configuration.get("tidegate.spark.log-level", "ERROR")))
    return spark


def _check(spark: SparkSession) -> None:
    if spark.conf.get("spark.speculation", "false") == "true":
        raise ConfigurationError(
            "Speculative execution must be off: two attempts of the same task would write at once",
            found="spark.speculation=true",
            cure="set spark.speculation=false",
        )
