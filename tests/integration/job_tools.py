"""What several tests of jobs on Spark need: readers of what a job left on disk, and small programs."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tidegate.base.errors import TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.history import HistoryEntry, read_history
from tidegate.common import Encoder, Types
from tidegate.connectors.files.bucket_assigners import BucketAssigner
from tidegate.datastream import KeyedProcessFunction, MapFunction, TwoPhaseCommitSinkFunction
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy
from tidegate.datastream.state import ValueStateDescriptor


def file_sink(directory: Path, policy: RollingPolicy | None = None) -> FileSink:
    """Lines into files right in the directory, a new one with every checkpoint unless another policy is given."""
    builder = FileSink.for_row_format(str(directory), Encoder.simple_string_encoder())
    builder.with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
    return builder.with_rolling_policy(policy or RollingPolicy.on_checkpoint_rolling_policy()).build()


def committed_files(directory: Path) -> list[Path]:
    """What a reader of a file sink's directory sees: files whose names do not begin with a dot."""
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))


def committed_lines(directory: Path) -> list[str]:
    return [line for path in committed_files(directory) for line in path.read_text().splitlines()]


def hidden_files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob(".*") if path.is_file())


def checkpoints(job: Path) -> list[int]:
    """Ids of the completed checkpoints in a job's directory."""
    return sorted(int(path.parent.name.removeprefix("chk-")) for path in job.glob("chk-*/_metadata"))


def history(job: Path) -> list[HistoryEntry]:
    return read_history(Files(str(job)))


def files_below(directory: Path) -> dict[str, bytes]:
    """Everything in a directory, to compare before and after."""
    return {str(p.relative_to(directory)): p.read_bytes() for p in sorted(directory.rglob("*")) if p.is_file()}


class Count(KeyedProcessFunction):
    """``(key, how many records of the key so far)`` for every record; the record's first field, or itself, is its key."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        count = (self.count.value() or 0) + 1
        self.count.update(count)
        yield ctx.get_current_key(), count


class RenamedFiles(TwoPhaseCommitSinkFunction):
    """A transaction is a file in ``open/``; a commit moves it to ``committed/``. Every call leaves a line in ``calls``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def note(self, text: str) -> None:
        with open(self.directory / "calls", "a") as file:
            file.write(f"{text}\n")

    def begin_transaction(self) -> str:
        (self.directory / "open").mkdir(exist_ok=True, parents=True)
        self.note("begin")
        return uuid.uuid4().hex

    def invoke(self, transaction: str, value: Any, context: Any) -> None:
        with open(self.directory / "open" / transaction, "a") as file:
            file.write(f"{value}\n")

    def pre_commit(self, transaction: str) -> None:
        self.note("pre_commit")

    def commit(self, transaction: str) -> None:
        (self.directory / "committed").mkdir(exist_ok=True)
        source = self.directory / "open" / transaction
        if source.exists():
            source.rename(self.directory / "committed" / transaction)
            self.note("commit")

    def abort(self, transaction: str) -> None:
        (self.directory / "open" / transaction).unlink(missing_ok=True)
        self.note("abort")


class FailOnce(MapFunction):
    """Raises at the given values, at each of them once over all attempts: files in the directory remember."""

    def __init__(self, directory: Path, *values: Any, times: int = 1) -> None:
        self.directory, self.values, self.times = directory, values, times

    def map(self, value: Any) -> Any:
        if value in self.values:
            self.directory.mkdir(exist_ok=True)
            for number in range(self.times):
                try:
                    (self.directory / f"{value}-{number}").touch(exist_ok=False)
                except FileExistsError:
                    continue
                raise ValueError(f"scripted failure at {value}")
        return value


def check_message(
    error: TidegateError, *, rule: str, where: str | None = None, found: str, cure: str | None = None
) -> None:
    """What the parts of an error say, and that its text has them all."""
    for expected, part in ((rule, error.rule), (where, error.where), (found, error.found), (cure, error.cure)):
        if expected is not None:
            assert part is not None and expected in part, f"{expected!r} not in {part!r}"
            assert part in str(error)
