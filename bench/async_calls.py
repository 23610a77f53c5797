"""Asynchronous calls: 10,000 of ``asyncio.sleep(0.01)``, 1,000 at once, as an operator's subtask makes them.

python bench/async_calls.py

Ten waves of 10 ms are the least possible: 0.1 s.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tidegate.datastream import AsyncFunction
from tidegate.operators.kinds.async_io import AsyncCall, AsyncCalls

CALLS, CAPACITY, BATCH = 10_000, 1_000, 500


class Waits(AsyncFunction):
    async def async_invoke(self, value: Any) -> list[Any]:
        await asyncio.sleep(0.01)
        return [value]


def once() -> tuple[float, float]:
    """Wall and CPU seconds."""
    done: list[AsyncCall] = []
    wall, cpu = time.perf_counter(), time.process_time()
    calls = AsyncCalls(Waits(), None, 10_000, CAPACITY, done.append)
    for start in range(0, CALLS, BATCH):
        calls.submit([AsyncCall(n, None, None) for n in range(start, start + BATCH)])
    calls.drain()
    assert len(done) == CALLS and calls.error is None
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    runs = sorted(once() for _ in range(7))
    wall, cpu = runs[len(runs) // 2]
    print(f"{CALLS} calls, {CAPACITY} at once: {wall:.2f} s, {cpu:.2f} s of CPU, {cpu / CALLS * 1e6:.0f} us a call")


if __name__ == "__main__":
    main()
