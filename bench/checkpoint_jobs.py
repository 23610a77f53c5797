"""Jobs that take checkpoints, one after the other in one process and session: prints a JSON line.

A turn is a job that reads without end until it has been watched for long enough, and is then cancelled. Rounds are clocked on the
driver, from the end of one to the end of a later one, so whatever holds them up between two counts; the start and the end of
the job do not.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import storages
import text_count
import tidegate_windows
from cpu_time import CpuTime
from paced import PacedSource, Watcher

from tidegate.base.errors import JobCancelledError
from tidegate.base.files import Files
from tidegate.checkpoint.history import CheckpointStatus, HistoryEntry, read_history
from tidegate.common import Configuration, Encoder, Time, Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import BucketAssigner, FileSink, RollingPolicy
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.window import TumblingEventTimeWindows

PARALLELISM = 2
KEYS = 100_000
NO_END = 2 * 10**12
JOB_ID = "bench"
BEHIND = ("commit", "subsume")
"""Steps after the end of a checkpoint in the history, which is that of step 7."""


def keyed_count(env: StreamExecutionEnvironment, home: Path) -> None:
    text_count.text_count(env, NumberSequenceSource(0, NO_END - 1), KEYS)


def window_count(env: StreamExecutionEnvironment, home: Path) -> None:
    windows = TumblingEventTimeWindows.of(Time.seconds(500))  # ten records of each key
    tidegate_windows.window_count(windows)(env, NumberSequenceSource(0, NO_END - 1), KEYS)


PROGRAMS = {"keyed-count": keyed_count, "window-count": window_count}


class Rounds:
    """What a job does from ``settle`` seconds after its first round on, for ``seconds``; then it is cancelled."""

    def __init__(self, client: Any, settle: float, seconds: float, used: CpuTime, directory: Path) -> None:
        self._client, self._settle, self._seconds, self._used, self._directory = (
            client,
            settle,
            seconds,
            used,
            directory,
        )
        self._begun: float | None = None
        self._from: tuple[float, float] | None = None
        self._until = (0.0, 0.0)
        self._records = self._rounds = 0
        self._gap = self._waited = self._last = 0.0
        self.files: list[int] = []
        self.calls: Counter[str] = Counter()
        self.window_ms = (0, 0)

    def ended(self, round: Any) -> None:
        now, self._begun = time.perf_counter(), self._begun or time.perf_counter()
        if self._from is None:
            storages.hurry(False)
            if now - self._begun >= self._settle:
                self._from, self._last = (now, self._used.seconds), now
                self.calls.subtract(storages.calls_noted())
                self.window_ms = (int(time.time() * 1000), 0)
            return
        self._records, self._rounds = self._records + round.records_in, self._rounds + 1
        gap, self._last = now - self._last - round.seconds, now
        self._gap, self._waited = max(self._gap, gap), self._waited + gap
        self._until = (now, self._used.seconds)
        if round.checkpoint_id is not None:
            self.files.append(sum(len(names) for _, _, names in os.walk(self._directory)))
        if now - self._from[0] >= self._seconds and not self.window_ms[1]:
            self.window_ms = (self.window_ms[0], int(time.time() * 1000))
            self.calls.update(storages.calls_noted())
            storages.hurry(True)
            self._client.cancel()

    def figures(self) -> dict[str, Any]:
        assert self._from is not None
        seconds, cpu = (until - since for until, since in zip(self._until, self._from, strict=True))
        return {
            "seconds": round(seconds, 2),
            "records": self._records,
            "rounds": self._rounds,
            "records_per_second": int(self._records / seconds),
            "records_per_cpu_second": int(self._records / max(cpu, 0.01)),
            "waited": round(self._waited / seconds, 4),
            "longest_wait_between_rounds": round(self._gap, 3),
        }


def throughput(turn: dict[str, Any], home: Path, used: CpuTime) -> dict[str, Any]:
    env = environment(turn, home)
    PROGRAMS[turn["program"]](env, home)
    client = env.execute_async(turn["name"])
    watched = Rounds(client, turn["settle"], turn["seconds"], used, home / "checkpoints" / JOB_ID)
    client.add_round_listener(watched.ended)
    until_cancelled(client)
    entries = history(home)
    figures = {**watched.figures(), **checkpoints(entries, watched.window_ms)}
    if storages.CALLS in os.environ:
        figures |= {"files": watched.files, "calls": watched.calls}
    return figures


def latency(turn: dict[str, Any], home: Path, used: CpuTime) -> dict[str, Any]:
    env = environment(turn, home)
    output = home / "output"
    output.mkdir()
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    sink = (
        FileSink.for_row_format(str(output), Encoder.simple_string_encoder())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .build()
    )
    source = PacedSource(turn["pace"])
    (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "paced", Types.LONG())
        .map(lambda n: (n % KEYS, n), output_type=pair)
        .key_by(lambda pair: pair[0], key_type=Types.LONG())
        .reduce(lambda one, other: (one[0], other[1]))
        .map(lambda pair: pair[1], output_type=Types.LONG())
        .sink_to(sink)
    )
    watcher = Watcher(str(output))
    client = env.execute_async(turn["name"])
    watched = Rounds(client, turn["settle"], turn["seconds"], used, home)
    client.add_round_listener(watched.ended)
    until_cancelled(client)
    since, until = (moment / 1000 for moment in watched.window_ms)
    # What is created last is not out yet when the job is cancelled: a longer wait would be cut off, and a shorter one not.
    until -= turn["tail"]
    taken = sorted(wait for created, wait in watcher.latencies(source) if since <= created < until)
    expected = int((until - since) * turn["pace"])
    figures = {
        "median_ms": round(statistics.median(taken) * 1000),
        "p99_ms": round(taken[int(len(taken) * 0.99)] * 1000),
        "seen": len(taken),
        "expected": expected,
        "rounds": watched.figures()["rounds"],
    }
    return {**figures, **checkpoints(history(home), watched.window_ms)}


def environment(turn: dict[str, Any], home: Path) -> StreamExecutionEnvironment:
    place = home / "checkpoints"
    scheme = turn.get("storage", "file")
    options = {"tidegate.job-id": JOB_ID, "execution.checkpointing.dir": f"{scheme}://{place}", **turn["options"]}
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(options))
    return env.set_parallelism(PARALLELISM)


def until_cancelled(client: Any) -> None:
    try:
        client.get_job_execution_result().result()
    except JobCancelledError:
        return
    raise RuntimeError("the job has ended by itself")


def history(home: Path) -> list[HistoryEntry]:
    return read_history(Files(str(home / "checkpoints" / JOB_ID)))


def checkpoints(entries: list[HistoryEntry], window_ms: tuple[int, int]) -> dict[str, Any]:
    """Of those that were stored in the window: how many, how long they took, how many at once, in which order; and how long after
    the end of the one before (step 9) they were triggered."""
    since, until = window_ms
    done = [entry for entry in entries if entry.status is CheckpointStatus.COMPLETED and entry.end_ms <= until]
    inside = [entry for entry in done if entry.end_ms >= since]
    failed = len([entry for entry in entries if entry.status is CheckpointStatus.FAILED and entry.trigger_ms < until])
    if not inside:
        return {"checkpoints": 0, "failed": failed}
    ends = [entry.end_ms for entry in sorted(done, key=lambda entry: entry.checkpoint_id)]
    over = {entry.checkpoint_id: entry.end_ms + sum(map(entry.steps_ms.get, BEHIND, (0.0, 0.0))) for entry in done}
    pauses = [later.trigger_ms - over[earlier.checkpoint_id] for earlier, later in pairwise(done)]
    return {
        "checkpoints": len(inside),
        "failed": failed,
        "checkpoint_median_ms": round(statistics.median(entry.duration_ms for entry in inside)),
        "checkpoint_longest_ms": round(max(entry.duration_ms for entry in inside)),
        "most_in_flight": max(sum(o.trigger_ms <= e.trigger_ms < over[o.checkpoint_id] for o in done) for e in inside),
        "in_order": ends == sorted(ends),
        "shortest_pause_ms": round(min(pauses)) if pauses else None,
        "median_bytes": int(statistics.median(entry.incremental for entry in inside)),
    }


KINDS = {"throughput": throughput, "latency": latency}


def main() -> None:
    given = json.loads(sys.argv[1])
    results: list[dict[str, Any]] = []
    begun, longest = time.perf_counter(), 0.0
    with CpuTime(os.getsid(0)) as used:
        for turns in given["turns"]:  # of a repetition
            started = time.perf_counter()
            if started - begun + longest > given["limit"]:
                break
            results += [take(turn, used) for turn in turns]
            longest = max(longest, time.perf_counter() - started)
    print(json.dumps({"results": results}))


def take(turn: dict[str, Any], used: CpuTime) -> dict[str, Any]:
    home = Path(tempfile.mkdtemp(prefix="bench-checkpoints-"))
    storages.hurry(True)  # until the first round has ended
    try:
        return {"name": turn["name"], **KINDS[turn["kind"]](turn, home, used)}
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
