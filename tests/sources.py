"""Scripted sources: they emit, pause, fail and end where a test says so."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.operators.contracts.source import (
    Batch,
    Boundedness,
    Source,
    SourcePlan,
    SplitEnumerator,
    SplitInterval,
    SplitReader,
)


class ScriptedFailure(Exception):
    """Raised by a ``Fail`` step."""


@dataclass(frozen=True)
class Fail:
    """The reader raises here ``times`` times over the whole test, in whatever process: it counts with files in
    ``directory``.
    """

    directory: str
    times: int = 1
    name: str = "fail"

    def fires(self) -> bool:
        os.makedirs(self.directory, exist_ok=True)
        for count in range(self.times):
            try:
                os.close(os.open(f"{self.directory}/{self.name}-{count}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return True
        return False


@dataclass(frozen=True)
class Pause:
    """Nothing after this step is available until so many milliseconds after the enumerator reached it."""

    ms: int


@dataclass(frozen=True)
class At:
    """A value with an event timestamp."""

    timestamp: int
    value: Any


Step = Any
"""A ``Fail``, a ``Pause``, an ``At`` or a plain value."""


class ScriptedSource(Source):
    """One split for each script. All values of the scripts, in order per split; unbounded if it is not to end."""

    def __init__(self, *scripts: list[Step], ends: bool = True) -> None:
        self.scripts, self.ends = scripts, ends
        self.boundedness = Boundedness.BOUNDED if ends else Boundedness.CONTINUOUS_UNBOUNDED

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        return _ScriptEnumerator(self.scripts, self.ends, parallelism, restored or [0] * len(self.scripts))

    def create_reader(self, subtask: int) -> SplitReader:
        return _ScriptReader(self.scripts)


class _ScriptEnumerator(SplitEnumerator):
    def __init__(self, scripts: tuple[list[Step], ...], ends: bool, parallelism: int, positions: list[int]) -> None:
        self._scripts, self._ends, self._parallelism = scripts, ends, parallelism
        self._positions = list(positions)
        self._paused_until: dict[int, int] = {}
        self._held: frozenset[str] = frozenset()

    can_hold = True

    def hold(self, splits: frozenset[str]) -> None:
        self._held = splits

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        share = max(1, limit // max(1, len(self._scripts)))
        free = [split for split in range(len(self._scripts)) if str(split) not in self._held]
        intervals = [part for split in free if (part := self._take(split, share, now_ms))]
        open_splits = [s for s, script in enumerate(self._scripts) if self._positions[s] < len(script)]
        waiting = [self._paused_until[s] for s in open_splits if s in self._paused_until]
        return SourcePlan(
            intervals,
            backlog=len(waiting) < len(open_splits),
            wake_up_ms=min(waiting, default=None),
            finished=self._ends and not open_splits,
        )

    def _take(self, split: int, share: int, now_ms: int) -> SplitInterval | None:
        script, start = self._scripts[split], self._positions[split]
        end = start
        while end < len(script) and end - start < share and not self._pauses(split, script[end], now_ms):
            end += 1
        if end < len(script):
            self._pauses(split, script[end], now_ms)  # the clock of a pause runs from when it is next
        self._positions[split] = end
        last = self._ends and end == len(script)
        units = end - start
        return SplitInterval(str(split), split % self._parallelism, start, end, units, last) if units else None

    def _pauses(self, split: int, step: Step, now_ms: int) -> bool:
        if isinstance(step, Pause) and now_ms < self._paused_until.setdefault(split, now_ms + step.ms):
            return True
        self._paused_until.pop(split, None)
        return False

    def snapshot(self) -> Any:
        return list(self._positions)


class _ScriptReader(SplitReader):
    interleaves = True

    def __init__(self, scripts: tuple[list[Step], ...]) -> None:
        self._scripts = scripts

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        """One record a batch: a test of failures wants to fail between any two."""
        for step in self._scripts[int(interval.split)][interval.start : interval.end]:
            if isinstance(step, Fail):
                if step.fires():
                    raise ScriptedFailure(step.name)
            elif isinstance(step, At):
                yield Batch([step.value], [step.timestamp])
            elif not isinstance(step, Pause):
                yield Batch([step])
