"""The contract of sinks of tables, and the rows that its runs write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidegate.common import Row, Types
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import SinkRun

ROW = Types.ROW_NAMED(["n", "text"], [Types.LONG(), Types.STRING()])


def row(number: int) -> Row:
    return Row(n=number, text=f"t{number}")


class TableContract(SinkContract):
    """A sink that adds the rows of a checkpoint to its table in one commit."""

    commits_in_parts = False

    def value(self, number: int) -> Any:
        return number

    def _run(self, directory: Path, parallelism: int = 2) -> SinkRun:
        return SinkRun(self.make_sink(directory), str(directory / "staging"), row, parallelism)

    def leftovers(self, directory: Path) -> list[str]:
        staged = directory / "staging" / "batches"
        return [file.name for file in staged.iterdir()] if staged.exists() else []

    def test_random_runs_with_crashes_and_rescales(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        for number in range(6):
            run.step(3, checkpoint=number % 2 == 1)
            run.accept(run.attempt(2, checkpoint=True), 2)
            run.complete()
            run.restore(parallelism=1 + number % 3)
        self._check_end(run, tmp_path)
