"""``tidegate checkpoints --plot``: bars as high as the figures, failed checkpoints marked, as many as fit."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.simulation.executor import Simulated
from tidegate.checkpoint.history import CheckpointStatus, ListedCheckpoint
from tidegate.cli.checkpoint_list import FAILED, plots
from tidegate.cli.main import app
from tidegate.common import Types


def entry(number: int, took: float, size: int, *, failed: bool = False) -> ListedCheckpoint:
    return ListedCheckpoint(
        checkpoint_id=number,
        token=1,
        kind="checkpoint",
        status=CheckpointStatus.FAILED if failed else CheckpointStatus.COMPLETED,
        trigger_ms=1,
        end_ms=2,
        duration_ms=took,
        size=size,
        kept=None,
    )


def test_bars_are_as_high_as_the_figures() -> None:
    entries = [entry(7, 600, 0), entry(8, 300, 512), entry(9, 9_999, 0, failed=True), entry(10, 50, 2048)]
    assert plots(entries, 40) == [
        "duration, checkpoints 7 to 10; × failed: 1",
        "600 ms ┤█",
        "       │█",
        "       │█",
        "300 ms ┤██",
        "       │██",
        "     0 ┤██×▄",
        "",
        "size, checkpoints 7 to 10; × failed: 1",
        "2.0 KiB ┤   █",
        "        │   █",
        "        │   █",
        "1.0 KiB ┤   █",
        "        │ ▄ █",
        "      0 ┤ █×█",
    ]


def test_the_latest_checkpoints_that_fit_are_shown() -> None:
    lines = plots([entry(n, 100, 10) for n in range(1, 500)], 30)
    assert lines[0] == "duration, checkpoints 478 to 499" and max(map(len, lines[1:7])) == 30


def test_a_very_small_value_is_visible_and_only_failures_are_no_error() -> None:
    assert plots([entry(1, 10_000, 1), entry(2, 1, 1)], 40)[6].endswith("█▁")
    assert plots([entry(1, 5, 0, failed=True)], 20)[6].endswith(FAILED)


@pytest.fixture
def directory(simulated: Simulated, tmp_path: Path) -> Path:
    env = simulated(
        **{"execution.checkpointing.interval": "10 ms", "tidegate.round.max-records": 2, "tidegate.job-id": "plotted"}
    )
    env.from_collection(list(range(10)), Types.LONG()).key_by(lambda n: n % 2).sum().print()
    env.execute()
    return tmp_path / "checkpoints" / "plotted"


def test_the_command_draws_a_jobs_history(directory: Path) -> None:
    done = CliRunner().invoke(app, ["checkpoints", str(directory), "--plot"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("duration, checkpoints 1 to ") and "\nsize, checkpoints 1 to " in done.output
    assert "█" in done.output


@pytest.mark.parametrize("other", [["--json"], ["--id", "1"]])
def test_a_plot_of_one_checkpoint_or_as_json_is_refused(other: list[str], directory: Path) -> None:
    done = CliRunner().invoke(app, ["checkpoints", str(directory), "--plot", *other])
    assert done.exit_code == 2 and "--plot shows all checkpoints" in done.output
