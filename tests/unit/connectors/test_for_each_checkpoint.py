"""The sink of ``for_each_checkpoint``: the contract, with a function that writes each id once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, CommitError, OutputLostError, ProgramError
from tidegate.connectors.frames.for_each_checkpoint import ForEachCheckpointSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.operators.contracts.sink import SinkGuarantee
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun

pytestmark = pytest.mark.usefixtures("lists_instead_of_frames")


def written_by_id(directory: Path) -> Any:
    def write(frame: list[Any], checkpoint_id: int) -> None:
        (directory / f"checkpoint-{checkpoint_id}").write_text(json.dumps(frame))

    return write


class TestForEachCheckpoint(SinkContract):
    def make_sink(self, directory: Path) -> ForEachCheckpointSink:
        return ForEachCheckpointSink(written_by_id(directory), None, idempotent=True)

    def visible(self, directory: Path) -> list[Any]:
        return [value for file in directory.glob("checkpoint-*") for value in json.loads(file.read_text())]

    def leftovers(self, directory: Path) -> list[str]:
        rows = directory / "staging" / "rows"
        return [file.name for file in rows.iterdir()] if rows.exists() else []


def run_of(write: Any, tmp_path: Path) -> SinkRun:
    return SinkRun(ForEachCheckpointSink(write, None), str(tmp_path / "staging"), lambda n: n)


def test_guarantee_depends_on_idempotent() -> None:
    assert ForEachCheckpointSink(print, None).guarantee is SinkGuarantee.WRITE_AHEAD
    assert ForEachCheckpointSink(print, None, idempotent=True).guarantee is SinkGuarantee.IDEMPOTENT


def test_not_called_without_records(tmp_path: Path) -> None:
    calls: list[Any] = []
    run = run_of(lambda frame, number: calls.append((sorted(frame), number)), tmp_path)
    run.step(0, checkpoint=True)
    run.step(4)
    run.step(0, checkpoint=True)
    run.step(0, checkpoint=True)
    assert calls == [([0, 1, 2, 3], 2)]


def test_a_failing_function_names_the_checkpoint(tmp_path: Path) -> None:
    def write(frame: Any, number: int) -> None:
        raise OSError("disk full")

    run = run_of(write, tmp_path)
    run.accept(run.attempt(2, checkpoint=True), 2)
    with pytest.raises(CommitError, match="disk full"):
        run.commit()


def test_commit_with_missing_records_fails(tmp_path: Path) -> None:
    run = run_of(lambda frame, number: None, tmp_path)
    run.accept(run.attempt(2, checkpoint=True), 2)
    next((tmp_path / "staging" / "rows").iterdir()).unlink()
    with pytest.raises(OutputLostError, match="no file"):
        run.commit()


def test_records_without_a_type_are_refused() -> None:
    numbers = StreamExecutionEnvironment.get_execution_environment().from_collection([1, 2])
    with pytest.raises(ProgramError, match="needs the type of its records"):
        numbers.for_each_checkpoint(print)
    with pytest.raises(ArgumentTypeError, match="a function of a DataFrame and an id"):
        numbers.for_each_checkpoint(1)  # type: ignore[arg-type]
