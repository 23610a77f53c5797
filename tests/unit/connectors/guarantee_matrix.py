"""Every kind of source with every kind of sink through a failure: what a reader meets, beside what was computed before the start.

Each job is told in its second round to take a checkpoint; in that round every task is run twice (the first attempt is a zombie,
whose output is lost), and its seventh round fails when all its tasks have run. Then it restores, and runs to its end.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from senders import Sender

from tidegate.common import Encoder
from tidegate.common.errors import RoundError
from tidegate.connectors.collection import CollectionSource
from tidegate.connectors.data_generator import DataGeneratorSource
from tidegate.connectors.file_sink import FileSink
from tidegate.connectors.file_source import FileSource
from tidegate.connectors.function_sink import FunctionSink
from tidegate.connectors.number_sequence import NumberSequenceSource
from tidegate.connectors.socket_source import SocketSource
from tidegate.connectors.text_lines import StreamFormat
from tidegate.connectors.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from tidegate.graph.transformation import Input, MapSpec, Program, SinkSpec, SourceSpec, Transformation
from tidegate.operators.rows import Ack
from tidegate.operators.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)
from tidegate.operators.source import Source
from tidegate.runtime.commands import TriggerCheckpoint
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.guarantee import Guarantee
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulated_engine import Chances, SimulatedEngine

COUNT, KEYS, IN_A_ROUND = 40, 3, 3
_TWICE, _ASKED, _FAILS = 2, 2, 7


@dataclass(frozen=True)
class Seen:
    """By a reader of the output, over the whole life of the job."""

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


SOURCES: dict[str, Callable[[Path, ExitStack], Source]] = {
    "number sequence": _numbers,
    "collection": _collection,
    "data generator": _generator,
    "files": _files,
    "socket": _socket(False),
    "socket, write-ahead": _socket(True),
}


# -- sinks: each writes what a reader outside of the job can see, in the order in which it can ---------------------------


class _Target:
    """A file that grows by whole lines, whatever process writes."""

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
    """A transaction is a file; the commit adds its values to what is visible, once."""

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
    """Values are kept with the checkpoint, and written when it is complete; nothing remembers that they were."""

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
    """The value of a key is overwritten as soon as there is another."""

    guarantee = SinkGuarantee.IDEMPOTENT


@dataclass(frozen=True)
class SinkKind:
    make: Callable[[Path], Sink]
    read: Callable[[Path], list[int]]
    upserts: bool = False


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
    "files": SinkKind(
        lambda d: FileSink.for_row_format(str(d / "out"), Encoder.simple_string_encoder()).build(), _committed_files
    ),
}


# -- a run -------------------------------------------------------------------------------------------------------------


class _Engine(SimulatedEngine):
    """Fails once, when the checkpoint it has asked the job for is complete and committed, and some rounds later."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.rounds, self._asked = 0, TriggerCheckpoint()
        self.master: JobMaster | None = None

    def run(self, plan: RoundPlan) -> list[Ack]:
        assert self.master is not None
        self.rounds += 1
        if self.rounds == _ASKED:
            self.master.submit(self._asked)
        self._chances = Chances(zombie=1.0 if self.rounds == _TWICE else 0.0)
        acks = super().run(plan)
        if self.rounds == _FAILS:
            self._asked.answer.result(60)
            raise RoundError("The failure of this test")
        return acks


def observe(source: str, sink: str, directory: Path) -> tuple[Guarantee, Seen]:
    """What was computed, and what was seen."""
    with ExitStack() as undo:
        made, kind, engine = SOURCES[source](directory, undo), SINKS[sink], _Engine()
        master = JobMaster(_program(made, kind.make(directory), directory), engine, local_root=f"{directory}/local")
        engine.master = master
        master.run()
        attempts, guarantee = master.view().attempts, master.view().guarantee
        assert len(attempts) == 2 and attempts[1].checkpoint is not None, (
            "nothing failed, or no checkpoint was restored"
        )
        assert guarantee is not None and engine.fired["zombie"]
        return guarantee, _judged(kind.read(directory), kind.upserts)


def _program(source: Source, sink: Sink, directory: Path) -> Program:
    read = Transformation(1, "numbers", SourceSpec(source))
    mapped = Transformation(2, "int", MapSpec(int), (Input(1),))
    written = Transformation(3, "sink", SinkSpec(sink), (Input(2),))
    settings: dict[str, Any] = {
        "execution.checkpointing.interval": 3_600_000,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.delay": 0,
        "tidegate.round.max-records": IN_A_ROUND,
        "tidegate.state.map-size": 1 << 20,
        "parallelism.default": 1,
    }
    return Program("matrix", (read, mapped, written), settings)


def _judged(values: list[int], upserts: bool) -> Seen:
    by_key = [[value for value in values if value % KEYS == key] for key in range(KEYS)]
    return Seen(
        lost=set(values) != set(range(COUNT)),
        doubled=not upserts and len(values) > len(set(values)),
        reappeared=upserts and any(history != sorted(history) for history in by_key),
    )


def rows() -> Iterator[tuple[str, str, Guarantee, Seen]]:
    """The whole matrix."""
    for source in SOURCES:
        for sink in SINKS:
            with TemporaryDirectory() as directory:
                yield source, sink, *observe(source, sink, Path(directory))


def page() -> str:
    """As the table of the page."""
    head = ["| source | sink | computed | seen after a failure |", "|---|---|---|---|"]
    return "\n".join(head + [f"| {source} | {sink} | {of.name} | {seen} |" for source, sink, of, seen in rows()])


if __name__ == "__main__":
    print(page())
