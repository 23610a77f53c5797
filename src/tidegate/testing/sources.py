"""``TestSource``: records, watermarks and pauses, exactly where a test puts them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.base.errors import RestoreError
from tidegate.common import TypeInformation, WatermarkStrategy
from tidegate.common.watermark_strategy import WatermarkGenerator, WatermarkOutput
from tidegate.datastream import DataStream, StreamExecutionEnvironment
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.source import Source, SourcePlan, SplitEnumerator, SplitInterval, SplitReader
from tidegate.operators.loop.ownership import own

__all__ = ["At", "Pause", "TestSource", "Watermark"]


@dataclass(frozen=True)
class At:
    """A record with an event time."""

    timestamp: int
    value: Any


@dataclass(frozen=True)
class Watermark:
    """Event time advances to this time, at all subtasks downstream, before the next record is emitted."""

    timestamp: int


@dataclass(frozen=True)
class Pause:
    """The next record is available so many milliseconds after the source has reached the pause: in a later round."""

    ms: int


class TestSource(Source):
    """Emit records, watermarks and pauses in their order, from one subtask. Then end the input.

    ``TestSource([At(10, "a"), Watermark(20), Pause(50), At(5, "late")]).stream(env)``. A step that is none of these classes is a
    record without an event time.
    """

    __test__ = False  # it is no test, whatever pytest thinks of its name

    def __init__(self, steps: Iterable[Any]) -> None:
        if isinstance(steps, str | bytes | dict) or not isinstance(steps, Iterable):
            raise wrong("TestSource", "a list of steps", steps, 'TestSource([At(10, "a"), Watermark(20)])')
        self.steps = list(steps)

    def stream(
        self, env: StreamExecutionEnvironment, type_info: TypeInformation | None = None, *, name: str = "test source"
    ) -> DataStream:
        """Return the stream of the records, with the source's watermarks."""
        strategy = WatermarkStrategy.for_generator(_Marks)
        source = env.from_source(self, strategy, name).set_parallelism(1)
        return source.flat_map(_records, type_info).set_parallelism(1).name(f"{name}: records")

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        if restored is not None and restored["steps"] != len(self.steps):
            raise RestoreError(
                "The steps of a test source are not the steps it started with",
                where="TestSource",
                found=f"{len(self.steps)} steps now, {restored['steps']} in the checkpoint",
                cure="restore with the same steps, or give the source another uid",
            )
        return _StepEnumerator(self.steps, 0 if restored is None else restored["position"])

    def create_reader(self, subtask: int) -> SplitReader:
        return _StepReader(self.steps)


class _StepEnumerator(SplitEnumerator):
    def __init__(self, steps: list[Any], position: int) -> None:
        self._steps, self._position = steps, position
        self._until: int | None = None
        """When the pause at the position ends."""

    def plan(self, limit: int, now_ms: int) -> SourcePlan:
        start, steps = self._position, self._steps
        while self._position < len(steps) and self._position - start < max(1, limit):
            step = steps[self._position]
            if isinstance(step, Pause):
                if self._until is None:
                    self._until = now_ms + step.ms
                if now_ms < self._until or self._position > start:
                    break
                self._until = None
            self._position += 1
        over = self._position == len(steps)
        interval = SplitInterval("0", 0, start, self._position, self._position - start, last=over)
        waits = self._until is not None and now_ms < self._until
        backlog = not over and not waits
        return SourcePlan([interval], backlog=backlog, wake_up_ms=self._until if waits else None, finished=over)

    def snapshot(self) -> Any:
        return {"steps": len(self._steps), "position": self._position}


class _StepReader(SplitReader):
    interleaves = True

    def __init__(self, steps: list[Any]) -> None:
        self._steps = steps

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        for step in self._steps[interval.start : interval.end]:
            if isinstance(step, At):
                yield Batch([own(step)], [step.timestamp])
            elif not isinstance(step, Pause):
                yield Batch([own(step)])


class _Marks(WatermarkGenerator):
    """Emit the watermarks among the steps."""

    def on_event(self, event: Any, event_timestamp: int, output: WatermarkOutput) -> None:
        if isinstance(event, Watermark):
            output.emit_watermark(event.timestamp)

    def on_periodic_emit(self, output: WatermarkOutput) -> None:
        """Emit nothing: only steps move event time."""


def _records(step: Any) -> list[Any]:
    if isinstance(step, Watermark):
        return []
    return [step.value if isinstance(step, At) else step]
