"""Micro-benchmark of the state room: us per operation, the best of several rounds. Run: python bench/micro_state.py [keys]"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from tidegate.base.files import Files
from tidegate.common.typeinfo import Types
from tidegate.state.backend import KeyedBackend
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.state.key_groups import group_of, range_for
from tidegate.state.local_dir import choose_root
from tidegate.state.refs import StateFile
from tidegate.state.stores import opener

ROUNDS = 7
CHUNK = 4096


def timed(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = work()
    return time.process_time() - start, result


def show(label: str, seconds: list[float], count: int) -> None:
    print(f"{label:<44} {min(seconds) / count * 1e6:8.3f} us")


class Bench:
    """One subtask of two, with every key of a range, in rounds of ``records`` records."""

    def __init__(self, keys: int, cache_bytes: int) -> None:
        self.local = tempfile.mkdtemp(dir=choose_root())
        self.storage = tempfile.mkdtemp(dir=choose_root())
        self.groups = range_for(0, 2, 128)
        self.keys = [key for key in range(keys) if group_of(key, 128) in self.groups]
        self.backend = KeyedBackend(
            operator="bench",
            operator_name="bench",
            groups=self.groups,
            max_parallelism=128,
            key_type=None,
            local_path=self.local,
            files=Files(self.storage),
            open_store=opener(),
            cache_bytes=cache_bytes,
        )
        self.state = self.backend.state(ValueStateDescriptor("count", Types.LONG()))
        self.list: list[StateFile] = []
        self.number = 0

    def close(self) -> None:
        shutil.rmtree(self.local)
        shutil.rmtree(self.storage)

    def count(self, keys: list[int]) -> None:
        context, state = self.backend.context, self.state
        for key in keys:
            context.slot = key
            value = state.value()
            state.update(1 if value is None else value + 1)

    def count_prefetched(self, keys: list[int]) -> None:
        for start in range(0, len(keys), CHUNK):
            chunk = keys[start : start + CHUNK]
            self.backend.prefetch(chunk)
            self.count(chunk)

    def write(self) -> None:
        self.number += 1
        written = self.backend.write_segment(f"v{self.number}", f"shared/{self.number}")
        self.backend.end()
        if written is not None:
            self.list.append(written)

    def begin(self) -> None:
        self.backend.begin(self.list)


def loop_only(bench: Bench) -> float:
    def loop() -> None:
        context = bench.backend.context
        for key in keys:
            context.slot = key

    keys = bench.keys[:10_000]
    return min(timed(loop)[0] for _ in range(ROUNDS)) / len(keys)


def hits(bench: Bench) -> None:
    keys = bench.keys[:10_000]
    bench.begin()
    bench.count(keys)
    empty = loop_only(bench) * len(keys)
    show("value() + update(), hit", [timed(lambda: bench.count(keys))[0] - empty for _ in range(3 * ROUNDS)], len(keys))
    context, state = bench.backend.context, bench.state

    def read() -> None:
        for key in keys:
            context.slot = key
            state.value()

    show("value(), hit", [timed(read)[0] - empty for _ in range(3 * ROUNDS)], len(keys))
    bench.write()


def misses(bench: Bench, label: str, per_round: int, work: Callable[[list[int]], None]) -> None:
    touch, flush, apply, total = [], [], [], []
    for number in range(ROUNDS):
        start = number * per_round % len(bench.keys)
        keys = (bench.keys + bench.keys)[start : start + per_round]
        begun, _ = timed(bench.begin)
        touched, _ = timed(lambda keys=keys: work(keys))
        flushed, _ = timed(bench.write)
        if number:  # the first round has nothing to apply
            touch.append(touched), flush.append(flushed), apply.append(begun)
            total.append(begun + touched + flushed)
    for part, seconds in (("value+update", touch), ("flush+segment", flush), ("apply", apply), ("total", total)):
        show(f"{label}: {part}", seconds, per_round)


def main() -> None:
    keys = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    for cached in (0, 512 << 20):
        bench = Bench(keys, cached)
        print(f"-- {len(bench.keys)} keys in the subtask, caches of {cached >> 20} MiB")
        bench.begin()
        fill, _ = timed(lambda bench=bench: bench.count(bench.keys))
        show("fill: miss of nothing", [fill], len(bench.keys))
        show("fill: flush+segment", [timed(bench.write)[0]], len(bench.keys))
        show("fill: apply", [timed(bench.begin)[0]], len(bench.keys))
        bench.backend.end()
        hits(bench)
        per_round = min(100_000, len(bench.keys))
        misses(bench, "miss", per_round, bench.count)
        misses(bench, "miss, prefetched", per_round, bench.count_prefetched)
        bench.begin()
        start = len(bench.list)
        show(
            "base: dump",
            [timed(lambda b=bench, n=start: b.backend.compact(b.list, (0, n), "base"))[0]],
            len(bench.keys),
        )
        bench.backend.end()
        empty = []
        for _ in range(50):
            empty.append(timed(lambda bench=bench: (bench.begin(), bench.count(bench.keys[:1]), bench.write()))[0])
        print(f"a round of one record{'':<23} {sorted(empty)[len(empty) // 2] * 1e3:8.3f} ms")
        bench.close()


if __name__ == "__main__":
    main()
