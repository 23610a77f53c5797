"""Show where the tasks of a query spend their time: in one process, without Spark, in rounds of a fixed size.

``python bench/nexmark/tasks_profile.py --query q5 --events 200000 [--profile]`` prints the processor time of an event by level.
With ``--profile`` it also prints the functions of most own time (cProfile, which makes calls dearer than they are).
"""

from __future__ import annotations

import argparse
import cProfile
import json
import pstats
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))

from tidegate import pyflink_compat  # noqa: E402

pyflink_compat.install()

import generate  # noqa: E402
import queries  # noqa: E402
from tasks import InProcess, InProcessExecutor  # noqa: E402

from tidegate.datastream.executor import register_executor  # noqa: E402
from tidegate.operators.loop import fast_json  # noqa: E402


class Profiled(InProcess):
    """The tasks under a profiler, if there is one."""

    profiler: cProfile.Profile | None = None

    def _task(self, level: int, partition: int, plan: Any, rows: list[Any]) -> Any:
        if self.profiler is None:
            return super()._task(level, partition, plan, rows)
        self.profiler.enable()
        try:
            return super()._task(level, partition, plan, rows)
        finally:
            self.profiler.disable()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", choices=queries.QUERIES, required=True)
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--round", type=int, default=16_000_000, help="bytes of a round; an event has about 290")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--functions", type=int, default=25)
    args = parser.parse_args()
    engine = Profiled(fresh=False)
    engine.profiler = cProfile.Profile() if args.profile else None
    register_executor("in-process", lambda: InProcessExecutor(engine))
    home = Path(tempfile.mkdtemp(prefix="nexmark-tasks-"))
    try:
        generate.write_files(home / "in", args.events, 2, 1)
        given = [
            "--query",
            args.query,
            "--input",
            home / "in",
            "--output",
            home / "out",
            "--checkpoints",
            home / "checkpoints",
        ]
        # a shorter interval would bound the time of rounds
        settings = [
            "execution.target=in-process", f"tidegate.round.max-records={args.round}", "tidegate.round.target-time=1 h",
        ]  # fmt: skip
        given += ["--interval-ms", "3600000", *(word for setting in settings for word in ("--set", setting))]
        with fast_json.switched_on():  # as a Spark worker does
            queries.build(queries.options_of([str(word) for word in given])).execute("tasks")
    finally:
        shutil.rmtree(home, ignore_errors=True)
    levels = [round(seconds / args.events * 1e6, 2) for seconds in engine.used]
    print(
        json.dumps(
            {"query": args.query, "rounds": engine.rounds, "us_an_event": round(sum(levels), 2), "by_level": levels}
        )
    )
    if engine.profiler is not None:
        pstats.Stats(engine.profiler).strip_dirs().sort_stats("tottime").print_stats(args.functions)


if __name__ == "__main__":
    main()
