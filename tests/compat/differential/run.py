"""Run programs on one engine, in one process, and write their results as JSON.

``python -m tests.compat.differential.run RESULTS [CASE...]``.

DIFFERENTIAL_API names the package: ``pyflink`` starts a mini-cluster in one JVM, ``tidegate`` one Spark session. Without cases
all of them run. A program that fails and should not is reported in its result, and the others still run.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any


class PrintedToFile:
    """Sends what this process and its children print to a file, and reads what is new in it."""

    def __init__(self, path: Path) -> None:
        file = path.open("w+", encoding="utf-8")
        os.dup2(file.fileno(), 1)
        self._reader = path.open(encoding="utf-8")

    def __call__(self) -> list[str]:
        sys.stdout.flush()
        return self._reader.read().splitlines()


_root = tempfile.TemporaryDirectory(prefix="differential-")
# Before the imports: they start PyFlink's JVM, which inherits the output
_printed = PrintedToFile(Path(_root.name) / "printed")

from tests.compat.differential import programs  # noqa: E402
from tests.compat.differential.catalog import PROGRAMS, Case, Surroundings, cases, run  # noqa: E402
from tests.compat.differential.engine_api import ROOT, Configuration, StreamExecutionEnvironment  # noqa: E402

assert programs, "imported for its catalog"


def settings(directory: Path) -> dict[str, str]:
    if ROOT == "pyflink":
        # every job is a cluster in one JVM: without fixed ports, and with room for every subtask
        return {"rest.bind-port": "0", "taskmanager.numberOfTaskSlots": "4", "python.fn-execution.bundle.time": "100"}
    return {
        "execution.checkpointing.dir": str(directory / "checkpoints"),
        "tidegate.state.local-dir": str(directory / "local"),
        "spark.master": "local[2,4]",
    }


def environment(case: Case, directory: Path) -> Any:
    configuration = Configuration()
    for key, value in settings(directory).items():
        configuration.set_string(key, value)
    configuration.set_string("restart-strategy.type", "none")
    if PROGRAMS[case.name].in_threads:
        configuration.set_string("python.execution-mode", "thread")
    return StreamExecutionEnvironment.get_execution_environment(configuration)


def run_all(wanted: list[Case], root: Path, target: Path) -> None:
    """Writes the results after every case: a run that is broken off has told what it found."""
    results: dict[str, Any] = {}
    for number, case in enumerate(wanted):
        directory = root / str(case)
        directory.mkdir()
        _printed()
        started = time.monotonic()
        try:
            results[str(case)] = run(case, environment(case, directory), Surroundings(directory, _printed))
        except Exception:
            results[str(case)] = {"error": traceback.format_exc()}
        target.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        seconds = time.monotonic() - started
        print(f"{number + 1}/{len(wanted)} {case} {seconds:.1f} s", file=sys.stderr, flush=True)


def main(target: str, *names: str) -> None:
    wanted = [case for case in cases() if not names or str(case) in names or case.name in names]
    with _root:
        run_all(wanted, Path(_root.name), Path(target))


if __name__ == "__main__":
    main(*sys.argv[1:])
