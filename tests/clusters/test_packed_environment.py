"""Hosts that have nothing but Python: a packed environment brings the packages to the driver's container and to the executors."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters.yarn import PROGRAM, Yarn, assert_counted_exactly_once, lines_on_hdfs
from tidegate.spark.shipping import PACKAGES
from tidegate.spark.submission import MORE_PACKAGES

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
RECORDS = 2_000


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packed with venv-pack. pyspark comes with the application, Tidegate with the program."""
    place = tmp_path_factory.mktemp("environment")
    tools = Path(sys.executable).parent
    packages = sorted({*PACKAGES.values(), *MORE_PACKAGES.values(), "hdfs-native"} - {"pyspark"})
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place / "venv"], check=True)
    subprocess.run([tools / "uv", "pip", "install", "-q", "--python", place / "venv", *packages], check=True)
    packed = place / "environment.tar.gz"
    subprocess.run([tools / "venv-pack", "-q", "-p", place / "venv", "-o", packed], check=True)
    shutil.rmtree(place / "venv")  # nothing of it may be found here
    return packed


@pytest.mark.parametrize("mode", ["client", "cluster"])
def test_a_packed_environment(mode: str, yarn: Yarn, home: Path, environment: Path) -> None:
    options = yarn.options(
        execution__checkpointing__dir=f"hdfs:///jobs/packed-{mode}",
        spark__yarn__appMasterEnv__PYTHONPATH="",
        spark__executorEnv__PYTHONPATH="",
        spark__archives=f"{environment}#environment",
        python__executable="./environment/bin/python",
        **({"spark__driver__host": "127.0.0.1"} if mode == "client" else {}),
    )
    output = f"/out/packed-{mode}"
    words = ["run", "--master", "yarn", "--deploy-mode", mode, "-p", "2", *options]
    yarn.tidegate(home, *words, str(PROGRAM), f"hdfs://{output}", str(RECORDS), "0")
    assert_counted_exactly_once(lines_on_hdfs(yarn, output), RECORDS)


def test_flinks_spelling_of_a_packed_environment(yarn: Yarn, home: Path, environment: Path) -> None:
    """-pyarch and -pyexec, as in ``flink run-application``."""
    options = yarn.options(
        execution__checkpointing__dir="hdfs:///jobs/pyarch",
        spark__yarn__appMasterEnv__PYTHONPATH="",
        spark__executorEnv__PYTHONPATH="",
    )
    python = ["-pyarch", f"{environment}#environment", "-pyexec", "environment/bin/python"]
    words = ["run-application", "-t", "yarn-application", *python, *options, "-py", str(PROGRAM), "hdfs:///out/pyarch"]
    job = yarn.tidegate(home, *words, str(RECORDS), "0").stdout.strip()
    yarn.tidegate(home, "wait", job, elsewhere=True)
    assert_counted_exactly_once(lines_on_hdfs(yarn, "/out/pyarch"), RECORDS)
