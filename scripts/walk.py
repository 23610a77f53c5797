"""Walk one record and one checkpoint through the simulated engine, and print the files that they pass, in order.

A record passes a function that is called with it or returns it, alone or in a batch. A checkpoint passes a function of the
driver that is called with its id or with an object of this id, or returns one. Methods of ``Batch`` and of ``Checkpoint``
themselves are no stops, and calls in one file, one after the other, are one stop. ARCHITECTURE.md has the present numbers.

    .venv/bin/python -m scripts.walk
"""

from __future__ import annotations

import sys
import tempfile
import threading
from dataclasses import dataclass, field
from inspect import CO_GENERATOR
from pathlib import Path
from types import FrameType
from typing import Any

from tests.simulation.executor import SimulatedExecutor
from tidegate.checkpoint.lease import Lease
from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment, executor
from tidegate.datastream.connectors.file_system import FileSink, FileSource, StreamFormat
from tidegate.datastream.state import ValueStateDescriptor
from tidegate.testing.simulation.engine import SimulatedEngine

SOURCE = str(Path(__file__).resolve().parents[1] / "src" / "tidegate") + "/"
ENGINE = "testing/"
"""The simulated engine stands in for Spark, and is no stop."""
RECORD = "walker"
CHECKPOINT = 7654321
_BATCHES = ("Batch", "ColumnBatch")
_DEEPEST = 5
_THEMSELVES = ("operators/contracts/batch.py", "checkpoint/checkpoint.py")


class Count(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self.count.update((self.count.value() or 0) + 1)
        yield value


def is_record(value: Any, depth: int = 0) -> bool:
    """Whether the value is the record, or a batch, chunk or row of a shuffle with the record in it."""
    if isinstance(value, str):
        return RECORD in value
    if isinstance(value, (bytes, bytearray)):
        return RECORD.encode() in value
    if depth >= _DEEPEST:
        return False
    if isinstance(value, (list, tuple)) and len(value) < 100:
        return any(is_record(each, depth + 1) for each in value)
    if isinstance(value, dict) and len(value) < 100:
        return any(is_record(each, depth + 1) for each in value.values())
    if type(value).__name__ in _BATCHES:
        names = getattr(value, "__slots__", ()) or vars(value)
        return any(is_record(getattr(value, name, None), depth + 1) for name in names)
    return False


def is_checkpoint(value: Any, depth: int = 0) -> bool:
    """Whether the value is the checkpoint's id, an object with this id, or a collection with one."""
    if isinstance(value, int):
        return value == CHECKPOINT
    if isinstance(value, (list, tuple)) and len(value) < 20:
        return depth < 1 and any(is_checkpoint(each, depth + 1) for each in value)
    found = getattr(value, "__dict__", None) or {}
    return CHECKPOINT in (found.get("checkpoint_id"), found.get("id"))


@dataclass
class Walk:
    """The stops of one thing, in order."""

    stops: list[str] = field(default_factory=list)

    def passes(self, file: str) -> None:
        if not self.stops or self.stops[-1] != file:
            self.stops.append(file)

    @property
    def files(self) -> int:
        return len(set(self.stops))

    def __str__(self) -> str:
        return f"{len(self.stops)} stops, {self.files} files\n  " + "\n  ".join(self.stops)


class Walker:
    """A profiler that looks at every call and return of a function of Tidegate."""

    def __init__(self) -> None:
        self.record = Walk()
        self.checkpoint = Walk()
        self._rounds = 0
        self._in_tasks = 0
        self._begun: set[FrameType] = set()

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if code is SimulatedEngine.run.__code__:
            self._in_tasks += {"call": 1, "return": -1}.get(event, 0)
            self._rounds += event == "call"
        if event not in ("call", "return") or not (code.co_filename.startswith(SOURCE) or code.co_filename[0] == "<"):
            return
        file = code.co_filename.removeprefix(SOURCE)
        if file in _THEMSELVES or file.startswith(("<frozen", "<string", ENGINE)):
            return
        if event == "call" and code.co_flags & CO_GENERATOR:
            if frame in self._begun:
                return  # a generator continues
            self._begun.add(frame)
        names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        seen = [argument] if event == "return" else [frame.f_locals.get(name) for name in names]
        if self._rounds and any(map(is_record, seen)):
            self.record.passes(file)
        if not self._in_tasks and any(map(is_checkpoint, seen)):
            self.checkpoint.passes(file)


def run(place: Path, walker: Walker) -> None:
    """Run a job from a file to a file with one record and one checkpoint."""
    (place / "in").mkdir()
    (place / "in" / "part").write_text(f"{RECORD},k\n")
    executor.register_executor("walk", SimulatedExecutor)
    keys = {
        "execution.target": "walk",
        "execution.checkpointing.dir": str(place / "checkpoints"),
        "execution.checkpointing.interval": 60000,
        "tidegate.state.local-dir": str(place / "local"),
        "parallelism.default": 1,
    }
    env = StreamExecutionEnvironment(Configuration.from_dict(keys))
    lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(place / "in")).build()
    sink = FileSink.for_row_format(str(place / "out"), Encoder.simple_string_encoder()).build()
    stream = env.from_source(lines, WatermarkStrategy.no_watermarks(), "lines").map(lambda line: line, Types.STRING())
    stream.key_by(lambda line: line[-1], Types.STRING()).process(Count(), Types.STRING()).sink_to(sink)
    take_id = Lease.take_id
    Lease.take_id = lambda self, at_least=1, **more: take_id(self, max(at_least, CHECKPOINT), **more)  # type: ignore
    threading.setprofile(walker)
    sys.setprofile(walker)
    try:
        env.execute("walk")
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        Lease.take_id = take_id  # type: ignore[method-assign]


def main() -> None:
    walker = Walker()
    with tempfile.TemporaryDirectory() as place:
        run(Path(place), walker)
    print(f"record: {walker.record}\n\ncheckpoint: {walker.checkpoint}")


if __name__ == "__main__":
    main()
