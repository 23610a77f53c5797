"""Secrets among Spark's settings reach Spark, and nobody else: no command line of a process, no log."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SECRET = "pässw0rd = with \\ odd: characters"
PROGRAM = """
from pyspark import SparkContext
from tidegate.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(1)
env.from_collection([1]).map(lambda value: value + 1).print()
env.execute()
context = SparkContext._active_spark_context
java = context._jvm.java.lang.System
for key in ("spark.hadoop.fs.s3a.secret.key", "spark.mine", "spark.theirs"):
    print(key, context.getConf().get(key) == java.getProperty(key), ascii(java.getProperty(key)))
print("key of Hadoop", ascii(context._jsc.hadoopConfiguration().get("fs.s3a.secret.key")))
again = StreamExecutionEnvironment.get_execution_environment()
from tidegate.common import Configuration
changed = Configuration()
changed.set_string("spark.hadoop.fs.s3a.secret.key", "another-s3cret")
again.configure(changed)
again.from_collection([1]).print()
again.execute()
"""


def command_lines() -> set[str]:
    found = set()
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.add(place.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found


def test_secret_setting_is_in_no_command_line_and_no_log_but_spark_has_it(tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "config.yaml").write_text(f"spark.hadoop.fs.s3a.secret.key: '{SECRET}'\n")
    (tmp_path / "spark-conf").mkdir()
    (tmp_path / "spark-conf" / "spark-defaults.conf").write_text(
        "spark.mine  from-defaults\nspark.theirs by-defaults\n"
    )
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "tmp").mkdir()
    environment = {
        **os.environ,
        "SPARK_CONF_DIR": f"{tmp_path}/spark-conf",
        "TMPDIR": f"{tmp_path}/tmp",
        "PYSPARK_SUBMIT_ARGS": "--conf spark.theirs=by-argument pyspark-shell",
    }
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--master", "local[1,4]", "job.py"]
    seen: set[str] = set()
    with open(tmp_path / "log", "wb") as log:
        job = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=log, stderr=log)
        while job.poll() is None:
            seen |= command_lines()
    printed = (tmp_path / "log").read_text()
    assert job.returncode == 0, printed
    assert f"spark.hadoop.fs.s3a.secret.key True {SECRET!a}\n" in printed
    assert f"key of Hadoop {SECRET!a}\n" in printed
    assert "spark.mine True 'from-defaults'\n" in printed and "spark.theirs True 'by-argument'\n" in printed
    assert "spark.hadoop.fs.s3a.secret.key cannot take effect" in printed
    said = [line for line in printed.splitlines() if not line.startswith(("spark.hadoop", "key of Hadoop"))]
    for secret in ("ssw0rd", "another-s3cret"):
        assert not [line for line in (*seen, *said) if secret in line]
    assert [line for line in seen if "org.apache.spark.deploy.SparkSubmit" in line], "the JVM was looked at"
    assert list((tmp_path / "tmp").glob("tidegate-*.conf")) == []
