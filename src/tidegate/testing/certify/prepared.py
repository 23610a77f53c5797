"""Prepare a user's program: recorded samples in place of its sources, recorders in place of its sinks.

Nothing outside is touched: no sink of the program is ever called, and a source is read only if it is a list, a sequence or a
local file.
"""

from __future__ import annotations

import datetime
import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.common import options
from tidegate.common.conversion import collection_converter
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.connectors.values.sinks import CollectSink, DiscardingSink, PrintSink
from tidegate.graph.plan import JobGraph, build
from tidegate.graph.transformation import Program, Role, Transformation
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.operators.contracts.source import Batch, Boundedness, SplitInterval, SplitReader
from tidegate.operators.loop.ownership import own
from tidegate.runtime.guarantee import GeneratedIds
from tidegate.testing.sources import TestSource

_OF_PEOPLE = (PrintSink, CollectSink, DiscardingSink)
"""Sinks of which no reader asks for exactly one copy of a record."""


# -- what comes out ------------------------------------------------------------------------------------------------------


@dataclass
class World:
    """What readers of the sinks see, over all lives of a job. ``staged`` is invisible."""

    visible: dict[str, list[Any]] = field(default_factory=dict)
    staged: dict[str, tuple[str, list[Any]]] = field(default_factory=dict)

    def outcome(self) -> dict[str, Counter[str]]:
        return {sink: Counter(map(canonical, values)) for sink, values in self.visible.items()}


worlds: dict[str, World] = {}


class RecordingSink(Sink):
    """Write to a ``World`` in place of a sink of the program, and promise what that sink promises."""

    def __init__(self, world: str, name: str, replaced: Sink) -> None:
        self.world, self.name = world, name
        careless = replaced.guarantee in (SinkGuarantee.NONE, SinkGuarantee.BEST_EFFORT)
        self.at_once = replaced.guarantee is SinkGuarantee.IDEMPOTENT or (
            careless and not isinstance(replaced, _OF_PEOPLE)
        )
        self.guarantee = replaced.guarantee if self.at_once else SinkGuarantee.TWO_PHASE_COMMIT
        self.publication = Publication.ROUND if self.at_once else Publication.CHECKPOINT

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _RecordingWriter(self, context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _RecordingCommitter(worlds[self.world])


class _RecordingWriter(SinkWriter):
    def __init__(self, sink: RecordingSink, context: WriterContext) -> None:
        self._sink, self._world, self._page = sink, worlds[sink.world], f"{sink.name}/{context.attempt}"
        self._values: list[Any] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        mine = [own(value) for value in values]
        if self._sink.at_once:
            self._world.visible.setdefault(self._sink.name, []).extend(mine)
        else:
            self._values += mine

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._values:
            return Prepared()
        self._world.staged[self._page] = self._sink.name, self._values
        return Prepared([self._page])

    def abort(self) -> None:
        self._world.staged.pop(self._page, None)


class _RecordingCommitter(Committer):
    def __init__(self, world: World) -> None:
        self._world = world

    def commit(self, committables: list[Any]) -> None:
        for page in committables:
            sink, values = self._world.staged.pop(page, ("", []))
            if values:
                self._world.visible.setdefault(sink, []).extend(values)

    def abort(self, committables: list[Any]) -> None:
        for page in committables:
            self._world.staged.pop(page, None)


def canonical(value: Any) -> str:
    """Return a text that is the same for equal values, whatever the order in dicts, sets and JSON texts."""
    return repr(_plain(value))


def _plain(value: Any) -> Any:
    if isinstance(value, str) and value[:1] == "{":
        try:
            return ("json", _plain(json.loads(value)))
        except ValueError:
            return value
    if isinstance(value, str | int | float | bytes | bool | datetime.date | datetime.time | type(None)):
        return value
    if isinstance(value, dict):
        return ("dict", sorted(((repr(_plain(k)), _plain(v)) for k, v in value.items()), key=repr))
    if isinstance(value, set | frozenset):
        return ("set", sorted(map(repr, map(_plain, value))))
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    fields = getattr(value, "__dict__", None)
    if fields is not None:
        return (type(value).__name__, _plain(dict(fields)))
    return repr(value)


# -- what goes in ----------------------------------------------------------------------------------------------------------


@dataclass
class PreparedJob:
    """A program that is ready to run. ``sinks``: the sinks of the program, by the name of their recorder."""

    program: Program
    sinks: dict[str, Transformation]
    generated_ids: list[Transformation]
    takes_checkpoints: bool
    """The user's program takes checkpoints."""

    @property
    def batch(self) -> bool:
        return bool(self.program.configuration[options.RUNTIME_MODE.key] == "BATCH")

    def graph(self) -> JobGraph:
        return build(self.program, self.program.configuration[options.PARALLELISM.key] or 1, None, {})

    def place(self, operator_id: int) -> str | None:
        return next((t.place for t in self.program.transformations if t.id == operator_id), None)

    def recorder(self, name: str) -> str:
        """Return the operator of a sink, for messages."""
        t = self.sinks[name]
        return f"sink '{t.name}'" + (f" ({t.spec.connector})" if t.spec.connector else "")

    def at_once(self, name: str) -> bool:
        sink: Any = self.sinks[name].spec
        return RecordingSink("", "", sink.sink).at_once

    def cure_of_sink(self, name: str) -> str:
        sink: Any = self.sinks[name].spec
        return f"{sink.sink.to_raise}; or overwrite by key, with a sink that upserts"

    def idempotent(self, name: str) -> bool:
        sink: Any = self.sinks[name].spec
        return bool(sink.sink.guarantee is SinkGuarantee.IDEMPOTENT)

    def variant(self, world: str, directory: str, parallelism: int | None, keys: Mapping[str, Any]) -> Program:
        """Return the program that writes to a world, with its checkpoints in a directory. ``parallelism``: of the operators that
        have the job's parallelism; None: as in the program."""
        before = self.program.configuration[options.PARALLELISM.key] or 1
        changed = []
        for t in self.program.transformations:
            spec: Any = t.spec
            if spec.role is Role.SINK:
                name = sink_name(t)
                spec = replace(spec, sink=RecordingSink(world, name, spec.sink))
            scaled = parallelism is not None and t.parallelism == before and (before > 1 or _scales(t))
            changed.append(replace(t, spec=spec, parallelism=parallelism if scaled else t.parallelism))
        configuration = {**self.program.configuration, **BASE_SETTINGS, **keys}
        configuration[options.PARALLELISM.key] = parallelism or before
        configuration[options.CHECKPOINT_DIR.key] = f"{directory}/checkpoints"
        configuration[options.JOB_ID.key] = "certified"
        return replace(self.program, transformations=tuple(changed), configuration=configuration)


def _scales(t: Transformation) -> bool:
    """Tell whether an operator of a program with parallelism 1 may have another one."""
    keyed = [i.partitioning is not None and i.partitioning.is_keyed for i in t.inputs]
    return t.spec.role is Role.OPERATOR and bool(keyed) and all(keyed) and t.max_parallelism != 1


BASE_SETTINGS: dict[str, Any] = {
    "execution.target": "test",
    "execution.checkpointing.interval": 100,
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "execution.checkpointing.tolerable-failed-checkpoints": 2,
    "execution.checkpointing.timeout": 2_000,
    "execution.state-recovery.path": None,
    "tidegate.checkpoint.lease-timeout": 900,
    "restart-strategy.type": "fixed-delay",
    "restart-strategy.fixed-delay.attempts": 8,
    "restart-strategy.fixed-delay.delay": 10,
    "tidegate.chunk.records": 3,
    "tidegate.commit.backoff": 1,
    "tidegate.state.map-size": 1 << 22,
    "tidegate.savepoint.transfer-threads": 1,
    "metrics.reporter.prom.port": None,
    "tidegate.functions.inline": False,
}


def sink_name(t: Transformation) -> str:
    return f"{t.id}:{t.name}"


def prepare(program: Program, inputs: Mapping[str, str]) -> PreparedJob:
    """Replace the sources of a program. ``inputs``: name or uid of a source -> file with its sample."""
    left = dict(inputs)
    names = {name for t in program.transformations if t.spec.role is Role.SOURCE for name in (t.uid, t.name) if name}
    if not names.issuperset(left):
        raise ConfigurationError(
            "--input names no source of the program",
            found=", ".join(sorted(set(left) - names)),
            cure=f"use one of {', '.join(map(repr, sorted(names)))}",
        )
    changed = []
    for t in program.transformations:
        spec: Any = t.spec
        if spec.role is Role.SOURCE:
            path = left.pop(t.uid or "", None) or left.pop(t.name, None)
            if path is not None:
                spec = replace(spec, source=SampleSource(_sample(path, spec)), declared=None)
            else:
                _check_readable(t, spec.source)
            t = replace(t, spec=spec)
        changed.append(t)
    ready = replace(program, transformations=tuple(changed))
    graph = build(ready, ready.configuration[options.PARALLELISM.key] or 1, None, {})
    without = Counter(GeneratedIds(program, graph).operators)
    missing = [t for t in program.transformations if not (t.uid or t.uid_hash) and _take(without, t.name)]
    takes = program.configuration[options.CHECKPOINT_INTERVAL.key] is not None
    sinks = {sink_name(t): t for t in changed if t.spec.role is Role.SINK}
    return PreparedJob(ready, sinks, missing, takes)


def _take(names: Counter[str], name: str) -> bool:
    names[name] -= 1
    return names[name] >= 0


class SampleSource(CollectionSource):
    """A recorded sample in place of a source. ``values``: pairs of an event time, or None, and a record."""

    gives_time = True  # as the source that it replaces

    def create_reader(self, subtask: int) -> SplitReader:
        return _SampleReader(self.values)


class _SampleReader(SplitReader):
    interleaves = True

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        taken = self._values[interval.start : interval.end]
        times = [moment for moment, _ in taken]
        timed = any(moment is not None for moment in times)
        yield Batch([own(value) for _, value in taken], times if timed else None)


def _sample(path: str, spec: Any) -> list[tuple[int | None, Any]]:
    """Read a sample: a line of text for each record, or with .jsonl a JSON value, or {"at": milliseconds, "value": ...}."""
    file = Path(path)
    if not file.is_file():
        raise ConfigurationError(
            "The sample of a source does not exist", found=path, cure="--input NAME=FILE with a file of lines"
        )
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    if file.suffix != ".jsonl":
        return [(None, line) for line in lines]
    convert = collection_converter(spec.declared)
    values = [_parsed(path, number, line) for number, line in enumerate(lines, 1)]
    timed = bool(values) and all(isinstance(value, dict) and set(value) == {"at", "value"} for value in values)
    pairs = [(value["at"], value["value"]) if timed else (None, value) for value in values]
    return [(moment, value if convert is None else convert.call(value)) for moment, value in pairs]


def _parsed(path: str, number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ConfigurationError(
            "A line of a sample is no JSON",
            where=f"{path}:{number}",
            found=str(error),
            cure="write one JSON value a line",
        ) from None


def _check_readable(t: Transformation, source: Any) -> None:
    """Refuse a source that reads something outside, or never ends."""
    why = None
    if source.boundedness is not Boundedness.BOUNDED:
        why = "it never ends"
    elif isinstance(source, FileSource):
        remote = [path for path in source.paths if "://" in path and not path.startswith("file://")]
        why = f"it reads {remote[0]}" if remote else None
    elif not isinstance(source, CollectionSource | NumberSequenceSource | DataGeneratorSource | TestSource):
        why = "it may read another system"
    if why is not None:
        name = t.uid or t.name
        raise ConfigurationError(
            "certify reads no source of a real system: it needs a recorded sample",
            where=f"source '{name}' ({type(source).__name__})" + (f", {t.place}" if t.place else ""),
            found=why,
            cure=f"--input {name}=FILE with a line for each record (FILE.jsonl: a JSON value)",
        )


def inputs_of(texts: list[str]) -> dict[str, str]:
    """Parse ``NAME=FILE`` texts."""
    found = {}
    for text in texts:
        name, separator, path = text.partition("=")
        if not separator or not name or not path:
            raise ConfigurationError("--input needs NAME=FILE", found=repr(text), cure="--input orders=sample.jsonl")
        found[name] = os.path.abspath(path)
    return found
