"""The program of ``test_sinks_killed.py``: numbers into one sink. It starts drivers, one for each line it reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.forked_drivers import start_drivers
from tests.simulation.executor import TARGET
from tests.sources import ScriptedSource
from tidegate.base.hashing import new_token
from tidegate.common import Configuration, Encoder, Types, WatermarkStrategy
from tidegate.common.types import Row
from tidegate.connectors.frames import for_each_checkpoint
from tidegate.connectors.functions.function_sink import UpsertSink
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSinkFunction
from tidegate.connectors.functions.write_ahead import DatabaseCheckpointCommitter, GenericWriteAheadSink
from tidegate.connectors.redis.sink import RedisSink
from tidegate.connectors.sockets.source import SocketSource
from tidegate.connectors.tables.delta import DeltaSink
from tidegate.connectors.tables.iceberg import IcebergSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.file_system import (
    BucketAssigner,
    FileCompactor,
    FileCompactStrategy,
    FileSink,
    RollingPolicy,
)
from tidegate.datastream.connectors.mysql import MySqlSink
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tidegate.datastream.formats.parquet import ParquetBulkWriters
from tidegate.operators.contracts.sink import (
    CommitterContext,
    GlobalCommitter,
    Prepared,
    Sink,
    SinkWriter,
    WriterContext,
)
from tidegate.runtime import master as _master  # noqa: F401

COUNT, BUCKET = 400, 100
ROW = Types.ROW_NAMED(["n"], [Types.LONG()])
EXACTLY, AT_LEAST = DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE


class Renaming(TwoPhaseCommitSinkFunction):
    """A transaction is a hidden file, and its commit gives it its name."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def begin_transaction(self) -> str:
        self.directory.mkdir(exist_ok=True)
        return new_token()

    def _hidden(self, transaction: str) -> Path:
        return self.directory / f".{transaction}"

    def invoke(self, transaction: str, value: int, context: Any) -> None:
        with self._hidden(transaction).open("a") as file:
            file.write(f"{value}\n")

    def pre_commit(self, transaction: str) -> None:
        pass

    def commit(self, transaction: str) -> None:
        if not (self.directory / transaction).exists():
            self._hidden(transaction).rename(self.directory / transaction)

    def abort(self, transaction: str) -> None:
        self._hidden(transaction).unlink(missing_ok=True)


class Versions(Sink):
    """Values travel in committables; the global committer writes one file for each checkpoint, whose name its first value gives."""

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _Values()

    def create_global_committer(self, context: CommitterContext) -> GlobalCommitter:
        return _Manifests(Path(self.directory))


class _Values(SinkWriter):
    def __init__(self) -> None:
        self._values: list[int] = []

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._values += values

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        return Prepared([self._values] if self._values else [])


class _Manifests(GlobalCommitter):
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def commit(self, committables: list[Any]) -> None:
        self._directory.mkdir(exist_ok=True)
        # Each has a file of its own: those of the last checkpoint may come together with the ones before
        for values in committables:
            hidden = self._directory / f".{values[0]}"
            hidden.write_text("".join(f"{value}\n" for value in values))
            hidden.rename(self._directory / str(values[0]))


class Sending(GenericWriteAheadSink):
    """Sending is by name, so a gap between sending and confirming does no harm."""

    def __init__(self, directory: str) -> None:
        super().__init__(DatabaseCheckpointCommitter(lambda: sqlite3.connect(f"{directory}.db", timeout=60), "?"))
        self.directory = Path(directory)

    def send_values(self, values: list[Any], checkpoint_id: int, timestamp: int) -> bool:
        self.directory.mkdir(exist_ok=True)
        hidden = self.directory / f".{values[0]}"
        hidden.write_text("".join(f"{value}\n" for value in values))
        hidden.rename(self.directory / str(values[0]))
        return True


class Files(UpsertSink):
    """A file for each key, replaced as a whole."""

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)

    def key_of(self, value: int) -> int:
        return value

    def upsert(self, entries: dict[Any, Any], version: tuple[int, int]) -> None:
        self.directory.mkdir(exist_ok=True)
        for key, value in entries.items():
            hidden = self.directory / f".{key}-{new_token()}"
            hidden.write_text(f"{value}\n")
            hidden.rename(self.directory / str(key))


def files(said: dict[str, Any]) -> Sink:
    builder = FileSink.for_row_format(f"{said['directory']}/out", Encoder.simple_string_encoder())
    builder = builder.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy()).with_success_markers()
    return builder.with_bucket_assigner(lambda n: f"b{int(n) // BUCKET}").build()


def compacted(said: dict[str, Any]) -> Sink:
    builder = FileSink.for_bulk_format(f"{said['directory']}/out", ParquetBulkWriters.for_row_type(ROW))  # type: ignore[arg-type]
    strategy = FileCompactStrategy.builder().enable_compaction_on_checkpoint(2).build()
    builder = builder.enable_compact(strategy, FileCompactor.concat_file_compactor())
    return builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner()).build()


def table(said: dict[str, Any]) -> Sink:
    kind = PostgreSqlSink if said["kind"].startswith("postgresql") else MySqlSink
    if said["kind"].endswith("upsert"):
        return kind(said["url"], Table(said["table"], ["id"], ["id"]), to_rows=_one(said), delivery=AT_LEAST)
    return kind(said["url"], Table(said["table"], ["id"]), to_rows=_one(said), delivery=EXACTLY)


def _one(said: dict[str, Any]) -> Callable[[int], list[Any]]:
    return lambda n: [(said["table"], (n,))]


def by_id(said: dict[str, Any]) -> Sink:
    def frame_of(files: list[str], type_info: Any) -> list[Any]:
        return [record for file in files for record in for_each_checkpoint.kept_records(file)]

    def write(frame: list[Any], number: int) -> None:
        out = Path(said["directory"]) / "out"
        out.mkdir(exist_ok=True)
        (out / f".{number}").write_text("".join(f"{n}\n" for n in frame))
        (out / f".{number}").rename(out / str(number))

    for_each_checkpoint.dataframe_of = frame_of  # no Spark here
    return for_each_checkpoint.ForEachCheckpointSink(write, None, idempotent=True)


def lake(directory: str) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/out"}


KINDS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "files": files,
    "compacted": compacted,
    "two-phase": lambda said: Renaming(f"{said['directory']}/out"),
    "global": lambda said: Versions(f"{said['directory']}/out"),
    "write-ahead": lambda said: Sending(f"{said['directory']}/out"),
    "upsert": lambda said: Files(f"{said['directory']}/out"),
    "for-each": by_id,
    "delta": lambda said: DeltaSink(f"{said['directory']}/out", ROW),
    "iceberg": lambda said: IcebergSink("lake", "a.numbers", ROW, catalog_properties=lake(said["directory"])),
    "postgresql": table,
    "postgresql upsert": table,
    "mariadb": table,
    "mariadb upsert": table,
    "redis": lambda said: RedisSink.increments(said["url"], lambda n: said["table"], field=lambda n: n),
    "redis at once": lambda said: RedisSink.hashes(
        said["url"], lambda n: said["table"], lambda n: {n: 1}, at_once=True
    ),
}


def main(said: dict[str, Any]) -> None:
    directory, kind = said["directory"], said["kind"]
    keys = {
        "execution.target": TARGET,
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "execution.checkpointing.interval": "10",
        "restart-strategy.type": "none",
        "tidegate.round.max-records": "8",
        "tidegate.job-id": "killed",
        "parallelism.default": "2",
    }
    configuration = Configuration()
    for key, value in keys.items():
        configuration.set_string(key, value)
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    source: Any = ScriptedSource(*[list(range(split, COUNT, 2)) for split in range(2)])
    if "port" in said:
        source = SocketSource("127.0.0.1", said["port"], write_ahead=True)
    numbers = Types.STRING() if "port" in said else Types.LONG()
    stream: Any = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers", numbers).uid("numbers")
    if kind in ("compacted", "delta", "iceberg"):
        stream = stream.map(lambda n: Row(n=n), ROW).uid("rows")
    sink = KINDS[kind](said)
    (stream.sink_to(sink) if isinstance(sink, Sink) else stream.add_sink(sink)).uid("sink")
    env.execute("killed")


if __name__ == "__main__":
    start_drivers(main)
