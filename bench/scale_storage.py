"""What a checkpoint of many files or operators costs: size and time of ``_metadata``, and of a directory with all files.

Prints one JSON line. The files hold one byte each and lie on a local disk: what an object store adds for each request is not here.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tidegate.base.clock import SystemClock
from tidegate.base.files import Files
from tidegate.checkpoint.completed import CompletedCheckpoints
from tidegate.checkpoint.lease import acquire
from tidegate.checkpoint.locate import all_completed
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState, decode_metadata, encode_metadata
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile, StateSchema
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot, in_use, redistribute

FILES_EACH = 5
"""State files of a subtask: a base and some segments."""
_SCHEMAS = (StateSchema("count", "value", "LONG"),)


def operator(number: int, subtasks: int, checkpoint: int) -> OperatorState:
    name = f"{number:032x}"

    def snapshot(n: int) -> OperatorSnapshot:
        groups = range_for(n, subtasks, 32_768)
        # The last file of each subtask is of this checkpoint, the others are older.
        versions = [0] * (FILES_EACH - 1) + [checkpoint]
        paths = [f"shared/{name[-12:]}-{n}-{version}-{k:012x}.segment" for k, version in enumerate(versions)]
        files = tuple(StateFile(path, 1, f"{n:032x}", f"0123456789ab-{n}", groups, 10) for path in paths)
        return OperatorSnapshot({KEYED: KeyedPart(groups, files, _SCHEMAS, "LONG")}, 1_700_000_000_000)

    subs = [snapshot(n) for n in range(subtasks)]
    return OperatorState(
        uid_hash=name,
        uid=f"operator-{number}",
        name=f"operator {number}",
        parallelism=subtasks,
        max_parallelism=32_768,
        subtasks=subs,
    )


def metadata(operators: int, subtasks: int, checkpoint: int, token: int = 1) -> CheckpointMetadata:
    every = [operator(number, subtasks, checkpoint) for number in range(operators)]
    return CheckpointMetadata(
        checkpoint_id=checkpoint,
        job_id="job",
        job_name="job",
        token=token,
        trigger_ms=0,
        complete_ms=1,
        round=1,
        operators=every,
    )


class Timed:
    """Seconds by step."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, step: str) -> Iterator[None]:
        began = time.process_time()
        try:
            yield
        finally:
            self.seconds[step] = time.process_time() - began


def measured(operators: int, subtasks: int, touch: bool) -> dict[str, Any]:
    timed = Timed()
    first = metadata(operators, subtasks, 1)
    with timed("encode"):
        content = encode_metadata(first)
    with timed("decode"):
        decode_metadata("somewhere", content)
    held = first.operators[0].subtasks
    with timed("redistribute"):
        for _ in range(operators):
            redistribute(held, subtasks + 1, 32_768)
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as directory:
        files = Files(directory)
        lease = acquire(files, SystemClock(), job_id="job")
        lease.record_restored(None, [], [])
        with timed("open"):
            completed = CompletedCheckpoints(files, lease, 2)
        for number in range(1, 4):
            now = metadata(operators, subtasks, number, lease.token)
            if touch:
                _touch(directory, now)
            with timed("publish"):
                completed.add(now)
            used = in_use({(o, n): s for o, each in enumerate(now.operators) for n, s in enumerate(each.subtasks)})
            with timed("subsume"):
                completed.subsume(used)
        with timed("list"):
            list(all_completed(files))
        with timed("sweep"):
            CompletedCheckpoints(files, lease, 2).sweep(used)
    return {
        "operators": operators,
        "subtasks": subtasks,
        "files": len(first.state_files()),
        "metadata_bytes": len(content),
        "seconds": timed.seconds,
    }


def _touch(directory: str, checkpoint: CheckpointMetadata) -> None:
    Path(directory, "shared").mkdir(exist_ok=True)
    for path in checkpoint.paths():
        with open(os.path.join(directory, path), "wb") as file:
            file.write(b"x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operators", type=int, default=1)
    parser.add_argument("--subtasks", type=int, required=True, help=f"of each operator; each has {FILES_EACH} files")
    parser.add_argument("--no-files", action="store_true", help="leave the state files out")
    args = parser.parse_args()
    print(json.dumps(measured(args.operators, args.subtasks, not args.no_files)))


if __name__ == "__main__":
    main()
