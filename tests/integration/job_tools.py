"""What several tests of jobs on Spark need: readers of what a job left on disk, and small programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.checkpoint.history import HistoryEntry, read_history
from tidegate.common import Encoder, Types
from tidegate.common.files import Files
from tidegate.connectors.bucket_assigners import BucketAssigner
from tidegate.datastream import KeyedProcessFunction
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
