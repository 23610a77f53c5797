"""What checkpoints cost, and what they wait for: ``python bench/checkpoints.py [--scenario NAME ...] [--repeat N] [--quick]``.

Every scenario is one process and one Spark session (``checkpoint_jobs.py``): jobs take turns in it, forth and back, after one that
does not count. Figures are medians over the turns. See bench/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import report
import storages
from engines import BENCH, RunFailed, run_program
from report import Verdict
from run import progress

PREFIX = "execution.checkpointing."
INTERVAL: dict[str, Any] = {PREFIX + "interval": "1 s"}
ROCKSDB: dict[str, Any] = {"state.backend.type": "rocksdb"}
Results = dict[str, list[dict[str, Any]]]


@dataclass(frozen=True)
class Length:
    """Of every turn: seconds until it counts, and seconds that count. ``limit``: no further repetition begins that would go
    beyond so many seconds of all."""

    repeat: int
    settle: float
    seconds: float
    limit: float = float("inf")


def run(turns: list[dict[str, Any]], length: Length, **environment: str) -> Results:
    """``turns`` forth and back, ``repeat`` times in all, after a job for the JVM's sake. By name."""
    times = {"settle": length.settle, "seconds": length.seconds}
    forth = [{**times, **turn} for turn in turns]
    order = [[{**forth[0], "name": "warm-up"}]]
    order += [forth if repetition % 2 == 0 else forth[::-1] for repetition in range(length.repeat)]
    before = dict(os.environ)
    os.environ.update({"TIDEGATE_FAULT_HOOK": "storages:no_fault", **environment})
    try:
        done = run_program(
            [
                sys.executable,
                str(BENCH / "checkpoint_jobs.py"),
                json.dumps({"turns": order, "limit": min(length.limit, 10_000)}),
            ]
        )["results"]
    finally:
        os.environ.clear()
        os.environ.update(before)
    results: Results = {}
    for result in done[1:]:
        results.setdefault(result["name"], []).append(result)
    return results


def median(results: Results, name: str, field: str) -> float:
    return float(statistics.median(result[field] for result in results[name]))


def throughput(
    name: str, options: dict[str, Any], *, program: str = "keyed-count", storage: str = "file"
) -> dict[str, Any]:
    return {"name": name, "kind": "throughput", "program": program, "storage": storage, "options": options}


def pace_row(results: Results, name: str, against: str) -> list[str]:
    def middle(field: str) -> float:
        return median(results, name, field)

    paces = [result["records_per_second"] for result in results[name]]
    number, took = middle("checkpoints"), ""
    if number:
        took = f"{middle('checkpoint_median_ms') / 1000:.2f} s"
    return [
        name,
        f"{middle('records_per_second'):,.0f}",
        f"{min(paces):,} to {max(paces):,}",
        f"{middle('records_per_second') / median(results, against, 'records_per_second'):.2f}",
        f"{middle('records_per_cpu_second') / median(results, against, 'records_per_cpu_second'):.2f}",
        f"{number:.0f}",
        took,
        f"{middle('waited') * 100:.1f} %",
    ]


PACE_HEAD = ["", "records/s", "slowest to fastest", "ratio", "by CPU time", "checkpoints", "one took"]
PACE_HEAD += ["no round was running"]


def pace_verdict(results: Results, name: str, against: str, target: float) -> Verdict:
    ratio = median(results, name, "records_per_second") / median(results, against, "records_per_second")
    return Verdict(f"{name} / {against}", ratio, target)


def each_second(scenario: str, length: Length) -> None:
    """A checkpoint each second against none."""
    pairs: dict[str, tuple[str, dict[str, Any]]] = {
        "keyed count, hashmap": ("keyed-count", {}),
        "window count, hashmap": ("window-count", {}),
        "keyed count, rocksdb": ("keyed-count", ROCKSDB),
    }
    turns = []
    for label, (program, options) in pairs.items():
        turns.append(throughput(f"{label}, none", options, program=program))
        turns.append(throughput(f"{label}, one each second", options | INTERVAL, program=program))
    results = run(turns, length)
    names = [(f"{label}, one each second", f"{label}, none") for label in pairs]
    rows = [pace_row(results, name, without) for with_, without in names for name in (without, with_)]
    verdicts = [pace_verdict(results, with_, without, 0.85) for with_, without in names]
    finish(scenario, "100,000 text keys, checkpoints or none", PACE_HEAD, rows, verdicts, length, results)


def slow_storage(scenario: str, length: Length) -> None:
    """State files are stored behind the rounds, as is the default for remote storage."""
    normal, file, call = "storage as quick as the disk", "2 s for every file", "50 ms for every call"
    turns = [
        throughput(normal, INTERVAL, storage="bench"),
        throughput(file, INTERVAL, storage="slowfile"),
        throughput(call, INTERVAL, storage="slowcall"),
    ]
    results = run(turns, length)
    rows = [pace_row(results, turn["name"], normal) for turn in turns]
    verdicts = [pace_verdict(results, slow, normal, 0.8) for slow in (file, call)]
    finish(scenario, "keyed count, a checkpoint a second, slow storage", PACE_HEAD, rows, verdicts, length, results)


def in_flight(scenario: str, length: Length) -> None:
    """Several checkpoints at once, and a pause between them. Once: the history shows it, not the clock."""
    length = replace(length, repeat=1)
    one, four, pause = "one at a time", "up to four", "a pause of 3 s"
    turns = [
        throughput(one, INTERVAL, storage="slowfile"),
        throughput(four, INTERVAL | {PREFIX + "max-concurrent-checkpoints": 4}, storage="slowfile"),
        throughput(pause, INTERVAL | {PREFIX + "min-pause": "3 s"}, storage="slowfile"),
    ]
    results = run(turns, length)
    head = ["checkpoints", "completed", "one took", "most in flight", "completed in order"]
    head += ["shortest from the end of one (step 9) to the trigger of the next"]
    rows = []
    for turn in turns:
        [result] = results[turn["name"]]
        pause_ms = result["shortest_pause_ms"]
        rows.append(
            [
                turn["name"],
                f"{result['checkpoints']}",
                f"{result['checkpoint_median_ms'] / 1000:.1f} s",
                f"{result['most_in_flight']}",
                "yes" if result["in_order"] else "no",
                f"{pause_ms / 1000:.2f} s" if pause_ms is not None and turn["name"] != four else "",
            ]
        )
    most = max(result["most_in_flight"] for result in results[four])
    verdicts = [
        Verdict("most in flight, of four allowed", most, 4),
        Verdict("most in flight, of four allowed, and no more", most, 4, at_least=False),
        Verdict("shortest pause, ms", results[pause][0]["shortest_pause_ms"], 3000),
    ]
    finish(scenario, "checkpoints in flight, 2 s for every file", head, rows, verdicts, length, results)


def latency(scenario: str, length: Length) -> None:
    """From the moment a record is there until its file is seen."""
    turns: list[dict[str, Any]] = []
    for interval, tail in ((1, 3), (5, 8)):
        for mode in ("EXACTLY_ONCE", "AT_LEAST_ONCE"):
            options = {PREFIX + "interval": f"{interval} s", PREFIX + "mode": mode}
            name = f"{mode}, {interval} s"
            extent = {"pace": 1000, "tail": tail, "seconds": length.seconds + tail}
            turns.append({"name": name, "kind": "latency", "options": options, "storage": "file", **extent})
    results = run(turns, length)
    rows, verdicts = [], []
    for turn in turns:
        name = turn["name"]
        seen = sum(result["seen"] for result in results[name]) / sum(result["expected"] for result in results[name])
        middle = [median(results, name, field) for field in ("median_ms", "p99_ms", "rounds")]
        rows.append([name, *(f"{figure:,.0f}" for figure in middle), f"{seen:.3f}"])
    for interval in (1, 5):
        at_least, exactly = (f"{mode}, {interval} s" for mode in ("AT_LEAST_ONCE", "EXACTLY_ONCE"))
        ratio = median(results, at_least, "median_ms") / median(results, exactly, "median_ms")
        verdicts.append(Verdict(f"median of at-least-once / exactly-once, {interval} s", ratio, 1.0, at_least=False))
    head = ["mode, interval", "median, ms", "99 %, ms", "rounds", "records seen / created"]
    finish(scenario, "source to committed file, 1,000 records/s", head, rows, verdicts, length, results)


def files_and_calls(scenario: str, length: Length) -> None:
    """Many checkpoints in a row; every call of every process on storage is noted, and the files are counted after each."""
    often = {PREFIX + "interval": "100 ms", "tidegate.round.target-time": "100 ms"}
    rows, verdicts = [], []
    everything: Results = {}
    for upload in ("behind", "with-round"):
        with tempfile.TemporaryDirectory(prefix="bench-calls-") as directory:
            turn = throughput(upload, often | {"tidegate.state.upload": upload}, storage="bench")
            once = Length(1, 0.0, length.seconds * length.repeat * 4)
            [result] = run([turn], once, **{storages.CALLS: directory})[upload]
        files: list[int] = result["files"]
        calls: Counter[str] = Counter(result["calls"])
        number = len(files)
        half = len(files) // 2
        per_kind = {kind: round(count / number, 2) for kind, count in calls.most_common()}
        rows.append(
            [
                upload,
                f"{len(files)}",
                f"{sum(calls.values()) / number:.1f}",
                f"{statistics.median(files[half:]):.0f}",
                f"{max(files[:half])}",
                f"{max(files[half:])}",
            ]
        )
        verdicts.append(
            Verdict(
                f"{upload}: most files, second half / first half", max(files[half:]) / max(files[:half]), 1.25, False
            )
        )
        everything[upload] = [{**result, "calls_per_checkpoint": per_kind}]
        progress.print(f"{upload}: {per_kind}", highlight=False)
    head = ["state files are stored", "checkpoints", "calls of storage each", "files there, median"]
    head += ["most in the first half", "most in the second half"]
    finish(scenario, "files and calls of a checkpoint", head, rows, verdicts, length, everything)


def finish(
    scenario: str,
    title: str,
    head: list[str],
    rows: list[list[str]],
    verdicts: list[Verdict],
    length: Length,
    results: Results,
) -> None:
    report.show(f"{scenario}: {title}", head, rows, verdicts, [])
    body = {
        "repeat": max(map(len, results.values())),
        "settle": length.settle,
        "seconds": length.seconds,
        "runs": results,
    }
    progress.print(f"written: {report.write(scenario, body, verdicts)}")


SCENARIOS: dict[str, tuple[Callable[[str, Length], None], Length, Length]] = {
    "checkpoint-each-second": (each_second, Length(3, 3, 7), Length(1, 2, 3)),
    "slow-storage": (slow_storage, Length(3, 4, 10), Length(1, 4, 6)),
    "checkpoints-in-flight": (in_flight, Length(1, 8, 40), Length(1, 2, 25)),
    "at-least-once-latency": (latency, Length(2, 3, 8), Length(1, 3, 4)),
    "checkpoint-files": (files_and_calls, Length(1, 0, 15), Length(1, 0, 3)),
}
"""With the lengths of a whole and of a quick run."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS), help="may be repeated; default: all")
    parser.add_argument("--repeat", type=int, help="turns of each job")
    parser.add_argument("--limit", type=float, help="seconds of each scenario: fewer turns if it would take longer")
    parser.add_argument("--quick", action="store_true", help="short turns: shows that it works, not how fast it is")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    complete = True
    for scenario in args.scenario or SCENARIOS:
        act, whole, quick = SCENARIOS[scenario]
        length = quick if args.quick else whole
        length = replace(length, repeat=args.repeat or length.repeat, limit=args.limit or length.limit)
        try:
            act(scenario, length)
        except RunFailed as error:
            progress.print(f"[red]{scenario}: {error}", highlight=False)
            complete = False
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
