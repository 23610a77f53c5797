"""Checkpoints and restores against the size of the state, by backend, without Spark: ``python bench/state_size.py``.

One subtask. A base of so many keys (a long and a text of 40 bytes each); then rounds that read and change 10,000 of them. Timed:
the snapshot of a round (what a checkpoint adds), a full checkpoint, and the first read on a host that has nothing (restore). Each
size and backend has a process of its own: the most memory that was resident in it is that of a worker without Spark.
Writes ``bench/results/state-size.json`` and ``docs/checkpoint-size.svg``.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.common.typeinfo import Types
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.rocksdb_options import RocksdbOptions
from tidegate.state.stores import StoreOptions, opener

HERE = Path(__file__).parent
GROUPS, CHANGED, ROUNDS, SETTLE, CACHE = 128, 10_000, 25, 4, 16 << 20
FILL = 250_000


class Figure:
    """CPU seconds of a step in its own thread and in all (RocksDB merges files in others), and wall seconds."""

    def __init__(self) -> None:
        self._measured: list[tuple[float, float, float]] = []

    def of(self, step: Callable[[], Any]) -> Any:
        before = _now()
        result = step()
        thread, cpu, wall = (end - start for start, end in zip(before, _now(), strict=True))
        self._measured.append((thread, cpu, wall))
        return result

    def shown(self, settle: int = 0) -> dict[str, float]:
        """Medians, without the first ones."""
        medians = [round(statistics.median(column), 4) for column in zip(*self._measured[settle:], strict=True)]
        return dict(zip(("thread_s", "cpu_s", "wall_s"), medians, strict=True))


class Resident:
    """The most memory that was resident in this process, step by step, in bytes."""

    def __init__(self) -> None:
        self.found: dict[str, int] = {}
        self.note("start")

    def note(self, step: str) -> None:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        self.found[step] = int(status["VmHWM"].split()[0]) << 10
        Path("/proc/self/clear_refs").write_text("5")  # the next step begins with what is resident now


def _now() -> tuple[float, float, float]:
    return time.thread_time(), time.process_time(), time.perf_counter()


def new_backend(directory: Path, name: str) -> KeyedBackend:
    return KeyedBackend(
        operator="op",
        operator_name="totals",
        groups=KeyGroupRange(0, GROUPS - 1),
        max_parallelism=GROUPS,
        key_type=Types.LONG(),
        local_path=str(directory / f"local-{name}-{new_token()}"),
        files=Files(str(directory / "storage")),
        open_store=opener(name, StoreOptions(rocksdb=RocksdbOptions(memory=CACHE))),
        cache_bytes=CACHE,
    )


def states(backend: KeyedBackend) -> tuple[Any, Any]:
    return (
        backend.state(ValueStateDescriptor("count", Types.LONG())),
        backend.state(ValueStateDescriptor("text", Types.STRING())),
    )


def change(backend: KeyedBackend, keys: list[int], number: int) -> None:
    count, text = states(backend)
    for start in range(0, len(keys), 4096):
        chunk = [backend.identity(key) for key in keys[start : start + 4096]]
        backend.prefetch(chunk)
        for key in chunk:
            backend.context.key = key
            count.update((count.value() or 0) + 1)
            text.update(f"{number:08d}" * 5)


def write(backend: KeyedBackend) -> StateFile:
    token = new_token()
    written = backend.write_segment(token, f"shared/{token}.seg")
    assert written is not None
    return written


def filled(directory: Path, keys: int) -> list[StateFile]:
    """A base of so many keys."""
    backend, files = new_backend(directory, "hashmap"), []
    for start in range(0, keys, FILL):
        backend.begin(files)
        change(backend, list(range(start, min(start + FILL, keys))), 0)
        files.append(write(backend))
        backend.end()
    backend.begin(files)
    base = backend.compact(files, (0, len(files)), f"shared/{new_token()}.base")
    backend.end()
    shutil.rmtree(backend._local_path)
    return [base]


def measured(directory: Path, name: str, keys: int, files: list[StateFile]) -> dict[str, Any]:
    backend, dice = new_backend(directory, name), random.Random(1)
    restore, snapshot, full = Figure(), Figure(), Figure()
    resident = Resident()
    restore.of(lambda: (backend.begin(files), backend._opened()))
    backend.end()
    resident.note("restore")
    sizes, accepted = [], list(files)
    for number in range(ROUNDS):
        backend.begin(accepted)
        change(backend, dice.sample(range(keys), CHANGED), number)
        segment = snapshot.of(lambda: write(backend))
        backend.end()
        sizes.append(segment.size)
        accepted.append(segment)
    resident.note("rounds")
    backend.begin(accepted)
    base = full.of(lambda: backend.compact(accepted, (0, len(accepted)), f"shared/{new_token()}.base"))
    backend.end()
    resident.note("full")
    local = Path(backend._local_path)
    stored = sum(file.stat().st_blocks * 512 for file in local.rglob("*") if file.is_file())
    shutil.rmtree(local)
    return {
        "backend": name,
        "keys": keys,
        "restore": restore.shown(),
        "incremental": {"bytes": int(statistics.median(sizes)), **snapshot.shown(SETTLE)},
        "full": {"bytes": base.size, **full.shown()},
        "local_bytes": stored,
        "resident_bytes": resident.found,
    }


def drawn(figures: list[dict[str, Any]]) -> str:
    """Milliseconds that a checkpoint takes over the number of keys, both axes logarithmic, as SVG."""
    from math import log10

    width, height, left, top = 640, 380, 70, 30
    points = [(f["keys"], f[kind]["wall_s"] * 1000) for f in figures for kind in ("incremental", "full")]
    xs, ys = [log10(x) for x, _ in points], [log10(max(y, 0.1)) for _, y in points]
    low, high = int(min(ys)) - (min(ys) < 0), int(max(ys)) + 1
    across = max(xs) - min(xs) or 1.0

    def place(keys: int, ms: float) -> tuple[float, float]:
        x = left + (log10(keys) - min(xs)) / across * (width - left - 170)
        return x, top + (high - log10(max(ms, 0.1))) / (high - low) * (height - top - 50)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<text x="{left}" y="18">What a checkpoint takes by the clock in which {CHANGED:,} keys changed</text>',
        f'<text x="{left}" y="{height - 8}">keys in the state of a subtask</text>',
    ]
    for power in range(low, high + 1):
        _, y = place(int(10 ** min(xs)), 10**power)
        parts.append(f'<line x1="{left}" x2="{width - 170}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 8}" y="{y + 4:.0f}" text-anchor="end">{10**power:g} ms</text>')
    for keys in sorted({f["keys"] for f in figures}):
        x, _ = place(keys, 1)
        parts.append(f'<text x="{x:.0f}" y="{height - 26}" text-anchor="middle">{keys:,}</text>')
    colours = {"hashmap": "#1f77b4", "rocksdb": "#d62728"}
    labels: list[float] = []
    for kind, dash in (("full", "6 4"), ("incremental", "")):
        for name, colour in colours.items():
            line = [place(f["keys"], f[kind]["wall_s"] * 1000) for f in figures if f["backend"] == name]
            path = " ".join(f"{x:.0f},{y:.0f}" for x, y in line)
            parts.append(
                f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-dasharray="{dash}"/>'
            )
            parts += [f'<circle cx="{x:.0f}" cy="{y:.0f}" r="3" fill="{colour}"/>' for x, y in line]
            level = line[-1][1]
            while any(abs(level - other) < 14 for other in labels):
                level += 14
            labels.append(level)
            parts.append(f'<text x="{line[-1][0] + 8:.0f}" y="{level + 4:.0f}" fill="{colour}">{name}, {kind}</text>')
    return "\n".join([*parts, "</svg>\n"])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--keys", type=int, nargs="+", default=[100_000, 1_000_000, 5_000_000])
    arguments.add_argument("--directory", default=None, help="where the files go; a temporary directory if not given")
    arguments.add_argument("--dry", action="store_true", help="write no result")
    given = arguments.parse_args()
    figures = []
    for keys in given.keys:
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            files = filled(Path(directory), keys)
            for name in ("hashmap", "rocksdb"):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:
                    figures.append(alone.submit(measured, Path(directory), name, keys, files).result())
                print(json.dumps(figures[-1]), flush=True)
    ratios = {}
    for name in ("hashmap", "rocksdb"):
        own = [figure["incremental"] for figure in figures if figure["backend"] == name]
        ratios[name] = {key: round(own[-1][key] / own[0][key], 3) for key in ("bytes", "thread_s", "cpu_s", "wall_s")}
    result = {
        "changed_keys": CHANGED,
        "cache_bytes": CACHE,
        "load": os.getloadavg(),
        "figures": figures,
        "incremental_largest_to_smallest": ratios,
    }
    print(json.dumps(ratios))
    if not given.dry:
        (HERE / "results" / "state-size.json").write_text(json.dumps(result, indent=1) + "\n")
        (HERE.parent / "docs" / "checkpoint-size.svg").write_text(drawn(figures))


if __name__ == "__main__":
    main()
