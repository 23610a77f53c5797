"""Run every kind of source with every kind of sink through a failure, and compare what a reader sees with the computed guarantee.

Each job takes a checkpoint in its second round. In that round every task runs twice: the first attempt is a zombie, whose output is
lost. Its seventh round fails after all its tasks have run. Then the job restores, and runs until it finishes.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.unit.connectors.senders import Sender
from tidegate.base.errors import RoundError
from tidegate.common import Encoder
from tidegate.connectors.files.file_format import StreamFormat
from tidegate.connectors.files.sink import FileSink
from tidegate.connectors.files.source import FileSource
from tidegate.connectors.frames import for_each_checkpoint
from tidegate.connectors.frames.for_each_checkpoint import ForEachCheckpointSink
from tidegate.connectors.functions.function_sink import FunctionSink
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from tidegate.connectors.sockets.source import SocketSource
from tidegate.connectors.values.data_generator import DataGeneratorSource
from tidegate.connectors.values.ranges import CollectionSource, NumberSequenceSource
from tidegate.graph.transformation import Input, Program, Transformation
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
from tidegate.operators.contracts.source import Source
from tidegate.operators.contracts.specs import MapSpec, SinkSpec, SourceSpec
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.commands import TriggerCheckpoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.guarantee import Guarantee
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import Chances, SimulatedEngine

COUNT, KEYS, IN_A_ROUND = 40, 3, 3
_TWICE, _ASKED, _FAILS = 2, 2, 7


@dataclass(frozen=True)
class Seen:
    """What a reader of the output sees, over the whole life of the job."""

    lost: bool
    doubled: bool
    reappeared: bool

    def __str__(self) -> str:
        names = [name for name in ("lost", "doubled", "reappeared") if getattr(self, name)]
        return ", ".join(names) or "nothing wrong"


# -- sources: the numbers from 0 to COUNT - 1 --------------------------------------------------------------------------


def _numbers(directory: Path, undo: ExitStack) -> Source:
    return NumberSequenceSource(0, COUNT - 1)


def _collection(directory: Path, undo: ExitStack) -> Source:
    return CollectionSource(range(COUNT))


def _generator(directory: Path, undo: ExitStack) -> Source:
    return DataGeneratorSource(lambda index: index, COUNT)


def _files(directory: Path, undo: ExitStack) -> Source:
    (directory / "in.txt").write_text("".join(f"{n:02d}\n" for n in range(COUNT)))  # lines of three bytes
    return FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(directory / "in.txt")).build()


def _socket(write_ahead: bool) -> Callable[[Path, ExitStack], Source]:
    def source(directory: Path, undo: ExitStack) -> Source:
        half = COUNT * 3 // 4
        sender = undo.enter_context(Sender(_lines(0, half), _lines(half, COUNT), holds=1))
        return SocketSource("127.0.0.1", sender.port, write_ahead=write_ahead)

    return source


def _lines(start: int, end: int) -> str:
    return "".join(f"{n}\n" for n in range(start, end))


SourceKind = Callable[[Path, ExitStack], Source]

SOURCES: dict[str, SourceKind] = {
    "number sequence": _numbers,
    "collection": _collection,
    "data generator": _generator,
    "files": _files,
    "socket": _socket(False),
    "socket, write-ahead": _socket(True),
}


# -- sinks: each writes what a reader outside of the job can see, in the order in which it can ---------------------------


class _Target:
    """Append whole lines to a file, from any process."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def add(self, values: list[int]) -> None:
        with open(self.path, "a") as stream:
            stream.write("".join(f"{value}\n" for value in values))

    def add_one(self, value: int) -> None:
        self.add([value])

    def read(self) -> list[int]:
        if not os.path.exists(self.path):
            return []
        with open(self.path) as stream:
            return [int(line) for line in stream]


class _Transactions(TwoPhaseCommitSinkFunction):
    """A transaction is a file. The commit adds its values to the visible ones, once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def begin_transaction(self) -> str:
        return str(self.directory / f"transaction-{uuid.uuid4().hex}")

    def invoke(self, transaction: str, value: int, context: Any) -> None:
        _Target(Path(transaction)).add([value])

    def pre_commit(self, transaction: str) -> None: ...

    def commit(self, transaction: str) -> None:
        if not os.path.exists(f"{transaction}.done"):
            os.rename(transaction, f"{transaction}.done")

    def abort(self, transaction: str) -> None:
        if os.path.exists(transaction):
            os.unlink(transaction)


class _WriteAhead(Sink):
    """Stage values with the checkpoint, and write them when it is complete. Nothing confirms the write."""

    guarantee = SinkGuarantee.WRITE_AHEAD
    publication = Publication.CHECKPOINT

    def __init__(self, target: _Target) -> None:
        self.target = target

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _Kept()

    def create_committer(self, context: CommitterContext) -> Committer:
        return _Writing(self.target)


class _Kept(SinkWriter):
    def __init__(self) -> None:
        self._values: list[int] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._values += values

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared([self._values] if self._values else [])


class _Writing(Committer):
    def __init__(self, target: _Target) -> None:
        self._target = target

    def commit(self, committables: list[Any]) -> None:
        for values in committables:
            self._target.add(values)


class _Upserts(FunctionSink):
    """Overwrite the value of a key as soon as there is a new one."""

    guarantee = SinkGuarantee.IDEMPOTENT


class _ById:
    """Write the records of a checkpoint under its id. A repeated write changes nothing."""

    def __init__(self, directory: Path) -> None:
        self.directory = str(directory)

    def __call__(self, records: list[int], checkpoint_id: int) -> None:
        with open(f"{self.directory}/by-id-{checkpoint_id}", "w") as file:
            file.write("".join(f"{record}\n" for record in records))


@dataclass(frozen=True)
class SinkKind:
    """``read``: all values that were ever visible, each as often as it was. ``upserts``: a value replaces the one before of its
    key. ``latest``: which values are visible now, by key, where ``read`` does not give them in their order; asked after each
    round."""

    make: Callable[[Path], Sink]
    read: Callable[[Path], list[int]]
    upserts: bool = False
    latest: Callable[[Path], dict[Any, int]] | None = None
    settings: dict[str, str] = field(default_factory=dict)


ROUNDS = {"execution.checkpointing.mode": "AT_LEAST_ONCE"}


def _target(directory: Path) -> _Target:
    return _Target(directory / "seen")


def _committed_files(directory: Path) -> list[int]:
    parts = (directory / "out").rglob("*")
    return [int(line) for part in parts if part.is_file() and not part.name.startswith(".") for line in part.open()]


SINKS: dict[str, SinkKind] = {
    "sink function": SinkKind(lambda d: FunctionSink(_target(d).add_one), lambda d: _target(d).read()),
    "write-ahead": SinkKind(lambda d: _WriteAhead(_target(d)), lambda d: _target(d).read()),
    "idempotent (upserts)": SinkKind(lambda d: _Upserts(_target(d).add_one), lambda d: _target(d).read(), upserts=True),
    "two-phase commit": SinkKind(
        lambda d: TwoPhaseCommitSink(_Transactions(d)),
        lambda d: [v for file in d.glob("transaction-*.done") for v in _Target(file).read()],
    ),
    "files": SinkKind(lambda d: _file_sink(d), _committed_files),
    "files, mode AT_LEAST_ONCE": SinkKind(lambda d: _file_sink(d), _committed_files, settings=ROUNDS),
    "for_each_checkpoint, idempotent": SinkKind(lambda d: _by_id(d), lambda d: _read_by_id(d)),
    "for_each_checkpoint, idempotent, mode AT_LEAST_ONCE": SinkKind(
        lambda d: _by_id(d), lambda d: _read_by_id(d), settings=ROUNDS
    ),
}


def _by_id(directory: Path) -> Sink:
    return ForEachCheckpointSink(_ById(directory), None, idempotent=True)


def _read_by_id(directory: Path) -> list[int]:
    return [value for file in directory.glob("by-id-*") for value in _Target(file).read()]


def _file_sink(directory: Path) -> FileSink:
    return FileSink.for_row_format(str(directory / "out"), Encoder.simple_string_encoder()).build()


# -- a run -------------------------------------------------------------------------------------------------------------


class _Engine(SimulatedEngine):
    """Fails once, when the checkpoint it has asked the job for is complete and committed, and some rounds later."""

    def __init__(self, look: Callable[[], dict[Any, int]]) -> None:
        super().__init__(seed=1)
        self.rounds, self._asked, self._look = 0, TriggerCheckpoint(), look
        self.master: JobMaster | None = None
        self.looks: list[dict[Any, int]] = []

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self.master is not None
        self.rounds += 1
        if self.rounds == _ASKED:
            self.master.submit(self._asked)
        self._chances = Chances(zombie=1.0 if self.rounds == _TWICE else 0.0)
        acks = super().run(plan)
        self.looks.append(self._look())
        if self.rounds == _FAILS:
            self._asked.answer.result(60)
            raise RoundError("The failure of this test")
        return acks


def observe(source: SourceKind, kind: SinkKind, directory: Path) -> tuple[Guarantee, Seen]:
    """The computed guarantee, and what a reader saw."""
    with ExitStack() as undo:
        made, engine = source(directory, undo), _Engine(lambda: kind.latest(directory) if kind.latest else {})
        undo.callback(setattr, for_each_checkpoint, "dataframe_of", for_each_checkpoint.dataframe_of)
        for_each_checkpoint.dataframe_of = _records  # there is no Spark here
        program = _program(made, kind.make(directory), directory, kind.settings)
        master = JobMaster(program, engine, local_root=f"{directory}/local")
        engine.master = master
        master.run()
        attempts, guarantee = master.view().attempts, master.view().guarantee
        assert len(attempts) == 2 and attempts[1].checkpoint is not None, (
            "nothing failed, or no checkpoint was restored"
        )
        assert guarantee is not None and engine.fired["zombie"]
        looks = [*engine.looks, kind.latest(directory) if kind.latest else {}]
        return guarantee, _judged(kind.read(directory), kind.upserts, looks)


def _records(files: list[str], type_info: Any) -> list[Any]:
    return [record for file in files for record in for_each_checkpoint.kept_records(file)]


def check(computed: Guarantee, seen: Seen) -> None:
    """Check that a reader sees what the computed guarantee promises."""
    assert (seen.lost, seen.doubled) == (computed.loses, computed.repeats)
    # Records that are not read again cannot reappear, unless they are made of state: the job of the matrix has none.
    assert seen.reappeared == (computed.reappears and not computed.loses)


def _program(source: Source, sink: Sink, directory: Path, more: dict[str, str]) -> Program:
    read = Transformation(1, "numbers", SourceSpec(source))
    mapped = Transformation(2, "int", MapSpec(int), (Input(1),))
    written = Transformation(3, "sink", SinkSpec(sink), (Input(2),))
    settings: dict[str, Any] = {
        "execution.checkpointing.interval": 600_000,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": 0,
        "tidegate.round.max-records": IN_A_ROUND,
        "tidegate.state.map-size": 1 << 20,
        "parallelism.default": 1,
        **more,
    }
    return Program("matrix", (read, mapped, written), settings)


def _judged(values: list[int], upserts: bool, looks: list[dict[Any, int]]) -> Seen:
    by_key = [[value for value in values if value % KEYS == key] for key in range(KEYS)]
    if looks[-1]:
        by_key = [[look[key] for look in looks if key in look] for key in range(KEYS)]
        assert looks[-1] == {key: max(range(key, COUNT, KEYS)) for key in range(KEYS)}, "the end result is wrong"
    return Seen(
        lost=set(values) != set(range(COUNT)),
        doubled=not upserts and len(values) > len(set(values)),
        reappeared=upserts and any(history != sorted(history) for history in by_key),
    )


# -- the table of the page: a line for each sink, a column for each source -------------------------------------------------


def cell(computed: Guarantee, seen: Seen) -> str:
    return f"{computed.name}; {seen}"


def table(sources: dict[str, SourceKind], sinks: dict[str, SinkKind]) -> str:
    lines = [["sink", *sources], ["---"] * (1 + len(sources))]
    for name, kind in sinks.items():
        with_all = [(source, TemporaryDirectory()) for source in sources]
        lines.append([name, *(cell(*_observed(sources[source], kind, place)) for source, place in with_all)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _observed(source: SourceKind, kind: SinkKind, place: TemporaryDirectory[str]) -> tuple[Guarantee, Seen]:
    with place as directory:
        return observe(source, kind, Path(directory))


def of_page(page: str, source: str, sink: str) -> str | None:
    """What the page says of the two."""
    lines = [
        [part.strip() for part in line.strip("|").split("|")] for line in page.splitlines() if line.startswith("| ")
    ]
    heads = next((line for line in lines if line[0] == "sink" and "number sequence" in line), [])
    found = next((line for line in lines if line[0] == sink and len(line) == len(heads)), None)
    return found[heads.index(source)] if found is not None and source in heads else None
