"""What homes of tasks are worth: `python bench/homes.py [--state-mb 1000] [--rounds 300] [--placement own spark]`, as root.

A real standalone cluster of two workers with two cores each, on one machine. Each worker has a host name of its own, so each keeps
local state of its own. A job fills keyed state, then each round replaces some values. Writes results/homes.json.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import report
from engines import BENCH, REPO
from report import Verdict

sys.path.insert(0, str(REPO))  # the cluster of the tests
from tests.clusters.standalone import SITE, Cluster, bare_python

PARALLELISM = 4
GOAL = 8.0
"""Rebuilds in 1,000 rounds without failures: near 0 of the 4,000 runs of subtasks."""
LIMIT_S = 1_200


def measured(state_mb: int, rounds: int, records: int, placement: str) -> dict[str, Any]:
    directory = Path(tempfile.mkdtemp(prefix="tidegate-homes-"))
    started = Cluster(directory, SITE, {})
    try:
        for number in range(2):
            started.start_host(number, cores=2, memory="800m")
        keys = {
            "parallelism.default": PARALLELISM,
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.executor.memory": "800m",
            "execution.checkpointing.dir": directory / "checkpoints",
            "execution.checkpointing.interval": "10s",
            "tidegate.state.local-dir": directory,
            "tidegate.state.cache-size": "16mb",  # far less than the state
        }
        options = [f"-D{key}={value}" for key, value in keys.items()]
        environment = {**os.environ, "PYSPARK_PYTHON": bare_python(), "TMPDIR": str(directory)}
        command = [sys.executable, "-m", "tidegate.cli", "run", "--master", started.master, *options]
        done = subprocess.run(
            [*command, str(BENCH / "homes_job.py"), str(state_mb), str(rounds), str(records), placement],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=LIMIT_S,
        )
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        local = sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())
        return result | {"load": os.getloadavg()[0], "left_on_disk_mb": local / 1e6}
    finally:
        started.stop()
        shutil.rmtree(directory, ignore_errors=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--state-mb", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--records", type=int, default=400, help="of a round")
    parser.add_argument("--placement", nargs="+", choices=("own", "spark"), default=["own", "spark"])
    args = parser.parse_args()
    former = report.RESULTS / "homes.json"
    points = json.loads(former.read_text())["points"] if former.exists() else []
    for placement in args.placement:
        point = measured(args.state_mb, args.rounds, args.records, placement)
        same = (point["placement"], point["state_mb"], point["rounds"])
        points = [each for each in points if (each["placement"], each["state_mb"], each["rounds"]) != same] + [point]
        show_and_write(points)


def show_and_write(points: list[dict[str, Any]]) -> None:
    own = [each["rebuilds"] * 1000 / each["rounds"] for each in points if each["placement"] == "own"]
    verdicts = [Verdict("rebuilds in 1,000 rounds, tasks at their homes", max(own, default=None), GOAL, at_least=False)]
    head = ["placement", "state MB", "rounds", "records/s", "round ms", "slowest ms", "rebuilds", "moves"]
    names = ("placement", "state_mb", "rounds", "records_a_second", "round_ms", "slowest_round_ms", "rebuilds", "moves")
    found = [[each.get(name, "") for name in names] for each in points]
    rows = [[str(round(value) if isinstance(value, float) else value) for value in row] for row in found]
    report.show("homes: two hosts, four subtasks", head, rows, verdicts, [])
    report.write("homes", {"points": points}, verdicts)


if __name__ == "__main__":
    main()
