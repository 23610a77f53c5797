"""Random programs with unaligned checkpoints, whose subtasks stop after a few records in every round: that never shows."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.compat.random_programs.generator import generate
from tests.compat.random_programs.run import differences
from tests.compat.test_random_programs import MakeEnv, check, live, make_env, written
from tests.simulation.stingy_pace import stingy

__all__ = ["make_env"]  # the fixture

UNALIGNED = {
    "execution.checkpointing.interval": "10 ms",
    "execution.checkpointing.unaligned.enabled": "true",
    "pipeline.max-parallelism": "16",
    "tidegate.state.map-size": "16 mb",
}


@pytest.mark.parametrize("seed", range(4000, 4008))
def test_where_subtasks_stop_does_not_show(seed: int, make_env: MakeEnv) -> None:
    keys = {**UNALIGNED, "tidegate.round.max-records": str(seed % 7 + 2), "tidegate.chunk.records": str(seed % 4 + 1)}
    with stingy(seed):
        check(generate(seed), make_env(seed % 4 + 1, keys, seed))


@pytest.mark.parametrize("seed", range(5000, 5006))
def test_restarts_and_rescales_with_records_in_flight_do_not_show(seed: int, make_env: MakeEnv, tmp_path: Path) -> None:
    """Every life has another parallelism, and continues where the last one's checkpoint was."""
    program = generate(seed)
    records = sum(len(source.records) for source in program.sources)
    keys = {**UNALIGNED, "tidegate.round.max-records": "5", "tidegate.job-id": f"random-{seed}"}
    random = Random(seed)
    with stingy(seed):
        for parallelism in random.sample([1, 2, 3, 4], 3):
            if live(program, make_env(parallelism, keys, seed), tmp_path / "out", random.randint(1, records // 2 + 1)):
                break
        else:
            assert live(program, make_env(random.randint(1, 4), keys, seed), tmp_path / "out", -1)
    wrong = differences(program, written(tmp_path / "out"))
    assert not wrong, wrong
