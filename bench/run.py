"""The bench: `python bench/run.py [--scenario NAME ...] [--repeat N] [--quick]`. See bench/README.md."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import sys
from collections.abc import Callable
from typing import Any

import report
from cold_start import cold_start
from engines import BENCH, ENGINES, Engine, RunFailed, run_keyed_count, run_program
from report import Verdict
from rich.console import Console

KEYS = {
    "keyed-count": 20_000,
    "keyed-count-1m": 1_000_000,
    "window-count": 20_000,
    "sliding": 20_000,
    "interval-join": 20_000,
    "keyed-count-rocksdb": 1_000_000,
    "keyed-count-rocksdb-4x": 2_000_000,
}
RATIOS = {
    "keyed-count": [("pyspark-tws", 40.0), ("pyflink-thread", 40.0), ("flink-java", 0.5)],
    "keyed-count-1m": [("flink-java", 0.35)],
    "window-count": [("pyflink-thread", 50.0), ("flink-java", 0.3)],
    "sliding": [("tidegate-tumbling", 0.2)],
    "interval-join": [("flink-java", 0.2)],
    "keyed-count-rocksdb": [("flink-java", 1.0)],
    "keyed-count-rocksdb-4x": [("flink-java", 1.0)],
}
FEW_KEYS, MANY_KEYS = 1_000, 1_000_000
FEW_CHANGED_OF = 100_000, 5_000_000
"""Keys of which 10,000 change in a checkpoint."""
MEBIBYTE = 2**20
GROWTH_ALLOWED = 2.0
"""Per cent of the level, over the second half of the rounds. Our choice of what counts as "does not grow"."""
progress = Console(stderr=True)


def keyed_count(scenario: str, repeat: int, quick: bool) -> bool:
    """Engines in turn, each at two sizes, all of it ``repeat`` times."""
    engines = [engine for engine in ENGINES if scenario in engine.full]
    runs: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for repetition in range(repeat):
        for engine in engines:
            if engine.name not in failed:
                try:
                    runs.append(two_sizes(engine, scenario, repetition, quick))
                except RunFailed as error:
                    failed[engine.name] = str(error)
                    progress.print(f"[red]{engine.name}: {error}", highlight=False)
    steady = {engine.name: median_of(runs, engine.name, "steady_records_per_second") for engine in engines}
    by_cpu = {engine.name: median_of(runs, engine.name, "steady_records_per_cpu_second") for engine in engines}
    verdicts = [ratio_verdict(steady, peer, target) for peer, target in RATIOS[scenario]]
    verdicts += [ratio_verdict(by_cpu, peer, target, ", by CPU time") for peer, target in RATIOS[scenario]]
    rows = [engine_row(engine, runs, steady, failed, quick, scenario) for engine in engines]
    head = ["engine", "records/s (two-size)", "sizes", "seconds", "whole runs, records/s", "Tidegate is"]
    notes = [
        "records/s (two-size): (large - small) / (its seconds - the small one's), so start-up drops out. Medians.",
        "whole runs: records / seconds of the small and of the large run, start-up included.",
        "by CPU time: the same with the processor time of all of an engine's processes, for machines that others use too.",
    ]
    report.show(f"{scenario}: {KEYS[scenario]:,} keys, checkpoint every second, 2 cores", head, rows, verdicts, notes)
    body = {"repeat": repeat, "quick": quick, "keys": KEYS[scenario], "steady": steady, "steady_by_cpu": by_cpu}
    body |= {"failed": failed, "runs": runs}
    progress.print(f"written: {report.write(scenario, body, verdicts)}")
    return not failed


def two_sizes(engine: Engine, scenario: str, repetition: int, quick: bool) -> dict[str, Any]:
    """Both sizes of one engine, one right after the other, and the pace that their difference gives."""
    sizes = engine.sizes(scenario, quick)
    progress.print(f"{scenario} {repetition + 1}: {engine.label}, {sizes.small:,} and {sizes.large:,} records")
    small, large = (
        run_keyed_count(engine, scenario, size, KEYS[scenario], sizes) for size in (sizes.small, sizes.large)
    )
    seconds = large["seconds"] - small["seconds"]
    if seconds <= 0:
        raise RunFailed(f"the large run took no longer than the small one ({large['seconds']} s, {small['seconds']} s)")
    pace = int((sizes.large - sizes.small) / seconds)
    used = max(large["cpu_seconds"] - small["cpu_seconds"], 0.01)
    by_cpu = int((sizes.large - sizes.small) / used)
    progress.print(
        f"    {small['seconds']:.1f} s, {large['seconds']:.1f} s: {pace:,} records/s, {by_cpu:,} a second of CPU"
    )
    paces = {"steady_records_per_second": pace, "steady_records_per_cpu_second": by_cpu}
    return {"engine": engine.name, "small": small, "large": large, **paces}


def median_of(runs: list[dict[str, Any]], engine: str, field: str) -> float | None:
    values = [run[field] for run in runs if run["engine"] == engine]
    return statistics.median(values) if values else None


def ratio_verdict(steady: dict[str, float | None], peer: str, target: float, how: str = "") -> Verdict:
    ours, theirs = steady["tidegate"], steady[peer]
    measured = ours / theirs if ours is not None and theirs is not None else None
    return Verdict(f"Tidegate / {peer}{how}", measured, target)


def engine_row(
    engine: Engine,
    runs: list[dict[str, Any]],
    steady: dict[str, float | None],
    failed: dict[str, str],
    quick: bool,
    scenario: str,
) -> list[str]:
    own = [run for run in runs if run["engine"] == engine.name]
    if not own:
        reason = failed.get(engine.name, "not run").splitlines()[0]
        return [engine.label, f"failed: {reason[:80]}", "", "", "", ""]
    sizes = engine.sizes(scenario, quick)
    seconds = [statistics.median(run[size]["seconds"] for run in own) for size in ("small", "large")]
    pace, ours = steady[engine.name], steady["tidegate"]
    return [
        engine.label,
        f"{pace:,.0f}",
        f"{sizes.small:,} / {sizes.large:,}",
        f"{seconds[0]:.1f} / {seconds[1]:.1f}",
        " / ".join(
            f"{statistics.median(run[size]['records_per_second'] for run in own):,.0f}" for size in ("small", "large")
        ),
        f"{ours / pace:.2f} x" if ours and pace else "",
    ]


def round_program(scenario: str, *arguments: str) -> dict[str, Any]:
    progress.print(f"{scenario}: {' '.join(arguments)}")
    return run_program([sys.executable, str(BENCH / "rounds.py"), scenario, *arguments])


def empty_round(scenario: str, repeat: int, quick: bool) -> bool:
    """A fresh process per repetition; in each, jobs with few and with many keys, bare rounds in between."""
    rounds, warm_up = (50, 30) if quick else (80, 150)
    keys = ["--keys", str(FEW_KEYS), str(MANY_KEYS)]
    jobs: list[dict[str, Any]] = []
    for _ in range(repeat):
        jobs += round_program(scenario, f"--rounds={rounds}", f"--warm-up={warm_up}", *keys)["jobs"]
    few, many = (pooled(jobs, count) for count in (FEW_KEYS, MANY_KEYS))
    verdicts = [
        Verdict("round / bare round, 1,000 keys", few["per_bare"], 1.6, at_least=False),
        Verdict("round / bare round, 1,000,000 keys", many["per_bare"], 1.6, at_least=False),
        # Each against its own bare rounds: the jobs run at different times, in a warmer JVM or on a busier machine.
        Verdict(
            "1,000,000 keys / 1,000 keys, each per bare round", many["per_bare"] / few["per_bare"], 1.3, at_least=False
        ),
    ]
    rows = [
        [f"{pool['keys']:,}", f"{pool['round_ms']:.1f}", f"{pool['round_ms_by_engine']:.1f}", f"{pool['bare_ms']:.1f}"]
        for pool in (few, many)
    ]
    head = ["keys in state", "round, ms", "as the engine counts it, ms", "bare two-stage RDD job, ms"]
    note = f"Medians over {len(jobs) // 2} jobs of {few['rounds']} rounds each; bare rounds interleaved, same session."
    report.show("empty-round: two levels, two records a round", head, rows, verdicts, [note])
    progress.print(f"written: {report.write(scenario, {'repeat': repeat, 'quick': quick, 'jobs': jobs}, verdicts)}")
    return True


def pooled(jobs: list[dict[str, Any]], keys: int) -> dict[str, Any]:
    """The medians of the jobs with that many keys; ``per_bare``: of each job's round by the bare rounds inside that job."""
    own = [{**job, "per_bare": job["round_ms"] / job["bare_ms"]} for job in jobs if job["keys"] == keys]
    medians = {name: statistics.median(job[name] for job in own) for name in own[0]}
    return {**medians, "keys": keys, "rounds": own[0]["rounds"]}


def checkpoint(scenario: str, repeat: int, quick: bool) -> bool:
    """A process for each repetition; in it jobs with little and with much state, of both backends in turn."""
    few, many = FEW_CHANGED_OF
    if quick:
        many //= 10
    jobs: list[dict[str, Any]] = []
    for _ in range(repeat):
        jobs += round_program(scenario, f"--rounds={30 if quick else 40}", "--keys", str(few), str(many))["jobs"]
    rows, verdicts = [], []
    for backend, cached in (("hashmap", True), ("rocksdb", True), ("hashmap", False), ("rocksdb", False)):
        alike = [job for job in jobs if (job["backend"], job["cached"]) == (backend, cached)]
        label = backend if cached else f"{backend}, no value cached"
        medians = {
            keys: {
                field: statistics.median(job[field] for job in alike if job["keys"] == keys)
                for field in ("duration_ms", "incremental_bytes", "bytes")
            }
            for keys in (few, many)
        }
        for keys, own in medians.items():
            sizes = [f"{own[field] / 1e6:.2f}" for field in ("incremental_bytes", "bytes")]
            rows.append([label, f"{keys:,}", f"{own['duration_ms']:.0f}", *sizes])
        for field, what in (("duration_ms", "duration"), ("incremental_bytes", "size")):
            grown = medians[many][field] / medians[few][field]
            verdicts.append(Verdict(f"{label}, {what}: {many:,} / {few:,} keys", grown, 1.5, at_least=False))
    head = ["backend", "keys in state", "steps 1 to 7, ms", "MB new in it", "MB it refers to"]
    notes = [
        "Medians of the checkpoint history (tidegate checkpoints DIR); 10,000 keys change in a round, two subtasks.",
        "Of 100,000 keys the cache of values has all, of 5,000,000 none of those that come next: a round with many keys also reads "
        "10,000 from the store. Where no value is cached, either does.",
    ]
    report.show("checkpoint: 10,000 changed keys", head, rows, verdicts, notes)
    progress.print(f"written: {report.write(scenario, {'repeat': repeat, 'quick': quick, 'jobs': jobs}, verdicts)}")
    return True


def memory(scenario: str, repeat: int, quick: bool) -> bool:
    """One long job. Judged on its second half: until then Spark fills the lists of past jobs that it keeps."""
    rounds, every = (300, 10) if quick else (2000, 50)
    result = round_program(scenario, f"--rounds={rounds}", f"--every={every}", "--keys", str(FEW_KEYS))
    late = [sample for sample in result["samples"] if sample["round"] > rounds // 2]
    rows, verdicts, slopes = [], [], {}
    for field, label in (("python_rss", "Python, resident"), ("jvm_heap", "JVM heap after a collection")):
        level = statistics.median(sample[field] for sample in late)
        slope = statistics.linear_regression([s["round"] for s in late], [s[field] for s in late]).slope
        growth = slope * (rounds / 2) / level * 100
        slopes[field] = slope
        first = result["samples"][0][field]
        cells = [
            f"{first / MEBIBYTE:.1f}",
            f"{level / MEBIBYTE:.1f}",
            f"{late[-1][field] / MEBIBYTE:.1f}",
            f"{slope:+.0f}",
        ]
        rows.append([label, *cells, f"{growth:+.2f} %"])
        verdicts.append(Verdict(f"{label}: growth over the second half, %", growth, GROWTH_ALLOWED, at_least=False))
    head = ["driver memory", "first sample, MiB", "median of second half", "last", "bytes a round", "growth"]
    title = f"memory: {rounds:,} rounds, {result['records']:,} records"
    report.show(title, head, rows, verdicts, ["Slope and growth: least squares over the samples of the second half."])
    body = {"quick": quick, "slope_bytes_per_round": slopes, **result}
    progress.print(f"written: {report.write(scenario, body, verdicts)}")
    return True


SCENARIOS: dict[str, Callable[[str, int, bool], bool]] = {
    "keyed-count": keyed_count,
    "keyed-count-1m": keyed_count,
    "window-count": keyed_count,
    "sliding": keyed_count,
    "interval-join": keyed_count,
    "keyed-count-rocksdb": keyed_count,
    "keyed-count-rocksdb-4x": keyed_count,
    "empty-round": empty_round,
    "checkpoint": checkpoint,
    "memory": memory,
    "cold-start": cold_start,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="may be repeated; default: all")
    parser.add_argument("--repeat", type=int, help="repetitions (default 3, with --quick 1); memory runs once")
    parser.add_argument("--quick", action="store_true", help="small sizes: shows that it works, not how fast it is")
    args = parser.parse_args()
    repeat = args.repeat or (1 if args.quick else 3)
    # An end asked for from outside takes the same way out as an error, past the engines still running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Children inherit it: every engine gets the same two cores, also on a larger machine.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    complete = True
    for scenario in args.scenario or SCENARIOS:
        try:
            complete &= SCENARIOS[scenario](scenario, repeat, args.quick)
        except RunFailed as error:
            progress.print(f"[red]{scenario}: {error}", highlight=False)
            complete = False
    report.summary()
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
