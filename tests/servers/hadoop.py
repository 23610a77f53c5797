"""HDFS for tests: Hadoop's own mini cluster, from pyspark's jars and one more, which comes from Maven Central the first time."""

from __future__ import annotations

import fcntl
import os
import shutil
import urllib.request
from pathlib import Path

import pyspark

from tests.servers.server import Server
from tidegate.base.files import Files

_HERE = Path(__file__).parent
_CENTRAL = "https://repo1.maven.org/maven2/org/apache/hadoop/hadoop-client-minicluster"


def hdfs() -> Server:
    """A name node at ``127.0.0.1:port``; it keeps its files over ``kill`` and ``start``."""
    jars = _pyspark_jars()
    path = f"{_mini_cluster(jars)}:{jars}/*"
    return Server(
        "hdfs",
        lambda s: [
            "java",
            "-Xmx300m",
            "-cp",
            path,
            str(_HERE / "MiniHdfs.java"),
            str(s.port),
            str(s.directory / "dfs"),
        ],
        answers=lambda s: Files(address(s)).check_writable(),
    )


def address(server: Server) -> str:
    return f"hdfs://127.0.0.1:{server.port}"


def _pyspark_jars() -> Path:
    return Path(pyspark.__file__).parent / "jars"


def _mini_cluster(jars: Path) -> Path:
    """Of the version of Hadoop that pyspark has."""
    [api] = jars.glob("hadoop-client-api-*.jar")
    version = api.stem.removeprefix("hadoop-client-api-")
    place = Path(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "tidegate", "hadoop")
    place.mkdir(parents=True, exist_ok=True)
    jar = place / f"hadoop-client-minicluster-{version}.jar"
    with open(place / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jar.exists():
            print(f"fetching {jar.name} (56 MB, once) from Maven Central ...", flush=True)
            part = jar.with_suffix(".part")
            with urllib.request.urlopen(f"{_CENTRAL}/{version}/{jar.name}") as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
            part.rename(jar)
    return jar
